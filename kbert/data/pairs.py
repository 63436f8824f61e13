"""Which text goes into which row: BERT's sentence pairs, planned for a whole window at once.

A *window* is some blocks of whole documents. Its plan holds five integers a row, no tokens:

    start_a, length_a, start_b, length_b   spans of the window's tokens
    random_next                            1: segment B comes from another document

All documents of the window are walked side by side: each round of one loop cuts the next chunk of
every document that has text left. Source of the rules: `create_instances_from_document` and
`truncate_seq_pair` of google-research/bert's create_pretraining_data.py. Two things are different.
The target length is drawn for each row, not once for each document. And a document longer than
256 rows is walked as several stretches, so that one huge document does not hold up the others: its
text is cut short at a stretch's end as at a document's end, once in more than 256 rows.

Shapes: S sentences, D documents, W walkers (stretches), L walkers still at work, N rows.
"""

from collections.abc import Callable

import tensorflow as tf

from kbert.data.hashing import below, chance, fold, heads

PLAN_COLUMNS = ("start_a", "length_a", "start_b", "length_b", "random_next")
_STRETCH_ROWS = 256


def plan_pairs(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    short_share: float = 0.1,
) -> tf.Tensor:
    """BERT's pairs of segments: half of the time B follows A, else it is from another document.

    A chunk of one sentence has nothing to follow it and always gets a random next; the sentences
    that a random next displaced start the next chunk.

    Args:
        sentences: (S,) int32, tokens of each sentence, above 0.
        documents: (D,) int32, sentences of each document, above 0; at least two documents.
        key: uint64 scalar; the whole plan is a function of it.
        max_tokens: tokens that A and B may have together (the sequence length less 3).
        short_share: share of rows whose target length is drawn from 2..max_tokens.

    Returns:
        (N, 5) int32, the columns of `PLAN_COLUMNS`, rows in random order.

    Example:
        >>> plan = plan_pairs(tf.constant([3, 4, 5, 6, 2]), tf.constant([4, 1]),
        ...                   fold(0, 0), max_tokens=8, short_share=0.0)
        >>> plan.shape[1], int(tf.reduce_max(plan[:, 1] + plan[:, 3]))
        (5, 8)
    """
    bounds = _bounds(sentences)  # (S + 1,)
    ends = tf.cumsum(documents)  # (D,)
    firsts = ends - documents
    home, start, end = _stretches(bounds, firsts, ends, max_tokens)  # (W,) each
    walk_key, text_key, order_key = fold(key, 0), fold(key, 1), fold(key, 2)

    def cut(walker: tf.Tensor, at: tf.Tensor, round_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bits = _draws(fold(fold(walk_key, walker), round_), 4)
        target = _target(bits[0], bits[1], max_tokens, short_share)
        reached = tf.searchsorted(bounds, tf.gather(bounds, at) + target)
        stop = tf.minimum(reached, tf.gather(end, walker))
        count = stop - at
        split = at + 1 + below(bits[2], count - 1)
        is_random = (count == 1) | chance(bits[3], 0.5)
        row = [at, split, stop, target, tf.cast(is_random, tf.int32), tf.gather(home, walker)]
        return tf.stack(row, 1), tf.where(is_random, split, stop)

    rows = _walk(start, end, cut, width=6)  # (N, 6)
    at, split, stop, target, is_random, own = tf.unstack(rows, axis=1)
    row_key = fold(text_key, tf.range(tf.size(at)))
    bits = _draws(row_key, 2)
    start_a, split_token = tf.gather(bounds, at), tf.gather(bounds, split)
    length_a = split_token - start_a

    # Any of the other documents, any sentence of it, and as many sentences as reach the target.
    other = below(bits[0], tf.size(documents) - 1)
    other += tf.cast(other >= own, tf.int32)
    away = tf.gather(firsts, other) + below(bits[1], tf.gather(documents, other))
    away_token = tf.gather(bounds, away)
    away_stop = tf.searchsorted(bounds, away_token + tf.maximum(target - length_a, 1))
    away_stop = tf.minimum(away_stop, tf.gather(ends, other))

    start_b = tf.where(is_random > 0, away_token, split_token)
    stop_b = tf.where(is_random > 0, tf.gather(bounds, away_stop), tf.gather(bounds, stop))
    length_b = stop_b - start_b

    # The longer segment loses tokens, B on a tie, at either end by the toss of a coin.
    keep_a = tf.minimum(length_a, tf.maximum(max_tokens - length_b, max_tokens - max_tokens // 2))
    keep_b = tf.minimum(length_b, tf.maximum(max_tokens - length_a, max_tokens // 2))
    start_a += heads(fold(row_key, 2), length_a - keep_a)
    start_b += heads(fold(row_key, 3), length_b - keep_b)
    return _shuffled(tf.stack([start_a, keep_a, start_b, keep_b, is_random], 1), order_key)


def plan_segments(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    short_share: float = 0.1,
) -> tf.Tensor:
    """Single segments for masked-LM training without next-sentence prediction.

    A segment runs on from where the one before it ended, to the full length or to the end of the
    document: no text is lost, none is used twice. Arguments as for `plan_pairs`; `max_tokens` is
    the sequence length less 2, and one document is enough.

    Returns:
        (N, 5) int32, the columns of `PLAN_COLUMNS`, with the last three all 0.

    Example:
        >>> plan = plan_segments(tf.constant([3, 4, 5, 6, 2]), tf.constant([4, 1]),
        ...                      fold(0, 0), max_tokens=8, short_share=0.0)
        >>> sorted(plan.numpy()[:, :2].tolist())
        [[0, 8], [8, 8], [16, 2], [18, 2]]
    """
    bounds = _bounds(sentences)
    document_ends = tf.cumsum(documents)
    firsts = document_ends - documents
    _, start, end = _stretches(bounds, firsts, document_ends, max_tokens)
    end = tf.gather(bounds, end)
    walk_key, order_key = fold(key, 0), fold(key, 2)

    def cut(walker: tf.Tensor, at: tf.Tensor, round_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bits = _draws(fold(fold(walk_key, walker), round_), 2)
        length = _target(bits[0], bits[1], max_tokens, short_share)
        length = tf.minimum(length, tf.gather(end, walker) - at)
        return tf.stack([at, length], 1), at + length

    spans = _walk(tf.gather(bounds, start), end, cut, width=2)
    return _shuffled(tf.pad(spans, [[0, 0], [0, 3]]), order_key)


def _bounds(sentences: tf.Tensor) -> tf.Tensor:
    """(S + 1,): the first token of each sentence, and the end of the last."""
    return tf.concat([[0], tf.cumsum(sentences)], 0)


def _draws(keys: tf.Tensor, count: int) -> tf.Tensor:
    """(count, …): some draws for each key."""
    numbers = tf.reshape(tf.range(count), [-1] + [1] * keys.shape.rank)
    return fold(keys[None], numbers)


def _target(coin: tf.Tensor, size: tf.Tensor, max_tokens: int, short_share: float) -> tf.Tensor:
    short = 2 + below(size, max_tokens - 1)
    return tf.where(chance(coin, short_share), short, max_tokens)


def _stretches(
    bounds: tf.Tensor, firsts: tf.Tensor, ends: tf.Tensor, max_tokens: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Cuts long documents, at sentences, into stretches of about `_STRETCH_ROWS` full rows.

    Returns:
        Three (W,) int32: the document, the first sentence and the end of each stretch.
    """
    tokens = tf.gather(bounds, ends) - tf.gather(bounds, firsts)
    parts = tf.maximum(tokens // (_STRETCH_ROWS * max_tokens), 1)  # (D,)
    home = tf.repeat(tf.range(tf.size(parts)), parts)  # (W,)
    part = tf.range(tf.size(home)) - tf.gather(tf.cumsum(parts, exclusive=True), home)
    step = tf.gather(tokens // parts, home)
    start = tf.searchsorted(bounds, tf.gather(bounds, tf.gather(firsts, home)) + part * step)
    last = tf.concat([home[1:] != home[:-1], [True]], 0)
    end = tf.where(last, tf.gather(ends, home), tf.concat([start[1:], [0]], 0))
    # One sentence longer than a stretch leaves stretches without a sentence of their own.
    filled = tf.where(start < end)[:, 0]
    return tf.gather(home, filled), tf.gather(start, filled), tf.gather(end, filled)


def _walk(start: tf.Tensor, end: tf.Tensor, cut: Callable, width: int) -> tf.Tensor:
    """Calls `cut(walker, at, round)` for all walkers with `at` before their end, until none is.

    `cut` returns the rows cut in this round, (L, width) int32, and where each walker goes on, (L,).
    """

    def body(round_, walker, at, rows):
        row, after = cut(walker, at, round_)
        alive = tf.where(after < tf.gather(end, walker))[:, 0]
        walker, after = tf.gather(walker, alive), tf.gather(after, alive)
        return round_ + 1, walker, after, rows.write(round_, row)

    rows = tf.TensorArray(
        tf.int32, 0, dynamic_size=True, element_shape=[None, width], infer_shape=False
    )
    *_, rows = tf.while_loop(
        lambda round_, walker, at, rows: tf.size(walker) > 0,
        body,
        [0, tf.range(tf.size(start)), start, rows],
        shape_invariants=[
            tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None]), None
        ],
    )  # fmt: skip
    return rows.concat()


def _shuffled(rows: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    lots = fold(key, tf.range(tf.shape(rows)[0]))
    return tf.gather(rows, tf.argsort(tf.bitcast(lots, tf.int64)))
