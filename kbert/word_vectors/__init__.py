"""Static word vectors: loads word2vec, GloVe and fastText, saves and trains."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.word_vectors.fasttext import Subwords as Subwords
    from kbert.word_vectors.glove import Glove as Glove
    from kbert.word_vectors.negative_sampling import (
        Cbow as Cbow,
        FastText as FastText,
        SkipGram as SkipGram,
    )
    from kbert.word_vectors.training import (
        train_skip_gram as train_skip_gram,
        train_word_vectors as train_word_vectors,
    )
    from kbert.word_vectors.vectors import WordVectors as WordVectors, split_words as split_words
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
