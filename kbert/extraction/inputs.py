"""Inputs of features: texts, pairs of texts or lists of words, and their token ids.

Shapes: `N` texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kbert.core.in_memory import check_order, has_columns, rows_of
from kbert.core.late import tf
from kbert.core.types import MaybeNone
from kbert.data.tables.table import Table, as_table
from kbert.inference import as_rows, as_texts
from kbert.tokenizers.base import Tokenizer


class Texts(NamedTuple):
    """Texts, pairs of texts, or texts given as lists of words.

    Attributes:
        first: N texts, or N lists of words.
        second: N texts, or None.
        in_words: whether the texts are lists of words.
        start: number of the first text in error messages: 0 unless others came before.
    """

    first: Sequence
    second: Sequence | None = None
    in_words: bool = False
    start: int = 0

    def __len__(self) -> int:
        return len(self.first)

    def part(self, rows: slice) -> "Texts":
        """Returns the texts of the slice `rows`; numbers in messages stay those of all texts."""
        second = None if self.second is None else self.second[rows]
        start = self.start + rows.indices(len(self))[0]
        return Texts(self.first[rows], second, self.in_words, start)


def as_inputs(texts: Any, words: bool = False, start: int = 0) -> Texts:
    """Converts every input that `kbert.features` accepts to `Texts`.

    Args:
        texts: strings, or pairs of strings (tuples); with `words` also lists of words; or columns
            `text`, `first` and `second`, or `words`, in any form that `kbert.data.as_table` reads.
        words: whether word vectors are requested.
        start: number of the first text in error messages.

    Raises:
        TypeError: an item is not a text.
        ValueError: the texts are pairs but word vectors are requested, or an item is not a pair.

    Example:
        >>> as_inputs([("Is it?", "It is.")])
        Texts(first=['Is it?'], second=['It is.'], in_words=False, start=0)
        >>> as_inputs([["It", "is"]], words=True)
        Texts(first=[['It', 'is']], second=None, in_words=True, start=0)
    """
    if texts is None:
        raise TypeError("texts must be strings, pairs or lists of words. Received: None")
    if has_columns(texts):
        return _from_table(as_table(texts, start=start), words)
    check_order(texts, "The value of texts")
    rows = [texts] if isinstance(texts, str | bytes) else list(rows_of(texts))
    if not rows or isinstance(rows[0], str | bytes):
        return Texts(as_texts(rows, start=start), start=start)
    if isinstance(rows[0], Mapping):
        return _from_table(as_table(rows, start=start), words)
    if words:
        lists = [_words(item, number) for number, item in enumerate(rows, start)]
        return Texts(lists, in_words=True, start=start)
    for number, item in enumerate(rows, start):
        if not isinstance(item, tuple) or len(item) != 2:
            raise ValueError(
                "Texts must be all strings, or all pairs of strings (tuples; lists of words "
                f"require words=True). Received: {item!r} as number {number}"
            )
    first, second = zip(*rows, strict=True)
    sides = (as_texts([*first], "first texts", start), as_texts([*second], "second texts", start))
    return Texts(*sides, start=start)


def _from_table(table: Table, words: bool) -> Texts:
    """Returns the texts in a table's columns `text`, or `first` and `second`.

    With `words` a column `words` takes precedence, and pairs raise ValueError.
    """
    if words and "words" in table:
        return Texts(table["words"], in_words=True, start=table.start)
    if "text" in table:
        return Texts(table["text"], start=table.start)
    if words and "first" in table:
        raise ValueError("Word vectors require single texts. Received: a table of pairs")
    if "first" in table and "second" in table:
        return Texts(table["first"], table["second"], start=table.start)
    raise ValueError(
        "Texts must be in the column `text`, or in `first` and `second` for pairs (`words` with "
        f"words=True). Received: the columns {', '.join(table.columns)}"
    )


def _words(item: Any, number: int) -> list[str]:
    """Returns the words of text number `number` as strings; ValueError if `item` is one string."""
    if isinstance(item, str | bytes):
        raise ValueError(
            f"Texts must be all strings, or all lists of words. Received: {item!r} as number "
            f"{number}, after lists of words"
        )
    words = as_texts(item, f"the words of text number {number}")
    return [word.decode("utf-8", "replace") if isinstance(word, bytes) else word for word in words]


class Encoded(NamedTuple):
    """Token ids of one text with offsets and words; None for what was not requested.

    Attributes:
        ids: (tokens,), token ids.
        starts, ends: (tokens,), start and end of each token in characters of the text.
        word_of: (tokens,), the number of each token's word.
    """

    ids: np.ndarray
    starts: np.ndarray | MaybeNone = None
    ends: np.ndarray | MaybeNone = None
    word_of: np.ndarray | MaybeNone = None


def encode(tokenizer: Tokenizer, texts: Sequence, *, offsets: bool) -> list[Encoded]:
    """Returns the token ids of strings; with `offsets` all fields, which is much slower."""
    batch = tf.constant(list(texts), tf.string)
    if not offsets:
        return [Encoded(ids) for ids in as_rows(tokenizer.encode(batch))]
    arrays = tokenizer.encode_with_offsets(batch, unit="character")
    names = ("token_ids", "starts", "ends", "word_index")
    return [Encoded(*row) for row in zip(*(as_rows(arrays[name]) for name in names), strict=True)]


def encode_words(tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> list[Encoded]:
    """Tokenises lists of words, each word separately; returns `ids` and `word_of`."""
    counts = np.array([len(text) for text in texts], np.int64)
    words = tf.constant([word for text in texts for word in text], tf.string)
    pieces = tokenizer.encode_words(words)  # (words, ragged), no row empty
    word_of = tf.ragged.range(counts).flat_values  # from 0 in each text
    word_of = pieces.with_values(tf.gather(word_of, pieces.value_rowids()))
    columns = [tf.RaggedTensor.from_row_lengths(x, counts) for x in (pieces, word_of)]
    ids, word_of = (as_rows(column.merge_dims(1, 2)) for column in columns)
    return [
        Encoded(text_ids, word_of=text_word_of)
        for text_ids, text_word_of in zip(ids, word_of, strict=True)
    ]
