"""What the heads of fine-tuned models are: one dense layer."""

from typing import Any

import keras

from kbert.configs.base import EncoderConfig
from kbert.layers import Dense
from kbert.types import Shape, Tensor


class LinearHead(keras.layers.Layer):
    """One dense layer on vectors of the encoder.

    Args:
        config: the encoder's.
        units: width of the logits.
        name: of the layer, the first part of its weights' names.
        width: of the vectors; None = the config's `hidden_size`.
    """

    def __init__(
        self,
        config: EncoderConfig,
        units: int,
        *,
        name: str,
        width: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.dense = Dense(
            units,
            initializer_range=config.initializer_range,
            # Few numbers that go straight into a loss: not worth rounding to bfloat16.
            dtype=keras.DTypePolicy(self.variable_dtype),
            name="dense",
        )
        self.width = width or config.hidden_size
        self.build()

    def build(self, *shapes: Shape) -> None:
        self.dense.build((None, self.width))

    def call(self, vectors: Tensor) -> Tensor:
        """(..., H) -> logits (..., C), float32."""
        return self.dense(vectors)
