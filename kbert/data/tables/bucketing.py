"""Batches of rows of similar length, so that little is computed on padding.

A plan is a few integers per row, drawn for each epoch from the seed. So a run resumes at any batch
without reading the batches before. If the rows are in memory, a plan covers a whole epoch.
Otherwise it covers a window: the rows that are in memory at a time.

Shapes: N rows, W rows of a window, S batches of a window, B rows of a batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kbert.core.late import has_tensorflow, tf
from kbert.data.masking.hashing import fold, fold_arrays
from kbert.data.pipeline import exact_options
from kbert.data.tables.rows import Rows, gather
from kbert.data.tables.shards import StoredRows

# Rows are of similar length if their lengths, rounded up to a multiple of this, are equal.
BUCKET = 4
_RANDOM_BITS = 40  # low bits of the sorting key; the high bits are the bucket


def bucketed_batches(
    rows: Rows | StoredRows,
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
    """Returns batches of exactly `batch_size` rows, with every row once per epoch.

    The rows of an epoch are permuted, sorted by length in steps of `BUCKET` tokens, and divided
    into batches. Then the batches are permuted. So the composition and the order of the batches
    differ between epochs. Rows on disk are permuted block by block, and sorted within windows. An
    incomplete batch is filled with copies of a row, with weight 0.

    Args:
        rows: the N rows, in memory or on disk.
        assemble: function from the columns of a batch's rows to batch-first features; runs inside
            `tf.data`.
        batch_size: B, number of rows in a batch of all hosts.
        seed: seed of the orders of all epochs.
        shuffle: False keeps the order of the rows, or with `by_length` sorts them by length.
        by_length: whether a batch has rows of similar length; False combines any rows.
        start: `position` of the batch to resume after.
        epochs: passes over the data, including those before `start`; None never ends.
        num_hosts: number of processes that share each batch; B must be divisible by it.
        host_index: number of this process, which gets that part of each batch. All hosts pad to
            the same length.

    Returns:
        A dataset of dicts: the features of `assemble`, `label_weights` (from `assemble`, else ones,
        (B,) float32; 0 for copies), `rows` (B,) int32, the number of each row, and `position`
        (B, 3) int32, the `start` that resumes after this batch. Without TensorFlow, `ArrayBatches`
        with the same content.

    Raises:
        ValueError: there are no rows, or a number is out of range.

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
            "batch_size must be a multiple of num_hosts, and host_index from 0 to num_hosts - 1. "
            f"Received: batch_size={batch_size}, num_hosts={num_hosts}, host_index={host_index}"
        )
    if not len(rows) or batch_size < 1:
        raise ValueError(
            "Batches require at least one row, and batch_size must be at least 1. Received: "
            f"{len(rows)} rows, batch_size={batch_size}"
        )
    steps = math.ceil(len(rows) / batch_size)
    first_epoch, first_batch = int(start[0]), int(start[1])
    if first_epoch < 0 or not 0 <= first_batch < steps:
        raise ValueError(
            f"start must be the position of a batch; an epoch has {steps} batches. Received: "
            f"{tuple(start)}"
        )
    share = batch_size // num_hosts
    own_rows = slice(host_index * share, (host_index + 1) * share)
    order_seed = seed if shuffle else None
    if not has_tensorflow():
        assert isinstance(rows, Rows), "rows on disk are read by TensorFlow"
        first = (first_epoch, first_batch)
        return ArrayBatches(
            rows, assemble, batch_size, order_seed, by_length, first, epochs, own_rows
        )
    window_steps = steps
    if rows.window_rows is not None:
        window_steps = min(steps, max(1, rows.window_rows // batch_size))
    windows = math.ceil(steps / window_steps)
    first_window, first_step = divmod(first_batch, window_steps)

    @tf.autograph.experimental.do_not_convert
    def read_windows(epoch: tf.Tensor) -> tf.data.Dataset:
        order = rows.order(epoch, order_seed)  # once per epoch: it is as long as the data

        @tf.autograph.experimental.do_not_convert
        def read(window: tf.Tensor) -> tf.data.Dataset:
            first = window * (window_steps * batch_size)
            stop = tf.minimum(first + window_steps * batch_size, len(rows))
            contents = rows.window(order, first, stop)
            return contents.map(lambda *content: (epoch, window, *content))

        begin = tf.where(epoch == first_epoch, tf.constant(first_window, tf.int64), 0)
        return tf.data.Dataset.range(begin, windows).flat_map(read)

    @tf.autograph.experimental.do_not_convert
    def window_batches(
        epoch: tf.Tensor,
        window: tf.Tensor,
        columns: dict[str, Any],
        lengths: tf.Tensor,
        numbers: tf.Tensor,
    ) -> tf.data.Dataset:
        buckets = -(-lengths // BUCKET) if by_length else tf.zeros_like(lengths)
        keys = Keys(buckets, order_seed)
        order, weights = _plan(keys, batch_size, epoch, numbers)
        batch_order, position = keys.batches(
            steps, epoch, window * window_steps, tf.shape(order)[0]
        )
        order, weights = tf.gather(order, batch_order), tf.gather(weights, batch_order)

        @tf.autograph.experimental.do_not_convert
        def make(index: tf.Tensor, weights: tf.Tensor, position: tf.Tensor) -> dict[str, tf.Tensor]:
            batch = dict(assemble(gather(columns, index)))
            for feature in batch.values():
                feature.set_shape([batch_size, *feature.shape[1:]])
            label_weights = batch.get("label_weights", tf.ones_like(weights))
            trailing_ones = [1] * (label_weights.shape.rank - 1)
            batch["label_weights"] = tf.cast(label_weights, tf.float32) * tf.reshape(
                weights, [-1, *trailing_ones]
            )
            batch["rows"] = tf.cast(tf.gather(numbers, index), tf.int32)
            batch["position"] = tf.tile(position[None], [batch_size, 1])
            return {name: feature[own_rows] for name, feature in batch.items()}

        plan = tf.data.Dataset.from_tensor_slices((order, weights, position))
        is_first = (epoch == first_epoch) & (window == first_window)
        plan = plan.skip(tf.where(is_first, tf.constant(first_step, tf.int64), 0))
        return plan.map(make, num_parallel_calls=tf.data.AUTOTUNE)

    end_epoch = tf.int64.max if epochs is None else epochs
    # The next window is read while batches of this one are made.
    dataset = tf.data.Dataset.range(first_epoch, end_epoch).flat_map(read_windows).prefetch(1)
    dataset = dataset.flat_map(window_batches).prefetch(tf.data.AUTOTUNE)
    if epochs is not None:
        remaining_batches = max(0, (epochs - first_epoch) * steps - first_batch)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(remaining_batches))
    return dataset.with_options(exact_options())


@dataclasses.dataclass(frozen=True)
class ArrayBatches:
    """The batches of `bucketed_batches` as NumPy arrays, without TensorFlow, for rows in memory.

    Args:
        rows: the N rows.
        assemble: function from the columns of a batch's rows to batch-first features.
        batch_size: B, number of rows in a batch of all hosts.
        seed: seed of the orders of all epochs; None keeps the order of the rows.
        by_length: whether a batch has rows of similar length.
        start: epoch and batch to begin with.
        epochs: passes over the data, including those before `start`; None never ends.
        own_rows: slice of each batch that this process gets.
    """

    rows: Rows
    assemble: Callable[[dict[str, Any]], dict[str, Any]]
    batch_size: int
    seed: int | None
    by_length: bool
    start: tuple[int, int]
    epochs: int | None
    own_rows: slice

    @property
    def element_spec(self) -> dict[str, np.ndarray]:
        """The first batch, which shows the names, types and shapes of the features."""
        return next(iter(self))

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        epoch, first = self.start
        while self.epochs is None or epoch < self.epochs:
            order, weights = self._plan(epoch)
            steps = len(order)
            for batch in range(first, steps):
                yield self._batch(
                    order[batch], weights[batch], divmod(epoch * steps + batch + 1, steps)
                )
            epoch, first = epoch + 1, 0

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of an epoch's batches, (S, B), and their weights, (S, B).

        They equal those of `_plan` and `Keys`.
        """
        lengths = np.asarray(self.rows.lengths)
        buckets = -(-lengths // BUCKET) if self.by_length else np.zeros_like(lengths)
        keys = buckets * 2**_RANDOM_BITS + self._draws(epoch, 0, len(lengths))
        order = np.argsort(keys, kind="stable")
        copies = -len(order) % self.batch_size
        order = np.concatenate([np.repeat(order[:1], copies), order])
        weights = (np.arange(len(order)) >= copies).astype(np.float32)
        batch_order = np.argsort(
            self._draws(epoch, 1, len(order) // self.batch_size), kind="stable"
        )
        shape = (-1, self.batch_size)
        return order.reshape(shape)[batch_order], weights.reshape(shape)[batch_order]

    def _draws(self, epoch: int, what: int, count: int) -> np.ndarray:
        """Returns random numbers of 40 bits for an epoch, (count,) int64; zeros without a seed.

        `what` is 0 for the draws of rows, 1 for those of batches.
        """
        if self.seed is None:
            return np.zeros(count, np.int64)
        bits = fold_arrays(fold_arrays(fold_arrays(self.seed, epoch), what), np.arange(count))
        return (bits >> np.uint64(64 - _RANDOM_BITS)).astype(np.int64)

    def _batch(
        self, index: np.ndarray, weights: np.ndarray, position: tuple[int, int]
    ) -> dict[str, np.ndarray]:
        """Returns this host's part of a batch: name of a feature -> array.

        Args:
            index: numbers of the batch's rows, (B,).
            weights: 0 for a repeated row that only fills the batch and 1 for others, (B,); they
                multiply `label_weights`.
            position: epoch and batch that follow this one.
        """
        batch = {k: np.asarray(x) for k, x in self.assemble(self.rows.gather(index)).items()}
        label_weights = batch.get("label_weights", np.ones_like(weights)).astype(np.float32)
        batch["label_weights"] = label_weights * weights.reshape(
            -1, *[1] * (label_weights.ndim - 1)
        )
        batch["rows"] = index.astype(np.int32)
        batch["position"] = np.tile(np.array([[*position, 0]], np.int32), (len(index), 1))
        return {name: feature[self.own_rows] for name, feature in batch.items()}


class Keys:
    """Sorting keys that shuffle the rows and the batches of an epoch.

    The key of a row is its bucket, then random bits; that of a batch has random bits only. Without
    a seed (None) there are none, so sorting keeps the order. `buckets` (N,) int64 has a number for
    each row; rows of equal number, such as rows of similar length, are sorted next to each other.
    """

    def __init__(self, buckets: tf.Tensor, seed: int | None) -> None:
        self.buckets = buckets
        self.seed = seed

    def rows(self, epoch: tf.Tensor, numbers: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the sorting keys of the rows in an epoch, (N,) int64.

        `numbers` (N,) are the rows' numbers in the data set; None is 0, 1, ….
        """
        numbers = tf.range(tf.size(self.buckets)) if numbers is None else numbers
        return self.buckets * 2**_RANDOM_BITS + self._draws(numbers, epoch, 0)

    def batches(
        self, steps: int, epoch: tf.Tensor, first: tf.Tensor | int = 0, count: Any = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the shuffled order of S batches, (S,) int32, and their positions, (S, 3) int32.

        Batches are counted from `first`. Each position resumes after the batch that comes at that
        place of the order.

        Args:
            steps: number of batches in the epoch.
            epoch: number of the epoch.
            first: number of the first batch to return.
            count: S, number of batches to return; None is all of the epoch.
        """
        first = tf.cast(first, tf.int32)
        numbers = first + tf.range(steps if count is None else count)
        order = tf.argsort(self._draws(numbers, epoch, 1), stable=True)
        next_batches = tf.cast(epoch, tf.int32) * steps + numbers + 1
        return order, tf.stack(
            [next_batches // steps, next_batches % steps, tf.zeros_like(next_batches)], 1
        )

    def _draws(self, numbers: tf.Tensor, epoch: tf.Tensor, what: int) -> tf.Tensor:
        """Returns a random number of 40 bits, int64, for each of the `numbers` (n,) in an epoch.

        It is 0 without a seed. `what` is 0 for the draws of rows, 1 for those of batches.
        """
        if self.seed is None:
            return tf.zeros(tf.shape(numbers), tf.int64)
        bits = fold(fold(fold(self.seed, epoch), what), numbers)
        return tf.cast(
            tf.bitwise.right_shift(bits, tf.constant(64 - _RANDOM_BITS, tf.uint64)), tf.int64
        )


def _plan(
    keys: Keys, batch_size: int, epoch: tf.Tensor, numbers: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Divides the rows of a window into batches of `batch_size` rows with similar keys.

    `numbers` (W,) are the rows' numbers in the data set. Returns indices of rows in the window,
    (S, B) int32, and their weights, (S, B) float32: 0 for the copies that fill a batch, else 1.
    """
    order = tf.argsort(keys.rows(epoch, numbers), stable=True)  # (W,) int32
    # Copies of the shortest row go into the batch of the shortest rows, where they cost least.
    copies = -tf.size(order) % batch_size
    order = tf.concat([tf.repeat(order[:1], copies), order], 0)
    weights = tf.cast(tf.range(tf.size(order)) >= copies, tf.float32)
    return tf.reshape(order, [-1, batch_size]), tf.reshape(weights, [-1, batch_size])
