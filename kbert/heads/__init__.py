"""Small layers on the outputs of an encoder."""

from kbert.heads.discriminator import DiscriminatorHead
from kbert.heads.masked_lm import MaskedLMHead
from kbert.heads.sentence import SentenceHead
from kbert.heads.span_boundary import SpanBoundaryHead

__all__ = ["DiscriminatorHead", "MaskedLMHead", "SentenceHead", "SpanBoundaryHead"]
