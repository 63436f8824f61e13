"""Pooling of token embeddings to one embedding of a sequence, or of each example of a packed row.

Shapes: `B` batch, `T` tokens, `H` hidden width, `K` examples of a packed row, else 1.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import IDENTITY, EncoderConfig
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import Dense, LayerNorm, gather_positions

ALL_TOKENS = ("mean", "late", "concat")  # the kinds of pooling that read every token


def make_pooler(config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer | None:
    """Builds the layer that computes "pooled"; None if the config has no pooler.

    Args:
        config: config of the encoder.
        **kwargs: `name` and `dtype` of the layer.
    """
    if config.pooler_activation is None:
        return None
    if config.pooler_activation == IDENTITY:
        return Unchanged(config.hidden_size, **kwargs)
    return Pooler(config, **kwargs)


class Unchanged(keras.layers.Identity):
    """Pooler that returns its input unchanged.

    Args:
        units: width of the input, which is the output width that heads read from a pooler.
        **kwargs: `name` and `dtype` of the layer.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units


class Pooler(Dense):
    """Dense layer that computes "pooled", followed by a norm if the config has `pooler_norm`.

    Args:
        config: config of the encoder.
        **kwargs: `name` and `dtype` of the layer.
    """

    def __init__(self, config: EncoderConfig, **kwargs: Any) -> None:
        super().__init__(
            config.hidden_size,
            activation=config.pooler_activation,
            initializer_range=config.initializer_range,
            use_bias=config.has_bias("heads"),
            **kwargs,
        )
        self.norm = None
        if config.pooler_norm:
            self.norm = LayerNorm(
                config.layer_norm_epsilon, kind=config.norm, dtype=self.dtype_policy, name="norm"
            )

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        if self.norm is not None:
            self.norm.build((*input_shape[:-1], self.units))

    def call(  # type: ignore[override]  # its outputs are normed together
        self, inputs: Tensor, training: bool = False
    ) -> Tensor:
        outputs = super().call(inputs, training=training)
        return outputs if self.norm is None else self.norm(outputs, training=training)


def pool(pooler: keras.layers.Layer, kind: str, sequence: Tensor, inputs: Tensors) -> Tensor:
    """Computes "pooled" from the last hidden state.

    Args:
        pooler: pooler of the encoder.
        kind: `pooling` of the config: "first", "last", "mean", "late", or "concat": the last, the
            largest and the mean of the tokens (Howard & Ruder 2018, section 3.3).
        sequence: (B, T, H), last hidden state.
        inputs: inputs of the encoder, by name.

    Returns:
        (B, H), (B, 3H) with "concat", or (B, K, H) with "cls_positions".
    """
    if kind == "concat":
        mask = inputs.get("padding_mask")
        counted = ops.ones_like(sequence[:, :, 0]) if mask is None else mask > 0
        last = gather_positions(sequence, pooled_positions("last", inputs))[:, 0]
        largest, mean = pool_tokens(sequence, counted, "max"), token_means(sequence, inputs)
        return pooler(ops.concatenate([last, largest, mean], axis=-1))
    if kind == "mean":
        return pooler(token_means(sequence, inputs))
    if kind == "late":
        return token_means(pooler(sequence), inputs)
    if inputs.get("cls_positions") is not None:
        return pooler(gather_positions(sequence, inputs["cls_positions"]))
    if kind == "last":
        return pooler(gather_positions(sequence, pooled_positions(kind, inputs))[:, 0])
    return pooler(sequence[:, 0])


def pooled_positions(kind: str, inputs: Tensors) -> Tensor:
    """Returns the positions (B, K) int32 of the tokens that `pool` reads; not for `ALL_TOKENS`.

    `kind` is "first", or "last" for the last token without padding. `inputs` are those of the
    encoder; "cls_positions" among them are returned whatever the kind.

    Example:
        >>> row = {"token_ids": ops.array([[5, 6, 0]]), "padding_mask": ops.array([[1, 1, 0]])}
        >>> [int(pooled_positions(kind, row)[0, 0]) for kind in ("first", "last")]
        [0, 1]
    """
    if inputs.get("cls_positions") is not None:
        return ops.cast(inputs["cls_positions"], "int32")
    ids, mask = inputs["token_ids"], inputs.get("padding_mask")
    if kind == "first":
        return ops.zeros_like(ids[:, :1], dtype="int32")
    positions = ops.arange(ops.shape(ids)[1], dtype="int32")
    positions = positions[None] + ops.zeros_like(ids, dtype="int32")
    if mask is not None:
        positions = positions * ops.cast(mask > 0, "int32")
    return ops.max(positions, axis=1, keepdims=True)


