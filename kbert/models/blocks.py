"""What a layer of each model is made of: the parts' sizes from a config, the order from a name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from kbert.configs.base import Config
from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import TransformerConfig
from kbert.core.types import DType, Tensor
from kbert.layers import (
    Block,
    CrossAttention,
    CrossBlock,
    Dropout,
    Embeddings,
    FeedForward,
    LayerNorm,
    LearnedPositions,
    SelfAttention,
    SinusoidalPositions,
)
from kbert.layers.recompute import run_layer


def post_norm_block(config: Config, *, crossed: bool = False, **kwargs: Any) -> Block:
    """Normalisation after each residual: BERT, GPT, the original Transformer.

    Args:
        config: an encoder's, a decoder's or that of both.
        crossed: whether the block has cross-attention, as in a decoder with an encoder.
        **kwargs: `name` and `dtype` of the block.
    """
    return _decoder_block(config, "post_norm", crossed, **kwargs)


def pre_norm_block(config: Config, *, crossed: bool = False, **kwargs: Any) -> Block:
    """Normalisation of what goes into each part: GPT-2. Arguments as of `post_norm_block`.

    The residual stream itself is never normalised: behind the last block there must be a norm.
    """
    return _decoder_block(config, "pre_norm", crossed, **kwargs)


# Where a kind of block has its norms, by the part.
_SLOTS = {"post_norm": "{}_norm", "pre_norm": "{}_input_norm"}
_PARTS = ("attention", "feed_forward")
# Name in a config -> what makes a block.
BLOCKS = {"post_norm": post_norm_block, "pre_norm": pre_norm_block}


def layer_block(
    config: TransformerConfig,
    *,
    layer: int,
    attention: keras.layers.Layer | None = None,
    feed_forward: keras.layers.Layer | None = None,
    **kwargs: Any,
) -> Block:
    """The block of a layer of an encoder or a decoder, as its config says.

    Args:
        config: the model's.
        layer: which of its layers; of several that share a block the first.
        attention: in the place of the config's, or None.
        feed_forward: likewise.
        **kwargs: `name` and `dtype` of the block.
    """
    slots = [_SLOTS[config.block.removesuffix("_except_first")].format(part) for part in _PARTS]
    if layer == 0 and config.block == "pre_norm_except_first":
        slots = slots[1:]
    policy = {"dtype": kwargs.get("dtype")}
    if attention is None:
        attention = attention_of(config, layer=layer, name="attention", **policy)
    if feed_forward is None:
        feed_forward = feed_forward_of(config, name="feed_forward", **policy)
    return _block(config, slots, attention, feed_forward, norm=config.norm, **kwargs)


def attention_of(config: TransformerConfig, *, layer: int, **kwargs: Any) -> SelfAttention:
    """The attention of a layer, as the config says.

    Args:
        config: the model's.
        layer: which of its layers.
        **kwargs: `name` and `dtype` of the layer, and what is to be other than the config says.
    """
    said: dict[str, Any] = {
        "num_heads": config.num_heads,
        "dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "use_bias": config.has_bias("attention"),
        "rotary_base": config.layer_rotary_base(layer),
        "alibi": config.positions == "alibi",
        "num_key_value_heads": config.key_value_heads,
    }
    return SelfAttention(**(said | kwargs))


def feed_forward_of(config: TransformerConfig, **kwargs: Any) -> FeedForward:
    """The feed-forward part of a layer, as the config says. Arguments as of `attention_of`."""
    said: dict[str, Any] = {
        "intermediate_size": config.intermediate_size,
        "activation": config.activation,
        "gated": config.feed_forward == "gated",
        "initializer_range": config.initializer_range,
        "use_bias": config.use_bias,
        "gate_bias": config.has_bias("gate"),
    }
    return FeedForward(**(said | kwargs))


def embeddings_of(
    config: EncoderConfig, made: type[Embeddings] = Embeddings, **kwargs: Any
) -> Embeddings:
    """The embeddings of an encoder, as its config says.

    Args:
        config: the encoder's.
        made: their class.
        **kwargs: `name` and `dtype` of the layer, what else its class takes, and what is to be
            other than the config says.
    """
    said: dict[str, Any] = {
        "vocabulary_size": config.vocabulary_size,
        "embedding_size": config.embedding_width,
        "hidden_size": config.hidden_size,
        "max_positions": config.max_positions,
        "num_segments": config.num_segments,
        "dropout": config.dropout,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "initializer_range": config.initializer_range,
        "positions": "none" if config.positions_in_attention else config.positions,
        "norm": config.norm if config.embedding_norm else None,
        "use_bias": config.use_bias,
        "padding_id": config.padding_id,
    }
    return made(**(said | kwargs))


def last_norm(config: Any, *, kind: str = "layer", **kwargs: Any) -> LayerNorm | None:
    """The norm behind the last block, where blocks of the config's kind need one."""
    if config.block == "post_norm":
        return None
    return LayerNorm(config.layer_norm_epsilon, kind=kind, **kwargs)


def normed(x: Tensor, norm: keras.layers.Layer | None) -> Tensor:
    """What a norm makes of x, where the model has it."""
    return x if norm is None else norm(x)


