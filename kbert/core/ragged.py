"""Ragged rows of numbers in NumPy: the RaggedTensor for code without TensorFlow."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np


class Ragged:
    """Concatenated rows of numbers, with the interface of a `tf.RaggedTensor` of rank 1.

    Args:
        flat_values: the numbers of all rows.
        row_splits: (N + 1,) int64, the start of each row, and the end of the last one.

    Example:
        >>> rows = Ragged.of([[5, 6], [], [7]])
        >>> len(rows), rows.row_lengths().tolist(), rows.take([2, 0]).to_list()
        (3, [2, 0, 1], [[7], [5, 6]])
    """

    ragged_rank = 1

    def __init__(self, flat_values: np.ndarray, row_splits: np.ndarray) -> None:
        self.flat_values, self.row_splits = flat_values, row_splits

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | np.ndarray]) -> "Ragged":
        """Makes int32 rows from lists or arrays."""
        rows = [np.asarray(row, np.int32) for row in rows]
        splits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(np.concatenate([np.zeros(0, np.int32), *rows]), splits)

    @property
    def dtype(self) -> np.dtype:
        """The type of the numbers."""
        return self.flat_values.dtype

    @property
    def shape(self) -> tuple[int, None]:
        """Shape, (N, None): the rows have no common length."""
        return len(self), None

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        if not 0 <= row < len(self):  # so that iterating ends
            raise IndexError(row)
        return self.flat_values[self.row_splits[row] : self.row_splits[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def row_lengths(self) -> np.ndarray:
        """Returns the lengths of the rows, (N,) int64."""
        return np.diff(self.row_splits)

    def take(self, rows: Iterable[int]) -> "Ragged":
        """Returns the rows with these indices, in this order."""
        return Ragged.of(self[int(row)] for row in rows)

    def to_list(self) -> list[list[int]]:
        """Returns the rows as lists."""
        return [row.tolist() for row in self]
