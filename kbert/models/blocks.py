"""Builds and runs the blocks of a model: sizes come from its config, the order from a name."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.configs.seq2seq import RELATIVE, Seq2SeqConfig
from kbert.configs.transformer import TransformerConfig
from kbert.core.types import DType, Tensor
from kbert.layers import (
    BiasedAttention,
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

# Kind of block -> format of the name of a part's norm.
_SLOTS = {"post_norm": "{}_norm", "pre_norm": "{}_input_norm"}
_PARTS = ("attention", "feed_forward")


def layer_block(
    config: TransformerConfig,
    *,
    layer: int,
    attention: keras.layers.Layer | None = None,
    feed_forward: keras.layers.Layer | None = None,
    **kwargs: Any,
) -> Block:
    """Builds the block of a layer of an encoder or a decoder.

    Args:
        config: config of the model.
        layer: index of the layer; the first index if several layers share the block.
        attention: layer to use as attention; None = the one of `attention_of`.
        feed_forward: layer to use as feed-forward part; None = the one of `feed_forward_of`.
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


def seq2seq_block(config: Seq2SeqConfig, *, crossed: bool = False, **kwargs: Any) -> Block:
    """Builds a block of an encoder-decoder from its config.

    Args:
        config: config of the model.
        crossed: whether the block has cross-attention, as those of the decoder have.
        **kwargs: `name` and `dtype` of the block.
    """
    parts = ("attention", *(("cross_attention",) if crossed else ()), "feed_forward")
    slots = [_SLOTS[config.block].format(part) for part in parts]
    common: dict[str, Any] = {
        "initializer_range": config.initializer_range,
        "use_bias": config.use_bias,
        "dtype": kwargs.get("dtype"),
    }
    heads = {
        "dropout": config.attention_dropout,
        "head_size": config.head_size,
        "scaled": config.scale_scores,
        "max_length": config.max_positions,
        **common,
    }
    kind = BiasedAttention if config.positions == RELATIVE else SelfAttention
    attention = kind(config.num_heads, name="attention", **heads)
    feed_forward = FeedForward(
        config.intermediate_size,
        activation=config.activation,
        gated=config.feed_forward == "gated",
        dropout=config.activation_dropout,
        name="feed_forward",
        **common,
    )
    if crossed:
        cross = CrossAttention(config.num_heads, name="cross_attention", **heads)
        kwargs |= {"made": CrossBlock, "cross_attention": cross}
    return _block(config, slots, attention, feed_forward, norm=config.norm, **kwargs)


def attention_of(config: TransformerConfig, *, layer: int, **kwargs: Any) -> SelfAttention:
    """Builds the attention of a layer from the config.

    Args:
        config: config of the model.
        layer: index of the layer.
        **kwargs: `name` and `dtype` of the attention, and arguments that override the config.
    """
    defaults: dict[str, Any] = {
        "num_heads": config.num_heads,
        "dropout": config.attention_dropout,
        "max_length": config.max_positions,
        "initializer_range": config.initializer_range,
        "use_bias": config.has_bias("attention"),
        "rotary_base": config.layer_rotary_base(layer),
        "alibi": config.positions == "alibi",
        "num_key_value_heads": config.key_value_heads,
    }
    return SelfAttention(**(defaults | kwargs))


def feed_forward_of(config: TransformerConfig, **kwargs: Any) -> FeedForward:
    """Builds the feed-forward part of a layer from the config.

    `kwargs` are `name` and `dtype` of the part, and arguments that override the config.
    """
    defaults: dict[str, Any] = {
        "intermediate_size": config.intermediate_size,
        "activation": config.activation,
        "gated": config.feed_forward == "gated",
        "initializer_range": config.initializer_range,
        "use_bias": config.use_bias,
        "gate_bias": config.has_bias("gate"),
    }
    return FeedForward(**(defaults | kwargs))


