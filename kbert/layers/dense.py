"""A dense layer that multiplies 2-D matrices.

TensorFlow fuses matrix product, bias and GELU into one kernel only if the product is 2-D. So the
leading axes are folded before it and unfolded after the activation; the reshapes cost nothing.

Shapes: `...` any leading axes, `I` width in, `O` width out.
"""

from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.activations import get_activation
from kbert.layers.slots import Editable


def kernel_initializer(sigma: float | None) -> keras.initializers.Initializer:
    """Returns the initialiser of a kernel: a truncated normal with standard deviation `sigma`.

    For None it is Glorot and Bengio's (2010) uniform distribution.
    """
    if sigma is None:
        return keras.initializers.GlorotUniform()
    return keras.initializers.TruncatedNormal(stddev=sigma)


class Dense(Editable):
    """`activation(x @ kernel + bias)` over the last axis.

    A permanent edit (see `kbert.layers.slots`) maps the rows (N, I) and the kernel (I, O) to the
    two factors of the product. The chosen edit gets the original rows, and its output is added to
    the product.

    Args:
        units: width of the output.
        activation: activation of the output, a name of `get_activation`; None = identity.
        initializer_range: standard deviation of the truncated normal that initialises the kernel;
            None = Glorot's uniform distribution.
        use_bias: whether there is a bias.
        initializer: initialiser of the kernel; None = the one of `initializer_range`.

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
        initializer: keras.initializers.Initializer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.use_bias = use_bias
        self.activation = None if activation is None else get_activation(activation)
        self.initializer_range = initializer_range
        self.initializer = initializer

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], self.units),
            initializer=self.initializer or kernel_initializer(self.initializer_range),
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, inputs: Tensor, training: bool = False, columns: slice | None = None) -> Tensor:
        """Maps inputs (..., I) to outputs (..., O); with `columns`, to these columns only."""
        *leading, width = ops.shape(inputs)
        rows = ops.reshape(inputs, (-1, width))
        outputs = self.product(rows, training=training, columns=columns)  # (N, O)
        if self.activation is not None:
            outputs = self.activation(outputs, training)
        return ops.reshape(outputs, (*leading, outputs.shape[-1]))  # (..., O)

    def product(self, rows: Tensor, training: bool = False, columns: slice | None = None) -> Tensor:
        """Maps rows (N, I) to the product with the kernel plus bias (N, O), with all edits applied.

        With `columns`, only these columns of the output are computed.
        """

        def cut(x: Tensor) -> Tensor:
            return x if columns is None else x[..., columns]

        factors: tuple[Tensor, Tensor] = (rows, self.kernel)
        for edit in self.edits:
            factors = edit(*factors, training=training)
        multiplied, kernel = factors
        outputs = ops.matmul(multiplied, cut(kernel))
        outputs = outputs if self.bias is None else ops.add(outputs, cut(self.bias))
        chosen = self.chosen
        return outputs if chosen is None else outputs + cut(chosen(rows, training=training))
