"""From the vectors of a row's tokens to one vector of the row, or of each example of a packed row.

Shapes: `B` batch, `T` tokens, `H` hidden width, `K` examples of a packed row, 1 of another.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import IDENTITY, EncoderConfig
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import Dense, LayerNorm, gather_positions

MEANS = ("mean", "late")  # the kinds of pooling that read every token


def make_pooler(config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer | None:
    """The layer that makes "pooled", or None where the family has none.

    Args:
        config: the encoder's.
        **kwargs: `name` and `dtype` of the layer.
    """
    if config.pooler_activation is None:
        return None
    if config.pooler_activation == IDENTITY:
        return Unchanged(config.hidden_size, **kwargs)
    return Pooler(config, **kwargs)


class Unchanged(keras.layers.Identity):
    """A pooler that gives the vectors as they are.

    Args:
        units: their width. (Heads ask every pooler for the width of what it gives.)
        **kwargs: `name` and `dtype` of the layer.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units


class Pooler(Dense):
    """The dense layer that makes "pooled", and the norm behind it where the family has one.

    Args:
        config: the encoder's.
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
    """What a pooler makes of the tokens' vectors.

    Args:
        pooler: the encoder's.
        kind: `pooling` of its config.
        sequence: (B, T, H).
        inputs: of the encoder.

    Returns:
        (B, H), or (B, K, H) with "cls_positions".
    """
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
    """Where the tokens stand that `pool` reads, (B, K) int32; not of `MEANS`.

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
    places = ops.arange(ops.shape(ids)[1], dtype="int32")
    places = places[None] + ops.zeros_like(ids, dtype="int32")
    if mask is not None:
        places = places * ops.cast(mask > 0, "int32")
    return ops.max(places, axis=1, keepdims=True)


def token_means(sequence: Tensor, inputs: Tensors) -> Tensor:
    """The mean of the tokens' vectors, padding left out.

    Args:
        sequence: (B, T, H).
        inputs: "padding_mask" (B, T), or of packed rows "example_ids" (B, T) and "cls_positions"
            (B, K); or neither.

    Returns:
        (B, H), or (B, K, H) of packed rows; summed in float32.
    """
    ids, mask = inputs.get("example_ids"), inputs.get("padding_mask")
    if ids is not None:
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
    """One vector for each row, without weights.

    Args:
        vectors: (B, T, D).
        counted: (B, T), 1 for a token that counts. A row without one becomes zeros.
        kind: "cls", "mean", "max", or "weighted": a mean in which token t of the row counts t
            times (Muennighoff 2022, "SGPT", https://arxiv.org/abs/2202.08904).
        cls_last: whether "cls" is the last token that counts, and not the first of the row.

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
        # As a product, which needs no memory for weighted vectors: 9 µs and not 12 for a row of 32
        # tokens, which counts where an encoder is a table.
        return ops.matmul(weights[:, None], vectors)[:, 0]
    lowest = ops.where(weights[:, :, None] > 0, vectors, -3e38)
    return ops.where(any_counted > 0, ops.max(lowest, axis=1), 0.0)
