"""Small layers on the outputs of an encoder."""

from kbert.heads.masked_lm import MaskedLMHead
from kbert.heads.sentence import SentenceHead

__all__ = ["MaskedLMHead", "SentenceHead"]
