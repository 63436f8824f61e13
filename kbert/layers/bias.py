"""Biases added to attention scores to mask tokens.

Shapes: `B` batch, `T` tokens.
"""

from keras import ops

from kbert.types import Tensor

# Far below any score: exp(-3e4) is 0 in float32. Two of them are finite in float16 too, to which
# Keras may cast the bias between layers: a row of nothing but padding stays free of NaN.
PENALTY = 3e4


def example_bias(example_ids: Tensor) -> Tensor:
    """What is added to attention scores so that the examples of a packed row stay apart.

    Args:
        example_ids: (B, T), 0 for padding, the same number for the tokens of an example.

    Returns:
        (B, 1, T, T) float32: 0 between tokens of one example (and within the padding, so that no
        row of it is without attention), -30,000 elsewhere.

    Example:
        >>> ops.convert_to_numpy(example_bias(ops.array([[1, 1, 2]])))[0, 0].tolist()
        [[0.0, 0.0, -30000.0], [0.0, 0.0, -30000.0], [-30000.0, -30000.0, 0.0]]
    """
    return _unless(example_ids[:, None, None, :] == example_ids[:, None, :, None])


def attention_bias(padding_mask: Tensor) -> Tensor:
    """What is added to attention scores so that padding gets no attention.

    Args:
        padding_mask: (B, T), 1 for a token and 0 for padding; any dtype.

    Returns:
        (B, 1, 1, T) float32: 0 for a token, -30,000 for padding.

    Example:
        >>> ops.convert_to_numpy(attention_bias(ops.array([[1, 0]])))[0, 0, 0].tolist()
        [0.0, -30000.0]
    """
    return _unless(padding_mask)[:, None, None, :]


def causal_bias(length: Tensor) -> Tensor:
    """The bias that keeps tokens from attending to later ones: (1, 1, T, T) float32.

    Example:
        >>> ops.convert_to_numpy(causal_bias(2))[0, 0].tolist()
        [[0.0, -30000.0], [0.0, 0.0]]
    """
    places = ops.arange(length)
    return _unless(places[None, :] <= places[:, None])[None, None]


def decoded_bias(length: int, t: Tensor) -> Tensor:
    """(1, 1, 1, length), added so that only the first t + 1 of `length` tokens are attended.

    Example:
        >>> ops.convert_to_numpy(decoded_bias(3, 1))[0, 0, 0].tolist()
        [0.0, 0.0, -30000.0]
    """
    return _unless(ops.arange(length) <= t)[None, None, None]


def _unless(keep: Tensor) -> Tensor:
    return (ops.cast(keep, "float32") - 1.0) * PENALTY
