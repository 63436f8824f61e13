"""Heads that predict tokens of the vocabulary.

Shapes: `B` batch, `T` tokens, `H` hidden width, `P` masked positions, `E` embedding width,
`V` vocabulary.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Shape, Tensor
from kbert.heads.linear import transform_layers
from kbert.layers.dense import kernel_initializer
from kbert.layers.gather import gather_positions
from kbert.layers.token_embeddings import TokenOutput


class TokenLogits(keras.layers.Layer):
    """Logits over the vocabulary: product with the tied token table plus a bias for each entry.

    Args:
        config: configuration of the encoder.
        embedding_table: the token table to tie to, `encoder.token_embedding`.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> head = TokenLogits(config, keras.Variable(np.ones((10, 8), "float32")))
        >>> tuple(head(np.ones((2, 5, 8), "float32")).shape)
        (2, 5, 10)
    """

    def __init__(
        self,
        config: EncoderConfig,
        embedding_table: keras.Variable,
        name: str = "logits",
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
        self._make_layers()
        self.build()

    def _make_layers(self) -> None:
        """Creates the layers before the product; none here."""

    def build(self, *shapes: Shape) -> None:
        self.bias = self.add_weight(
            name="bias",
            shape=(self.config.vocabulary_size,),
            initializer="zeros",
            autocast=False,
        )

    @property
    def _output_table(self) -> Any:
        """The table (V, E) of the product."""
        return self._embedding_table()

    def token_output(self, x: Tensor) -> TokenOutput:
        """Returns what `call` multiplies, for losses that compute logits in chunks."""
        return TokenOutput(x, self._output_table, self.bias)

    def call(self, x: Tensor) -> Tensor:
        """Maps hidden states x (B, P, E) to logits (B, P, V), float32."""
        return self.token_output(x).logits()


class MaskedLMHead(TokenLogits):
    """Logits over the vocabulary at the masked positions only.

    A dense layer, the activation and a normalisation, then a product with the transposed token
    table (tied) plus a bias for each entry. The positions are gathered first, because the product
    with the table costs as much as a whole block even for a seventh of the tokens.
    (`get_masked_lm_output` in run_pretraining.py of google-research/bert.)

    If the config's `output` is "untied", the head has a separate table and no layers before the
    product (EuroBERT, NeoBERT). If a part of the encoder adds `output_columns` (MobileBERT), the
    output layer is wider than the token table; the extra columns are weights of the head.

    Args:
        config: configuration of the encoder.
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
        super().__init__(config, embedding_table, name, **kwargs)

    def _make_layers(self) -> None:
        self.untied = self.config.output == "untied"
        if not self.untied:
            width = self.config.embedding_width + self.config.output_columns
            self.transform, self.norm = transform_layers(self.config, width, self.dtype_policy)

    def build(self, *shapes: Shape) -> None:
        self.columns = None
        if self.untied:
            self.table = self._add_table("table", self.config.hidden_size)
        else:
            self.transform.build((None, None, self.config.hidden_size))
            self.norm.build((None, None, self.transform.units))
            if self.config.output_columns:
                self.columns = self._add_table("columns", self.config.output_columns)
        super().build()

    def _add_table(self, name: str, width: int) -> keras.Variable:
        return self.add_weight(
            name=name,
            shape=(self.config.vocabulary_size, width),
            initializer=kernel_initializer(self.config.initializer_range),
            autocast=False,
        )

    @property
    def _output_table(self) -> Any:
        if self.untied:
            return self.table
        table = super()._output_table
        return table if self.columns is None else ops.concatenate([table, self.columns], axis=1)

    def token_output(self, sequence: Tensor, mask_positions: Tensor | None = None) -> TokenOutput:
        """Returns what the logits are the product of; the arguments are those of `call`."""
        if mask_positions is not None:
            sequence = gather_positions(sequence, mask_positions)
        # (B, P, E), or (B, P, H)
        hidden = sequence if self.untied else self.norm(self.transform(sequence))
        return super().token_output(hidden)

    def call(self, sequence: Tensor, mask_positions: Tensor | None = None) -> Tensor:
        """Returns the logits of the tokens at the masked positions.

        Args:
            sequence: (B, T, H), the encoder's "sequence".
            mask_positions: (B, P) integers in [0, T); None = the sequence contains only the masked
                tokens, T = P.

        Returns:
            Logits (B, P, V), float32.
        """
        return self.token_output(sequence, mask_positions).logits()
