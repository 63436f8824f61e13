"""MPNet's part: relative biases that all layers share.

(Song et al. 2020, "MPNet", https://arxiv.org/abs/2004.09297, section 2.3.)
"""

from typing import Any

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL
from kbert.core.options import option
from kbert.layers.relative_bias import BiasedAttention, RelativeBiases
from kbert.models.parts import Part


class RelativeBias(Part):
    """MPNet's attention, and the relative biases that all layers share.

    {options}

    Example:
        >>> import kbert
        >>> kbert.family("microsoft/mpnet-base").part
        {'name': 'relative_bias'}
    """

    kind = "relative_bias"

    num_buckets: int = option(
        32,
        help="Distance biases of a head, half of them for tokens to the right; a multiple of 4. "
        "Half of the biases of a side are for one distance each.",
        at_least=4,
        at_most=1 << 14,
    )
    max_distance: int = option(
        128, help="The first distance beyond the buckets.", at_least=2, at_most=1 << 20
    )

    def check(self) -> None:
        if self.num_buckets % 4 or self.max_distance <= self.num_buckets // 4:
            raise ValueError(
                "`num_buckets` must be a multiple of 4, and `max_distance` greater than "
                f"num_buckets / 4. Received: num_buckets={self.num_buckets}, "
                f"max_distance={self.max_distance}"
            )

    def check_config(self, config: EncoderConfig) -> None:
        grouped = config.num_key_value_heads is not None
        turned = config.positions_in_attention
        if turned or grouped or set(config.attention_pattern) != {GLOBAL}:
            raise ValueError(
                "Distance biases require global attention, num_key_value_heads=None, and "
                "`positions` that are 'none' or added to the embeddings. Received: "
                f"positions={config.positions!r}, attention_pattern={config.attention_pattern}, "
                f"num_key_value_heads={config.num_key_value_heads}"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        return self.num_buckets * config.num_heads

    def make_shared(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer:
        return RelativeBiases(
            config.num_heads,
            self.num_buckets,
            self.max_distance,
            initializer_range=config.initializer_range,
            **kwargs,
        )

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return BiasedAttention(
            config.num_heads,
            dropout=config.attention_dropout,
            max_length=config.max_positions,
            initializer_range=config.initializer_range,
            use_bias=config.has_bias("attention"),
            **kwargs,
        )
