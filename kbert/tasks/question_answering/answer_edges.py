"""Where an answer may begin and end in a text: from pieces to characters, and back for labels.

Pieces and characters do not always meet: byte-level pieces hold the space before their word, a
character may be several pieces (Hangul in NFD, emoji in bytes), a piece may be white space alone.

Shapes: C texts, P pieces of all texts together, N answers.
"""

from __future__ import annotations

import dataclasses
import functools
import sys

import numpy as np

from kbert.core.late import tf


@functools.cache
def _is_space() -> np.ndarray:
    """Code point -> whether it is white space; the last entry is that of all after it."""
    spaces = np.array([chr(code).isspace() for code in range(sys.maxunicode + 1)])
    return spaces[: np.flatnonzero(spaces)[-1] + 2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edges:
    """Pieces of texts as ranges of characters without white space at either end.

    Two spans of pieces that begin at pieces of `can_begin` and end at pieces of `can_end` are
    different ranges of characters, and every range of characters that pieces cover is such a span.

    Args:
        starts: (C, ragged) int32, the first character of each piece that is not white space.
        ends: (C, ragged) int32, the character after the last such one.
        can_begin: (C, ragged) bool: the first of the pieces that begin at this character. Not a
            piece of white space alone, whose range is empty.
        can_end: (C, ragged) bool: the last of the pieces that end at this character.
    """

    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    can_begin: tf.RaggedTensor
    can_end: tf.RaggedTensor


def find_edges(texts: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor) -> Edges:
    """The edges of pieces, eagerly or in a graph.

    Args:
        texts: (C,) UTF-8 strings.
        starts: (C, ragged) int32, `starts` of `encode_with_offsets(texts, unit="character")`.
        ends: (C, ragged) int32, `ends` likewise.

    Example:
        >>> edges = find_edges(
        ...     tf.constant(["an  ox"]), tf.ragged.constant([[0, 2, 3]], dtype=tf.int32),
        ...     tf.ragged.constant([[2, 3, 6]], dtype=tf.int32))
        >>> edges.starts[0].numpy().tolist(), edges.can_begin[0].numpy().tolist()
        ([0, 4, 4], [True, False, True])
    """
    codes = tf.strings.unicode_decode(texts, "UTF-8")
    space = tf.constant(_is_space())
    visible = ~tf.gather(space, tf.minimum(codes.flat_values, tf.size(space) - 1))
    before = tf.concat([[0], tf.cumsum(tf.cast(visible, tf.int32))], 0)
    places = tf.where(visible)[:, 0]  # of visible characters, counted over all texts
    places = tf.concat([tf.cast(places, tf.int32), [0]], 0)  # a text of spaces has one to look up
    text_start = tf.gather(tf.cast(codes.row_starts(), tf.int32), starts.value_rowids())  # (P,)

    first = tf.gather(before, starts.flat_values + text_start)  # visible characters before
    after = tf.gather(before, ends.flat_values + text_start)
    piece = tf.where(after > first)  # (visible pieces, 1)
    begins, limits = tf.gather_nd(first, piece), tf.gather_nd(after, piece)
    yes = tf.ones([1], tf.bool)
    is_first = tf.concat([yes, begins[1:] != begins[:-1]], 0)[: tf.size(begins)]
    is_last = tf.concat([limits[1:] != limits[:-1], yes], 0)[: tf.size(begins)]
    size = tf.shape(first, tf.int64)
    left = tf.gather(places, first)
    right = tf.where(after > first, tf.gather(places, tf.maximum(after - 1, 0)) + 1, left)
    return Edges(
        starts=starts.with_flat_values(left - text_start),
        ends=ends.with_flat_values(right - text_start),
        can_begin=starts.with_flat_values(tf.scatter_nd(piece, is_first, size)),
        can_end=ends.with_flat_values(tf.scatter_nd(piece, is_last, size)),
    )


def covering_pieces(
    edges: Edges, text: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The fewest pieces that cover each answer, as a model can give them.

    Where an answer ends inside a piece the whole piece is taken; where it is between pieces, on
    characters that the tokenizer drops, the next piece of the text.

    Args:
        edges: of all texts.
        text: (N,), number of the text that holds the answer.
        starts: (N,), its first character.
        ends: (N,), the character after its last.

    Returns:
        First and last piece, (N,) int64, counted in the text; -1 and -1 in a text without pieces.

    Example:
        >>> ranges = [tf.ragged.constant([x], dtype=tf.int32) for x in ([0, 4, 9], [3, 8, 12])]
        >>> edges = find_edges(tf.constant(["The Franks war"]), *ranges)
        >>> [piece.tolist() for piece in covering_pieces(edges, [0], [4], [7])]
        [[1], [1]]
    """
    text = np.asarray(text, np.int64)
    row = edges.starts.value_rowids().numpy()
    begins = edges.starts.flat_values.numpy().astype(np.int64)
    limits = edges.ends.flat_values.numpy().astype(np.int64)
    visible = np.flatnonzero(limits > begins)
    # Texts one after the other, far enough apart, so that one search serves all.
    far = 1 + max(limits.max(initial=0), np.max(ends, initial=0))
    begins, limits, row = (x[visible] for x in (begins, limits, row))
    begins, limits = begins + row * far, limits + row * far
    low = np.searchsorted(row, text)
    high = np.searchsorted(row, text, side="right") - 1
    first = np.searchsorted(limits, np.asarray(starts) + text * far, side="right")
    last = np.searchsorted(begins, np.asarray(ends) + text * far) - 1
    first = np.clip(first, low, np.maximum(high, low))
    last = np.clip(np.maximum(last, first), low, np.maximum(high, low))
    found = high >= low
    first, last = first[found], last[found]
    # Of pieces with one beginning the first, of pieces with one end the last.
    first = np.searchsorted(begins, begins[first])
    last = np.searchsorted(limits, limits[last], side="right") - 1
    offsets = edges.starts.row_starts().numpy()[text]
    pieces = np.full((2, len(text)), -1, np.int64)
    pieces[:, found] = visible[first] - offsets[found], visible[last] - offsets[found]
    return pieces[0], pieces[1]
