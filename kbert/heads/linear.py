"""What the heads of fine-tuned models are: one dense layer."""

import keras

from kbert.config import EncoderConfig
from kbert.layers import Dense


class LinearHead(keras.layers.Layer):
    """One dense layer on vectors of the encoder.

    Args:
        config: the encoder's.
        units: width of the logits.
        name: of the layer, the first part of its weights' names.
    """

    def __init__(self, config: EncoderConfig, units: int, *, name: str, **kwargs):
        super().__init__(name=name, **kwargs)
        self.dense = Dense(
            units,
            initializer_range=config.initializer_range,
            # Few numbers that go straight into a loss: not worth rounding to bfloat16.
            dtype=keras.DTypePolicy(self.variable_dtype),
            name="dense",
        )
        self.hidden_size = config.hidden_size
        self.build()

    def build(self, *shapes):
        self.dense.build((None, self.hidden_size))

    def call(self, vectors):
        """(..., H) -> logits (..., C), float32."""
        return self.dense(vectors)
