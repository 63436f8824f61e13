"""A dense layer that multiplies in two dimensions.

TensorFlow fuses matrix product, bias and GELU into one kernel only where the product is 2-D, so
the leading axes are folded before it and unfolded after the activation; the folds cost nothing.

Shapes: `...` any leading axes, `I` width in, `O` width out.
"""

from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.activations import get_activation
from kbert.layers.adaptable import Adaptable
from kbert.layers.fake_quantization import FakeQuantization
from kbert.layers.movement import MovementMask


def kernel_initializer(sigma: float | None) -> keras.initializers.Initializer:
    """A truncated normal of that sigma; for None what Glorot & Bengio (2010) found."""
    if sigma is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=sigma)


class Dense(Adaptable):
    """`activation(x @ kernel + bias)` over the last axis.

    An adapter in its slot is called with the rows (N, I); what it gives is added before the
    activation.

    Args:
        units: width of the output.
        activation: a name `get_activation` knows, or None for the identity.
        initializer_range: sigma of the truncated normal the kernel starts from; None = Glorot's
            uniform distribution.
        use_bias: whether there is a bias.
        quantized: whether rows and kernel are rounded to 8 bits, see `FakeQuantization`.
        scored: whether the kernel has scores and a mask, see `MovementMask`.

    Example:
        >>> Dense(3)(ops.ones((2, 5, 4))).shape[-1]
        3
    """

    def __init__(
        self,
        units: int,
        *,
        activation: str | None = None,
        initializer_range: float | None = 0.02,
        use_bias: bool = True,
        quantized: bool = False,
        scored: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.use_bias = use_bias
        self.fake_quantization = None
        if quantized:
            self.fake_quantization = FakeQuantization(
                dtype=self.dtype_policy, name="fake_quantization"
            )
        self.movement = None
        if scored:
            self.movement = MovementMask(dtype=self.dtype_policy, name="movement")
        self.activation = None if activation is None else get_activation(activation)
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], self.units),
            initializer=kernel_initializer(self.initializer_range),
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")
        if self.fake_quantization is not None:
            self.fake_quantization.build(input_shape)
        if self.movement is not None:
            self.movement.build(self.kernel.shape)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        *leading, width = ops.shape(inputs)
        rows = ops.reshape(inputs, (-1, width))
        read, kernel = rows, self.kernel
        if self.movement is not None:
            kernel = self.movement(kernel, training=training)
        if self.fake_quantization is not None:
            read, kernel = self.fake_quantization(rows, kernel, training=training)
        outputs = ops.matmul(read, kernel)  # (..., I) -> (N, O)
        if self.bias is not None:
            outputs = ops.add(outputs, self.bias)
        if (adapter := self.adapter) is not None:
            outputs = outputs + adapter(rows, training=training)
        if self.activation is not None:
            outputs = self.activation(outputs, training)
        return ops.reshape(outputs, (*leading, self.units))  # (..., O)
