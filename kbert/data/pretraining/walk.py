"""Walks all documents of a window in parallel: the common part of the plans of rows.

A *window* is some blocks of whole documents. Its plan assigns text to rows, with five integers per
row and without tokens:

    start_a, length_a, start_b, length_b   spans of the window's tokens; B may be empty
    label                                  label of the pair, if the scheme has one

Plans are made in lock-step: each round of a loop cuts the next chunk of every document that has
text left. A document longer than 256 rows is walked as several stretches, so that one huge
document does not delay the others.

Shapes: S sentences, D documents, W walkers (stretches), L active walkers, N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbert.core.late import tf
from kbert.data.masking.hashing import below, chance, fold

PLAN_COLUMNS = ("start_a", "length_a", "start_b", "length_b", "label")
_STRETCH_ROWS = 256


def sentence_bounds(sentences: tf.Tensor) -> tf.Tensor:
    """Returns the index of the first token of each sentence, and the end of the last one, (S + 1,).

    `sentences` (S,) has the number of tokens of each sentence.

    >>> sentence_bounds(tf.constant([3, 4, 2])).numpy().tolist()
    [0, 3, 7, 9]
    """
    return tf.concat([[0], tf.cumsum(sentences)], 0)


def draws(keys: tf.Tensor, count: int) -> tf.Tensor:
    """Returns `count` random uint64 for each of the `keys` (…), (count, …).

    >>> draws(fold(0, tf.range(3)), 2).shape.as_list()
    [2, 3]
    """
    numbers = tf.reshape(tf.range(count), [-1] + [1] * keys.shape.rank)
    return fold(keys[None], numbers)


def target_length(
    coin: tf.Tensor, size: tf.Tensor, max_tokens: int, short_share: float
) -> tf.Tensor:
    """Returns target lengths of rows, int32: `max_tokens`, but for a share of them less.

    A share `short_share` of the rows, chosen by the random bits `coin`, has a length uniform in
    2..max_tokens, chosen by the random bits `size`. Both are uint64 of the shape of the result.

    >>> bits = fold(0, tf.range(4))
    >>> target_length(bits, bits, 9, short_share=0.0).numpy().tolist()
    [9, 9, 9, 9]
    """
    short = 2 + below(size, max_tokens - 1)
    return tf.where(chance(coin, short_share), short, max_tokens)


def stretches(
    bounds: tf.Tensor, firsts: tf.Tensor, ends: tf.Tensor, row_tokens: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Splits long documents, at sentences, into stretches of about 256 rows.

    Args:
        bounds: (S + 1,) int32, see `sentence_bounds`.
        firsts: (D,) int32, first sentence of each document.
        ends: (D,) int32, sentence after the last of each document.
        row_tokens: number of tokens in a full row.

    Returns:
        Three (W,) int32: the document, the first sentence and the end of each stretch.

    Example:
        >>> bounds = sentence_bounds(tf.fill([600], 5))
        >>> parts = stretches(bounds, tf.constant([0, 590]), tf.constant([590, 600]), 5)
        >>> [part.numpy().tolist() for part in parts]
        [[0, 0, 1], [0, 295, 590], [295, 590, 600]]
    """
    tokens = tf.gather(bounds, ends) - tf.gather(bounds, firsts)
    parts = tf.maximum(tokens // (_STRETCH_ROWS * row_tokens), 1)  # (D,)
    home = tf.repeat(tf.range(tf.size(parts)), parts)  # (W,)
    part = tf.range(tf.size(home)) - tf.gather(tf.cumsum(parts, exclusive=True), home)
    step = tf.gather(tokens // parts, home)
    start = tf.searchsorted(bounds, tf.gather(bounds, tf.gather(firsts, home)) + part * step)
    last = tf.concat([home[1:] != home[:-1], [True]], 0)
    end = tf.where(last, tf.gather(ends, home), tf.concat([start[1:], [0]], 0))
    # A sentence longer than a stretch leaves other stretches empty; they are dropped.
    filled = tf.where(start < end)[:, 0]
    return tf.gather(home, filled), tf.gather(start, filled), tf.gather(end, filled)


def walk(start: tf.Tensor, end: tf.Tensor, cut: Callable, width: int) -> tf.Tensor:
    """Calls `cut(walker, at, round)` in rounds, for all walkers that have not reached their end.

    Args:
        start: (W,) int32, start of each walker.
        end: (W,) int32, end of each walker.
        cut: function of the active walkers' indices (L,), their positions (L,) and the number of
            the round. It returns the rows of the round, (L, width) int32, and the new positions,
            (L,).
        width: number of columns in a row.

    Returns:
        The rows of all rounds, (N, width) int32, round by round.

    Example:
        >>> halves = lambda walker, at, round_: (tf.stack([walker, at], 1), at + 2)
        >>> walk(tf.constant([0, 5]), tf.constant([4, 6]), halves, width=2).numpy().tolist()
        [[0, 0], [1, 5], [0, 2]]
    """

    def body(round_: tf.Tensor, walker: tf.Tensor, at: tf.Tensor, rows: tf.Tensor) -> Any:
        row, next_at = cut(walker, at, round_)
        alive = tf.where(next_at < tf.gather(end, walker))[:, 0]
        walker, next_at = tf.gather(walker, alive), tf.gather(next_at, alive)
        return round_ + 1, walker, next_at, rows.write(round_ + 1, row)

    rows = tf.TensorArray(
        tf.int32, 1, dynamic_size=True, element_shape=[None, width], infer_shape=False
    )
    rows = rows.write(0, tf.zeros([0, width], tf.int32))  # for a window without walkers
    *_, rows = tf.while_loop(
        lambda round_, walker, at, rows: tf.size(walker) > 0,
        body,
        [0, tf.range(tf.size(start)), start, rows],
        shape_invariants=[
            tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None]), None
        ],
    )  # fmt: skip
    return rows.concat()


def shuffled(rows: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Shuffles rows (N, …); the order is a function of N and the uint64 scalar `key`.

    >>> sorted(shuffled(tf.range(5), fold(0, 0)).numpy().tolist())
    [0, 1, 2, 3, 4]
    """
    lots = fold(key, tf.range(tf.shape(rows)[0]))
    return tf.gather(rows, tf.argsort(tf.bitcast(lots, tf.int64)))
