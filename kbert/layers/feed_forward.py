"""The position-wise feed-forward layer (Vaswani et al. 2017, section 3.3), optionally gated."""

from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.activations import get_activation
from kbert.layers.dense import Dense
from kbert.layers.dropout import Dropout


class FeedForward(keras.layers.Layer):
    """Two dense layers with an activation in between, applied to each token separately.

    If gated, the first layer returns two halves, and the activation of the first half is
    multiplied by the second (Shazeer 2020, https://arxiv.org/abs/2002.05202: GEGLU with "gelu",
    SwiGLU with "silu").

    Args:
        intermediate_size: width between the two layers; if gated, width of each half.
        activation: activation between the layers, a name of `get_activation`.
        gated: whether the first layer is gated.
        initializer_range: standard deviation of the initial kernels; None = Glorot's uniform
            distribution.
        use_bias: whether the two layers have biases.
        gate_bias: whether the first layer has a bias if it is gated; None = `use_bias`.
        dropout: dropout rate between the two layers.

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
        gated: bool = False,
        initializer_range: float | None = 0.02,
        use_bias: bool = True,
        gate_bias: bool | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.intermediate_size = intermediate_size
        self.activation = activation
        self.gated = gated
        self.initializer_range = initializer_range
        self.use_bias = use_bias
        self.gate_bias = use_bias if gate_bias is None or not gated else gate_bias
        self.dropout = None  # a layer has a seed, which models without this dropout do not save
        if dropout:
            self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape: Shape) -> None:
        common = {
            "initializer_range": self.initializer_range,
            "dtype": self.dtype_policy,
        }
        self.intermediate = Dense(
            self.intermediate_size * (1 + self.gated),
            activation=None if self.gated else self.activation,
            use_bias=self.gate_bias,
            name="intermediate",
            **common,
        )
        self.output_dense = Dense(input_shape[-1], use_bias=self.use_bias, name="output", **common)
        self.intermediate.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate_size))

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        x = self.intermediate(x, training=training)
        if self.gated:
            x, gate = ops.split(x, 2, axis=-1)
            x = get_activation(self.activation)(x, training) * gate
        if self.dropout is not None:
            x = self.dropout(x, training=training)
        return self.output_dense(x)
