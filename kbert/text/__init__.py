"""Sources of text: files, JSON lines, TensorFlow data sets, documentation; pairs; sentences."""

from kbert.text.chinese import chinese_lexicon
from kbert.text.pairs import Pairs, read_pairs, split_pairs
from kbert.text.sentences import split_sentences
from kbert.text.sources import documents, open_sources

__all__ = [
    "Pairs",
    "chinese_lexicon",
    "documents",
    "open_sources",
    "read_pairs",
    "split_pairs",
    "split_sentences",
]
