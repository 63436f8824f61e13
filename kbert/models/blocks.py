"""What a layer of each model is made of: the parts' sizes from a config, the order from a name."""

from collections.abc import Callable, Sequence
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
from kbert.layers.recompute import run_layer
from kbert.types import Tensor


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


def run_blocks(
    blocks: Sequence[Any], x: Tensor, bias: Any, *, attention_is_read: bool, **options: Any
) -> tuple[list, list]:
    """Reads a sequence with one block after the other.

    Args:
        blocks: L of them.
        x: (B, T, H).
        bias: of the attention scores, or None.
        attention_is_read: whether the second of what is returned is; it holds None otherwise.
        **options: what else a block takes.

    Returns:
        The hidden states, L + 1 with `x` as the first, and what each block gives of its attention.
    """
    hidden_states, attention = [x], []
    for block in blocks:
        x, weights = run_layer(block, x, bias, first_only=not attention_is_read, **options)
        hidden_states.append(x)
        attention.append(weights)
    return hidden_states, attention


def prefill_blocks(
    blocks: Sequence[Any], x: Tensor, max_new_tokens: int, *context: Any
) -> tuple[Any, list, list]:
    """Reads a prompt, and keeps what later tokens attend to.

    Args:
        blocks: L of them.
        x: (B, P, H).
        max_new_tokens: G, the tokens that the cache of what is decoded has places for.
        *context: what else a block's `prefill` takes.

    Returns:
        The last hidden state, and of each block the cache of the prompt and the empty one of what
        is decoded.
    """
    prompt, decoded = [], []
    for block in blocks:
        x, keys_values = block.prefill(x, *context)
        prompt.append(keys_values)
        decoded.append(block.attention.empty_cache(keys_values, max_new_tokens))
    return x, prompt, decoded


def step_blocks(
    blocks: Sequence[Any], x: Tensor, cache: dict, t: Tensor, *context: Any
) -> tuple[Any, dict]:
    """Reads the token that was decoded last.

    Args:
        blocks: L of them.
        x: (R, 1, H).
        cache: "prompt" with its "layers" and "bias", and "decoded"; see `prefill_blocks`.
        t: number of tokens that were decoded before.
        *context: what else a block's `step` takes.

    Returns:
        The last hidden state, and the cache with the token in it.
    """
    prompt, decoded = cache["prompt"], []
    for block, keys_values, new in zip(blocks, prompt["layers"], cache["decoded"], strict=True):
        x, new = block.step(x, keys_values, prompt["bias"], new, t, *context)
        decoded.append(new)
    return x, {"prompt": prompt, "decoded": decoded}


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
