"""A decoder that reconstructs a text from its embedding alone.

Shapes: `B` batch, `T` tokens, `H` hidden width.
"""

from operator import itemgetter
from typing import Any

import keras

from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core.types import Shape, Tensor
from kbert.layers import attention_bias, causal_bias
from kbert.layers.recompute import run_layer
from kbert.models.blocks import seq2seq_block
from kbert.models.encoder import Encoder
from kbert.models.generators.warm_start import arrays_of_encoder, config_of_encoder
from kbert.models.weights import get_arrays, set_arrays


class TextDecoder(keras.layers.Layer):
    """Decodes the tokens of a text from its embedding.

    A token attends to the tokens before it, and to the text's embedding by cross-attention. The
    inputs are token embeddings, so the layer has no table.

    Args:
        config: config of an encoder-decoder; only its decoder's blocks are built.
        **kwargs: `name` and `dtype` of the layer.

    Example:
        >>> from keras import ops
        >>> config = Seq2SeqConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> decoder = TextDecoder(config)
        >>> tuple(decoder(ops.ones((2, 5, 8)), ops.ones((2, 5)), ops.ones((2, 8))).shape)
        (2, 5, 8)
    """

    def __init__(self, config: Seq2SeqConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.blocks: list[Any] = [
            seq2seq_block(config, crossed=True, name=f"layers_{i}", dtype=self.dtype_policy)
            for i in range(config.decoder_layers)
        ]
        self.build((None, None, config.hidden_size))

    def build(self, input_shape: Shape) -> None:
        for block in self.blocks:
            block.build(input_shape)

    @classmethod
    def from_encoder(
        cls, encoder: Encoder, num_layers: int | None = None, name: str = "decoder"
    ) -> "TextDecoder":
        """Builds a decoder from the blocks of an encoder, like `Seq2Seq.from_encoder`.

        Args:
            encoder: a `kbert.Encoder` of BERT's kind, whose embeddings are as wide as its layers.
            num_layers: number of blocks; None = as many as the encoder has.
            name: name of the layer, and first part of its weights' names.

        Raises:
            ValueError: the encoder is of another kind.
        """
        config = config_of_encoder(encoder.config, num_layers)
        decoder = cls(config, dtype=encoder.dtype_policy, name=name)
        arrays = arrays_of_encoder(encoder.config, get_arrays(encoder, "encoder"), config)
        prefix = "seq2seq/decoder_layers/"
        learned = {
            f"{name}/layers/{path.removeprefix(prefix)}": array
            for path, array in arrays.items()
            if path.startswith(prefix)
        }
        set_arrays(decoder, name, get_arrays(decoder, name) | learned, "the encoder")
        return decoder

    def call(self, x: Tensor, mask: Tensor, vectors: Tensor, training: bool = False) -> Tensor:
        """Computes the hidden states of the tokens.

        Args:
            x: (B, T, H), embeddings of the tokens.
            mask: (B, T), 1 for a token and 0 for padding.
            vectors: (B, H), embeddings of the texts.
            training: whether dropout is active.

        Returns:
            The hidden states (B, T, H).
        """
        bias = causal_bias(x.shape[1] or keras.ops.shape(x)[1]) + attention_bias(mask)
        for block in self.blocks:
            x = run_layer(block, x, vectors[:, None], bias, training=training, select=itemgetter(0))
        return x
