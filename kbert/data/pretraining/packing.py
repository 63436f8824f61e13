"""Packs several examples into one row, instead of padding.

The examples of a window are divided at random into groups. Each group is packed by best fit,
longest first, all groups in lock-step. With 256 examples per group, 0.5 to 2 % of the tokens are
padding. A row has limits of tokens, predictions and examples. So no example loses a prediction, and
all shapes are static.

Examples are masked before they are packed, so an example has the same masks with and without
packing.

Shapes: M examples of a window, N rows, K examples of a row, T tokens, P predictions of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbert.core.late import tf
from kbert.data.pretraining.assembly import EXAMPLE_COLUMNS
from kbert.data.pretraining.walk import shuffled

_GROUP = 256


def pack_examples(
    examples: tf.Tensor,
    lengths: tf.Tensor,
    predictions: tf.Tensor,
    key: tf.Tensor,
    *,
    max_tokens: int,
    max_predictions: int,
    max_examples: int,
) -> tf.Tensor:
    """Packs the examples of a window into rows.

    Args:
        examples: (M, 6) int32 in random order, with the columns of `EXAMPLE_COLUMNS`: start and
            length of A and of B, label, number of the example.
        lengths: (M,) int32, number of tokens of each example, specials included.
        predictions: (M,) int32, number of predictions of each example.
        key: uint64 scalar, key of the order of the rows.
        max_tokens: T, maximum number of tokens in a row.
        max_predictions: P, maximum number of predictions in a row.
        max_examples: K, maximum number of examples in a row.

    Returns:
        N rows in random order, (N, 6K) int32, with the columns of their K examples, 0 for empty
        slots; see `kbert.data.pretraining.assembly`.

    Example:
        >>> from kbert.data.masking.hashing import fold
        >>> examples = tf.pad(tf.constant([[0, 3], [3, 6], [9, 3]]), [[0, 0], [0, 4]])
        >>> rows = pack_examples(examples, examples[:, 1] + 2, tf.ones([3], tf.int32), fold(0, 0),
        ...                      max_tokens=12, max_predictions=2, max_examples=2)
        >>> sorted(rows.numpy()[:, :8].tolist())
        [[0, 3, 0, 0, 9, 3, 0, 0], [3, 6, 0, 0, 0, 0, 0, 0]]
    """
    count = tf.shape(examples)[0]
    groups = -(-count // _GROUP)

    def grouped(values: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.pad(values, [[0, groups * _GROUP - count]]), [groups, _GROUP])

    order = tf.argsort(grouped(lengths), axis=1, direction="DESCENDING", stable=True)
    lengths, predictions = (
        tf.gather(grouped(x), order, batch_dims=1) for x in (lengths, predictions)
    )
    rows, slots = _best_fit(  # (groups, 256)
        lengths, predictions, max_tokens, max_predictions, max_examples
    )

    first = _GROUP * tf.range(groups)[:, None]
    number, rows = (tf.reshape(first + x, [-1]) for x in (order, rows))
    real_indices = tf.where(number < count)[:, 0]  # without the padding of the last group
    number, rows, slots = (
        tf.gather(x, real_indices) for x in (number, rows, tf.reshape(slots, [-1]))
    )
    _, rows = tf.unique(rows)
    total = tf.reduce_max(tf.concat([rows + 1, [0]], 0))
    columns = len(EXAMPLE_COLUMNS)
    packed = tf.scatter_nd(
        tf.stack([rows, slots], 1),
        tf.gather(examples, number),
        tf.stack([total, max_examples, columns]),
    )
    spans = tf.reshape(packed[:, :, :4], [total, 4 * max_examples])
    return shuffled(tf.concat([spans, packed[:, :, 4], packed[:, :, 5]], 1), key)


def _best_fit(
    lengths: tf.Tensor,
    predictions: tf.Tensor,
    max_tokens: int,
    max_predictions: int,
    max_examples: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Packs groups of 256 examples; returns each example's row in its group, and slot in the row.

    `lengths` and `predictions`, like both results, are (G, 256) int32: the tokens and predictions
    of each example, longest first. An example goes to the fullest row with space for it. The limits
    `max_tokens`, `max_predictions` and `max_examples` are those of a row.
    """
    shape = tf.shape(lengths)
    lengths, predictions = tf.transpose(lengths), tf.transpose(predictions)

    def body(
        number: tf.Tensor, free: tf.Tensor, left: tf.Tensor, used: tf.Tensor, *chosen: Any
    ) -> tuple[Any, ...]:
        length, predicted = lengths[number][:, None], predictions[number][:, None]
        fits = (free >= length) & (left >= predicted) & (used < max_examples)
        # The fullest row in which the example fits; an empty row only if it fits in no other.
        row = tf.argmin(tf.where(fits, free, max_tokens + 1), 1, tf.int32)
        rows, slots = chosen
        chosen = rows.write(number, row), slots.write(number, tf.gather(used, row, batch_dims=1))
        in_row = tf.one_hot(row, _GROUP, dtype=tf.int32)
        return number + 1, free - in_row * length, left - in_row * predicted, used + in_row, *chosen

    arrays = [tf.TensorArray(tf.int32, _GROUP) for _ in range(2)]
    limits = [tf.fill(shape, n) for n in (max_tokens, max_predictions, 0)]
    *_, rows, slots = tf.while_loop(
        lambda number, *_: number < _GROUP, body, [0, *limits, *arrays], parallel_iterations=1
    )
    return tf.transpose(rows.stack()), tf.transpose(slots.stack())


