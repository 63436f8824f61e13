"""Layers whose kernels have scores and masks: movement pruning (https://arxiv.org/abs/2005.07683).

`kbert.pruning.with_movement` makes such encoders of others, `apply_movement` plain ones of them.
"""

from typing import Any

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.models.blocks import attention_of, feed_forward_of
from kbert.models.parts.base import Part, register_part


@register_part
class Movement(Part):
    """Every dense layer of the blocks has a score and a mask for each weight of its kernel.

    Both are saved with the other weights, so that a preset computes what was trained, and a run
    resumes with the same choice.

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny").replace(part={"name": "movement"})
        >>> encoder = kbert.Encoder(config)
        >>> encoder.count_params() == kbert.describe(config).parameters
        True
    """

    name = "movement"
    takes_adapters = False  # they would train, and be merged into, kernels that are not what runs

    def count_parameters(self, config: EncoderConfig) -> int:
        hidden, inside = config.hidden_size, config.intermediate_size
        queries = config.num_heads * self.head_size(config)
        keys = (config.num_key_value_heads or config.num_heads) * self.head_size(config)
        attention = hidden * (queries + 2 * keys) + queries * hidden
        feed_forward = hidden * inside * (2 + (config.feed_forward == "gated"))
        return 2 * config.num_blocks * (attention + feed_forward)

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return attention_of(config, layer=layer, scored=True, **kwargs)

    def make_feed_forward(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return feed_forward_of(config, scored=True, **kwargs)
