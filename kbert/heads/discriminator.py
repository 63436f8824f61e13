"""The head that detects replaced tokens.

Shapes: `B` batch, `T` tokens, `H` hidden width.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Shape, Tensor
from kbert.layers import Dense


class DiscriminatorHead(keras.layers.Layer):
    """One logit for each token: above 0 if it was probably replaced.

    A dense layer of the hidden width with the activation, followed by one of width 1.
    (ELECTRA, https://arxiv.org/abs/2003.10555; `_get_discriminator_output` in run_pretraining.py
    of google-research/electra.)

    Args:
        config: configuration of the encoder.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> tuple(DiscriminatorHead(config)(np.ones((2, 5, 8), "float32")).shape)
        (2, 5)
    """

    def __init__(self, config: EncoderConfig, name: str = "discriminator", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.hidden_size = config.hidden_size
        self.transform = Dense(
            config.hidden_size,
            activation=config.activation,
            initializer_range=config.initializer_range,
            dtype=self.dtype_policy,
            name="transform",
        )
        self.output_dense = Dense(
            1,
            initializer_range=config.initializer_range,
            # The outputs go straight into a loss and must not be rounded to bfloat16.
            dtype=keras.DTypePolicy(self.variable_dtype),
            name="output",
        )
        self.build()

    def build(self, *shapes: Shape) -> None:
        for layer in (self.transform, self.output_dense):
            layer.build((None, None, self.hidden_size))

    def call(self, sequence: Tensor) -> Tensor:
        """Maps a sequence (B, T, H) to logits (B, T), float32."""
        logits = self.output_dense(self.transform(sequence))
        return ops.cast(ops.squeeze(logits, axis=-1), "float32")
