"""Attention of long sequences, whose scores exist for one chunk of queries at a time.

Plain attention saves the scores, the probabilities and the dropped probabilities of all tokens for
the gradient. Here the logarithm of each softmax's sum is saved instead, and the backward pass
computes the scores again (Dao et al. 2022, "FlashAttention", https://arxiv.org/abs/2205.14135,
section 3.1; whole rows of scores instead of tiles).

Shapes: `B` batch, `N` heads, `T` tokens, `S` tokens that are attended to, `D` width of a head, `C`
queries of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor
from kbert.layers import fused
from kbert.layers.bias import bias_rows
from kbert.layers.chunks import RowFunction, map_chunks

# Most queries of a chunk. With 128, 4,096 tokens need a fifteenth less memory and 7 % more time.
CHUNK_SIZE = 256


def attention_in_chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    *,
    scale: float,
    rate: float,
    seed: Tensor | None,
) -> Tensor:
    """Returns `dropout(softmax(scale * query @ key + bias)) @ value`, (B, N, T, D).

    The softmax is computed in float32.

    Args:
        query: (B, N, T, D).
        key: (B, N, S, D).
        value: (B, N, S, D).
        bias: bias of the scores, broadcasts to (B, N, T, S); or None. It gets no gradient on
            TensorFlow.
        scale: factor of the scores.
        rate: dropout rate on the probabilities.
        seed: seed of the masks, from `Dropout.next_seed`; may be None if the rate is 0.

    Example:
        >>> x = ops.ones((1, 2, 5, 4))
        >>> y = attention_in_chunks(x, x, x, None, scale=0.5, rate=0.0, seed=None)
        >>> tuple(y.shape), float(y[0, 0, 4, 0])
        ((1, 2, 5, 4), 1.0)
    """
    engine = {"tensorflow": _on_tensorflow, "jax": _on_jax}[keras.backend.backend()]
    last = ops.shape(query)[2] - 1

    def bias_of(start: Tensor, chunk: Tensor) -> Tensor:
        if bias is None:
            return ops.zeros((1, 1, 1, 1))
        rows = start + ops.arange(ops.shape(chunk)[2], dtype="int32")  # the last may be padding
        return ops.cast(bias_rows(bias, ops.minimum(rows, last)), "float32")

    scaled = query * ops.cast(scale, query.dtype)
    function = engine(bias_of, rate, seed, value)
    return map_chunks(function, [scaled], [key, value], size=CHUNK_SIZE)


def _on_tensorflow(
    bias_of: Callable[[Tensor, Tensor], Tensor], rate: float, seed: Any, value: Tensor
) -> RowFunction:
    """Returns attention as a function of scaled queries, with a handwritten gradient.

    Args:
        bias_of: function from the index of a chunk's first query, and the chunk (B, N, C, D), to
            the bias of its scores.
        rate: dropout rate.
        seed: (2,) int32, or None.
        value: the values (B, N, S, D), for their width and dtype.
    """
    import tensorflow as tf

    forward, backward = fused.attention_chunk(rate)
    dtype = value.dtype.name

    def seed_of(start: tf.Tensor) -> tf.Tensor:
        if seed is None:
            return tf.zeros(2, tf.int32)
        return seed + tf.stack([0, start * (0x9E3779B1 - 2**32)])  # odd: spreads small numbers

    def attend(start: tf.Tensor, rows: list, shared: list) -> tuple[tf.Tensor, tf.Tensor]:
        (chunk,), (keys, values) = rows, shared
        products = tf.matmul(chunk, keys, transpose_b=True)
        weights, logs, factors = forward(products, bias_of(start, chunk), seed_of(start))
        outputs = tf.cast(tf.matmul(weights, values), tf.float32) * factors
        return tf.cast(outputs, dtype), logs

    def gradients(
        start: tf.Tensor,
        rows: list,
        shared: list,
        outputs: tf.Tensor,
        logs: tf.Tensor,
        upstream: tf.Tensor,
    ) -> tuple[list, list]:
        (chunk,), (keys, values) = rows, shared
        wide = tf.cast(outputs, tf.float32) * tf.cast(upstream, tf.float32)
        weights, of_products = backward(
            tf.matmul(chunk, keys, transpose_b=True),
            bias_of(start, chunk),
            logs,
            tf.matmul(upstream, values, transpose_b=True),
            tf.reduce_sum(wide, axis=-1, keepdims=True),
            seed_of(start),
        )
        of_keys = tf.matmul(of_products, chunk, transpose_a=True)
        of_values = tf.matmul(weights, upstream, transpose_a=True)
        return [tf.matmul(of_products, keys)], [of_keys, of_values]

    return RowFunction(attend, gradients, (value.shape[-1], dtype), (1, "float32"))


def _on_jax(
    bias_of: Callable[[Tensor, Tensor], Tensor], rate: float, seed: Any, value: Tensor
) -> RowFunction:
    """Returns attention as a function of scaled queries, to differentiate; see `_on_tensorflow`."""
    import jax

    def attend(start: Tensor, rows: list, shared: list) -> tuple[Tensor, Tensor]:
        (chunk,), (keys, values) = rows, shared
        scores = jax.numpy.einsum("bncd,bnsd->bncs", chunk, keys).astype("float32")
        weights = jax.nn.softmax(scores + bias_of(start, chunk), axis=-1)
        if rate:
            key = jax.random.fold_in(jax.random.wrap_key_data(seed), start)
            kept = jax.random.bernoulli(key, 1.0 - rate, weights.shape)
            weights = jax.numpy.where(kept, weights / (1.0 - rate), 0.0)
        return weights.astype(values.dtype) @ values, None

    return RowFunction(attend)
