"""Vectors together with what they stand for.

Shapes: `T` tokens (or words) of a text, `D` width of the features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kbert.extraction.inputs import Encoded
from kbert.extraction.plan import Layout
from kbert.tokenizers.base import Tokenizer


class TextVectors(NamedTuple):
    """The vectors of one text, and what each stands for.

    Attributes:
        vectors: (T, D) float32.
        tokens: T pieces of the vocabulary, or T words.
        starts, ends: (T,), so that `text[start:end]` is the token; a special token has 0 and 0.
            For a list of words they refer to the words joined by spaces.
        segments: (T,), 1 for the second text of a pair and the [SEP] after it.
    """

    vectors: np.ndarray
    tokens: list[str]
    starts: np.ndarray
    ends: np.ndarray
    segments: np.ndarray


def describe_tokens(
    vectors: np.ndarray,
    tokenizer: Tokenizer,
    encoded: Sequence[Encoded],
    layout: Layout,
    kept: np.ndarray,
) -> TextVectors:
    """From the tokens of a text, or of both texts of a pair.

    Args:
        vectors: (T, D), special tokens included.
        tokenizer: knows the pieces.
        encoded: of the text, or of both texts.
        layout: of the row.
        kept: (T,) bool, the requested tokens.
    """
    ids = np.full(layout.length, tokenizer.sep_id)
    ids[layout.cls_column] = tokenizer.cls_id
    starts, ends = np.zeros((2, layout.length), np.int32)
    sizes = (layout.first, layout.second)[: len(encoded)]
    for column, name in ((ids, "ids"), (starts, "starts"), (ends, "ends")):
        sides = [getattr(x, name)[:size] for x, size in zip(encoded, sizes, strict=True)]
        column[~layout.is_special()] = np.concatenate(sides)
    tokens = [tokenizer.vocabulary[index] for index in ids[kept]]
    return TextVectors(vectors[kept], tokens, starts[kept], ends[kept], layout.segments()[kept])


def describe_words(vectors: np.ndarray, given: Any, encoded: Encoded) -> TextVectors:
    """From the words of a text.

    Args:
        vectors: (T, D).
        given: the text, or its words.
        encoded: of the text; with offsets where it is a string.
    """
    count = len(vectors)
    if isinstance(given, list):
        words = given
        lengths = np.array([len(word) for word in words], np.int32)
        ends = np.cumsum(lengths + 1, dtype=np.int32) - 1
        starts = ends - lengths
    else:
        text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
        numbers = np.arange(count)
        starts = encoded.starts[np.searchsorted(encoded.word_of, numbers)]
        ends = encoded.ends[np.searchsorted(encoded.word_of, numbers, side="right") - 1]
        words = [text[a:b].lstrip() for a, b in zip(starts, ends, strict=True)]
        # A byte-level piece has the space before its word, which is no part of the word.
        starts = ends - np.array([len(word) for word in words], np.int32)
    return TextVectors(vectors, words, starts, ends, np.zeros(count, np.int32))
