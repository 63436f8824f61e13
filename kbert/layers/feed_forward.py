"""The position-wise feed-forward part (Vaswani et al. 2017, section 3.3)."""

from typing import Any

import keras

from kbert.layers.dense import Dense
from kbert.types import Shape, Tensor


class FeedForward(keras.layers.Layer):
    """Two dense layers with an activation between, each token on its own.

    Args:
        intermediate_size: width between the two.
        activation: a name `get_activation` knows.
        initializer_range: of the kernels, see `Dense`.

    Example:
        >>> import numpy as np
        >>> tuple(FeedForward(8, activation="gelu")(np.ones((1, 3, 4), "float32")).shape)
        (1, 3, 4)
    """

    def __init__(
        self,
        intermediate_size: int,
        *,
        activation: str,
        initializer_range: float | None = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.intermediate_size = intermediate_size
        self.activation = activation
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape) -> None:
        common = {"initializer_range": self.initializer_range, "dtype": self.dtype_policy}
        self.intermediate = Dense(
            self.intermediate_size, activation=self.activation, name="intermediate", **common
        )
        self.output_dense = Dense(input_shape[-1], name="output", **common)
        self.intermediate.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate_size))

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        return self.output_dense(self.intermediate(x, training=training))