def positions_of(
    config: Any, *, initializer_range: float, **kwargs: Any
) -> keras.layers.Layer | None:
    """The layer that adds positions to the tokens' vectors; None where the attention knows them.

    Args:
        config: a decoder's, or an encoder-decoder's.
        initializer_range: of a table that is learned.
        **kwargs: `name` and `dtype` of the layer.
    """
    sizes = (config.max_positions, config.hidden_size)
    if config.positions == "learned":
        return LearnedPositions(*sizes, initializer_range=initializer_range, **kwargs)
    return SinusoidalPositions(*sizes, **kwargs) if config.positions == "sinusoidal" else None


class Reads(NamedTuple):
    """What a call returns of the layers besides the last one's output; see `Encoder.call`."""

    hidden_states: bool = False
    attention: bool = False
    internals: bool = False

    @property
    def weights(self) -> bool:
        """Whether anything of the attention is returned."""
        return self.attention or self.internals

    def select(self, outputs: Any) -> Any:
        """Of what a block gives, its outputs and what is returned of each of its attentions."""
        x, *attention = outputs
        if not self.internals:
            attention = [made["probabilities"] if self.attention else None for made in attention]
        return x, *attention


def run_blocks(
    blocks: Sequence[Any], x: Tensor, bias: Any, *, reads: Reads, **options: Any
) -> tuple[list, list]:
    """Reads a sequence with one block after the other.

    Args:
        blocks: L of them.
        x: (B, T, H).
        bias: of the attention scores, or None; a list has one for each block.
        reads: what is returned of their attention; None where that is nothing.
        **options: what else a block takes.

    Returns:
        The hidden states, L + 1 with `x` as the first, and what is read of each block's attention.
    """
    hidden_states, attention = [x], []
    biases = bias if isinstance(bias, list) else [bias] * len(blocks)
    for block, bias in zip(blocks, biases, strict=True):
        x, weights = run_layer(block, x, bias, select=reads.select, **options)
        hidden_states.append(x)
        attention.append(weights)
    return hidden_states, attention


def prefill_blocks(
    blocks: Sequence[Any], x: Tensor, max_new_tokens: int, bias: Any, *context: Any
) -> tuple[Any, list, list]:
    """Reads a prompt, and keeps what later tokens attend to.

    Args:
        blocks: L of them.
        x: (B, P, H).
        max_new_tokens: G, the tokens that the cache of what is decoded has places for.
        bias: of the attention scores; a list has one for each block.
        *context: what else a block's `prefill` takes.

    Returns:
        The last hidden state, and of each block the cache of the prompt and the empty one of what
        is decoded.
    """
    prompt, decoded = [], []
    biases = bias if isinstance(bias, list) else [bias] * len(blocks)
    for block, bias in zip(blocks, biases, strict=True):
        x, keys_values = block.prefill(x, bias, *context)
        prompt.append(keys_values)
        decoded.append(block.attention.empty_cache(keys_values, max_new_tokens))
    return x, prompt, decoded


def step_blocks(
    blocks: Sequence[Any],
    x: Tensor,
    cache: dict,
    t: Tensor,
    *context: Any,
    options: Sequence[dict[str, Any]] | None = None,
) -> tuple[Any, dict]:
    """Reads the token that was decoded last.

    Args:
        blocks: L of them.
        x: (R, 1, H).
        cache: "prompt" with its "layers" and "bias", and "decoded"; see `prefill_blocks`.
        t: number of tokens that were decoded before.
        *context: what else a block's `step` takes.
        options: named arguments of each block's `step`; None = no such.

    Returns:
        The last hidden state, and the cache with the token in it.
    """
    prompt, decoded = cache["prompt"], []
    layers = zip(blocks, prompt["layers"], cache["decoded"], strict=True)
    for number, (block, keys_values, new) in enumerate(layers):
        own = {} if options is None else options[number]
        x, new = block.step(x, keys_values, prompt["bias"], new, t, *context, **own)
        decoded.append(new)
    return x, {"prompt": prompt, "decoded": decoded}


def _decoder_block(config: Any, kind: str, crossed: bool, **kwargs: Any) -> Block:
    slots = [_SLOTS[kind].format(part) for part in _PARTS]
    common = {"initializer_range": config.initializer_range, "dtype": kwargs.get("dtype")}
    heads = {"dropout": config.attention_dropout, **common}
    attention = SelfAttention(config.num_heads, name="attention", **heads)
    feed_forward = FeedForward(
        config.intermediate_size, activation=config.activation, name="feed_forward", **common
    )
    if not crossed:
        return _block(config, slots, attention, feed_forward, **kwargs)
    cross = CrossAttention(config.num_heads, name="cross_attention", **heads)
    slots.append(_SLOTS[kind].format("cross_attention"))
    parts = (attention, feed_forward)
    return _block(config, slots, *parts, made=CrossBlock, cross_attention=cross, **kwargs)


def _block(
    config: Any,
    slots: Sequence[str],
    attention: keras.layers.Layer,
    feed_forward: keras.layers.Layer,
    *,
    made: Callable[..., Block] = Block,
    norm: str = "layer",
    dtype: DType = None,
    **kwargs: Any,
) -> Block:
    """A block with norms in the slots that are named."""
    epsilon = config.layer_norm_epsilon
    return made(
        attention,
        feed_forward,
        Dropout(config.dropout, dtype=dtype, name="dropout"),
        **{slot: LayerNorm(epsilon, kind=norm, dtype=dtype, name=slot) for slot in slots},
        dtype=dtype,
        **kwargs,
    )
