"""Weights that are added to those of a dense layer or a norm.

Shapes: `N` rows, `I` width in, `O` width out.
"""

from typing import Any

import keras

from kbert.core.types import Shape, Tensor
from kbert.layers import Dense, LayerNorm


class DenseDelta(keras.layers.Layer):
    """Differences, initially zero, that are added to the kernel and bias of a dense layer.

    Args:
        units: width O of the dense layer's output.
        kernel: whether there is a difference for the kernel.
        bias: whether there is a difference for the bias.
    """

    def __init__(self, units: int, *, kernel: bool, bias: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.has_kernel, self.has_bias = units, kernel, bias

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.bias = None
        if self.has_kernel:
            shape = (input_shape[-1], self.units)
            self.kernel = self.add_weight(name="kernel", shape=shape, initializer="zeros")
        if self.has_bias:
            self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, rows: Tensor, training: bool = False) -> Tensor:
        """(N, I) -> the term to add to the output: (N, O), or (O,) without a kernel."""
        if self.kernel is None:
            return self.bias
        outputs = keras.ops.matmul(rows, self.kernel)
        return outputs if self.bias is None else outputs + self.bias

    def merge_into(self, dense: Dense) -> None:
        """Adds the differences to the kernel and bias of `dense`."""
        pairs: Any = ((self.kernel, dense.kernel), (self.bias, dense.bias))
        for delta, weight in pairs:
            if delta is not None:
                weight.assign_add(delta)


class NormDelta(keras.layers.Layer):
    """Differences, initially zero, that are added to scale and shift of a `LayerNorm`.

    Args:
        gamma: whether there is a difference for the scale.
        beta: whether there is a difference for the shift.
    """

    def __init__(self, *, gamma: bool, beta: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.given = {"gamma": gamma, "beta": beta}

    def build(self, input_shape: Shape) -> None:
        for name, has_delta in self.given.items():
            options = {"name": name, "initializer": "zeros", "autocast": False}
            weight = self.add_weight(shape=(input_shape[-1],), **options) if has_delta else None
            setattr(self, name, weight)

    def scale_and_shift(self, gamma: Any, beta: Any) -> tuple[Any, Any]:
        """Scale and shift of a norm, (O,) each or None -> the same plus the differences."""
        gamma = gamma if self.gamma is None else gamma + self.gamma
        return gamma, beta if self.beta is None else beta + self.beta

    def merge_into(self, norm: LayerNorm) -> None:
        """Adds the differences to the scale and shift of `norm`."""
        pairs: Any = ((self.gamma, norm.gamma), (self.beta, norm.beta))
        for delta, weight in pairs:
            if delta is not None:
                weight.assign_add(delta)
