"""Parts of encoders that one family has in code: what they share, and those that kbert has."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.models.parts.base import (
        Part as Part,
        part_of as part_of,
    )
    from kbert.models.parts.bottleneck import Bottleneck as Bottleneck
    from kbert.models.parts.disentangled import Disentangled as Disentangled
    from kbert.models.parts.dynamic_convolution import DynamicConvolution as DynamicConvolution
    from kbert.models.parts.global_tokens import GlobalTokens as GlobalTokens
    from kbert.models.parts.relative_bias import RelativeBias as RelativeBias
    from kbert.models.parts.task_embeddings import TaskEmbeddings as TaskEmbeddings
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
