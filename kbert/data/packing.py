"""Token ids to the dense batch an encoder reads: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

Between A and B RoBERTa has two separators: <s> A </s></s> B </s>.

Core TensorFlow operations alone, so that a SavedModel holding this graph loads in any TensorFlow
Serving binary: tensorflow-text's own round-robin trimmer is an operation that older servers lack.

Shapes: B rows, T columns (the batch's longest row, rounded up).
"""

import tensorflow as tf


def pair_lengths(first: tf.RaggedTensor, second: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Tokens of both texts of each pair, (B,) int32, after a check that both are there."""
    lengths = [tf.cast(ids.row_lengths(), tf.int32) for ids in (first, second)]
    check = tf.debugging.assert_equal(
        *map(tf.size, lengths), "Every pair needs both texts: first and second differ in number"
    )
    with tf.control_dependencies([check]):
        length_a, length_b = map(tf.identity, lengths)
    return length_a, length_b


def pair_limits(first: tf.Tensor, second: tf.Tensor, budget: int) -> tuple[tf.Tensor, tf.Tensor]:
    """How many tokens of either segment stay: the longer one loses tokens first, B on a tie.

    The closed form of `_truncate_seq_pair` in google-research/bert's run_classifier.py.
    """
    keep_first = tf.minimum(first, tf.maximum(budget - second, budget - budget // 2))
    keep_second = tf.minimum(second, tf.maximum(budget - first, budget // 2))
    return keep_first, keep_second


def _gather(ids: tf.RaggedTensor, column: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
    """ids[row, column] where inside, 0 elsewhere; `column` counts from the row's first token."""
    # One spare value at the end: a batch without a single token still has something to gather.
    values = tf.concat([ids.flat_values, tf.zeros([1], ids.dtype)], 0)
    starts = tf.cast(ids.row_starts(), tf.int32)[:, None]
    index = tf.where(inside, starts + column, tf.size(values) - 1)
    return tf.cast(tf.gather(values, index), tf.int32)


def pack(
    first: tf.RaggedTensor,
    second: tf.RaggedTensor | None = None,
    *,
    cls_id: int,
    sep_id: int,
    pad_id: int,
    max_length: int,
    multiple: int = 16,
    separators: int = 1,
) -> dict[str, tf.Tensor]:
    """Packs one or two ragged segments into dense features, in graph or eagerly.

    Rows longer than `max_length` lose tokens at the end of the segment; of a pair, the longer
    segment loses them first. The width is the batch's longest row rounded up to `multiple`, so
    that a compiled model sees few shapes.

    Args:
        first: ids of segment A, (B, ragged), without special tokens.
        second: ids of segment B, (B, ragged), or None for single texts.
        cls_id, sep_id, pad_id: the tokenizer's special ids.
        max_length: the widest row, special tokens included (the encoder's `max_positions`).
        multiple: the width is a multiple of this, except that it never exceeds `max_length`.
        separators: how many [SEP] stand between A and B (the tokenizer's `pair_separators`).

    Returns:
        `token_ids`, `segment_ids` (0 up to the [SEP] before B, and for padding; 1 for B [SEP]) and
        `padding_mask` (1 = a token), each (B, T) int32.

    Raises:
        ValueError: if `max_length` has no room for the special tokens.

    Example:
        >>> import tensorflow as tf
        >>> ids = tf.ragged.constant([[7, 8], []], dtype=tf.int32)
        >>> batch = pack(ids, cls_id=2, sep_id=3, pad_id=0, max_length=128, multiple=4)
        >>> batch["token_ids"].numpy().tolist()
        [[2, 7, 8, 3], [2, 3, 0, 0]]
    """
    specials = 2 if second is None else 2 + separators
    if max_length < specials or multiple < 1:
        raise ValueError(
            f"max_length must be at least {specials} ([CLS] and the [SEP] of each segment) and "
            f"multiple at least 1. Received: max_length={max_length}, multiple={multiple}"
        )
    budget = max_length - specials
    if second is None:
        length_a = tf.minimum(tf.cast(first.row_lengths(), tf.int32), budget)
        total = length_a + 2
    else:
        length_a, length_b = pair_lengths(first, second)
        length_a, length_b = pair_limits(length_a, length_b, budget)
        total = length_a + length_b + specials

    longest = tf.reduce_max(tf.concat([total, [specials]], 0))  # an empty batch has a width too
    width = tf.minimum((longest + multiple - 1) // multiple * multiple, max_length)
    column = tf.range(width)[None, :]  # (1, T)
    total, end_a = total[:, None], length_a[:, None] + 1  # end_a: column of the first [SEP]

    inside = (column >= 1) & (column < end_a)  # (B, T)
    token_ids = tf.where(inside, _gather(first, column - 1, inside), sep_id)
    start_b = end_a + separators
    if second is not None:
        inside = (column >= start_b) & (column < total - 1)
        token_ids = tf.where(inside, _gather(second, column - start_b, inside), token_ids)
    token_ids = tf.where(column == 0, cls_id, token_ids)
    real = column < total
    return {
        "token_ids": tf.where(real, token_ids, pad_id),
        "segment_ids": tf.cast((column >= start_b) & real, tf.int32),
        "padding_mask": tf.cast(real, tf.int32),
    }
