"""Vectors together with the tokens or words that they represent.

Shapes: `T` tokens (or words) of a text, `D` width of the features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kbert.extraction.inputs import Encoded
from kbert.extraction.plan import Layout
from kbert.tasks.input_form import InputForm
from kbert.tokenizers.base import Tokenizer


class TextVectors(NamedTuple):
    """The vectors of one text, and the token or word of each.

    Attributes:
        vectors: (T, D) float32.
        tokens: T subwords of the vocabulary, or T words.
        starts, ends: (T,), so that `text[start:end]` is the token; a special token has 0 and 0.
            For a list of words they refer to the words joined by spaces.
        segments: (T,), 1 for the second text of a pair and the [SEP] after it, 2 for a [CLS] at the
            end (XLNet), 0 for others.
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
    form: InputForm,
    kept: np.ndarray,
) -> TextVectors:
    """Makes the `TextVectors` of the tokens of a text, or of both texts of a pair.

    Args:
        vectors: vectors of all tokens (T, D), special tokens included.
        tokenizer: tokenizer of the encoder, for the subwords of ids.
        encoded: token ids and offsets of the text, or of both texts.
        layout: layout of the sequence.
        form: special tokens of the sequence.
        kept: (T,) bool, true for the requested tokens.
    """
    ids = np.full(layout.length, form.sep_id)
    ids[layout.length - layout.end :] = form.last_id
    if layout.cls_column is not None:
        ids[layout.cls_column] = form.cls_id
    starts, ends = np.zeros((2, layout.length), np.int32)
    sizes = (layout.first, layout.second)[: len(encoded)]
    for column, name in ((ids, "ids"), (starts, "starts"), (ends, "ends")):
        sides = [getattr(x, name)[:size] for x, size in zip(encoded, sizes, strict=True)]
        column[~layout.is_special()] = np.concatenate(sides)
    tokens = [form.token_name(token_id, tokenizer) for token_id in ids[kept].tolist()]
    return TextVectors(vectors[kept], tokens, starts[kept], ends[kept], layout.segments()[kept])


def describe_words(vectors: np.ndarray, given: Any, encoded: Encoded) -> TextVectors:
    """Makes the `TextVectors` of the words of a text.

    Args:
        vectors: vectors of the words (T, D).
        given: the text, or a list of its words.
        encoded: token ids of the text; for a string also offsets and word numbers.
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
        # A byte-level token includes the space before the word, which is not part of the word.
        starts = ends - np.array([len(word) for word in words], np.int32)
    return TextVectors(vectors, words, starts, ends, np.zeros(count, np.int32))
