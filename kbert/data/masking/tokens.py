"""Choosing single tokens: uniformly without replacement, and with replacement as in ELECTRA.

Shapes: N rows, P maximum number of predictions per row.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.data.masking.hashing import below, fold
from kbert.data.masking.units import CHOICE, Units


def choose_tokens(keys: tf.Tensor, units: Units, count: tf.Tensor, columns: int) -> tf.Tensor:
    """Samples `count` of each row's text positions uniformly without replacement, ascending.

    Args:
        keys: (N,) uint64, random key of each row.
        units: tokens that may be chosen.
        count: (N,) int32, number of tokens to choose, at most as many as the row has.
        columns: P, maximum number of predictions in a row.

    Returns:
        (N, P) int32 positions; after the first `count`, 0.
    """
    chosen, used = sample_sorted(fold(keys, CHOICE), units.count, count, columns)
    return _positions(units, chosen, used)


def sample_sorted(
    keys: tf.Tensor, total: tf.Tensor, count: tf.Tensor, columns: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Samples `count` of the integers below `total` without replacement, for each row, ascending.

    Uses Floyd's algorithm (Bentley & Floyd, "A sample of brilliance", CACM 30(9), 1987) on all rows
    at once. It needs no draws for integers that are not chosen, and does not sort whole rows.

    Args:
        keys: (N,) uint64, random key of each row.
        total: (N,) int32, number of integers to sample from.
        count: (N,) int32, number of integers to sample, at most `total` and `columns`.
        columns: P, maximum number of integers in a row.

    Returns:
        (N, P) int32 integers, `tf.int32.max` after the first `count`; and (N, P) bool, True at the
        first `count`.

    Example:
        >>> total, count = tf.constant([9, 9]), tf.constant([3, 2])
        >>> sampled, used = sample_sorted(fold(0, tf.range(2)), total, count, columns=3)
        >>> tf.where(used, sampled, -1).numpy().tolist()
        [[3, 4, 5], [1, 2, -1]]
    """
    if not columns:  # a loop cannot update an empty tensor, not even in no step
        return tf.zeros([tf.size(total), 0], tf.int32), tf.zeros([tf.size(total), 0], tf.bool)
    numbers = tf.range(columns)[:, None]  # (P, 1)
    limit = total - count + numbers  # (P, N): the newest candidate of each step
    lots = below(fold(keys[None], numbers), tf.maximum(limit + 1, 0))  # (P, N)
    # One row more: an update of a tensor without rows raises.
    lots, limit = (tf.pad(x, [[0, 0], [0, 1]]) for x in (lots, limit))
    unused = tf.fill(tf.shape(lots), -1)

    def step(number: tf.Tensor, chosen: tf.Tensor) -> tuple[tf.Tensor, ...]:
        lot = lots[number][None]
        is_taken = tf.reduce_any(chosen[:number] == lot, 0)
        pick = tf.where(is_taken, limit[number], lot[0])
        return number + 1, tf.tensor_scatter_nd_update(chosen, [[number]], pick[None])

    _, chosen = tf.while_loop(
        lambda number, chosen: number < columns, step, [0, unused], parallel_iterations=1
    )
    chosen, used = chosen[:, :-1], numbers < count[None]
    chosen = tf.sort(tf.transpose(tf.where(used, chosen, tf.int32.max)))  # (N, P)
    return chosen, tf.transpose(used)


def choose_independent(keys: tf.Tensor, units: Units, count: tf.Tensor, columns: int) -> tf.Tensor:
    """Samples `count` of each row's text positions uniformly with replacement (ELECTRA).

    Source: `mask` of google-research/electra's pretrain/pretrain_helpers.py. `keys` (N,) uint64 are
    random keys of the rows, `units` the tokens that may be chosen. `count` (N,) int32 is the number
    of draws in each row, at most `columns` = P.

    Returns:
        (N, P) int32 positions in the order drawn, some twice; after the first `count`, 0.
    """
    numbers = tf.range(columns)[None]  # (1, P)
    draw = below(fold(fold(keys, CHOICE)[:, None], numbers), units.count[:, None])
    return _positions(units, draw, numbers < count[:, None])


def _positions(units: Units, chosen: tf.Tensor, used: tf.Tensor) -> tf.Tensor:
    """Returns the positions in their rows of chosen tokens, (N, P) int32.

    `chosen` (N, P) has the number of each token among its row's units. Where `used` (N, P) is
    False, the position is 0.
    """
    row = tf.range(tf.size(units.count))[:, None]
    # An unused column reads the padding value after the last unit.
    token = tf.where(used, units.first[:, None] + chosen, tf.size(units.start))
    positions = tf.gather(tf.pad(units.start, [[0, 1]]), token) - units.width * row
    return tf.where(used, positions, 0)
