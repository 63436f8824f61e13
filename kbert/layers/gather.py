"""Gathers of tokens from a batch of sequences.

On TensorFlow the tokens of all sequences become rows of one table, whose gather is fastest. On JAX
each sequence is gathered from by itself: of one table the compiler would not know that a device
needs only its own sequences, and would sum the results over all devices.
"""

import keras
from keras import ops

from kbert.core.types import Tensor


def gather_positions(sequence: Tensor, positions: Tensor) -> Tensor:
    """Gathers the hidden states at some positions of each row.

    Args:
        sequence: (B, T, H).
        positions: (B, P) integers in [0, T).

    Returns:
        (B, P, H).

    Example:
        >>> sequence = ops.reshape(ops.arange(6), (1, 3, 2))
        >>> ops.convert_to_numpy(gather_positions(sequence, ops.array([[2, 0]]))).tolist()
        [[[4, 5], [0, 1]]]
    """
    if keras.backend.backend() == "jax":
        return ops.take_along_axis(sequence, ops.cast(positions, "int32")[:, :, None], axis=1)
    batch, length, width = ops.shape(sequence)
    rows = ops.cast(positions, "int32") + ops.arange(batch, dtype="int32")[:, None] * length
    return ops.take(ops.reshape(sequence, (-1, width)), rows, axis=0)


def gather_rows(x: Tensor | None, positions: Tensor) -> Tensor | None:
    """Gathers some rows of each head, or of a bias of the scores.

    Args:
        x: (B, N, T, S), where B and N may be 1. If T is 1, or x is None, x is returned unchanged.
        positions: (B, P) integers in [0, T).

    Returns:
        (B, N, P, S); N is 1 if x has one head for all.

    Example:
        >>> x = ops.reshape(ops.arange(4), (1, 2, 2, 1))
        >>> ops.convert_to_numpy(gather_rows(x, ops.array([[1]])))[:, :, 0, 0].tolist()
        [[1, 3]]
    """
    if x is None or x.shape[2] == 1:
        return x
    if keras.backend.backend() == "jax":
        return ops.take_along_axis(x, ops.cast(positions, "int32")[:, None, :, None], axis=2)
    batch, heads, length, width = ops.shape(x)
    if x.shape[0] == 1:  # one bias for all rows
        x = ops.broadcast_to(x, (ops.shape(positions)[0], heads, length, width))
        batch = ops.shape(positions)[0]
    rows = ops.arange(batch * heads, dtype="int32") * length
    rows = ops.reshape(rows, (batch, heads, 1)) + ops.cast(positions, "int32")[:, None]
    return ops.take(ops.reshape(x, (-1, width)), rows, axis=0)