def embeddings_of(
    config: EncoderConfig, made: type[Embeddings] = Embeddings, **kwargs: Any
) -> Embeddings:
    """Builds the embeddings of an encoder from its config.

    Args:
        config: config of the encoder.
        made: class of the embeddings.
        **kwargs: `name` and `dtype` of the layer, further arguments of its class, and arguments
            that override the config.
    """
    defaults: dict[str, Any] = {
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
    return made(**(defaults | kwargs))


def last_norm(config: Any, *, kind: str = "layer", **kwargs: Any) -> LayerNorm | None:
    """Builds the norm after the last block; None for post-norm blocks, which need none.

    `kind` is the kind of norm, see `LayerNorm`; `kwargs` are `name` and `dtype` of the layer.
    """
    if config.block == "post_norm":
        return None
    return LayerNorm(config.layer_norm_epsilon, kind=kind, **kwargs)


def normed(x: Tensor, norm: keras.layers.Layer | None) -> Tensor:
    """Returns x normalised by `norm`; None = x unchanged."""
    return x if norm is None else norm(x)


def positions_of(
    config: Any, *, initializer_range: float, **kwargs: Any
) -> keras.layers.Layer | None:
    """Builds the layer that adds learned or sinusoidal positions; None with other positions.

    Args:
        config: config of a decoder or an encoder-decoder.
        initializer_range: standard deviation of the initial values of a learned table.
        **kwargs: `name` and `dtype` of the layer.
    """
    sizes = (config.max_positions, config.hidden_size)
    if config.positions == "learned":
        return LearnedPositions(*sizes, initializer_range=initializer_range, **kwargs)
    if config.positions in ("sinusoidal", "sinusoidal_halves"):
        return SinusoidalPositions(*sizes, halves=config.positions != "sinusoidal", **kwargs)
    return None


class Reads(NamedTuple):
    """Flags: which outputs a call returns besides the last hidden state, see `Encoder.call`."""

    hidden_states: bool = False
    attention: bool = False
    internals: bool = False

    @property
    def weights(self) -> bool:
        """Whether any output of the attention is returned."""
        return self.attention or self.internals

    def select(self, outputs: Any) -> Any:
        """Returns a block's output, and only the requested outputs of each of its attentions.

        `outputs` are the output (B, T, H), and a dict of tensors for each attention. Each dict
        becomes itself with `internals`, its probabilities with only `attention`, and else None.
        """
        x, *attention = outputs
        if not self.internals:
            attention = [
                tensors["probabilities"] if self.attention else None for tensors in attention
            ]
        return x, *attention


def run_blocks(
    blocks: Sequence[Any], x: Tensor, bias: Any, *, reads: Reads, **options: Any
) -> tuple[list, list]:
    """Runs blocks one after the other.

    Args:
        blocks: the L blocks.
        x: (B, T, H), input of the first block.
        bias: bias of the attention scores, or None; a list has one for each block.
        reads: which outputs of the attention are returned.
        **options: further arguments of each block.

    Returns:
        The L + 1 hidden states, of which `x` is the first, and the requested outputs of each
        block's attention (None if there are none).
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
    """Encodes a prompt and caches the keys and values that later tokens attend to.

    Args:
        blocks: the L blocks.
        x: (B, P, H), embeddings of the prompt.
        max_new_tokens: G, the size of the KV cache for decoded tokens.
        bias: bias of the attention scores; a list has one for each block.
        *context: further arguments of each block's `prefill`.

    Returns:
        The last hidden state, the KV caches of the prompt, and the empty KV caches for decoded
        tokens; one cache of each kind for each block.
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
    """Runs the blocks on the token that was decoded last, or on several tokens from there on.

    Args:
        blocks: the L blocks.
        x: (R, n, H), embeddings of the n tokens in each of R rows.
        cache: KV cache: "prompt" with its "layers" and "bias", and "decoded"; see `prefill_blocks`.
        t: number of tokens that were decoded before.
        *context: further arguments of each block's `step`.
        options: for each block, the keyword arguments of its `step`; None = none.

    Returns:
        The last hidden state, and the cache with the tokens added.
    """
    prompt, decoded = cache["prompt"], []
    layers = zip(blocks, prompt["layers"], cache["decoded"], strict=True)
    for number, (block, keys_values, new) in enumerate(layers):
        block_options = {} if options is None else options[number]
        x, new = block.step(x, keys_values, prompt["bias"], new, t, *context, **block_options)
        decoded.append(new)
    return x, {"prompt": prompt, "decoded": decoded}


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
    """Builds a block of an attention and a feed-forward part, with a norm in each slot.

    Args:
        config: config of the model; gives dropout rate and epsilon.
        slots: arguments of the block's class that take a norm, such as "attention_norm".
        attention: the attention.
        feed_forward: the feed-forward part.
        made: class of the block.
        norm: kind of the norms, see `LayerNorm`.
        dtype: a Keras dtype policy or its name.
        **kwargs: further arguments of the block's class.
    """
    epsilon = config.layer_norm_epsilon
    return made(
        attention,
        feed_forward,
        Dropout(config.dropout, dtype=dtype, name="dropout"),
        **{slot: LayerNorm(epsilon, kind=norm, dtype=dtype, name=slot) for slot in slots},
        dtype=dtype,
        **kwargs,
    )
