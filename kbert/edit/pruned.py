"""Pruned layers: each has fewer heads or neurons than `num_heads` and `intermediate_size` say.

`kbert.edit.pruning` prunes trained models. The width of a head does not change, so that the
remaining heads compute the same as before.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras

from kbert.core.options import option
from kbert.edit.base import Edit, Kernels
from kbert.layers import FeedForward, SelfAttention


class Pruned(Edit):
    """An edit that sets the number of heads and the feed-forward width block by block.

    The config's `num_heads` and `intermediate_size` are those before pruning. Layers that share
    weights are one block.

    {options}

    Example:
        >>> import kbert
        >>> edit = {"kind": "pruned", "heads": [1, 2], "intermediate_sizes": [512, 100]}
        >>> config = kbert.family("bert-tiny").replace(edits=[edit])
        >>> encoder = kbert.Encoder(config)
        >>> [tuple(block.attention.qkv.kernel.shape) for block in encoder.blocks]
        [(128, 192), (128, 384)]
        >>> encoder.count_params() == kbert.describe(config).parameters
        True
    """

    kind = "pruned"

    heads: tuple[int, ...] = option(
        (), help="Number of attention heads of each block; () = that of the config.", at_least=1
    )
    intermediate_sizes: tuple[int, ...] = option(
        (),
        help="Width inside the feed-forward part of each block; () = that of the config.",
        at_least=1,
    )

    def check_config(self, config: Any) -> None:
        for name, limit_name in (
            ("heads", "num_heads"),
            ("intermediate_sizes", "intermediate_size"),
        ):
            numbers, limit = getattr(self, name), getattr(config, limit_name)
            if numbers and (len(numbers) != config.num_blocks or max(numbers) > limit):
                raise ValueError(
                    f"`{name}` must have a number for each of the {config.num_blocks} blocks, at "
                    f"most {limit_name}={limit}. Received: {numbers}"
                )
        if self.heads:
            check_heads_are_alone(config)

    def apply(self, model: keras.Model) -> None:
        blocks: list[Any] = list(model.blocks)
        for block in blocks:
            parts = [getattr(block, name, None) for name in ("attention", "feed_forward")]
            if [type(part) for part in parts] != [SelfAttention, FeedForward]:
                raise ValueError(
                    "Pruning heads or neurons requires blocks with kbert.layers.SelfAttention and "
                    f"FeedForward. Received: {', '.join(type(part).__name__ for part in parts)}"
                )
        width = model.config.hidden_size
        for block, number in zip(blocks, self.heads, strict=False):  # empty if none are pruned
            attention = block.attention
            attention.given_head_size = attention.head_size
            attention.num_heads = attention.num_key_value_heads = number
            _rebuild(attention, width, ("qkv", "output_dense"))
        for block, size in zip(blocks, self.intermediate_sizes, strict=False):
            block.feed_forward.intermediate_size = size
            _rebuild(block.feed_forward, width, ("intermediate", "output_dense"))

    def layer_heads(self, config: Any, heads: Sequence[int]) -> list[int]:
        blocks, layers = config.num_blocks, config.num_layers
        block_heads = self.heads
        return [
            block_heads[i * blocks // layers] if block_heads else heads[i] for i in range(layers)
        ]

    def kernels(self, config: Any, kernels: Kernels) -> Kernels:
        return [
            config.kernels(
                self.heads[block] if self.heads else None,
                self.intermediate_sizes[block] if self.intermediate_sizes else None,
            )
            for block in range(config.num_blocks)
        ]

    def count_parameters(self, config: Any, kernels: Kernels) -> int:
        hidden, size = config.hidden_size, config.hidden_size // config.num_heads
        head_weights = config.count_dense(hidden, 3 * size) + size * hidden
        is_gated = config.feed_forward == "gated"
        columns = config.count_dense(hidden, 1 + is_gated, "gate" if is_gated else "")
        heads = sum(config.num_heads - number for number in self.heads)
        neurons = sum(config.intermediate_size - number for number in self.intermediate_sizes)
        return -heads * head_weights - neurons * (columns + hidden)


def check_heads_are_alone(config: Any) -> None:
    """Raises ValueError if heads depend on each other, so that single heads cannot be pruned.

    They do if they share keys and values, or with ALiBi.
    """
    if config.num_key_value_heads is not None or config.positions == "alibi":
        raise ValueError(
            "Single heads can only be pruned if none shares keys and values with others "
            "(num_key_value_heads=None) or has a slope by its index (positions='alibi'). "
            f"Received: num_key_value_heads={config.num_key_value_heads}, "
            f"positions={config.positions!r}"
        )


def _rebuild(layer: Any, width: int, inner: Sequence[str]) -> None:
    """Rebuilds the dense layers inside a layer with its new sizes, under the same paths.

    Args:
        layer: attention or feed-forward part of a block, whose size attributes have changed.
        width: hidden width of its inputs.
        inner: names of the attributes with the dense layers.
    """
    layer._tracker.unlock()
    for name in inner:
        layer._tracker.untrack(getattr(layer, name))
        delattr(layer, name)
    layer.built = False
    with contextlib.ExitStack() as scopes:  # weights are saved by their paths
        for part in layer.path.split("/")[:-1]:
            scopes.enter_context(keras.name_scope(part))
        layer.build((None, None, width))