def token_means(sequence: Tensor, inputs: Tensors) -> Tensor:
    """Returns the mean hidden state over all tokens but padding; zeros if there are none.

    Args:
        sequence: (B, T, H).
        inputs: "padding_mask" (B, T); for packed rows "example_ids" (B, T) and "cls_positions" (B,
            K); or neither.

    Returns:
        (B, H), or (B, K, H) for packed rows; the sum is computed in float32.

    Raises:
        ValueError: packed rows without "cls_positions", which have the number of examples, K.
    """
    ids, mask = inputs.get("example_ids"), inputs.get("padding_mask")
    if ids is not None:
        if inputs.get("cls_positions") is None:
            raise ValueError(
                "`example_ids` require `cls_positions` if the pooler reads the mean of an "
                f"example's tokens. Received: {', '.join(inputs)}"
            )
        numbers = ops.arange(inputs["cls_positions"].shape[1]) + 1
        is_member = ops.cast(ids, "int32")[:, None, :] == numbers[None, :, None]  # (B, K, T)
    elif mask is not None:
        is_member = mask[:, None, :] > 0
    else:
        is_member = ops.ones_like(sequence[:, None, :, 0]) > 0
    weights = ops.cast(is_member, "float32")
    counts = ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1.0)
    means = ops.matmul(weights / counts, ops.cast(sequence, "float32"))
    means = ops.cast(means, sequence.dtype)
    return means if ids is not None else means[:, 0]


def pool_tokens(vectors: Any, counted: Any, kind: str, cls_last: bool = False) -> Any:
    """Pools token embeddings to one embedding for each sequence, without trainable weights.

    Args:
        vectors: (B, T, D), embeddings of the tokens.
        counted: (B, T), 1 for a token that counts, 0 otherwise. With "mean", "max" and "weighted" a
            sequence without counted tokens becomes zeros.
        kind: "cls", "mean", "max", or "weighted": a mean in which the t-th counted token has the
            weight t (Muennighoff 2022, "SGPT", https://arxiv.org/abs/2202.08904).
        cls_last: whether "cls" is the last token that counts instead of the first of the sequence.
            Tokens that count must then come before all others.

    Returns:
        (B, D).

    Example:
        >>> import numpy as np
        >>> vectors = np.array([[[1.0], [5.0], [9.0]]], "float32")
        >>> counted = np.array([[1, 1, 0]])
        >>> [round(float(pool_tokens(vectors, counted, x)[0, 0]), 2) for x in ("mean", "weighted")]
        [3.0, 3.67]
    """
    if kind == "cls":
        if not cls_last:
            return vectors[:, 0]
        last = ops.maximum(ops.sum(ops.cast(counted, "int32"), axis=1) - 1, 0)
        return ops.take_along_axis(vectors, last[:, None, None], axis=1)[:, 0]
    weights = ops.cast(counted, vectors.dtype)
    any_counted = ops.max(weights, axis=1, keepdims=True)  # (B, 1)
    if kind == "weighted":
        weights = weights * ops.cumsum(weights, axis=1)
    if kind in ("mean", "weighted"):
        weights = weights / ops.maximum(ops.sum(weights, 1, keepdims=True), 1.0)
        # A matrix product needs no memory for weighted embeddings: 9 µs instead of 12 for a row of
        # 32 tokens, which matters if the encoder is a table.
        return ops.matmul(weights[:, None], vectors)[:, 0]
    lowest = ops.where(weights[:, :, None] > 0, vectors, -3e38)
    return ops.where(any_counted > 0, ops.max(lowest, axis=1), 0.0)
