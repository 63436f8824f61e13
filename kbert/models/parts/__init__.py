"""Parts of encoders that one family has in code: what they share, and those that kbert has."""

from kbert.models.parts.base import Part, part_of, register_part
from kbert.models.parts.bottleneck import Bottleneck
from kbert.models.parts.disentangled import Disentangled
from kbert.models.parts.dynamic_convolution import DynamicConvolution
from kbert.models.parts.global_tokens import GlobalTokens
from kbert.models.parts.movement import Movement
from kbert.models.parts.pruned import Pruned
from kbert.models.parts.quantized import Quantized
from kbert.models.parts.relative_bias import RelativeBias
from kbert.models.parts.task_embeddings import TaskEmbeddings

__all__ = [
    "Bottleneck",
    "Disentangled",
    "DynamicConvolution",
    "GlobalTokens",
    "Movement",
    "Part",
    "Pruned",
    "Quantized",
    "RelativeBias",
    "TaskEmbeddings",
    "part_of",
    "register_part",
]
