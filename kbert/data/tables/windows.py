"""Texts that are longer than the encoder takes, as windows that overlap.

Core TensorFlow operations alone, as in `kbert.data.tables.packing`.

Shapes: B texts, W windows of all texts together.
"""

from typing import Any

import tensorflow as tf

from kbert.data.tables.packing import pair_lengths, pair_limits


def text_windows(ids: tf.RaggedTensor, room: int, stride: int) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Windows of at most `room` tokens, each beginning `stride` tokens after the one before.

    The last one of a text ends with the text. (`doc_stride` in run_squad.py of
    google-research/bert.)

    Args:
        ids: (B, ragged).
        room: tokens of a window.
        stride: 1 or more; more than `room` counts as `room`, so that no token is passed over.

    Returns:
        Windows (W, ragged), and how many each text has, (B,) int32: at least one.

    Example:
        >>> ids = tf.ragged.constant([[1, 2, 3, 4, 5], [6]], dtype=tf.int32)
        >>> windows, counts = text_windows(ids, room=3, stride=2)
        >>> windows.to_list(), counts.numpy().tolist()
        ([[1, 2, 3], [3, 4, 5], [6]], [2, 1])
    """
    length = tf.cast(ids.row_lengths(), tf.int32)
    rooms = tf.fill(tf.shape(length), room)
    row, number, counts = _numbered(length, rooms, stride)
    return _slices(ids, row, number * min(stride, room), tf.gather(rooms, row)), counts


def pair_windows(
    first: tf.RaggedTensor, second: tf.RaggedTensor, room: int, stride: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
    """Windows of pairs: they go over the longer text, the shorter one is in each of them.

    The first window is what a pair that is too long is cut to without windows. Of two texts that
    both have more than half of the room, the shorter one is cut to that half.

    Args:
        first: ids, (B, ragged).
        second: ids, (B, ragged).
        room: tokens of both together in a window.
        stride: as in `text_windows`.

    Returns:
        Both texts of the windows (W, ragged), and how many windows each pair has, (B,) int32.

    Example:
        >>> question = tf.ragged.constant([[1, 2]], dtype=tf.int32)
        >>> text = tf.ragged.constant([[5, 6, 7, 8, 9]], dtype=tf.int32)
        >>> first, second, counts = pair_windows(question, text, room=5, stride=2)
        >>> first.to_list(), second.to_list()
        ([[1, 2], [1, 2]], [[5, 6, 7], [7, 8, 9]])
    """
    lengths = pair_lengths(first, second)
    kept = pair_limits(*lengths, room)
    first_is_longer = lengths[0] > lengths[1]
    longer, rooms = (tf.where(first_is_longer, *both) for both in (lengths, kept))
    row, number, counts = _numbered(longer, rooms, stride)
    moves = number * tf.minimum(stride, tf.gather(rooms, row))
    windows = []
    for ids, keep, slides in ((first, kept[0], True), (second, kept[1], False)):
        starts = tf.where(tf.gather(first_is_longer, row) == slides, moves, 0)
        windows.append(_slices(ids, row, starts, tf.gather(keep, row)))
    return *windows, counts


def window_counts(lengths: Any, rooms: Any, stride: int) -> tf.Tensor:
    """How many windows of `rooms` tokens cover texts of `lengths` tokens, int32.

    >>> window_counts([0, 3, 5], [3, 3, 3], stride=2).numpy().tolist()
    [1, 1, 2]
    """
    lengths, rooms = (tf.cast(x, tf.int32) for x in (lengths, rooms))
    step = tf.maximum(tf.minimum(stride, rooms), 1)
    return 1 + (tf.maximum(lengths - rooms, 0) + step - 1) // step


def _numbered(
    lengths: tf.Tensor, rooms: tf.Tensor, stride: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(W,) which text a window is of and its number there; (B,) how many windows there are."""
    counts = window_counts(lengths, rooms, stride)
    row = tf.repeat(tf.range(tf.size(counts)), counts)
    return row, tf.ragged.range(counts).flat_values, counts


def _slices(
    ids: tf.RaggedTensor, row: tf.Tensor, starts: tf.Tensor, lengths: tf.Tensor
) -> tf.RaggedTensor:
    """(W, ragged): ids[row, start : start + length], or to the row's end."""
    begin = tf.gather(tf.cast(ids.row_starts(), tf.int32), row) + starts
    end = tf.gather(tf.cast(ids.row_limits(), tf.int32), row)
    index = tf.ragged.range(begin, tf.minimum(begin + lengths, end), row_splits_dtype=tf.int64)
    return index.with_flat_values(tf.gather(ids.flat_values, index.flat_values))