_OF_TOKENS = (
    *("token_ids", "segment_ids", "causal_mask", "attention_order", "order_ids"),
    "position_ids",
)


def pack_features(
    features: Mapping[str, tf.Tensor],
    place: tf.Tensor,
    num_rows: tf.Tensor,
    *,
    max_examples: int,
    pad_id: int,
    cls_last: bool = False,
) -> dict[str, tf.Tensor]:
    """Joins the features of masked examples into those of the packed rows.

    Args:
        features: features of M examples: `token_ids`, `segment_ids`, `padding_mask` and, if
            present, `causal_mask`, `attention_order`, `order_ids` and `position_ids` (M, T);
            `mask_…` and `span_…` (M, P), 0 where nothing is predicted; labels (M,).
        place: (M,) int64, row * K + number in the row, ascending.
        num_rows: N, number of packed rows.
        max_examples: K, maximum number of examples in a row.
        pad_id: id of padding.
        cls_last: whether an example ends in [CLS] instead of beginning with it.

    Returns:
        The same features as (N, T) and (N, P), with positions in the packed row; `position_ids`
        (N, T) int32, from 0 in each example unless they were given; `example_ids` (N, T) int32,
        from 1, 0 in padding; `cls_positions` (N, K); and the labels (N, K), with `…_weights` (N, K)
        float32.

    Example:
        >>> features = {
        ...     "token_ids": [[1, 7, 2, 0, 0, 0], [1, 8, 2, 0, 0, 0]], "segment_ids": [[0] * 6] * 2,
        ...     "padding_mask": [[1, 1, 1, 0, 0, 0]] * 2, "mask_positions": [[1], [1]],
        ...     "mask_ids": [[7], [9]], "mask_weights": [[1.0], [1.0]]}
        >>> packed = pack_features({k: tf.constant(v) for k, v in features.items()},
        ...                        tf.constant([0, 1], tf.int64), 1, max_examples=2, pad_id=0)
        >>> for name in ("token_ids", "position_ids", "example_ids", "cls_positions"):
        ...     print(name, packed[name].numpy().tolist())
        token_ids [[1, 7, 2, 1, 8, 2]]
        position_ids [[0, 1, 2, 0, 1, 2]]
        example_ids [[1, 1, 1, 2, 2, 2]]
        cls_positions [[0, 3]]
    """
    features = dict(features)
    mask = features.pop("padding_mask")
    width = mask.shape[1]
    row, slot = (tf.cast(x, tf.int32) for x in (place // max_examples, place % max_examples))
    lengths = tf.reduce_sum(mask, 1)  # (M,)
    # The first position of each example in its row: all tokens before it, less those of earlier
    # rows.
    totals = tf.math.unsorted_segment_sum(lengths, row, num_rows)  # (N,)
    begin = tf.cumsum(lengths, exclusive=True)
    begin -= tf.gather(tf.cumsum(totals, exclusive=True), row)

    packed = {}
    tokens = tf.where(mask > 0)
    example = tokens[:, 0]
    of_tokens = [name for name in _OF_TOKENS if name in features]
    default_positions = (
        {} if "position_ids" in features else {"position_ids": tf.cast(tokens[:, 1], tf.int32)}
    )
    for name, values in (
        *((name, tf.gather_nd(features.pop(name), tokens)) for name in of_tokens),
        *default_positions.items(),
        ("example_ids", tf.gather(slot + 1, example)),
    ):
        fill = pad_id if name == "token_ids" else 0
        packed[name] = _filled(values, totals, width, fill)
    packed["padding_mask"] = tf.sequence_mask(totals, width, dtype=tf.int32)

    weights = features["mask_weights"]
    predicted = tf.where(weights > 0)
    example = predicted[:, 0]
    counts = tf.math.count_nonzero(weights, 1, dtype=tf.int32)
    counts = tf.math.unsorted_segment_sum(counts, row, num_rows)
    for name in [name for name in features if name.startswith(("mask_", "span_"))]:
        values = tf.gather_nd(features.pop(name), predicted)
        if name not in ("mask_ids", "mask_weights"):  # the others are positions
            values += tf.gather(begin, example)
        packed[name] = _filled(values, counts, weights.shape[1], 0)

    place = place[:, None]
    shape = tf.cast(tf.stack([num_rows * max_examples]), tf.int64)

    def by_example(values: tf.Tensor) -> tf.Tensor:
        values = tf.scatter_nd(place, values, shape)
        return tf.reshape(values, [num_rows, max_examples])

    packed["cls_positions"] = by_example(begin + lengths - 1 if cls_last else begin)
    for name, labels in features.items():
        packed[name] = by_example(labels)
        packed[name.replace("_labels", "_weights")] = by_example(tf.ones_like(row, tf.float32))
    return packed


def _filled(values: tf.Tensor, counts: tf.Tensor, width: int, fill: int) -> tf.Tensor:
    """Returns (N, width) rows, each with the next `counts` (N,) of the values, then with `fill`."""
    ragged = tf.RaggedTensor.from_row_lengths(values, counts, validate=False)
    return ragged.to_tensor(tf.cast(fill, values.dtype), shape=[None, width])
