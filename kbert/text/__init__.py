"""Sources of text (files, JSON lines, TensorFlow data sets, documentation), pairs, sentences."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.text.chinese import chinese_lexicon as chinese_lexicon
    from kbert.text.pairs import (
        Pairs as Pairs,
        read_pairs as read_pairs,
        split_pairs as split_pairs,
    )
    from kbert.text.sentences import split_sentences as split_sentences
    from kbert.text.sources import documents as documents, open_sources as open_sources
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
