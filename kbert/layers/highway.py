"""Highway layers: part of the input passes unchanged.

Shapes: `...` any leading axes, `H` width.
"""

import math

import keras
from keras import ops

from kbert.core.types import Shape, Tensor


class Highway(keras.layers.Layer):
    """`carry * relu(x @ transform) + (1 - carry) * x` with a learned `carry` in (0, 1).

    (Srivastava et al. 2015, https://arxiv.org/abs/1505.00387; as in bilm/training.py of
    allenai/bilm-tf.) As there, the gate is called carry although it weights the new value, the
    transform is a ReLU for any activation of the convolutions, and the gate starts nearly closed.

    Example:
        >>> tuple(Highway()(ops.ones((2, 5, 4))).shape)
        (2, 5, 4)
    """

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        for part, bias in (("carry", -2.0), ("transform", 0.0)):
            kernel = self.add_weight(
                name=f"{part}_kernel",
                shape=(width, width),
                initializer=keras.initializers.RandomNormal(stddev=math.sqrt(1 / width)),
            )
            bias = self.add_weight(
                name=f"{part}_bias",
                shape=(width,),
                initializer=keras.initializers.Constant(bias),
            )
            setattr(self, f"{part}_kernel", kernel)
            setattr(self, f"{part}_bias", bias)

    def call(self, x: Tensor) -> Tensor:
        carry = ops.sigmoid(ops.matmul(x, self.carry_kernel) + self.carry_bias)  # (..., H)
        transformed = ops.relu(ops.matmul(x, self.transform_kernel) + self.transform_bias)
        return x + carry * (transformed - x)
