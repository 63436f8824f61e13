"""Whole words as ids, for language models such as ELMo's biLM that predict words.

Shapes: B texts, W words of all texts together, V words of the vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.io.paths import Path
from kbert.tokenizers.base import Pieces, Tokenizer
from kbert.tokenizers.folder import WORDS_FILE
from kbert.tokenizers.normalization import drop_invalid
from kbert.tokenizers.offsets import given_ranges
from kbert.tokenizers.words.spaces import split_at_spaces
from kbert.tokenizers.words.vocabulary import (
    SPECIAL_WORDS,
    check_words,
    read_words,
    save_words,
)


class WordTokenizer(Tokenizer):
    """Splits text at white space and looks up its words.

    It gives the ids of allenai/bilm-tf's `Vocabulary` (bilm/data.py), eagerly, in `tf.data` and in
    a SavedModel (which must track `resources`). Text is not normalised: it keeps its case, and
    punctuation is not split off, so a corpus should be split into words first. "</S>" and "<S>" in
    a text get their ids too.

    Args:
        vocabulary: words in the order of their ids, or the path of a file with one word per line
            (bilm-tf's format, see `read_words`). It must contain "</S>", "<S>" and "<UNK>", which
            are `sep`, `cls` and `unk`; for a sampled softmax the others must be sorted by falling
            frequency.

    Example:
        >>> tokenizer = WordTokenizer(["</S>", "<S>", "<UNK>", "the", "sun", "."])
        >>> tokenizer.encode("the  red sun .").numpy().tolist()
        [3, 2, 4, 5]
        >>> tokenizer.decode([1, 3, 2, 4, 5, 0])
        'the <UNK> sun .'
    """

    kind = "words"

    def __init__(self, vocabulary: Sequence[str] | str | os.PathLike) -> None:
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = read_words(vocabulary)
        else:
            vocabulary = list(vocabulary)
            check_words(vocabulary)
        super().__init__(vocabulary, dict(zip(("sep", "cls", "unk"), SPECIAL_WORDS, strict=True)))
        self.continuation = np.zeros(len(vocabulary), bool)

    @property
    def resources(self) -> list[Any]:
        """The lookup table of words, which a SavedModel must track."""
        return [self._table]

    def get_config(self) -> dict[str, Any]:
        return {"vocabulary": list(self.vocabulary)}

    def _options(self) -> dict[str, Any]:
        return {"tokenizer_class": type(self).__name__}

    _file_names = (WORDS_FILE,)

    def _save_model(self, folder: Path) -> None:
        save_words(self.vocabulary, folder / WORDS_FILE)

    @cached_property
    def _words(self) -> tf.Tensor:
        """The words (V,); created on first use, outside of every graph."""
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(self.vocabulary)

    @cached_property
    def _table(self) -> tf.lookup.StaticHashTable:
        """The lookup table word -> id; words that are not in it get the unknown id."""
        with tf.init_scope(), tf.device("CPU"):
            ids = tf.range(self.vocabulary_size)
            entries = tf.lookup.KeyValueTensorInitializer(self._words, ids)
            return tf.lookup.StaticHashTable(entries, self.unk_id)

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        words, _, _ = split_at_spaces(drop_invalid(texts))
        return words.with_flat_values(self._table.lookup(words.flat_values))

    def _encode_words(self, words: tf.Tensor) -> tf.RaggedTensor:
        """(W,) words -> (W, 1) ids; a word may contain white space."""
        return tf.RaggedTensor.from_tensor(self._table.lookup(drop_invalid(words))[:, None])

    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        valid = drop_invalid(texts)
        words, starts, ends = split_at_spaces(valid)
        starts, ends = given_ranges(texts, valid, starts, ends)
        ids = words.with_flat_values(self._table.lookup(words.flat_values))
        return ids, starts, ends, tf.ones_like(ids.flat_values, tf.bool)

    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        words = ids.with_flat_values(tf.gather(self._words, ids.flat_values))
        return tf.strings.reduce_join(words, axis=-1, separator=" ")
