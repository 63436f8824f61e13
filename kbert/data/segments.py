"""How the text of a window is laid out in rows: the table of segment schemes, and single segments.

Shapes: S sentences, D documents, N rows.
"""

import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from kbert.data.hashing import fold
from kbert.data.pairs import plan_consecutive, plan_pairs
from kbert.data.walk import draws, sentence_bounds, shuffled, stretches, target_length, walk


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentScheme:
    """A way to lay out text in rows.

    Attributes:
        plan: makes the plan of a window, see `plan_pairs`.
        num_segments: 2 where rows may have a segment B.
        documents: the least number of documents it needs.
        short_share: share of rows cut shorter, as published.
        label: the feature that holds the plan's label, if it has one.
    """

    plan: Callable[..., tf.Tensor]
    num_segments: int
    short_share: float
    documents: int = 1
    label: str | None = None

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
}
