"""The head that fills masks.

Shapes: `B` batch, `T` tokens, `H` hidden width, `P` masked positions, `E` embedding width,
`V` vocabulary.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.layers import Dense, LayerNorm
from kbert.layers.gather import gather_positions
from kbert.types import Shape, Tensor


class MaskedLMHead(keras.layers.Layer):
    """Logits over the vocabulary at the masked positions only.

    A dense layer, the activation and a normalisation, then a product with the transposed token
    table (tied) plus a bias for each entry. The positions are gathered first: the product with
    the table costs as much as a whole block for a seventh of the tokens. (`get_masked_lm_output`
    in run_pretraining.py of google-research/bert.)

    Args:
        config: the encoder's.
        embedding_table: the token table to tie to, `encoder.token_embedding`.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> table = keras.Variable(np.ones((10, 8), "float32"))
        >>> head = MaskedLMHead(config, table)
        >>> tuple(head(np.ones((2, 5, 8), "float32"), np.array([[1], [3]])).shape)
        (2, 1, 10)
    """

    def __init__(
        self,
        config: EncoderConfig,
        embedding_table: keras.Variable,
        name: str = "masked_lm",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        shape = (config.vocabulary_size, config.embedding_width)
        if tuple(embedding_table.shape) != shape:
            raise ValueError(
                f"The embedding table must have the shape {shape} of the config. "
                f"Received: shape {tuple(embedding_table.shape)}"
            )
        self.config = config
        # Inside a function, so that Keras does not count and save the encoder's table twice.
        self._embedding_table = lambda: embedding_table
        self.transform = Dense(
            config.embedding_width,
            activation=config.activation,
            initializer_range=config.initializer_range,
            use_bias=config.use_bias,
            dtype=self.dtype_policy,
            name="transform",
        )
        self.norm = LayerNorm(
            config.layer_norm_epsilon, kind=config.norm, dtype=self.dtype_policy, name="norm"
        )
        self.build()

    def build(self, *shapes: Shape) -> None:
        self.transform.build((None, None, self.config.hidden_size))
        self.norm.build((None, None, self.config.embedding_width))
        self.bias = self.add_weight(
            name="bias",
            shape=(self.config.vocabulary_size,),
            initializer="zeros",
            autocast=False,
        )

    def call(self, sequence: Tensor, mask_positions: Tensor | None = None) -> Tensor:
        """Predicts.

        Args:
            sequence: (B, T, H), the encoder's "sequence".
            mask_positions: (B, P) integers in [0, T); None = the sequence holds nothing but the
                masked tokens, T = P.

        Returns:
            Logits (B, P, V), float32.
        """
        if mask_positions is not None:
            sequence = gather_positions(sequence, mask_positions)
        batch, places, _ = ops.shape(sequence)
        x = self.norm(self.transform(sequence))  # (B, P, E)
        # In float32 under any policy: a product that gives bfloat16 would round each logit to
        # eight bits. It costs a few percent of a training step.
        x = ops.cast(ops.reshape(x, (-1, self.config.embedding_width)), "float32")
        logits = ops.matmul(x, ops.transpose(self._embedding_table())) + self.bias
        return ops.reshape(logits, (batch, places, self.config.vocabulary_size))
