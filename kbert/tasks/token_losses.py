"""Losses of predicted tokens, without the logits of the whole batch.

The logits of 4,096 tokens over 37,000 entries are 0.6 GB, and training keeps them, their softmax
and their gradient. Here those of one chunk of tokens exist at a time. The gradient is computed in
the forward pass, chunk by chunk, because the loss is a sum: so no product is computed twice. (Hsu
et al. 2024, "Liger Kernel", https://arxiv.org/abs/2410.10989, section 3.2.)

Shapes: N tokens, H hidden width, V entries of the vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from kbert.core.types import Pair, Tensor
from kbert.layers.token_embeddings import TokenOutput
from kbert.tasks.losses import accuracy, smoothed_cross_entropy

# Most logits of a chunk: 64 MB. Smaller chunks cost time: each adds to the table's gradient.
MAX_LOGITS = 2**24


class TokenLosses(NamedTuple):
    """Sums over tokens, as in `kbert.tasks.losses`.

    Attributes:
        smoothed: cross entropy with label smoothing; the only one with a gradient.
        plain: cross entropy.
        accuracy: how often the largest logit is the label's.
    """

    smoothed: Pair
    plain: Pair
    accuracy: Pair


def token_losses(
    output: TokenOutput, labels: Tensor, weights: Tensor, *, smoothing: float, training: bool
) -> TokenLosses:
    """Computes the losses of predicted tokens; in chunks if they have more than 2^24 logits.

    Args:
        output: hidden states (..., H) and the table of the vocabulary.
        labels: (...) integers in [0, V).
        weights: (...), 0 where there is nothing to predict. They get no gradient.
        smoothing: label smoothing, see `kbert.tasks.losses.smoothed_cross_entropy`.
        training: whether the gradient is computed with the losses.

    Example:
        >>> import numpy as np
        >>> table = np.array([[1.0, 0.0], [0.0, 1.0]], "float32")
        >>> output = TokenOutput(np.array([[9.0, 0.0], [0.0, 9.0]], "float32"), table)
        >>> found = token_losses(output, [0, 0], [1.0, 1.0], smoothing=0.0, training=False)
        >>> round(float(found.plain[0]), 2), float(found.accuracy[0])
        (9.0, 1.0)
    """
    engine = {"tensorflow": _on_tensorflow, "jax": _on_jax}.get(keras.backend.backend())
    width, entries = output.table.shape[-1], output.table.shape[0]
    number = 1
    for size in ops.shape(output.rows)[:-1]:
        number = number * size
    size = max(1, MAX_LOGITS // entries)
    if engine is None or (isinstance(number, int) and number <= size):
        logits = output.logits()
        sums = smoothed_cross_entropy(logits, labels, weights, smoothing)
        return TokenLosses(*sums, accuracy(logits, labels, weights))
    # Chunks of equal size; tokens whose number no trace knows may fill less than one.
    chunks = -(-number // size)
    if not isinstance(number, int):
        chunks = ops.maximum(chunks, 1)
    size = -(-number // chunks)
    weights = ops.reshape(ops.cast(weights, "float32"), (-1,))
    rows = ops.reshape(ops.cast(output.rows, "float32"), (-1, width))
    missing = chunks * size - number
    sums = engine(
        _Chunks(smoothing, size, chunks, training),
        ops.pad(rows, [(0, missing), (0, 0)]),
        ops.convert_to_tensor(output.table),
        ops.zeros(entries) if output.bias is None else ops.convert_to_tensor(output.bias),
        ops.pad(ops.reshape(ops.cast(labels, "int32"), (-1,)), [(0, missing)]),
        ops.pad(weights, [(0, missing)]),
    )
    count = ops.sum(weights)
    return TokenLosses(*((sums[i], count) for i in range(3)))


class _Chunks(NamedTuple):
    """How tokens are cut, and what is computed.

    Attributes:
        smoothing: label smoothing.
        size: tokens of a chunk (C), an integer or a tensor.
        number: number of chunks, an integer or a tensor.
        has_gradient: whether the gradient is computed too.
    """

    smoothing: float
    size: Any
    number: Any
    has_gradient: bool


def _chunk_losses(
    losses_of: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    smoothing: float,
    logits: Tensor,
    labels: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns the sums (3,) of a chunk, and the gradient (C, V) of the first by the logits.

    Args:
        losses_of: function from logits (C, V) and labels (C,) to the cross entropies (C,) and their
            gradients (C, V).
        smoothing: label smoothing.
        logits: (C, V).
        labels: (C,) int32.
        weights: (C,) float32.
    """
    plain, gradient = losses_of(logits, labels)
    smoothed = plain
    if smoothing:
        entries = logits.shape[-1]
        of_label = ops.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        smoothed = plain + smoothing * (of_label - ops.mean(logits, axis=-1))
        gradient = gradient + smoothing * (ops.one_hot(labels, entries) - 1.0 / entries)
    hits = ops.cast(ops.cast(ops.argmax(logits, axis=-1), "int32") == labels, "float32")
    sums = ops.stack([ops.sum(x * weights) for x in (smoothed, plain, hits)])
    return sums, gradient * weights[:, None]


