"""Positions where an answer may begin or end: from subwords to characters, and back for labels.

The boundaries of subwords and characters differ: byte-level subwords include the space before their
word, a character may be several subwords (Hangul in NFD, emoji in bytes), and a subword may be only
white space.

Shapes: C texts, P subwords of all texts together, N answers.
"""

from __future__ import annotations

import dataclasses
import functools
import sys

import numpy as np

from kbert.core.late import tf


@functools.cache
def _is_space() -> np.ndarray:
    """Returns for each code point whether it is white space; the last entry is for all higher."""
    spaces = np.array([chr(code).isspace() for code in range(sys.maxunicode + 1)])
    return spaces[: np.flatnonzero(spaces)[-1] + 2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Edges:
    """Subwords as ranges of characters, without white space at either end.

    A span begins at a subword with `can_begin` and ends at a subword with `can_end`. Different
    spans are different ranges of characters, and every range that subwords cover is a span.

    Args:
        starts: (C, ragged) int32, first character of each subword that is not white space.
        ends: (C, ragged) int32, character after the last one that is not white space.
        can_begin: (C, ragged) bool, whether the subword is the first that begins at this character.
            False for a subword of only white space, whose range is empty.
        can_end: (C, ragged) bool, whether the subword is the last that ends at this character;
            False for only white space.
    """

    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    can_begin: tf.RaggedTensor
    can_end: tf.RaggedTensor


def find_edges(texts: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor) -> Edges:
    """Returns the edges of subwords; runs eagerly or in a graph.

    Args:
        texts: (C,) UTF-8 strings.
        starts: (C, ragged) int32, `starts` of `encode_with_offsets(texts, unit="character")`.
        ends: (C, ragged) int32, `ends` of the same call.

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
    visible_before = tf.concat([[0], tf.cumsum(tf.cast(visible, tf.int32))], 0)
    visible_indices = tf.where(visible)[:, 0]  # indices of visible characters over all texts
    # The last entry is for texts of only spaces.
    visible_indices = tf.concat([tf.cast(visible_indices, tf.int32), [0]], 0)
    text_start = tf.gather(tf.cast(codes.row_starts(), tf.int32), starts.value_rowids())  # (P,)

    # Numbers of visible characters before the start and before the end of each subword, (P,).
    before_start = tf.gather(visible_before, starts.flat_values + text_start)
    before_end = tf.gather(visible_before, ends.flat_values + text_start)
    piece = tf.where(before_end > before_start)  # (visible subwords, 1)
    begins, limits = tf.gather_nd(before_start, piece), tf.gather_nd(before_end, piece)
    true = tf.ones([1], tf.bool)
    is_first = tf.concat([true, begins[1:] != begins[:-1]], 0)[: tf.size(begins)]
    is_last = tf.concat([limits[1:] != limits[:-1], true], 0)[: tf.size(begins)]
    size = tf.shape(before_start, tf.int64)
    trimmed_starts = tf.gather(visible_indices, before_start)
    trimmed_ends = tf.where(
        before_end > before_start,
        tf.gather(visible_indices, tf.maximum(before_end - 1, 0)) + 1,
        trimmed_starts,
    )
    return Edges(
        starts=starts.with_flat_values(trimmed_starts - text_start),
        ends=ends.with_flat_values(trimmed_ends - text_start),
        can_begin=starts.with_flat_values(tf.scatter_nd(piece, is_first, size)),
        can_end=ends.with_flat_values(tf.scatter_nd(piece, is_last, size)),
    )


def covering_pieces(
    edges: Edges, text: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shortest span of subwords that covers each answer and that a model can predict.

    If an answer ends inside a subword, the span includes the whole subword. If an answer is between
    subwords, on characters that the tokenizer drops, the span is the next subword of the text.

    Args:
        edges: edges of all texts.
        text: (N,), index of the text with the answer.
        starts: (N,), first character of the answer.
        ends: (N,), character after the last one of the answer.

    Returns:
        First and last subword, (N,) int64, counted within the text; -1 and -1 for a text without
        subwords.

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
    # Texts are laid out one after the other without overlap, so that one search is enough for all.
    far = 1 + max(limits.max(initial=0), np.max(ends, initial=0))
    begins, limits, row = (x[visible] for x in (begins, limits, row))
    begins, limits = begins + row * far, limits + row * far
    low = np.searchsorted(row, text)
    high = np.searchsorted(row, text, side="right") - 1
    first = np.searchsorted(limits, np.asarray(starts) + text * far, side="right")
    last = np.searchsorted(begins, np.asarray(ends) + text * far) - 1
    first = np.clip(first, low, np.maximum(high, low))
    last = np.clip(np.maximum(last, first), low, np.maximum(high, low))
    has_piece = high >= low
    first, last = first[has_piece], last[has_piece]
    # Of subwords that begin at the same character the first, of those with the same end the last.
    first = np.searchsorted(begins, begins[first])
    last = np.searchsorted(limits, limits[last], side="right") - 1
    offsets = edges.starts.row_starts().numpy()[text]
    pieces = np.full((2, len(text)), -1, np.int64)
    pieces[:, has_piece] = visible[first] - offsets[has_piece], visible[last] - offsets[has_piece]
    return pieces[0], pieces[1]
