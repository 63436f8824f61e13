"""ALBERT's n-gram masks and SpanBERT's spans: neighbouring words are predicted together.

Shapes: N rows, T sequence length, U units of all rows, K offers per row, P maximum number of
predictions per row.
"""

from __future__ import annotations

import numpy as np

from kbert.core.late import tf
from kbert.data.masking.hashing import below, fold
from kbert.data.masking.units import CHOICE, Units, offered, positions_of

_LENGTH = 3  # the stream of draws under a row's key
_TABLE = 2**14  # entries of the lookup table of lengths: probabilities are exact to within 1/2**14
# ALBERT: 1 to 3 words, n with a probability in proportion to 1 / n.
NGRAM_WEIGHTS = (1.0, 1 / 2, 1 / 3)
# XLNet: the same with 1 to 5 words (`_sample_mask` in data_utils.py of zihangdai/xlnet).
PERMUTATION_WEIGHTS = (*NGRAM_WEIGHTS, 1 / 4, 1 / 5)
# UniLM: one token in 80 % of the draws, two or three in 20 % (Dong et al. 2019, section 2.3).
TOKEN_WEIGHTS = (0.8, 0.1, 0.1)
# SpanBERT: 1 to 10 words, geometric with p = 0.2.
SPAN_WEIGHTS = tuple(0.8**n for n in range(10))


def draw_lengths(keys: tf.Tensor, numbers: tf.Tensor, weights: tuple[float, ...]) -> tf.Tensor:
    """Draws lengths from 1 to `len(weights)`, with probabilities in proportion to the weights.

    `keys` (uint64) are random keys, `numbers` the numbers of the draws under them; the result is
    int32 of their broadcast shape.

    >>> draw_lengths(fold(0, 0), tf.range(6), NGRAM_WEIGHTS).numpy().tolist()
    [2, 2, 1, 2, 1, 2]
    """
    shares = np.cumsum(weights) / np.sum(weights)
    table = 1 + np.searchsorted(shares, (np.arange(_TABLE) + 0.5) / _TABLE)
    return tf.gather(
        tf.constant(table, tf.int32), below(fold(fold(keys, _LENGTH), numbers), _TABLE)
    )


