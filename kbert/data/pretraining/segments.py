"""Plans the layout of a window's text in rows: single segments, and the table of all plans.

Shapes: S sentences, D documents, N rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from kbert.core.late import tf
from kbert.data.masking.hashing import below, fold
from kbert.data.pretraining.pairs import plan_consecutive, plan_pairs
from kbert.data.pretraining.walk import (
    draws,
    sentence_bounds,
    shuffled,
    stretches,
    target_length,
    walk,
)


def plan_segments(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    short_share: float = 0.1,
) -> tf.Tensor:
    """Plans single segments for masked-LM training without a sentence objective.

    A segment begins where the one before it ended, and has full length or ends with the document.
    So no text is lost, and none is used twice.

    `sentences` (S,) int32 has the number of tokens of each sentence, `documents` (D,) int32 the
    number of sentences of each document, all above 0. `key` is the uint64 key of all random draws,
    `max_tokens` the sequence length less 2. `short_share` is the share of rows whose target length
    is drawn from 2..max_tokens.

    Returns:
        N rows in random order, (N, 5) int32, with the columns of `PLAN_COLUMNS`: start and length
        of the segment, then three zeros.

    Example:
        >>> plan = plan_segments(tf.constant([3, 4, 5, 6, 2]), tf.constant([4, 1]),
        ...                      fold(0, 0), max_tokens=8, short_share=0.0)
        >>> sorted(plan.numpy()[:, :2].tolist())
        [[0, 8], [8, 8], [16, 2], [18, 2]]
    """
    ends = tf.cumsum(documents)
    spans = _single_spans(sentence_bounds(sentences), ends - documents, ends, key, max_tokens,
                          short_share)  # fmt: skip
    return shuffled(tf.pad(spans, [[0, 0], [0, 3]]), fold(key, 2))


def _single_spans(
    bounds: tf.Tensor,
    firsts: tf.Tensor,
    ends: tf.Tensor,
    key: tf.Tensor,
    max_tokens: int,
    short_share: float,
) -> tf.Tensor:
    """Divides documents into segments; returns start and length in tokens of each, (N, 2) int32.

    `bounds` (S + 1,) are the first tokens of the sentences, see `sentence_bounds`. `firsts` and
    `ends` (D,) are the first sentence of each document and the sentence after its last. The uint64
    `key`, the length of a segment (`max_tokens`) and `short_share` are those of `plan_segments`.
    """
    _, start, end = stretches(bounds, firsts, ends, max_tokens)
    end = tf.gather(bounds, end)
    walk_key = fold(key, 0)

    def cut(walker: tf.Tensor, at: tf.Tensor, round_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bits = draws(fold(fold(walk_key, walker), round_), 2)
        length = target_length(bits[0], bits[1], max_tokens, short_share)
        length = tf.minimum(length, tf.gather(end, walker) - at)
        return tf.stack([at, length], 1), at + length

    return walk(tf.gather(bounds, start), end, cut, width=2)


def plan_aligned(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    tokens: tf.Tensor,
    sep_id: int,
    short_share: float = 0.0,
) -> tf.Tensor:
    """Plans XLM's rows: a text with its translation, and single segments of all other documents.

    A pair with more than `max_tokens` is truncated at the end of its sides. Each side keeps half of
    `max_tokens`, or more if the other side is shorter. (Conneau and Lample 2019, section 3.3,
    https://arxiv.org/abs/1901.07291.)

    Args:
        sentences: (S,) int32, number of tokens of each sentence, above 0.
        documents: (D,) int32, number of sentences of each document, above 0.
        key: uint64 scalar, key of all random draws of the plan.
        max_tokens: the sequence length less the special tokens of a pair.
        tokens: (tokens,), ids of the window. A document of two sentences is a text with its
            translation if the first sentence ends in a separator.
        sep_id: id of the separator.
        short_share: share of single segments whose target length is drawn from 2..max_tokens.

    Returns:
        N rows in random order, (N, 5) int32, with the columns of `PLAN_COLUMNS`: start and length
        of A and of B (0 for a single segment) in the window's tokens, then 0.

    Example:
        >>> plan = plan_aligned(tf.constant([3, 5, 4]), tf.constant([2, 1]), fold(0, 0),
        ...                     max_tokens=6, tokens=tf.constant([7, 8, 3] + [9] * 9), sep_id=3)
        >>> sorted(plan.numpy().tolist())
        [[0, 2, 3, 4, 0], [8, 4, 0, 0, 0]]
    """
    bounds = sentence_bounds(sentences)
    ends = tf.cumsum(documents)
    firsts = ends - documents
    second = tf.gather(bounds, firsts + 1)  # where the second sentence begins, (D,)
    is_pair = (documents == 2) & (tf.gather(tokens, second - 1) == tf.cast(sep_id, tokens.dtype))
    is_single = ~is_pair
    spans = _single_spans(
        *(bounds, tf.boolean_mask(firsts, is_single), tf.boolean_mask(ends, is_single)),
        *(key, max_tokens, short_share),
    )
    start, second, end = (
        tf.boolean_mask(bound, is_pair)
        for bound in (tf.gather(bounds, firsts), second, tf.gather(bounds, ends))
    )
    length, other_length = second - 1 - start, end - second
    kept_length = tf.minimum(length, tf.maximum(max_tokens // 2, max_tokens - other_length))
    pairs = [
        start,
        kept_length,
        second,
        tf.minimum(other_length, max_tokens - kept_length),
        tf.zeros_like(start),
    ]
    rows = tf.concat([tf.pad(spans, [[0, 0], [0, 3]]), tf.stack(pairs, 1)], 0)
    return shuffled(rows, fold(key, 2))


def plan_sentences(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    short_share: float = 0.0,
    cross: bool = False,
) -> tf.Tensor:
    """Plans RoBERTa's rows: as many whole sentences, one after the other, as fit.

    A sentence longer than a row is split into full rows and a rest, so no text is lost, and none is
    used twice. DOC-SENTENCES end with their document. FULL-SENTENCES (`cross`) continue with the
    next document, after a separator. A row never begins or ends with such a separator. Once in more
    than 256 rows a row ends early, at the end of a stretch (see `stretches`). Source: Liu et al.
    2019, section 4.2 (arXiv:1907.11692).

    Args:
        sentences: (S,) int32, number of tokens of each sentence, above 0.
        documents: (D,) int32, number of sentences of each document, above 0.
        key: uint64 scalar, key of all random draws of the plan.
        max_tokens: the sequence length less 2.
        short_share: share of rows whose target length is drawn from 2..max_tokens.
        cross: whether rows may contain several documents. The plan then points into the tokens that
            `join_documents` returns.

    Returns:
        N rows in random order, (N, 5) int32, with the columns of `PLAN_COLUMNS`: start and length
        of the segment, then three zeros.

    Example:
        >>> plan = plan_sentences(tf.constant([3, 4, 5, 6, 2]), tf.constant([4, 1]), fold(0, 0),
        ...                       max_tokens=9, cross=True)
        >>> sorted(plan.numpy()[:, :2].tolist())
        [[0, 7], [7, 5], [12, 9]]
    """
    parts = (sentences + max_tokens - 1) // max_tokens
    last_parts = tf.cumsum(parts)
    number = tf.range(last_parts[-1]) - tf.repeat(last_parts - parts, parts)
    sentences = tf.minimum(tf.repeat(sentences, parts) - number * max_tokens, max_tokens)
    ends = tf.gather(last_parts, tf.cumsum(documents) - 1)  # (D,)
    firsts = tf.pad(ends[:-1], [[1, 0]])

    bounds = sentence_bounds(sentences)
    # Joined documents have a separator before each but the first.
    shift = tf.repeat(tf.range(tf.size(ends)), ends - firsts) if cross else 0
    left, right = bounds[:-1] + shift, bounds[1:] + shift
    if cross:
        firsts, ends = firsts[:1], ends[-1:]
    _, start, end = stretches(bounds, firsts, ends, max_tokens)
    walk_key, order_key = fold(key, 0), fold(key, 2)

    def cut(walker: tf.Tensor, at: tf.Tensor, round_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bits = draws(fold(fold(walk_key, walker), round_), 2)
        target = target_length(bits[0], bits[1], max_tokens, short_share)
        first = tf.gather(left, at)
        stop = tf.searchsorted(right, first + target, side="right")
        stop = tf.clip_by_value(stop, at + 1, tf.gather(end, walker))
        return tf.stack([first, tf.gather(right, stop - 1) - first], 1), stop

    spans = walk(start, end, cut, width=2)
    return shuffled(tf.pad(spans, [[0, 0], [0, 3]]), order_key)


def plan_runs(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    rows: int,
    short_share: float = 0.0,
) -> tf.Tensor:
    """Plans one long text in every row of the batches, for a model with memory of the row before.

    The documents of the window are joined and divided into one run for each row of a batch. A batch
    has the next `max_tokens` of every run, in two segments split at a random position. So no text
    is lost, and none is used twice. All rows are full, except the last of each run; a run may end
    with an empty row if another is longer. (The layout of `create_tfrecords` of zihangdai/xlnet,
    data_utils.py, where half of the segments B are from elsewhere.)

    Args:
        sentences: (S,) int32, number of tokens of each sentence, above 0.
        documents: (D,) int32, number of sentences of each document, above 0.
        key: uint64 scalar, key of all random draws of the plan.
        max_tokens: the sequence length less the special tokens of a pair.
        rows: number of rows in a batch.
        short_share: share of shorter rows; must be 0.

    Returns:
        N rows batch by batch, (N, 5) int32, with the columns of `PLAN_COLUMNS`: start and length of
        A and of B, then 0. They point into the tokens that `join_documents` returns.

    Example:
        >>> plan = plan_runs(tf.constant([9, 10]), tf.constant([1, 1]), fold(0, 0),
        ...                  max_tokens=6, rows=2)
        >>> start, a, _, b, _ = plan.numpy().T
        >>> start.tolist(), (a + b).tolist()
        ([0, 10, 6, 16], [6, 6, 4, 4])
    """
    if short_share:
        raise ValueError(
            "`short_share` must be 0 for sequences that continue in the next batch. Received: "
            f"{short_share}"
        )
    total = tf.reduce_sum(tf.cast(sentences, tf.int64)) + tf.size(documents, tf.int64) - 1
    bounds = tf.cast(tf.range(rows + 1, dtype=tf.int64) * total // rows, tf.int32)
    longest = tf.reduce_max(bounds[1:] - bounds[:-1])
    start = bounds[:-1] + tf.range(0, longest, max_tokens)[:, None]  # (batches, rows)
    length = tf.clip_by_value(bounds[1:] - start, 0, max_tokens)
    start, length = tf.reshape(start, [-1]), tf.reshape(length, [-1])
    start = tf.where(length > 0, start, 0)
    draw = below(fold(key, tf.range(tf.size(length))), tf.maximum(length - 1, 1))
    first = tf.minimum(1 + draw, length)  # length of segment A: 0 only in an empty row
    plan = [start, first, start + first, length - first, tf.zeros_like(start)]
    return tf.stack(plan, 1)


def join_documents(
    tokens: tf.Tensor, sentences: tf.Tensor, documents: tf.Tensor, sep_id: int
) -> tf.Tensor:
    """Inserts a separator between each document and the next.

    Args:
        tokens: (tokens,), ids of a window.
        sentences: (S,) int32, number of tokens of each sentence.
        documents: (D,) int32, number of sentences of each document.
        sep_id: id of the separator.

    Returns:
        (tokens + D - 1,), of the type of `tokens`.

    Example:
        >>> tokens = tf.constant([7, 8, 9])
        >>> join_documents(tokens, tf.constant([1, 1, 1]), tf.constant([1, 2]), 3).numpy().tolist()
        [7, 3, 8, 9]
    """
    ends = tf.gather(sentence_bounds(sentences), tf.cumsum(documents)[:-1])
    return insert_token(tokens, ends, sep_id)


def insert_token(tokens: tf.Tensor, before: tf.Tensor, token_id: int) -> tf.Tensor:
    """Inserts a token at several positions.

    Args:
        tokens: (tokens,), ids.
        before: (K,) int32, ascending: indices of the tokens before which the token is inserted; the
            number of tokens means the end.
        token_id: id to insert.

    Returns:
        (tokens + K,), of the type of `tokens`.

    Example:
        >>> insert_token(tf.constant([7, 8, 9]), tf.constant([0, 2, 3]), 1).numpy().tolist()
        [1, 7, 8, 1, 9, 1]
    """
    positions = before + tf.range(tf.size(before))
    total = tf.size(tokens) + tf.size(before)
    is_text = tf.tensor_scatter_nd_update(
        tf.ones([total], tf.int32), positions[:, None], tf.zeros_like(positions)
    )
    source = tf.where(is_text > 0, tf.cumsum(is_text) - 1, tf.size(tokens))
    return tf.gather(tf.concat([tokens, tf.cast([token_id], tokens.dtype)], 0), source)


# The names that schemes use.
PLANS: dict[str, Callable[..., tf.Tensor]] = {
    "pairs": plan_pairs,
    "swapped_pairs": functools.partial(plan_pairs, swap=True),
    "consecutive": plan_consecutive,
    "segments": plan_segments,
    "sentences": plan_sentences,
    "sentences_across": functools.partial(plan_sentences, cross=True),
    "runs": plan_runs,
    "aligned": plan_aligned,
}
