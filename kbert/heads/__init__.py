"""Small layers on the outputs of an encoder."""

from kbert.heads.choice import ChoiceHead
from kbert.heads.discriminator import DiscriminatorHead
from kbert.heads.masked_lm import MaskedLMHead
from kbert.heads.sentence import SentenceHead
from kbert.heads.span import SpanHead
from kbert.heads.span_boundary import SpanBoundaryHead
from kbert.heads.tokens import TokenHead

__all__ = [
    "ChoiceHead",
    "DiscriminatorHead",
    "MaskedLMHead",
    "SentenceHead",
    "SpanBoundaryHead",
    "SpanHead",
    "TokenHead",
]
