"""Picking tokens out of a batch of sequences."""

from keras import ops

from kbert.types import Tensor


def gather_positions(sequence: Tensor, positions: Tensor) -> Tensor:
    """The vectors at some positions of each row.

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
    batch, length, width = ops.shape(sequence)
    rows = ops.cast(positions, "int32") + ops.arange(batch, dtype="int32")[:, None] * length
    return ops.take(ops.reshape(sequence, (-1, width)), rows, axis=0)
