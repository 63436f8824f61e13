"""Batches of rows with similar lengths, padded to few shapes.

Rows are padded to a power of two and columns to a multiple of 16, so that one compiled graph serves
every call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kbert.core.late import tf

BATCH_SIZE = 32


def check_batch_size(batch_size: Any) -> None:
    """Raises ValueError unless the batch size is a positive integer."""
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(
            "batch_size must be a whole number of at least 1: the number of texts per forward "
            f"pass. Received: batch_size={batch_size!r}"
        )


def by_length(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yields the row numbers of batches of rows with similar lengths, the longest first.

    With the longest first, memory runs out in the first batch or not at all.

    Args:
        lengths: length of each row, (R,).
        batch_size: maximum number of rows per batch.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return (order[i : i + batch_size] for i in range(0, len(order), batch_size))


def as_ragged(rows: Sequence[np.ndarray]) -> tf.RaggedTensor:
    """Returns arrays of ids as a ragged int32 tensor, one row per array."""
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32)
    return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)


def as_rows(ragged: tf.RaggedTensor) -> list[np.ndarray]:
    """Returns the rows of a ragged tensor as arrays.

    >>> [row.tolist() for row in as_rows(as_ragged([np.array([1, 2]), np.array([3])]))]
    [[1, 2], [3]]
    """
    if not ragged.nrows():
        return []
    return np.split(ragged.flat_values.numpy(), ragged.row_splits.numpy()[1:-1])


def next_power_of_two(n: int) -> int:
    """Returns the smallest power of two (1, 2, 4, 8, …) that is at least n."""
    return 1 << max(int(n) - 1, 0).bit_length()


def pad(features: dict[str, Any]) -> dict[str, np.ndarray]:
    """Pads features to few shapes and returns them as arrays.

    Rows are padded to a power of two with copies of the last row, and the columns of
    `mask_positions` to a power of two with zeros.

    Args:
        features: name -> values with the same number of rows, at least one.
    """
    arrays = {name: np.asarray(value) for name, value in features.items()}
    rows = len(next(iter(arrays.values())))
    extra = next_power_of_two(rows) - rows
    if extra:
        copies = {name: np.repeat(x[-1:], extra, axis=0) for name, x in arrays.items()}
        arrays = {name: np.concatenate([x, copies[name]]) for name, x in arrays.items()}
    if "mask_positions" in arrays:
        num_masks = arrays["mask_positions"].shape[1]
        extra = next_power_of_two(num_masks) - num_masks
        arrays["mask_positions"] = np.pad(arrays["mask_positions"], [(0, 0), (0, extra)])
    return arrays
