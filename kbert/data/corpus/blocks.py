"""The order of blocks in an epoch, and reading blocks at their byte offsets.

An epoch visits every block once, in an order that is a function of (seed, epoch). The blocks are
permuted by `index_shuffle`, which needs no memory, and split into windows of 64 to 127 blocks
(fewer if the split has fewer blocks). So any window of any epoch can be read alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from kbert.core.late import tf
from kbert.data.corpus.manifest import Manifest
from kbert.data.pipeline import stage
from kbert.data.position import WINDOW_BLOCKS
from kbert.data.unreadable import UNREADABLE

_FOREVER = np.iinfo(np.int32).max
_READ_BUFFER = 1 << 18  # a block of 64k uint16 tokens fits: one read call


@dataclasses.dataclass(frozen=True)
class BlockReader:
    """Reads the blocks of a split, window by window.

    Attributes:
        paths: shard files, in order.
        shards: (N,) int64, index of the file of each of the N blocks.
        offsets: (N,) int64, byte offset of each block's record.
        seed: seed of the order.
        token_dtype: type of the stored ids.
        window_blocks: least number of blocks in a window, if the split has that many.
    """

    paths: list[str]
    shards: np.ndarray
    offsets: np.ndarray
    seed: int
    token_dtype: str
    window_blocks: int

    @classmethod
    def from_manifest(
        cls, manifest: Manifest, split: str, seed: int, window_blocks: int = WINDOW_BLOCKS
    ) -> BlockReader:
        """Makes a reader of a split ("train" or "held_out") of a prepared corpus.

        `seed` is the seed of the order, `window_blocks` the least number of blocks in a window.
        """
        index = manifest.index(split)
        paths = manifest.shard_paths(split)
        return cls(paths, index[:, 0], index[:, 1], seed, manifest.token_dtype, window_blocks)

    @property
    def blocks(self) -> int:
        """Number of blocks in an epoch."""
        return len(self.offsets)

    @property
    def windows(self) -> int:
        """Number of windows in an epoch.

        Windows have nearly equal size, so the last one is not left with a single document.
        """
        return max(1, self.blocks // self.window_blocks)

    def windows_from(
        self,
        epoch: int | tf.Tensor,
        window: int | tf.Tensor,
        epochs: int | None = None,
        version: Callable = lambda epoch: epoch,
    ) -> tf.data.Dataset:
        """Returns the windows of all epochs, one after the other.

        Args:
            epoch: epoch of the first window that is read.
            window: number of the first window that is read, within its epoch.
            epochs: passes over the data, including those before `epoch`; None never ends.
            version: function from an epoch to the epoch whose block order is used.

        Returns:
            A dataset of (epoch, window, records of its blocks (blocks,)).
        """
        stop = _FOREVER if epochs is None else epochs * self.windows
        numbers = tf.data.Dataset.range(epoch * self.windows + window, stop)

        def read(number: tf.Tensor) -> tf.data.Dataset:
            epoch, window = number // self.windows, number % self.windows
            records = self.window(version(epoch), window)
            return records.map(lambda serialized: (epoch, window, serialized))

        return numbers.flat_map(stage(read))

    def order(self, epoch: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of the blocks at `places` (n,) of an epoch's order, (n,) int64."""
        return block_order(self.seed, epoch, self.blocks, places)

    def window(self, epoch: tf.Tensor, window: tf.Tensor) -> tf.data.Dataset:
        """Returns a dataset of one element: the records of a window's blocks, (blocks,) string.

        The blocks have the order of `epoch`; `window` is the number of the window in that epoch.
        """
        first = window * self.blocks // self.windows
        stop = (window + 1) * self.blocks // self.windows
        order = self.order(epoch, tf.range(first, stop))
        path = tf.gather(self.paths, tf.gather(self.shards, order))
        offset = tf.gather(self.offsets, order)
        return read_records(path, offset).batch(stop - first)


def block_order(seed: int, epoch: tf.Tensor, blocks: int, places: tf.Tensor) -> tf.Tensor:
    """Returns which of `blocks` blocks are at `places` (n,) of an epoch's order, (n,) int64.

    The order is a permutation of 0 … blocks - 1, a function of (seed, epoch).
    """
    return tf.random.experimental.index_shuffle(
        places,
        tf.stack([tf.constant(seed, tf.int64), epoch]),
        tf.constant(blocks - 1, tf.int64),
    )


def read_records(paths: tf.Tensor, offsets: tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset of the records at byte `offsets` (n,) of the files `paths` (n,).

    A record that cannot be read raises InvalidArgumentError, see `unreadable_record`.
    """
    return tf.data.Dataset.from_tensor_slices((paths, offsets)).flat_map(_read_record)


def _read_record(path: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset of one record, at byte `offset` of a shard; an unreadable one raises.

    TensorFlow's error ("corrupted record at 1234") does not name the file. So a failure becomes an
    empty record, which no block is. The check then raises with file and offset, and TensorFlow's
    reason is logged.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=path[None],
        compression_type="",
        buffer_size=_READ_BUFFER,
        byte_offsets=offset[None],
        metadata="",
    )
    record = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
    record = record.ignore_errors(log_warning=True)
    # `ignore_errors` would try forever to open a missing file. Reading one byte first raises
    # instead, and TensorFlow names the file.
    byte = tf.data.FixedLengthRecordDataset(path, 1, buffer_size=1)
    record = byte.take(1).flat_map(lambda _: record).take(1)
    failed = tf.data.Dataset.from_tensors(tf.constant(""))

    def check(record: tf.Tensor) -> tf.Tensor:
        where = tf.strings.join([path, ", record at byte ", tf.strings.as_string(offset)])
        message = tf.strings.join([UNREADABLE[0], where, UNREADABLE[1]])
        with tf.control_dependencies([tf.debugging.Assert(record != "", [message])]):
            return tf.identity(record)

    return record.concatenate(failed).take(1).map(check)
