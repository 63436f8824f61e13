"""Rows of two segments: BERT's and ALBERT's sentence pairs, ELECTRA's consecutive segments.

Shapes: S sentences, D documents, L active walkers, N rows.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.data.masking.hashing import below, chance, fold, heads
from kbert.data.pretraining.walk import (
    draws,
    sentence_bounds,
    shuffled,
    stretches,
    target_length,
    walk,
)

_IN_ORDER, _RANDOM, _SWAPPED = 0, 1, 2


def plan_pairs(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    short_share: float = 0.1,
    swap: bool = False,
) -> tf.Tensor:
    """Plans pairs of segments; half are negative: a random next (BERT) or swapped halves (ALBERT).

    A chunk of a document is split in two at a sentence. In BERT's pairs half of the B segments are
    replaced by text of another document, and the replaced sentences begin the next chunk. In
    ALBERT's pairs half of the pairs are swapped. A chunk of one sentence cannot be split. In both
    schemes its B is from another document, and the pair is negative. The longer segment loses
    tokens, at either end, until the pair fits.

    Sources: `create_instances_from_document` and `truncate_seq_pair` of create_pretraining_data.py
    in google-research/bert and google-research/albert. There are two differences. The target length
    is drawn for each row, not once for each document. And a document longer than 256 rows is
    walked as several stretches. A chunk ends early at the end of a stretch as at the end of a
    document, once in more than 256 rows.

    Args:
        sentences: (S,) int32, number of tokens of each sentence, above 0.
        documents: (D,) int32, number of sentences of each document, above 0; at least two
            documents.
        key: uint64 scalar, key of all random draws of the plan.
        max_tokens: maximum number of tokens of A and B together, without special tokens.
        short_share: share of rows whose target length is drawn from 2..max_tokens.
        swap: whether negatives are swapped halves instead of random nexts.

    Returns:
        N rows in random order, (N, 5) int32, with the columns of `PLAN_COLUMNS`: start and length
        of A and of B in the window's tokens, and the label, 1 = negative.

    Example:
        >>> plan = plan_pairs(tf.constant([3, 4, 5, 6, 2]), tf.constant([4, 1]),
        ...                   fold(0, 0), max_tokens=8, short_share=0.0)
        >>> plan.shape[1], int(tf.reduce_max(plan[:, 1] + plan[:, 3]))
        (5, 8)
    """
    bounds = sentence_bounds(sentences)  # (S + 1,)
    ends = tf.cumsum(documents)  # (D,)
    firsts = ends - documents
    home, start, end = stretches(bounds, firsts, ends, max_tokens)  # (W,) each
    walk_key, text_key, order_key = fold(key, 0), fold(key, 1), fold(key, 2)

    def cut(walker: tf.Tensor, at: tf.Tensor, round_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bits = draws(fold(fold(walk_key, walker), round_), 4)
        target = target_length(bits[0], bits[1], max_tokens, short_share)
        reached = tf.searchsorted(bounds, tf.gather(bounds, at) + target)
        stop = tf.minimum(reached, tf.gather(end, walker))
        count = stop - at
        split = at + 1 + below(bits[2], count - 1)
        kind = tf.where(chance(bits[3], 0.5), _SWAPPED if swap else _RANDOM, _IN_ORDER)
        kind = tf.where(count == 1, _RANDOM, kind)
        row = [at, split, stop, target, kind, tf.gather(home, walker)]
        return tf.stack(row, 1), tf.where(kind == _RANDOM, split, stop)

    rows = walk(start, end, cut, width=6)  # (N, 6)
    at, split, stop, target, kind, document = tf.unstack(rows, axis=1)
    row_key = fold(text_key, tf.range(tf.size(at)))
    bits = draws(row_key, 2)
    start_a, split_token = tf.gather(bounds, at), tf.gather(bounds, split)
    length_a = split_token - start_a

    # A random other document, a random sentence of it, and as many sentences as reach the target.
    other_document = below(bits[0], tf.size(documents) - 1)
    other_document += tf.cast(other_document >= document, tf.int32)
    away = tf.gather(firsts, other_document) + below(bits[1], tf.gather(documents, other_document))
    away_token = tf.gather(bounds, away)
    away_stop = tf.searchsorted(bounds, away_token + tf.maximum(target - length_a, 1))
    away_stop = tf.minimum(away_stop, tf.gather(ends, other_document))

    start_b = tf.where(kind == _RANDOM, away_token, split_token)
    stop_b = tf.where(kind == _RANDOM, tf.gather(bounds, away_stop), tf.gather(bounds, stop))
    length_b = stop_b - start_b
    if swap:
        first, second = (start_a, length_a), (start_b, length_b)
        swapped = kind == _SWAPPED
        start_a, length_a = (tf.where(swapped, b, a) for a, b in zip(first, second, strict=True))
        start_b, length_b = (tf.where(swapped, a, b) for a, b in zip(first, second, strict=True))

    # The longer segment loses tokens (B on a tie), each from a random end.
    keep_a = tf.minimum(length_a, tf.maximum(max_tokens - length_b, max_tokens - max_tokens // 2))
    keep_b = tf.minimum(length_b, tf.maximum(max_tokens - length_a, max_tokens // 2))
    start_a += heads(fold(row_key, 2), length_a - keep_a)
    start_b += heads(fold(row_key, 3), length_b - keep_b)
    negative = tf.cast(kind != _IN_ORDER, tf.int32)
    return shuffled(tf.stack([start_a, keep_a, start_b, keep_b, negative], 1), order_key)


def plan_consecutive(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    short_share: float = 0.05,
    lone_share: float = 0.1,
) -> tf.Tensor:
    """Plans ELECTRA's rows: a chunk of a document as two segments of about equal length, or as one.

    A gets whole sentences while it stays below half of the row's target. With probability one half
    it also gets the sentence that crosses the half (always if that is the first one). The rest is
    B. Text that exceeds the row is truncated at the end. A share of the rows has no B. A chunk that
    A fills alone has no B either.

    Source: `ExampleBuilder` of google-research/electra's build_pretraining_dataset.py. There are
    two differences. There the targets count special tokens, which are subtracted again; here they
    count only text. There a short sentence may be added to A after longer ones were added to B;
    here text stays in order.

    Args:
        sentences: (S,) int32, number of tokens of each sentence, above 0.
        documents: (D,) int32, number of sentences of each document, above 0.
        key: uint64 scalar, key of all random draws of the plan.
        max_tokens: maximum number of tokens of A and B together, without special tokens.
        short_share: share of rows whose target length is drawn from 2..max_tokens.
        lone_share: share of rows that have no B, whatever their sentences.

    Returns:
        N rows in random order, (N, 5) int32, with the columns of `PLAN_COLUMNS`: start and length
        of A and of B in the window's tokens, then 0.

    Example:
        >>> plan = plan_consecutive(tf.fill([4], 5), tf.constant([4]), fold(0, 0),
        ...                         max_tokens=20, lone_share=0.0, short_share=0.0)
        >>> plan.numpy().tolist()
        [[0, 10, 10, 10, 0]]
    """
    bounds = sentence_bounds(sentences)
    ends = tf.cumsum(documents)
    _, start, end = stretches(bounds, ends - documents, ends, max_tokens)
    walk_key, order_key = fold(key, 0), fold(key, 2)

    def cut(walker: tf.Tensor, at: tf.Tensor, round_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bits = draws(fold(fold(walk_key, walker), round_), 4)
        target = target_length(bits[0], bits[1], max_tokens, short_share)
        first = tf.gather(bounds, at)
        stop = tf.minimum(tf.searchsorted(bounds, first + target), tf.gather(end, walker))
        # Sentences that end before half of the target, and perhaps the next one.
        below_half = tf.searchsorted(bounds, first + target // 2) - 1 - at
        crossing = tf.cast((below_half > 0) & chance(bits[2], 0.5), tf.int32)
        split = at + tf.maximum(below_half + crossing, 1)
        split = tf.where(chance(bits[3], lone_share), stop, tf.minimum(split, stop))
        length_a = tf.minimum(tf.gather(bounds, split) - first, max_tokens)
        length_b = tf.gather(bounds, stop) - tf.gather(bounds, split)
        length_b = tf.minimum(length_b, max_tokens - length_a)
        start_b = tf.where(length_b > 0, tf.gather(bounds, split), 0)
        return tf.stack([first, length_a, start_b, length_b], 1), stop

    rows = walk(start, end, cut, width=4)
    return shuffled(tf.pad(rows, [[0, 0], [0, 1]]), order_key)
