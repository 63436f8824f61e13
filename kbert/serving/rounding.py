"""Weights as integers of 8 bits and scales."""

import numpy as np

_LEVELS = 127  # of either sign


def to_8_bits(values: np.ndarray, axis: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as multiples of a scale, of which the largest in absolute value is 127 of them.

    Args:
        values: finite floats of any shape.
        axis: along which numbers share a scale.

    Returns:
        int8 of that shape, and the scales, whose product with them gives the numbers, rounded.

    Example:
        >>> codes, scale = to_8_bits(np.array([[1.0, -0.5], [0.0, 0.0]]), axis=-1)
        >>> codes.tolist()
        [[127, -64], [0, 0]]
    """
    largest = np.abs(values).max(axis=axis, keepdims=True)
    scale = (np.where(largest > 0, largest, 1) / _LEVELS).astype(values.dtype)
    return np.round(values / scale).astype("int8"), scale
