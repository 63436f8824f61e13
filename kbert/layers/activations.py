"""Activations by name, including both forms of GELU."""

import math
from collections.abc import Callable

import keras
from keras import ops

from kbert.core.types import Tensor
from kbert.layers import fused


# Without differentiation TensorFlow computes GELU in one kernel with the matrix product and the
# bias. Alone, as in training, it is four times slower in bfloat16 than in float32.
def _gelu(x: Tensor, training: bool = False) -> Tensor:
    """Returns the exact GELU, x · Φ(x), in x's dtype; in training, computed in float32."""
    if fused.fuses(x.shape[-1], training):
        return fused.gelu(x, approximate=False)
    if not training or _is_float32(x):
        return ops.gelu(x, approximate=False)
    wide = ops.cast(x, "float32")
    return ops.cast(0.5 * wide * (1.0 + ops.erf(wide * math.sqrt(0.5))), x.dtype)


def _gelu_tanh(x: Tensor, training: bool = False) -> Tensor:
    if fused.fuses(x.shape[-1], training):
        return fused.gelu(x, approximate=True)
    if not training or _is_float32(x):
        return ops.gelu(x, approximate=True)
    return ops.cast(ops.gelu(ops.cast(x, "float32"), approximate=True), x.dtype)


def _is_float32(x: Tensor) -> bool:
    return keras.backend.standardize_dtype(x.dtype) == "float32"


_ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x, training=False: ops.relu(x),
    "silu": lambda x, training=False: ops.silu(x),
    "tanh": lambda x, training=False: ops.tanh(x),
}


def get_activation(name: str) -> Callable:
    """Returns the activation function called `name`.

    "gelu" is x * Phi(x) by the error function (RoBERTa, ELECTRA, Hugging Face's BERT files);
    "gelu_tanh" is the tanh approximation that BERT, ALBERT and GPT trained with. After four
    layers the two differ by 1e-3, so they are not interchangeable.

    Args:
        name: "gelu", "gelu_tanh", "relu", "silu" or "tanh".

    Returns:
        A function `(x, training=False)`; `training` is whether it will be differentiated.

    Raises:
        ValueError: no activation has that name.

    Example:
        >>> float(get_activation("relu")(-1.0))
        0.0
    """
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"An activation must be one of {', '.join(_ACTIVATIONS)}. Received: {name!r}"
        )
    return _ACTIVATIONS[name]
