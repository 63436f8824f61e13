"""Decodes whole texts from next-token logits: greedy search, sampling, beam search.

This subpackage does not depend on models: it calls a `step` function and passes the KV cache back.
"""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.decoding.constraints import Constraints as Constraints
    from kbert.decoding.generation_config import (
        GenerationSettings as GenerationSettings,
        read_generation_config as read_generation_config,
    )
    from kbert.decoding.loop import Decoded as Decoded, decode as decode
    from kbert.decoding.methods import (
        Beam as Beam,
        Greedy as Greedy,
        Method as Method,
        Sampling as Sampling,
    )
    from kbert.decoding.options import DecodingOptions as DecodingOptions
    from kbert.decoding.streaming import stream as stream
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