def _on_tensorflow(
    chunks: _Chunks, rows: Any, table: Any, bias: Any, labels: Any, weights: Any
) -> Any:
    """Returns the sums (3,) of all chunks; only the first has a gradient."""
    import tensorflow as tf

    smoothing, size, number, has_gradient = chunks
    static = size if isinstance(size, int) else None
    rows, table, bias = map(tf.convert_to_tensor, (rows, table, bias))  # no variables

    def losses_of(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)

    def chunk(i: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        cut = tf.slice(x, [i * size, *(0 for _ in x.shape[1:])], [size, *x.shape[1:]])
        return tf.ensure_shape(cut, [static, *x.shape[1:]])

    def losses(i: tf.Tensor, rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> Any:
        logits = tf.matmul(rows, table, transpose_b=True) + bias
        return _chunk_losses(losses_of, smoothing, logits, chunk(i, labels), chunk(i, weights))

    def loop(body: Callable, *carry: Any) -> Any:
        # One chunk after the other: two at once would need twice the memory.
        return tf.while_loop(
            lambda i, *_: i < number,
            body,
            (tf.constant(0), tf.zeros(3), *carry),
            parallel_iterations=1,
        )[1:]

    if not has_gradient:
        add = lambda i, sums: (i + 1, sums + losses(i, chunk(i, rows), table, bias)[0])  # noqa: E731
        return loop(add)[0]

    @tf.custom_gradient
    def call(rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> Any:
        def step(
            i: tf.Tensor, sums: tf.Tensor, parts: Any, of_table: tf.Tensor, of_bias: tf.Tensor
        ) -> Any:
            x = chunk(i, rows)
            found, gradient = losses(i, x, table, bias)
            parts = parts.write(i, tf.matmul(gradient, table))
            of_table += tf.matmul(gradient, x, transpose_a=True)
            return i + 1, sums + found, parts, of_table, of_bias + tf.reduce_sum(gradient, 0)

        parts = tf.TensorArray(tf.float32, number, element_shape=[static, rows.shape[-1]])
        sums, parts, *others = loop(step, parts, tf.zeros_like(table), tf.zeros_like(bias))
        of_rows = tf.reshape(parts.stack(), tf.shape(rows))

        def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
            return [upstream[0] * x for x in (of_rows, *others)]

        return sums, gradients

    return call(rows, table, bias)


def _on_jax(chunks: _Chunks, rows: Any, table: Any, bias: Any, labels: Any, weights: Any) -> Any:
    """Returns the sums (3,) of all chunks; only the first has a gradient."""
    import jax
    from jax import numpy as jnp

    smoothing, size, number, has_gradient = chunks

    def losses_of(logits: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(logits)
        of_label = jnp.take_along_axis(logs, labels[:, None], axis=-1)[:, 0]
        return -of_label, jnp.exp(logs) - jax.nn.one_hot(labels, logits.shape[-1])

    def losses(inputs: tuple, table: Any, bias: Any) -> Any:
        x, labels, weights = inputs
        return _chunk_losses(losses_of, smoothing, x @ table.T + bias, labels, weights)

    def cut(*tensors: Any) -> tuple:
        return tuple(x.reshape(number, size, *x.shape[1:]) for x in tensors)

    def sums_alone(rows: Any, table: Any, bias: Any, labels: Any, weights: Any) -> Any:
        def step(sums: Any, inputs: Any) -> Any:
            return sums + losses(inputs, table, bias)[0], None

        return jax.lax.scan(step, jnp.zeros(3), cut(rows, labels, weights))[0]

    def with_gradients(rows: Any, table: Any, bias: Any, labels: Any, weights: Any) -> Any:
        def step(carry: Any, inputs: Any) -> Any:
            sums, of_table, of_bias = carry
            found, gradient = losses(inputs, table, bias)
            of_table = of_table + gradient.T @ inputs[0]
            return (sums + found, of_table, of_bias + gradient.sum(0)), gradient @ table

        start = (jnp.zeros(3), jnp.zeros_like(table), jnp.zeros_like(bias))
        (sums, *others), parts = jax.lax.scan(step, start, cut(rows, labels, weights))
        return sums, (parts.reshape(rows.shape), *others)

    def backward(gradients: Any, upstream: Any) -> Any:
        return (*(upstream[0] * x for x in gradients), None, None)

    if not has_gradient:
        return sums_alone(rows, table, bias, labels, weights)
    call = jax.custom_vjp(sums_alone)
    call.defvjp(with_gradients, backward)
    return call(rows, table, bias, labels, weights)
