"""How the text of a window is laid out in rows: the table of segment schemes, and single segments.

Shapes: S sentences, D documents, N rows.
"""

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from kbert.data.masking.hashing import fold
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
    """Single segments for masked-LM training without a sentence objective.

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
    bounds = sentence_bounds(sentences)
    document_ends = tf.cumsum(documents)
    firsts = document_ends - documents
    _, start, end = stretches(bounds, firsts, document_ends, max_tokens)
    end = tf.gather(bounds, end)
    walk_key, order_key = fold(key, 0), fold(key, 2)

    def cut(walker: tf.Tensor, at: tf.Tensor, round_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bits = draws(fold(fold(walk_key, walker), round_), 2)
        length = target_length(bits[0], bits[1], max_tokens, short_share)
        length = tf.minimum(length, tf.gather(end, walker) - at)
        return tf.stack([at, length], 1), at + length

    spans = walk(tf.gather(bounds, start), end, cut, width=2)
    return shuffled(tf.pad(spans, [[0, 0], [0, 3]]), order_key)


def plan_sentences(
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    short_share: float = 0.0,
    cross: bool = False,
) -> tf.Tensor:
    """RoBERTa's rows: as many whole sentences, one after the other, as fit.

    A sentence longer than a row is split into full rows and a rest: no text is lost, none is used
    twice. DOC-SENTENCES end with their document; FULL-SENTENCES (`cross`) continue with the next
    one, after a separator. A row that would begin or end with such a separator has none there. Once
    in more than 256 rows a row ends early, at a stretch's end (see `stretches`). Source: Liu et al.
    2019, section 4.2 (arXiv:1907.11692).

    Args:
        sentences: as for `plan_pairs`.
        documents: as for `plan_pairs`; one is enough.
        key: as for `plan_pairs`.
        max_tokens: the sequence length less 2.
        short_share: as for `plan_pairs`.
        cross: rows may hold several documents. The plan then points into the tokens that
            `join_documents` returns.

    Returns:
        (N, 5) int32, the columns of `PLAN_COLUMNS`, with the last three all 0.

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


def join_documents(
    tokens: tf.Tensor, sentences: tf.Tensor, documents: tf.Tensor, sep_id: int
) -> tf.Tensor:
    """A separator between each document and the next.

    Args:
        tokens: (tokens,), ids of a window.
        sentences: (S,) int32, tokens of each sentence.
        documents: (D,) int32, sentences of each document.
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
    """One more token in several places.

    Args:
        tokens: (tokens,) ids.
        before: (K,) int32, ascending: the tokens before which it comes; their count is the end.
        token_id: the id that is put in.

    Returns:
        (tokens + K,), of the type of `tokens`.

    Example:
        >>> insert_token(tf.constant([7, 8, 9]), tf.constant([0, 2, 3]), 1).numpy().tolist()
        [1, 7, 8, 1, 9, 1]
    """
    place = before + tf.range(tf.size(before))
    total = tf.size(tokens) + tf.size(before)
    is_text = tf.tensor_scatter_nd_update(
        tf.ones([total], tf.int32), place[:, None], tf.zeros_like(place)
    )
    source = tf.where(is_text > 0, tf.cumsum(is_text) - 1, tf.size(tokens))
    return tf.gather(tf.concat([tokens, tf.cast([token_id], tokens.dtype)], 0), source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentScheme:
    """A way to lay out text in rows.

    Attributes:
        plan: makes the plan of a window, see `plan_pairs`.
        num_segments: 2 where rows may have a segment B.
        documents: the least number of documents it needs.
        short_share: share of rows cut shorter, as published.
        label: the feature that holds the plan's label, if it has one.
        joins_documents: whether the plan points into joined documents, see `join_documents`.
    """

    plan: Callable[..., tf.Tensor]
    num_segments: int
    short_share: float
    documents: int = 1
    label: str | None = None
    joins_documents: bool = False

    def num_specials(self, separators: int) -> int:
        """Special tokens of a row with all its segments: [CLS], those between A and B, [SEP]."""
        return 2 + (separators if self.num_segments == 2 else 0)


SEGMENT_SCHEMES = {
    "pairs": SegmentScheme(
        plan=plan_pairs, num_segments=2, short_share=0.1, documents=2, label="next_sentence_labels"
    ),
    "halves": SegmentScheme(
        plan=functools.partial(plan_pairs, swap=True),
        num_segments=2,
        short_share=0.1,
        documents=2,
        label="sentence_order_labels",
    ),
    "consecutive": SegmentScheme(plan=plan_consecutive, num_segments=2, short_share=0.05),
    "single": SegmentScheme(plan=plan_segments, num_segments=1, short_share=0.1),
    "doc_sentences": SegmentScheme(plan=plan_sentences, num_segments=1, short_share=0.0),
    "full_sentences": SegmentScheme(
        plan=functools.partial(plan_sentences, cross=True),
        num_segments=1,
        short_share=0.0,
        joins_documents=True,
    ),
}
