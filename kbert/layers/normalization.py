"""Layer normalisation whose statistics stay in float32."""

from typing import Any

import keras
from keras import ops

from kbert.types import Shape, Tensor


class LayerNorm(keras.layers.Layer):
    """Zero mean and unit variance over the last axis, then a learned scale and shift.

    Mean and variance are taken in float32 whatever the compute dtype: bfloat16 keeps 8 bits, too
    few for a sum over the width. (Ba et al. 2016, https://arxiv.org/abs/1607.06450.)

    Args:
        epsilon: added to the variance.

    Example:
        >>> ops.convert_to_numpy(LayerNorm(epsilon=1e-12)(ops.array([[1.0, 3.0]]))).tolist()
        [[-1.0, 1.0]]
    """

    def __init__(self, epsilon: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: Shape) -> None:
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones", autocast=False)
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros", autocast=False)

    def call(self, inputs: Tensor) -> Tensor:
        x = ops.cast(inputs, self.variable_dtype)
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        normed = centred * ops.rsqrt(variance + self.epsilon)
        return ops.cast(normed * self.gamma + self.beta, self.compute_dtype)
