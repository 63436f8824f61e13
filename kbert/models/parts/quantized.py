"""Layers that train for 8 bits: Q8BERT (Zafrir et al. 2019, https://arxiv.org/abs/1910.06188).

`kbert.quantization` makes such encoders of others, and plain ones of them again.
"""

from typing import Any

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.models.blocks import attention_of, embeddings_of, feed_forward_of
from kbert.models.parts.base import Part, register_part


@register_part
class Quantized(Part):
    """What the dense layers of the blocks multiply, and the token vectors, are rounded to 8 bits.

    Norms, softmax, activations and the products of queries, keys and values stay as they are, as in
    the paper and in the runtimes. Each dense layer has one number more: its moving range.

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny").replace(part={"name": "quantized"})
        >>> encoder = kbert.Encoder(config)
        >>> encoder.count_params() == kbert.describe(config).parameters
        True
    """

    name = "quantized"
    takes_adapters = False  # merged into a kernel they would be rounded with it: other answers

    def count_parameters(self, config: EncoderConfig) -> int:
        return 4 * config.num_blocks  # of queries, keys and values, and of three more products

    def make_embeddings(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer:
        return embeddings_of(config, quantized=True, **kwargs)

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return attention_of(config, layer=layer, quantized=True, **kwargs)

    def make_feed_forward(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return feed_forward_of(config, quantized=True, **kwargs)
