"""Sources of text: files, JSON lines, TensorFlow data sets, installed documentation; sentences."""

from kbert.text.sentences import split_sentences
from kbert.text.sources import documents, open_sources

__all__ = ["documents", "open_sources", "split_sentences"]
