"""UniLM's rows: bidirectional, sequence to sequence, left to right, and right to left.

(Dong et al. 2019, sections 2.2 and 2.3, https://arxiv.org/abs/1905.03197.) The kind of a row says
which tokens attend to which; in all kinds masked tokens are predicted. The segment ids of a row
tell its kind, as in the original code.

Shapes: N rows, T tokens.
"""

from __future__ import annotations

import numpy as np

from kbert.core.late import tf
from kbert.data.masking.hashing import below, fold

# The kinds in the order of `attention_shares`.
KINDS = ("bidirectional", "seq2seq", "left_to_right", "right_to_left")
BIDIRECTIONAL, SEQ2SEQ, LEFT_TO_RIGHT, RIGHT_TO_LEFT = range(4)
# Kind -> id of its first segment; the second segment of a pair has the next id. (`new_segment_ids`
# in the code of microsoft/unilm.)
FIRST_SEGMENT = (0, 4, 2, 3)
NUM_SEGMENTS = 6
# Segment id -> 0 for the first segment of its kind, 1 for the second.
PLACE_IN_PAIR = (0, 1, 0, 0, 0, 1)
# Segment id -> kind.
KIND_OF_SEGMENT = (BIDIRECTIONAL, BIDIRECTIONAL, LEFT_TO_RIGHT, RIGHT_TO_LEFT, SEQ2SEQ, SEQ2SEQ)
_TABLE = 2**16  # entries of the lookup table of kinds: shares are exact to within 1/2**16


def draw_kinds(keys: tf.Tensor, shares: tuple[float, ...]) -> tf.Tensor:
    """Draws an index of `shares` for each key, with probabilities in proportion to the shares.

    `keys` are uint64; the result is int32 of their shape.

    >>> draw_kinds(fold(0, tf.range(8)), (2, 2, 1, 1)).numpy().tolist()
    [1, 0, 3, 0, 0, 0, 1, 3]
    """
    bounds = np.cumsum(shares) / np.sum(shares)
    table = np.searchsorted(bounds, (np.arange(_TABLE) + 0.5) / _TABLE)
    return tf.gather(tf.constant(table, tf.int32), below(fold(keys, 0), _TABLE))


def plan_kinds(plan: tf.Tensor, key: tf.Tensor, shares: tuple[float, ...]) -> tf.Tensor:
    """Draws the kind of each planned row, and divides its text into the segments of the kind.

    A row from left to right or from right to left has one segment. A row from sequence to sequence
    has two; if the plan has one, it is split at a random token, unless it has only one token. A
    bidirectional row stays as planned.

    Args:
        plan: (N, 5) int32, with the columns of `PLAN_COLUMNS`; B is empty or follows A in the text.
        key: uint64 scalar, key of all random draws.
        shares: weights of the four `KINDS`.

    Returns:
        The plan, (N, 5) int32, with the kind in the column of the label.

    Example:
        >>> plan = tf.constant([[0, 4, 4, 3, 0], [7, 5, 0, 0, 0]])
        >>> plan_kinds(plan, fold(0, 0), (0, 0, 1, 0)).numpy().tolist()
        [[0, 7, 0, 0, 2], [7, 5, 0, 0, 2]]
        >>> plan_kinds(plan, fold(0, 0), (0, 1, 0, 0)).numpy().tolist()
        [[0, 4, 4, 3, 1], [7, 3, 10, 2, 1]]
    """
    start, first, start_b, second, _ = tf.unstack(plan, axis=1)
    keys = fold(key, tf.range(tf.size(start)))
    kind = draw_kinds(keys, shares)
    length = first + second
    is_single = kind >= LEFT_TO_RIGHT
    is_split = (kind == SEQ2SEQ) & (second == 0) & (length > 1)
    split = 1 + below(fold(keys, 1), tf.maximum(length - 1, 1))
    first = tf.where(is_single, length, tf.where(is_split, split, first))
    second = length - first
    start_b = tf.where(second > 0, tf.where(is_split, start + first, start_b), 0)
    return tf.stack([start, first, start_b, second, kind], 1)


def attention_features(
    kind: tf.Tensor, segment_ids: tf.Tensor, padding_mask: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Returns the segment ids and the attention order of rows of these kinds.

    Args:
        kind: (N,) int32, the kind of each row.
        segment_ids: (N, T) int32, 0 for the first segment and 1 for the second.
        padding_mask: (N, T) int32, 1 for a token.

    Returns:
        `segment_ids` (N, T) int32, see `FIRST_SEGMENT`; and `attention_order` (N, T) int32: a token
        attends only to tokens whose number is at most its own. Both are 0 in padding.

    Example:
        >>> segments, mask = tf.constant([[0, 0, 1, 1, 0]] * 2), tf.constant([[1, 1, 1, 1, 0]] * 2)
        >>> features = attention_features(tf.constant([1, 3]), segments, mask)
        >>> features["segment_ids"].numpy().tolist()
        [[4, 4, 5, 5, 0], [3, 3, 4, 4, 0]]
        >>> features["attention_order"].numpy().tolist()
        [[0, 0, 2, 3, 0], [5, 4, 3, 2, 0]]
    """
    width = segment_ids.shape[1]
    column = tf.range(width)[None]
    kind = kind[:, None]
    reads_on = (kind == LEFT_TO_RIGHT) | ((kind == SEQ2SEQ) & (segment_ids > 0))
    order = tf.where(reads_on, column, tf.where(kind == RIGHT_TO_LEFT, width - column, 0))
    first = tf.gather(tf.constant(FIRST_SEGMENT), kind)
    return {
        "segment_ids": (segment_ids + first) * padding_mask,
        "attention_order": order * padding_mask,
    }
