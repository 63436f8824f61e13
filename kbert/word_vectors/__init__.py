"""One vector for each word: word2vec, GloVe and fastText, read, written and trained."""

from kbert.word_vectors.fasttext import Subwords
from kbert.word_vectors.skip_gram import train_skip_gram
from kbert.word_vectors.vectors import WordVectors, split_words

__all__ = ["Subwords", "WordVectors", "split_words", "train_skip_gram"]