def choose_ngrams(
    keys: tf.Tensor,
    units: Units,
    count: tf.Tensor,
    columns: int,
    weights: tuple[float, ...] = NGRAM_WEIGHTS,
) -> tf.Tensor:
    """Chooses n-grams of whole words that do not overlap, at most `count` tokens per row (ALBERT).

    Words are visited in random order, each with its own n. The n-gram that begins at a word is
    shortened until it fits into the remaining budget. It is skipped if it never fits, or if one of
    its words is already chosen. N-grams at the end of a row are short, and one may continue in the
    next segment. Source: `create_masked_lm_predictions` of google-research/albert's
    create_pretraining_data.py.

    `weights` are the weights of the lengths 1, 2, … in words. The other arguments and the result
    are those of `choose_words`: keys (N,) uint64, units of words, tokens to choose (N,) and
    `columns` = P -> positions (N, P) int32.
    """
    unit = offered(keys, units, columns)  # (K, N)
    offers = tf.shape(unit)[0]
    length = draw_lengths(keys, tf.range(offers)[:, None], weights)
    end = units.first + units.count  # (N,)
    none = tf.size(units.start)
    tokens_before = tf.pad(tf.cumsum(units.size), [[1, 1]])  # (U + 2,)
    longest = len(weights)
    steps = tf.range(longest)[:, None]
    # An n-gram overlaps n-grams that begin inside it, and earlier n-grams that extend into it.
    around = tf.range(2 * longest - 1)[:, None]
    earlier_rows = tf.ones([longest - 1, 1], tf.bool)

    def step(offer: tf.Tensor, budget: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first = unit[offer]
        gram = first + steps  # (3, N)
        inside = gram < tf.minimum(first + length[offer], end)
        gram = tf.where(inside, gram, none)
        tokens = tf.gather(tokens_before, gram + 1) - tf.gather(tokens_before, first)
        fits = inside & (tokens <= budget)
        overlapping = tf.concat([earlier_rows & fits[:1], fits], 0)
        is_free = ~tf.reduce_any(overlapping & (tf.gather(ends, first + around) > first), 0)
        use = fits & is_free
        budget -= tf.reduce_max(tf.where(use, tokens, 0), 0)
        stop = first + tf.reduce_sum(tf.cast(use, tf.int32), 0)
        slot = tf.where(use[0], first, none) + longest - 1
        ends = tf.tensor_scatter_nd_update(ends, slot[:, None], tf.where(use[0], stop, 0))
        return offer + 1, budget, ends

    # `ends`: the end of the n-gram that begins at each unit, 0 for none. Entries before the first
    # unit and after the last are padding.
    _, budget, ends = tf.while_loop(
        lambda offer, budget, ends: (offer < offers) & tf.reduce_any(budget > 0),
        step,
        [0, count, tf.zeros([none + 2 * longest - 1], tf.int32)],
        parallel_iterations=1,
    )
    ends = ends[longest - 1 : longest - 1 + none]
    first = tf.cast(tf.where(ends > 0)[:, 0], tf.int32)
    chosen = _numbers(first, tf.gather(ends, first) - first)
    tokens = tf.scatter_nd(chosen[:, None], tf.gather(units.size, chosen), [none])
    return positions_of(units, tokens, count - budget, columns)


def _numbers(first: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Returns all integers of some ranges, one range after the other, as one vector.

    `first` and `length` (n,) are the first integer and the number of integers of each range.
    """
    number = tf.repeat(first - tf.cumsum(length, exclusive=True), length)
    return number + tf.range(tf.size(number))


def choose_spans(keys: tf.Tensor, units: Units, count: tf.Tensor, columns: int) -> tf.Tensor:
    """Chooses spans of whole words until `count` tokens of a row are chosen (SpanBERT).

    A span begins at the word of a randomly drawn token, if that word is not chosen yet. It may
    continue over words that are already chosen. The last span ends where the count is reached, even
    inside a word. Source: `PairWithSpanMaskingScheme` of facebookresearch/SpanBERT's
    fairseq/data/masking.py.

    Arguments and result are those of `choose_words`: keys (N,) uint64, units of words, tokens to
    choose (N,) and `columns` = P -> positions (N, P) int32.
    """
    rows, total = tf.size(count), tf.size(units.start)
    offers = span_offers(columns)
    numbers = tf.range(offers)[:, None]
    first, end = _offered_spans(keys, units, numbers)  # (K, N) each

    def step(offer: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, ...]:
        begins = first[offer]
        is_covered = tf.reduce_any((first <= begins) & (begins < ends), 0)
        return offer + 1, tf.where((numbers == offer) & ~is_covered, end, ends)

    _, ends = tf.while_loop(
        lambda offer, ends: offer < offers,
        step,
        [0, tf.zeros_like(end)],
        parallel_iterations=1,
    )
    # (U,) number of the first span that covers each unit; `offers` where none does.
    length = tf.reshape(tf.maximum(ends - first, 0), [-1])
    unit = _numbers(tf.reshape(first, [-1]), length)
    number = tf.repeat(tf.reshape(tf.broadcast_to(numbers, tf.shape(first)), [-1]), length)
    cover = tf.minimum(tf.math.unsorted_segment_min(number, unit, total), offers)
    # The budget left for each span, and so for the units that it covers first.
    row = units.start // units.width
    cell = row * (offers + 1) + cover
    added = tf.math.unsorted_segment_sum(units.size, cell, rows * (offers + 1))
    added = tf.reshape(added, [rows, offers + 1])
    budget = count[:, None] - tf.cumsum(added, 1, exclusive=True)
    budget = tf.where(tf.range(offers + 1) < offers, budget, 0)
    fits = tf.gather(tf.reshape(added <= budget, [-1]), cell)
    budget = tf.gather(tf.reshape(budget, [-1]), cell)
    # A span that exceeds its budget keeps its first tokens.
    cut = tf.where(fits | (budget <= 0), 0, units.size)
    tokens_before = tf.pad(tf.cumsum(cut), [[1, 0]])
    tokens_before = tokens_before[:-1] - tf.gather(tf.gather(tokens_before, units.first), row)
    tokens = tf.clip_by_value(budget - tokens_before, 0, cut)
    tokens = tf.where(fits, units.size, tokens)
    chosen = tf.minimum(count, tf.reduce_sum(added[:, :-1], 1))
    return positions_of(units, tokens, chosen, columns)


def span_offers(columns: int) -> int:
    """Returns the number of spans offered to a row with at most `columns` predictions.

    With spans of 3.8 words on average, one row in thousands stays short of its count.

    >>> span_offers(20), span_offers(80)
    (20, 50)
    """
    return columns // 2 + 10


def _offered_spans(
    keys: tf.Tensor, units: Units, numbers: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws K spans of units for each row; returns their first unit and the one after their last.

    Both are (K, N) int32, and equal for an empty span. `keys` (N,) uint64 are random keys of the
    rows, `numbers` (K, 1) the numbers of the draws.
    """
    unit_at = tf.cumsum(tf.cast(tf.reshape(units.begins, [-1]), tf.int32)) - 1
    stop = tf.pad(units.start + units.size, [[1, 0]])
    text_end = tf.gather(stop, units.first + units.count)
    text_begin = tf.gather(tf.pad(units.start, [[0, 1]]), units.first)
    text = tf.where(units.count > 0, text_end - text_begin, 0)
    position = text_begin + below(fold(fold(keys, CHOICE), numbers), text)  # (K, N)
    unit = tf.gather(unit_at, tf.minimum(position, tf.size(unit_at) - 1))
    length = draw_lengths(keys, numbers, SPAN_WEIGHTS)
    end = tf.minimum(unit + length, units.first + units.count)
    # A token between two segments is not text, so no span begins there.
    is_text = (text > 0) & (position < tf.gather(stop, unit + 1))
    unit = tf.where(is_text, unit, 0)
    return unit, tf.where(is_text, end, unit)


def runs(positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first and last position of the run of consecutive positions around each one.

    Args:
        positions: (N, P) int32, ascending, then 0.

    Returns:
        Two (N, P) int32, 0 where `positions` is 0.

    Example:
        >>> first, last = runs(tf.constant([[3, 4, 5, 8, 0]]))
        >>> first.numpy().tolist(), last.numpy().tolist()
        ([[3, 3, 3, 8, 0]], [[5, 5, 5, 8, 0]])
    """
    return _run_starts(positions), -tf.reverse(_run_starts(tf.reverse(-positions, [1])), [1])


def _run_starts(positions: tf.Tensor) -> tf.Tensor:
    """Returns the first position of the run of consecutive ones around each position, (N, P).

    The positions that are not 0 ascend in each row. Zeros, which are unused columns, stay 0.
    """
    previous = tf.pad(positions[:, :-1], [[0, 0], [1, 0]])
    continues = (positions == previous + 1) & (previous != 0)
    starts = tf.where(continues, tf.int32.min, positions)
    reach = 1
    while reach < positions.shape[1]:
        earlier = tf.pad(starts[:, :-reach], [[0, 0], [reach, 0]], constant_values=tf.int32.min)
        starts, reach = tf.where(starts == tf.int32.min, earlier, starts), 2 * reach
    return starts
