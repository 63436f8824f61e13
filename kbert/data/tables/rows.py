"""The tokenised form of a table: every example is tokenised once, and the rows are in memory.

Shapes: N rows, B rows of a batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from kbert.core.late import has_tensorflow, tf
from kbert.core.ragged import Ragged
from kbert.io import fingerprints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Columns with one row for each input of the encoder.

    An example of a table is one row, or several rows if it is divided into windows that are
    separate training examples.

    Args:
        ragged: name -> (N, ragged), such as token ids.
        dense: name -> (N, …), such as labels.
        lengths: (N,), number of tokens of each row in a batch, by which rows are grouped.
        examples: (N,), row of the table from which each row was made.
        cut: number of examples that were truncated.

    Raises:
        ValueError: columns differ in length.

    Example:
        >>> ids = tf.ragged.constant([[5], [6, 7]], dtype=tf.int32)
        >>> rows = Rows(ragged={"first": ids}, dense={"labels": np.array([1, 0])},
        ...             lengths=np.array([3, 4]), examples=np.arange(2))
        >>> len(rows), rows.gather([1])["first"].to_list()
        (2, [[6, 7]])
    """

    ragged: dict[str, tf.RaggedTensor]
    dense: dict[str, Any]
    lengths: np.ndarray
    examples: np.ndarray
    cut: int = 0

    def __post_init__(self) -> None:
        sizes = {name: len(x.row_splits) - 1 for name, x in self.ragged.items()}
        sizes |= {name: len(x) for name, x in self.dense.items()}
        sizes |= {"lengths": len(self.lengths), "examples": len(self.examples)}
        if len(set(sizes.values())) > 1:
            received = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ValueError(f"All columns must have one entry per row. Received: {received}")

    def __len__(self) -> int:
        return len(self.lengths)

    # None: batches are planned for all rows together, since all are in memory.
    window_rows: ClassVar[int | None] = None

    @functools.cached_property
    def columns(self) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """All columns that batches read, as tensors (NumPy arrays without TensorFlow)."""
        if not has_tensorflow():
            return {**self.ragged, **{name: np.asarray(x) for name, x in self.dense.items()}}
        with tf.init_scope():  # eager tensors, even if a graph makes the first access
            dense = {name: tf.convert_to_tensor(x) for name, x in self.dense.items()}
        return {**self.ragged, **dense}

    @property
    def checksum(self) -> int:
        """CRC-32 of all columns: the same for the same data, on any machine."""
        crc = 0
        for name, column in sorted({**self.ragged, **self.dense}.items()):
            if isinstance(column, Ragged):
                parts = [column.flat_values, column.row_splits]
            elif isinstance(column, np.ndarray):
                parts = [column]
            else:
                parts = map(np.asarray, tf.nest.flatten(column, expand_composites=True))
            crc = fingerprints.crc32([name, *parts], crc)
        return crc

    def gather(self, index: Any) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns name -> (B, …) of all columns at the rows `index`, (B,) integers.

        Runs in a graph or eagerly.
        """
        return gather(self.columns, index)

    def first(self, count: int) -> Rows:
        """Returns all rows, whatever `count`; `StoredRows.first` loads that many into memory."""
        return self

    def order(self, epoch: tf.Tensor, seed: int | None) -> tuple[tf.Tensor, ...]:
        """Returns an empty tuple: there is only one window, so `window` needs no order.

        The arguments are those of `StoredRows.order`, and have no effect.
        """
        return ()

    def window(
        self, order: tuple[tf.Tensor, ...], first: tf.Tensor, stop: tf.Tensor
    ) -> tf.data.Dataset:
        """Returns a dataset of one element: the only window of every epoch, with all rows.

        It is (columns, lengths (N,) int64, numbers of the rows (N,) int32). The arguments are those
        of `StoredRows.window`, and have no effect.
        """
        with tf.init_scope():  # an eager tensor, not a constant inside the graph
            lengths = tf.constant(self.lengths, tf.int64)
        return tf.data.Dataset.from_tensors((self.columns, lengths, tf.range(len(self))))


def gather(
    columns: dict[str, tf.Tensor | tf.RaggedTensor], index: Any
) -> dict[str, tf.Tensor | tf.RaggedTensor]:
    """Returns name -> (B, …) of all columns at the rows `index`, (B,) integers."""
    return {name: _taken(column, index) for name, column in columns.items()}


def _taken(column: Any, index: Any) -> Any:
    if isinstance(column, Ragged):
        return column.take(index)
    return column[index] if isinstance(column, np.ndarray) else tf.gather(column, index)


def join(parts: Sequence[tf.RaggedTensor | Ragged]) -> tf.RaggedTensor | Ragged:
    """Concatenates the parts of a ragged column, all of one of the two types.

    >>> join([Ragged.of([[1]]), Ragged.of([[2, 3]])]).to_list()
    [[1], [2, 3]]
    """
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Ragged):
        return Ragged.of(row for part in parts for row in part)
    return tf.concat(parts, 0)
