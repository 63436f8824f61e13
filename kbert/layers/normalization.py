"""Normalisation over the last axis, with statistics in float32."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers import fused
from kbert.layers.dropout import Dropout
from kbert.layers.slots import Editable


class LayerNorm(Editable):
    """Zero mean and unit variance over the last axis, then a learned scale and shift.

    Mean and variance are computed in float32 under any compute dtype: bfloat16 has 8 bits, too
    few for a sum over the width. (Ba et al. 2016, https://arxiv.org/abs/1607.06450.)

    The chosen edit, if any (see `kbert.layers.slots`), has a method `scale_and_shift` that maps
    this layer's gamma and beta to new ones.

    Args:
        epsilon: number added to the variance.
        kind: "layer"; "layer_no_bias", without the shift; or "rms", which divides by the root mean
            square, without mean and shift (Zhang & Sennrich 2019,
            https://arxiv.org/abs/1910.07467).

    Example:
        >>> ops.convert_to_numpy(LayerNorm(epsilon=1e-12)(ops.array([[1.0, 3.0]]))).tolist()
        [[-1.0, 1.0]]
    """

    def __init__(self, epsilon: float, *, kind: str = "layer", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon
        self.kind = kind

    def build(self, input_shape: Shape) -> None:
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones", autocast=False)
        self.beta = None
        if self.kind == "layer":
            self.beta = self.add_weight(
                name="beta", shape=shape, initializer="zeros", autocast=False
            )

    @property
    def scale_and_shift(self) -> tuple[Any, Any]:
        """Scale (gamma) and shift (beta) in use, (W,) each; beta is None if there is no shift."""
        chosen, parameters = self.chosen, (self.gamma, self.beta)
        return parameters if chosen is None else chosen.scale_and_shift(*parameters)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        centred = self.kind != "rms"
        gamma, beta = self.scale_and_shift
        if fused.fuses(self.gamma.shape[0], training):
            x = ops.cast(inputs, self.compute_dtype)
            return fused.layer_norm(x, gamma, beta, self.epsilon, centred)
        x = ops.cast(inputs, self.variable_dtype)
        if centred:
            x = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(x), axis=-1, keepdims=True)
        scaled = x * ops.rsqrt(variance + self.epsilon) * gamma
        return ops.cast(scaled if beta is None else scaled + beta, self.compute_dtype)


def add_and_norm(
    x: Tensor,
    outputs: Tensor,
    dropout: keras.layers.Layer,
    norm: keras.layers.Layer,
    training: bool,
    behind: Callable | None = None,
) -> Tensor:
    """Returns `norm(x + dropout(outputs))`, the end of every part of a block.

    Args:
        x: (..., W), the residual.
        outputs: (..., W), output of the part.
        dropout: a layer, `(x, training) -> x`.
        norm: a layer, `x -> x`.
        training: whether dropout is active.
        behind: function applied after the dropout, `(outputs, x, norm) -> outputs`; or None.

    Returns:
        (..., W). Dropout and normalisation layers of this package run fused, see `fused`.

    Example:
        >>> norm = LayerNorm(epsilon=1e-12)
        >>> norm.build((None, 2))
        >>> x = add_and_norm(ops.ones((1, 2)), ops.array([[0.0, 2.0]]), Dropout(0.1), norm, False)
        >>> ops.convert_to_numpy(x).tolist()
        [[-1.0, 1.0]]
    """
    if behind is not None:
        return norm(x + behind(dropout(outputs, training=training), x, norm))
    is_fusable = type(norm) is LayerNorm and norm.kind == "layer" and type(dropout) is Dropout
    if not is_fusable or not fused.fuses(x.shape[-1], training):
        return norm(x + dropout(outputs, training=training))
    return fused.dropout_add_norm(
        outputs,
        x,
        *norm.scale_and_shift,
        rate=dropout.rate,
        epsilon=norm.epsilon,
        seed=dropout.next_seed(),
    )
