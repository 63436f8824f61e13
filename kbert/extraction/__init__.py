"""Features of texts from a frozen encoder, for any model that takes vectors."""

from kbert.extraction.cosines import WordInContext, nearest, similarity, word_in_context
from kbert.extraction.described import TextVectors
from kbert.extraction.export import export_features
from kbert.extraction.extract import features
from kbert.extraction.files import TokenVectors, read_features
from kbert.extraction.text_features import TextFeatures
from kbert.extraction.write import write_features

__all__ = [
    "TextFeatures",
    "TextVectors",
    "TokenVectors",
    "WordInContext",
    "export_features",
    "features",
    "nearest",
    "read_features",
    "similarity",
    "word_in_context",
    "write_features",
]
