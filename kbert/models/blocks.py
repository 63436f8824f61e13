"""What a layer of each model is made of: the parts' sizes from a config, the order from a name."""

from collections.abc import Callable
from typing import Any

from kbert.configs.base import Config
from kbert.layers import (
    Block,
    CrossAttention,
    CrossBlock,
    Dropout,
    FeedForward,
    LayerNorm,
    SelfAttention,
)


def post_norm_block(config: Config, *, crossed: bool = False, **kwargs: Any) -> Block:
    """Normalisation after each residual: BERT, GPT, the original Transformer.

    Args:
        config: an encoder's, a decoder's or that of both.
        crossed: whether the block has cross-attention, as in a decoder with an encoder.
        **kwargs: `name` and `dtype` of the block.
    """
    return _block(config, "{}_norm", crossed, **kwargs)


def pre_norm_block(config: Config, *, crossed: bool = False, **kwargs: Any) -> Block:
    """Normalisation of what goes into each part: GPT-2. Arguments as of `post_norm_block`.

    The residual stream itself is never normalised: behind the last block there must be a norm.
    """
    return _block(config, "{}_input_norm", crossed, **kwargs)


# Name in a config -> what makes a block.
BLOCKS = {"post_norm": post_norm_block, "pre_norm": pre_norm_block}


def last_norm(config: Any, **kwargs: Any) -> LayerNorm | None:
    """The norm behind the last block, where blocks of the config's kind need one."""
    return LayerNorm(config.layer_norm_epsilon, **kwargs) if config.block == "pre_norm" else None


def _block(config: Any, slot: str, crossed: bool, **kwargs: Any) -> Block:
    dtype = kwargs.get("dtype")
    common = {"initializer_range": config.initializer_range, "dtype": dtype}
    attention = {**common, "dropout": config.attention_dropout}
    feed_forward = FeedForward(
        config.intermediate_size, activation=config.activation, name="feed_forward", **common
    )
    parts = [
        SelfAttention(config.num_heads, name="attention", **attention),
        feed_forward,
        Dropout(config.dropout, dtype=dtype, name="dropout"),
    ]
    slots = [slot.format(part) for part in ("attention", "feed_forward")]
    if crossed:
        slots.append(slot.format("cross_attention"))
        cross = CrossAttention(config.num_heads, name="cross_attention", **attention)
        kwargs = {"cross_attention": cross, **kwargs}
    norms = {name: LayerNorm(config.layer_norm_epsilon, dtype=dtype, name=name) for name in slots}
    made: Callable[..., Block] = CrossBlock if crossed else Block
    return made(*parts, **norms, **kwargs)
