"""Features: what a frozen encoder sees in texts, for every model that takes vectors."""

from kbert.extraction.described import TextVectors
from kbert.extraction.extract import features

__all__ = ["TextVectors", "features"]
