"""The units of a row that are chosen to be predicted: its tokens, its words, or given phrases.

All rows are processed at once. Units of words are *offered*: drawn at random with replacement, and
chosen if the rules of a scheme allow it. A unit that was skipped once would be skipped again. So
the outcome is that of visiting all units in random order, without sorting a row.

Shapes: N rows, T sequence length, U units of all rows, K offers per row, P maximum number of
predictions per row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kbert.core.late import tf
from kbert.data.masking.hashing import below, fold

CHOICE = 0  # the stream of draws under a row's key
# Offers to a row in addition to P. A row that is not full after all offers stays so: its words are
# too long for the budget, or more than two thirds of its text are to be chosen.
_SPARE_OFFERS = 32


class Units(NamedTuple):
    """The units of some rows, row by row, in order.

    Attributes:
        start: (U,) int32, first token of each unit, counted through all rows (row * T + position).
        size: (U,) int32, number of tokens of each unit.
        count: (N,) int32, number of units of each row.
        first: (N,) int32, index of the first unit of each row.
        begins: (N, T) bool, True where a unit begins.
    """

    start: tf.Tensor
    size: tf.Tensor
    count: tf.Tensor
    first: tf.Tensor
    begins: tf.Tensor

    @property
    def width(self) -> int:
        """Sequence length T."""
        return self.begins.shape[1]


def find_units(in_text: tf.Tensor, begins: tf.Tensor | None = None) -> Units:
    """Splits the text of rows into units.

    Args:
        in_text: (N, T) bool, tokens that may be chosen.
        begins: (N, T) bool, True where a unit begins, which includes the first token of each run of
            text; None makes each token a unit.

    Example:
        >>> in_text = tf.constant([[False, True, True, True, False]])
        >>> units = find_units(in_text, tf.constant([[False, True, False, True, False]]))
        >>> units.start.numpy().tolist(), units.size.numpy().tolist()
        ([1, 3], [2, 1])
    """
    if begins is None:
        begins = ends = in_text
    else:
        ends = in_text & (_next(begins) | ~_next(in_text))
    start = _places(begins)
    size = _places(ends) + 1 - start
    count = tf.math.count_nonzero(begins, 1, dtype=tf.int32)
    return Units(start, size, count, tf.cumsum(count, exclusive=True), begins)


def _next(flags: tf.Tensor) -> tf.Tensor:
    return tf.pad(flags[:, 1:], [[0, 0], [0, 1]])


def _places(flags: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.where(tf.reshape(flags, [-1]))[:, 0], tf.int32)


def first_pieces(token_ids: tf.Tensor, in_text: tf.Tensor, continuation: np.ndarray) -> tf.Tensor:
    """Returns where words begin, (N, T) bool.

    A word begins at every subword that does not continue a word. It also begins at the first
    subword of a segment, even if truncation left only the tail of a word there.

    Args:
        token_ids: (N, T) int32, token ids of the rows.
        in_text: (N, T) bool, tokens of the segments, without special tokens and padding.
        continuation: (vocabulary,) bool, True for subwords that continue a word.
    """
    after_text = tf.pad(in_text[:, :-1], [[0, 0], [1, 0]])
    return in_text & ~(tf.gather(continuation, token_ids) & after_text)


def offered(keys: tf.Tensor, units: Units, columns: int) -> tf.Tensor:
    """Draws K = `columns` + 32 units for each row, at random with replacement, (K, N) int32.

    `keys` (N,) uint64 are random keys of the rows. The result has indices of units; U where a row
    has none.
    """
    numbers = tf.range(columns + _SPARE_OFFERS)[:, None]
    unit = units.first + below(fold(fold(keys, CHOICE), numbers), units.count)
    return tf.where(units.count > 0, unit, tf.size(units.start))


def choose_words(keys: tf.Tensor, units: Units, count: tf.Tensor, columns: int) -> tf.Tensor:
    """Chooses whole units with `count` tokens per row, or fewer where no further unit fits.

    Google's rule (`create_masked_lm_predictions` with `do_whole_word_mask`): visit the words in
    random order and skip those that would exceed the count.

    Args:
        keys: (N,) uint64, random key of each row.
        units: units that may be chosen.
        count: (N,) int32, number of tokens to choose.
        columns: P, maximum number of predictions in a row.

    Returns:
        (N, P) int32 positions, ascending; after the chosen ones, 0.
    """
    unit = offered(keys, units, columns)
    offers, number = tf.shape(unit)[0], tf.range(tf.shape(unit)[0])[:, None]
    # Only the first offer of a unit counts: later ones get a size above any budget.
    number = tf.broadcast_to(number, tf.shape(unit))
    earliest = tf.math.unsorted_segment_min(number, unit, tf.size(units.start) + 1)
    size = tf.pad(units.size, [[0, 1]], constant_values=tf.int32.max)
    need = tf.where(tf.gather(earliest, unit) < number, tf.int32.max, tf.gather(size, unit))

    def step(offer: tf.Tensor, budget: tf.Tensor, taken: tf.Tensor) -> tuple[tf.Tensor, ...]:
        fits = need[offer] <= budget
        return offer + 1, budget - tf.where(fits, need[offer], 0), taken.write(offer, fits)

    taken = tf.TensorArray(tf.bool, offers, element_shape=[None])
    num_visited, budget, taken = tf.while_loop(
        # The first offer is always written: without any write `taken` has no shape to gather.
        lambda offer, budget, taken: (offer == 0) | (offer < offers) & tf.reduce_any(budget > 0),
        step,
        [0, count, taken],
        parallel_iterations=1,
    )
    taken = tf.reshape(taken.gather(tf.range(num_visited)), [-1])
    chosen = tf.boolean_mask(tf.reshape(unit[:num_visited], [-1]), taken)
    tokens = tf.scatter_nd(chosen[:, None], tf.gather(size, chosen), [tf.size(size)])
    return positions_of(units, tokens[:-1], count - budget, columns)


def positions_of(units: Units, tokens: tf.Tensor, count: tf.Tensor, columns: int) -> tf.Tensor:
    """Returns the positions of the chosen tokens.

    Args:
        units: the units.
        tokens: (U,) int32, number of chosen tokens of each unit, from its first token on.
        count: (N,) int32, number of chosen tokens of each row.
        columns: P, maximum number of predictions in a row.

    Returns:
        (N, P) int32, ascending; after the chosen ones, 0.

    Example:
        >>> units = find_units(tf.constant([[False, True, True, True, False]]))
        >>> positions_of(units, tf.constant([1, 0, 1]), tf.constant([2]), 3).numpy().tolist()
        [[1, 3, 0]]
    """
    chosen = tf.where(tokens > 0)[:, 0]
    start, length = tf.gather(units.start, chosen), tf.gather(tokens, chosen)
    position = tf.repeat(start - tf.cumsum(length, exclusive=True), length)
    number = tf.range(tf.size(position))
    position += number
    row = position // units.width
    slot = number - tf.gather(tf.cumsum(count, exclusive=True), row)
    return tf.scatter_nd(
        tf.stack([row, slot], 1), position - row * units.width, [tf.size(count), columns]
    )
