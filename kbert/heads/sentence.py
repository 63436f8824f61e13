"""The head on the pooled vector."""

import keras

from kbert.config import EncoderConfig
from kbert.layers import Dense


class SentenceHead(keras.layers.Layer):
    """Logits of a pair: next-sentence or sentence-order prediction, or any classes.

    Class 1 means a random second sentence for the one (BERT, section 3.1 and
    `get_next_sentence_output` of run_pretraining.py), swapped segments for the other (ALBERT,
    section 3.1, https://arxiv.org/abs/1909.11942).

    Args:
        config: the encoder's.
        num_classes: width of the logits.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> tuple(SentenceHead(config)(np.ones((3, 8), "float32")).shape)
        (3, 2)
    """

    def __init__(
        self, config: EncoderConfig, num_classes: int = 2, name: str = "sentence", **kwargs
    ):
        super().__init__(name=name, **kwargs)
        self.dense = Dense(
            num_classes,
            initializer_range=config.initializer_range,
            # Few numbers that go straight into a loss: not worth rounding to bfloat16.
            dtype=keras.DTypePolicy(self.variable_dtype),
            name="dense",
        )
        self.hidden_size = config.hidden_size
        self.build()

    def build(self, *shapes):
        self.dense.build((None, self.hidden_size))

    def call(self, pooled):
        """(B, H) -> (B, C) float32."""
        return self.dense(pooled)
