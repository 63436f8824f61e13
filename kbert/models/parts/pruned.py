"""Layers that were pruned: each has fewer heads, and fewer neurons, than the config says.

`kbert.pruning` makes such encoders of trained ones. The width of a head is what it was, so that the
heads that are left compute what they did.
"""

from typing import Any

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.core.options import option
from kbert.models.blocks import attention_of, feed_forward_of
from kbert.models.parts.base import Part


class Pruned(Part):
    """What is left of the heads and of the feed-forward parts, block by block.

    The config's `num_heads` and `intermediate_size` are those before the pruning. Layers that share
    weights are one block.

    {options}

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny").replace(
        ...     part={"name": "pruned", "heads": [1, 2], "intermediate_sizes": [512, 100]})
        >>> encoder = kbert.Encoder(config)
        >>> [tuple(block.attention.qkv.kernel.shape) for block in encoder.blocks]
        [(128, 192), (128, 384)]
        >>> encoder.count_params() == kbert.describe(config).parameters
        True
    """

    kind = "pruned"

    heads: tuple[int, ...] = option(
        (), help="Attention heads of each block; () = those of the config.", at_least=1
    )
    intermediate_sizes: tuple[int, ...] = option(
        (), help="Widths inside the feed-forward parts; () = that of the config.", at_least=1
    )

    def check_config(self, config: EncoderConfig) -> None:
        for name, most in (("heads", "num_heads"), ("intermediate_sizes", "intermediate_size")):
            numbers, limit = getattr(self, name), getattr(config, most)
            if numbers and (len(numbers) != config.num_blocks or max(numbers) > limit):
                raise ValueError(
                    f"`{name}` must have a number for each of the {config.num_blocks} blocks, at "
                    f"most {most}={limit}. Received: {numbers}"
                )
        if self.heads:
            check_heads_are_alone(config)

    def count_parameters(self, config: EncoderConfig) -> int:
        hidden, size = config.hidden_size, self.head_size(config)
        of_head = config.count_dense(hidden, 3 * size) + size * hidden
        gated = config.feed_forward == "gated"
        columns = config.count_dense(hidden, 1 + gated, "gate" if gated else "")
        heads = sum(config.num_heads - number for number in self.heads)
        neurons = sum(config.intermediate_size - number for number in self.intermediate_sizes)
        return -heads * of_head - neurons * (columns + hidden)

    def num_heads(self, config: EncoderConfig, layer: int) -> int:
        return self.heads[_block(config, layer)] if self.heads else config.num_heads

    def kernels(self, config: EncoderConfig, layer: int) -> list[tuple[int, int]]:
        block = _block(config, layer)
        left = (
            numbers[block] if numbers else None for numbers in (self.heads, self.intermediate_sizes)
        )
        return config.kernels(*left)

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        if not self.heads:
            return None
        heads = self.num_heads(config, layer)
        sizes = {"num_heads": heads, "num_key_value_heads": heads}
        return attention_of(
            config, layer=layer, head_size=self.head_size(config), **sizes, **kwargs
        )

    def make_feed_forward(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        if not self.intermediate_sizes:
            return None
        size = self.intermediate_sizes[_block(config, layer)]
        return feed_forward_of(config, intermediate_size=size, **kwargs)


def check_heads_are_alone(config: EncoderConfig) -> None:
    """Raises ValueError where a head cannot go without a change of the others."""
    if config.num_key_value_heads is not None or config.positions == "alibi":
        raise ValueError(
            "Heads are pruned one by one: none may share keys and values with others, or have a "
            "slope by its number (positions='alibi'). Received: "
            f"num_key_value_heads={config.num_key_value_heads}, positions={config.positions!r}"
        )


def _block(config: EncoderConfig, layer: int) -> int:
    return layer * config.num_blocks // config.num_layers
