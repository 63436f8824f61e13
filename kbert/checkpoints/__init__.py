"""Reads and writes folders of weights as name -> array tables; needs configs, not models."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.checkpoints.checkpoint import Checkpoint as Checkpoint
    from kbert.checkpoints.folder import (
        read_checkpoint as read_checkpoint,
        write_checkpoint as write_checkpoint,
    )
    from kbert.checkpoints.keys import ignoring as ignoring
    from kbert.checkpoints.vocabulary import extend_vocabulary as extend_vocabulary
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
