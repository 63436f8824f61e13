"""Small layers on the outputs of an encoder."""

from kbert.heads.discriminator import DiscriminatorHead
from kbert.heads.linear import ChoiceHead, SentenceHead, SpanHead, TokenHead
from kbert.heads.masked_lm import MaskedLMHead, TokenLogits
from kbert.heads.span_boundary import SpanBoundaryHead

__all__ = [
    "ChoiceHead",
    "DiscriminatorHead",
    "MaskedLMHead",
    "SentenceHead",
    "SpanBoundaryHead",
    "SpanHead",
    "TokenHead",
    "TokenLogits",
]
