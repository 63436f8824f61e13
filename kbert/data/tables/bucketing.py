"""Batches of rows of like length, so that little is computed on padding.

An epoch's plan is a few integers a row, drawn for each epoch from the seed: so a restart
resumes at any batch without reading the ones before.

Shapes: N rows, S batches of an epoch, B rows of a batch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kbert.data.masking.hashing import fold
from kbert.data.pipeline import exact_options
from kbert.data.tables.rows import Rows

# Rows whose lengths agree when rounded up to this many tokens are of like length.
BUCKET = 4
_RANDOM_BITS = 40  # of the sorting key, below those of the bucket


def bucketed_batches(
    rows: Rows,
    assemble: Callable[[dict[str, Any]], dict[str, tf.Tensor]],
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    by_length: bool = True,
    start: Sequence[int] = (0, 0, 0),
    epochs: int | None = None,
    num_hosts: int = 1,
    host_index: int = 0,
) -> tf.data.Dataset:
    """Batches of exactly `batch_size` rows, every row once an epoch.

    The rows of an epoch are permuted, sorted by their length in steps of `BUCKET` tokens and cut
    into batches, and the batches are permuted: which rows meet, and when, differs from epoch to
    epoch. Where the last batch is not full, copies of rows without weight fill it up.

    Args:
        rows: the data, N of them.
        assemble: the columns of a batch's rows -> batch-first features; runs inside `tf.data`.
        batch_size: B.
        seed: of the orders of all epochs.
        shuffle: False keeps the order of the rows, or with `by_length` sorts them by length.
        by_length: False lets any rows meet.
        start: `position` of the batch to resume after.
        epochs: passes over the data, those before `start` included; None never ends.
        num_hosts: processes that share each batch: B must divide by it.
        host_index: the part of each batch that is wanted; all hosts pad it to the same length.

    Returns:
        A dataset of dicts: what `assemble` gives, `label_weights` (those of `assemble`, else ones,
        (B,) float32; 0 for copies), `rows` (B,) int32, the number of each row, and `position`
        (B, 3) int32: the `start` that resumes after this batch.

    Raises:
        ValueError: if there are no rows, or a number is out of range.

    Example:
        >>> import numpy as np
        >>> rows = Rows(ragged={}, dense={"x": np.arange(3)}, lengths=np.array([9, 3, 12]),
        ...             examples=np.arange(3))
        >>> batches = bucketed_batches(rows, dict, batch_size=2, shuffle=False, epochs=1)
        >>> [batch["x"].tolist() for batch in batches.as_numpy_iterator()]
        [[1, 1], [0, 2]]
    """
    if batch_size % num_hosts or not 0 <= host_index < num_hosts:
        raise ValueError(
            "A batch must divide into equal parts for every host. "
            f"Received: batch_size={batch_size}, num_hosts={num_hosts}, host_index={host_index}"
        )
    if not len(rows) or batch_size < 1:
        raise ValueError(
            "Batches need rows, and a batch_size of 1 or more. "
            f"Received: {len(rows)} rows, batch_size={batch_size}"
        )
    steps = math.ceil(len(rows) / batch_size)
    first_epoch, first_batch = int(start[0]), int(start[1])
    if first_epoch < 0 or not 0 <= first_batch < steps:
        raise ValueError(
            f"start must be the position of a batch; an epoch has {steps} of them. "
            f"Received: {tuple(start)}"
        )
    lengths = tf.constant(rows.lengths if by_length else [0] * len(rows), tf.int64)
    share = batch_size // num_hosts
    own_rows = slice(host_index * share, (host_index + 1) * share)
    keys = Keys(-(-lengths // BUCKET), seed if shuffle else None)

    @tf.autograph.experimental.do_not_convert
    def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
        order, weights, position = _plan(keys, batch_size, steps, epoch)
        batches = tf.data.Dataset.from_tensor_slices((order, weights, position))
        return batches.skip(tf.where(epoch == first_epoch, tf.constant(first_batch, tf.int64), 0))

    @tf.autograph.experimental.do_not_convert
    def make(index: tf.Tensor, weights: tf.Tensor, position: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = dict(assemble(rows.gather(index)))
        for feature in batch.values():
            feature.set_shape([batch_size, *feature.shape[1:]])
        own = batch.get("label_weights", tf.ones_like(weights))
        rest = [1] * (own.shape.rank - 1)
        batch["label_weights"] = tf.cast(own, tf.float32) * tf.reshape(weights, [-1, *rest])
        batch["rows"] = index
        batch["position"] = tf.tile(position[None], [batch_size, 1])
        return {name: feature[own_rows] for name, feature in batch.items()}

    last = tf.int64.max if epochs is None else epochs
    dataset = tf.data.Dataset.range(first_epoch, last).flat_map(epoch_batches)
    dataset = dataset.map(make, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    if epochs is not None:
        left = max(0, (epochs - first_epoch) * steps - first_batch)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(left))
    return dataset.with_options(exact_options())


class Keys:
    """What rows and batches of an epoch are sorted by: a bucket, then chance or the order."""

    def __init__(self, buckets: tf.Tensor, seed: int | None) -> None:
        self.buckets = buckets
        self.seed = seed

    def rows(self, epoch: tf.Tensor) -> tf.Tensor:
        """(N,) int64."""
        return self.buckets * 2**_RANDOM_BITS + self._draws(tf.size(self.buckets), epoch, 0)

    def batches(self, steps: int, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The batches of an epoch in their order (S,) int32, and their positions (S, 3) int32."""
        order = tf.argsort(self._draws(steps, epoch, 1), stable=True)
        after = tf.cast(epoch, tf.int32) * steps + tf.range(1, steps + 1)
        return order, tf.stack([after // steps, after % steps, tf.zeros_like(after)], 1)

    def _draws(self, count: Any, epoch: tf.Tensor, what: int) -> tf.Tensor:
        """(count,) int64."""
        if self.seed is None:
            return tf.zeros([count], tf.int64)
        bits = fold(fold(fold(self.seed, epoch), what), tf.range(count))
        return tf.cast(
            tf.bitwise.right_shift(bits, tf.constant(64 - _RANDOM_BITS, tf.uint64)), tf.int64
        )


def _plan(keys: Keys, batch_size: int, steps: int, epoch: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Row numbers (S, B) int32, weights (S, B) float32 and positions (S, 3) int32 of an epoch."""
    order = tf.argsort(keys.rows(epoch), stable=True)  # (N,) int32
    # Copies of the shortest row, among the shortest: there they cost least.
    copies = steps * batch_size - tf.size(order)
    order = tf.concat([tf.repeat(order[:1], copies), order], 0)
    weights = tf.cast(tf.range(steps * batch_size) >= copies, tf.float32)
    batches, position = keys.batches(steps, epoch)
    shape = [steps, batch_size]
    order, weights = (tf.gather(tf.reshape(x, shape), batches) for x in (order, weights))
    return order, weights, position
