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
from kbert.layers import token_embeddings
from kbert.layers.token_embeddings import TokenOutput


class TokenLosses(NamedTuple):
    """Losses of tokens, float32. Only `smoothed` has a gradient.

    Attributes:
        smoothed: (sum of weight · cross entropy with label smoothing, sum of weights).
        losses: (...) cross entropies without label smoothing.
        hits: (...) 1 where the largest logit is the label's, else 0.
        weights: (...) weights of the tokens.
        drawn: (...) int32 tokens drawn from the softmax, or None.
    """

    smoothed: Pair
    losses: Tensor
    hits: Tensor
    weights: Tensor
    drawn: Tensor | None

    def plain(self, weights: Tensor | None = None) -> Pair:
        """Returns (sum of weight · cross entropy, sum of weights).

        `weights` (...) are those of some tokens among all; None = `self.weights`.
        """
        return self._over(self.losses, weights)

    def accuracy(self, weights: Tensor | None = None) -> Pair:
        """Returns (sum of the weights of hits, sum of weights); `weights` as for `plain`."""
        return self._over(self.hits, weights)

    def _over(self, values: Tensor, weights: Tensor | None) -> Pair:
        weights = self.weights if weights is None else weights
        return ops.sum(values * weights), ops.sum(weights)


def token_losses(
    output: TokenOutput | Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    training: bool,
    smoothing: float = 0.0,
    uniform: Tensor | None = None,
) -> TokenLosses:
    """Computes the losses of predicted tokens; of many tokens in chunks.

    The smoothed labels are (1 - smoothing) · one-hot + smoothing / V (Szegedy et al. 2015, section
    7, https://arxiv.org/abs/1512.00567). They are never materialised: the smoothed cross entropy is
    the plain one plus smoothing · (logit of the label - mean of the logits).

    Args:
        output: hidden states (..., H) and the table of the vocabulary, or the logits (..., V) where
            they exist anyway. Only the first can go in chunks, which they do if the tokens are more
            than `kbert.layers.token_embeddings.tokens_of_chunk` of V.
        labels: (...) integers in [0, V).
        weights: (...), 0 where there is nothing to predict. They get no gradient.
        training: whether chunks compute the gradient with the losses.
        smoothing: share of a label that is spread over all entries, at least 0 and below 1.
        uniform: (...) numbers in [0, 1) to draw a token from each softmax with, see `draw_tokens`;
            None = no tokens are drawn.

    Example:
        >>> import numpy as np
        >>> table = np.array([[1.0, 0.0], [0.0, 1.0]], "float32")
        >>> output = TokenOutput(np.array([[9.0, 0.0], [0.0, 9.0]], "float32"), table)
        >>> found = token_losses(output, [0, 0], [1.0, 1.0], training=False)
        >>> round(float(found.plain()[0]), 2), float(found.accuracy()[0])
        (9.0, 1.0)
        >>> found = token_losses(np.zeros((1, 4)), [1], [1.0], training=True, smoothing=0.1)
        >>> round(float(found.smoothed[0] / np.log(4)), 3)
        1.0
    """
    labels, weights = ops.cast(labels, "int32"), ops.cast(weights, "float32")
    engine = {"tensorflow": _on_tensorflow, "jax": _on_jax}.get(keras.backend.backend())
    if not isinstance(output, TokenOutput) or engine is None or _is_one_chunk(output):
        logits = output.logits() if isinstance(output, TokenOutput) else output
        return _whole(ops.cast(logits, "float32"), labels, weights, smoothing, uniform)
    entries = output.table.shape[0]
    shape = ops.shape(output.rows)[:-1]
    number = _number_of(output)
    # Chunks of equal size; tokens whose number no trace knows may fill less than one.
    chunks = -(-number // token_embeddings.tokens_of_chunk(entries))
    if not isinstance(number, int):
        chunks = ops.maximum(chunks, 1)
    size = -(-number // chunks)

    def padded(x: Tensor) -> Tensor:
        x = ops.reshape(x, (-1, *x.shape[len(shape) :]))
        return ops.pad(x, [(0, chunks * size - number), *((0, 0) for _ in x.shape[1:])])

    total, per_token = engine(
        _Chunks(smoothing, size, chunks, training),
        padded(ops.cast(output.rows, "float32")),
        ops.cast(output.table, "float32"),
        ops.zeros(entries) if output.bias is None else ops.cast(output.bias, "float32"),
        *(padded(x) for x in (labels, weights, *(() if uniform is None else (uniform,)))),
    )
    losses, hits, *drawn = (ops.reshape(ops.stop_gradient(x)[:number], shape) for x in per_token)
    return TokenLosses(
        (total, ops.sum(weights)), losses, hits, weights, drawn[0] if drawn else None
    )


def draw_tokens(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draws a token from each softmax, by inverting its cumulative distribution.

    It needs one random number per token; Gumbel noise would need one per vocabulary entry.

    Args:
        logits: (..., V) float32.
        uniform: (...) numbers in [0, 1).

    Returns:
        (...) int32 token ids. No gradient flows through them.

    Example:
        >>> import numpy as np
        >>> ids = draw_tokens(np.log([[0.25, 0.5, 0.25]] * 3), np.array([0.2, 0.7, 0.8]))
        >>> ops.convert_to_numpy(ids).tolist()
        [0, 1, 2]
    """
    logits = ops.stop_gradient(logits)
    shares = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    cumulated = ops.cumsum(shares, axis=-1)
    point = (uniform * cumulated[..., -1])[..., None]
    token_ids = ops.sum(ops.cast(cumulated <= point, "int32"), axis=-1)
    return ops.minimum(token_ids, logits.shape[-1] - 1)


def _number_of(output: TokenOutput) -> Any:
    """Returns N, an integer, or a tensor if the trace does not know it."""
    number: Any = 1
    for size in ops.shape(output.rows)[:-1]:
        number = number * size
    return number


def _is_one_chunk(output: TokenOutput) -> bool:
    number = _number_of(output)
    most = token_embeddings.tokens_of_chunk(output.table.shape[0])
    return isinstance(number, int) and number <= most


def _whole(
    logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float, uniform: Tensor | None
) -> TokenLosses:
    """Returns the losses of tokens from all their logits (..., V)."""
    losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    total = ops.sum(_smoothed(losses, logits, labels, smoothing) * weights)
    found = ops.stop_gradient(losses), _hits(logits, labels), weights
    drawn = None if uniform is None else draw_tokens(logits, uniform)
    return TokenLosses((total, ops.sum(weights)), *found, drawn)


def _smoothed(losses: Tensor, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Returns the cross entropies (...) with label smoothing from those without, `losses`."""
    if not smoothing:  # gradients of zeros would be as large as the logits
        return losses
    of_label = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return losses + smoothing * (of_label - ops.mean(logits, axis=-1))


def _hits(logits: Tensor, labels: Tensor) -> Tensor:
    return ops.cast(ops.cast(ops.argmax(logits, axis=-1), "int32") == labels, "float32")


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
    *uniform: Tensor,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Computes the losses of a chunk.

    Args:
        losses_of: function from logits (C, V) and labels (C,) to the cross entropies (C,) and their
            gradients (C, V).
        smoothing: label smoothing.
        logits: (C, V).
        labels: (C,) int32.
        weights: (C,) float32.
        *uniform: (C,), if tokens are drawn.

    Returns:
        The sum of the losses, its gradient (C, V) by the logits, and the values of each token:
        losses and hits (C,), and drawn tokens if any.
    """
    losses, gradient = losses_of(logits, labels)
    total = ops.sum(_smoothed(losses, logits, labels, smoothing) * weights)
    if smoothing:
        entries = logits.shape[-1]
        gradient = gradient + smoothing * (ops.one_hot(labels, entries) - 1.0 / entries)
    drawn = (draw_tokens(logits, x) for x in uniform)
    return total, gradient * weights[:, None], (losses, _hits(logits, labels), *drawn)


def _on_tensorflow(
    chunks: _Chunks, rows: Any, table: Any, bias: Any, labels: Any, *others: Any
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the sum of all losses, and the values of each token, which have no gradient.

    `others` are the weights and, if tokens are drawn, the uniform numbers.
    """
    import tensorflow as tf

    smoothing, size, number, has_gradient = chunks
    static = size if isinstance(size, int) else None
    dtypes = [tf.float32, tf.float32, tf.int32][: 1 + len(others)]  # losses, hits, drawn tokens

    def losses_of(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)

    def chunk(i: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        cut = tf.slice(x, [i * size, *(0 for _ in x.shape[1:])], [size, *x.shape[1:]])
        return tf.ensure_shape(cut, [static, *x.shape[1:]])

    def losses(i: tf.Tensor, rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> Any:
        logits = tf.matmul(rows, table, transpose_b=True) + bias
        return _chunk_losses(
            losses_of, smoothing, logits, *(chunk(i, x) for x in (labels, *others))
        )

    def array(dtype: Any, *width: int) -> tf.TensorArray:
        return tf.TensorArray(dtype, number, element_shape=[static, *width])

    def joined(x: tf.TensorArray, *width: int) -> tf.Tensor:
        return tf.reshape(x.stack(), [-1, *width])

    def loop(body: Callable, *carry: Any) -> Any:
        # One chunk after the other: two at once would need twice the memory.
        return tf.while_loop(
            lambda i, *_: i < number, body, (tf.constant(0), *carry), parallel_iterations=1
        )[1:]

    def write(i: tf.Tensor, arrays: tuple, values: tuple) -> tuple:
        return tuple(a.write(i, x) for a, x in zip(arrays, values, strict=True))

    def without_gradient(rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> Any:
        def step(i: tf.Tensor, total: tf.Tensor, arrays: tuple) -> Any:
            added, _, values = losses(i, chunk(i, rows), table, bias)
            return i + 1, total + added, write(i, arrays, values)

        total, arrays = loop(step, tf.zeros(()), tuple(map(array, dtypes)))
        return total, tuple(map(joined, arrays))

    @tf.custom_gradient
    def with_gradient(rows: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> Any:
        width = table.shape[-1]

        def step(
            i: tf.Tensor, total: tf.Tensor, arrays: tuple, of_table: tf.Tensor, of_bias: tf.Tensor
        ) -> Any:
            x = chunk(i, rows)
            added, gradient, values = losses(i, x, table, bias)
            arrays = write(i, arrays, (*values, tf.matmul(gradient, table)))
            of_table += tf.matmul(gradient, x, transpose_a=True)
            return i + 1, total + added, arrays, of_table, of_bias + tf.reduce_sum(gradient, 0)

        arrays = (*map(array, dtypes), array(tf.float32, width))
        start = tf.zeros(()), arrays, tf.zeros_like(table), tf.zeros_like(bias)
        total, (*arrays, of_rows), of_table, of_bias = loop(step, *start)

        def backward(upstream: tf.Tensor, *_: Any) -> list[tf.Tensor]:
            return [upstream * x for x in (joined(of_rows, width), of_table, of_bias)]

        return (total, *map(joined, arrays)), backward

    if not has_gradient:
        return without_gradient(rows, table, bias)
    total, *values = with_gradient(rows, table, bias)
    return total, tuple(values)


def _on_jax(
    chunks: _Chunks, rows: Any, table: Any, bias: Any, labels: Any, *others: Any
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the sum of all losses, and the values of each token; see `_on_tensorflow`."""
    import jax
    from jax import numpy as jnp

    smoothing, size, number, has_gradient = chunks

    def losses_of(logits: Any, labels: Any) -> Any:
        logs = jax.nn.log_softmax(logits)
        of_label = jnp.take_along_axis(logs, labels[:, None], axis=-1)[:, 0]
        return -of_label, jnp.exp(logs) - jax.nn.one_hot(labels, logits.shape[-1])

    def losses(inputs: tuple, table: Any, bias: Any) -> Any:
        x, *targets = inputs
        return _chunk_losses(losses_of, smoothing, x @ table.T + bias, *targets)

    def cut(*tensors: Any) -> tuple:
        return tuple(x.reshape(number, size, *x.shape[1:]) for x in tensors)

    def joined(values: Any) -> tuple:
        return tuple(x.reshape(-1, *x.shape[2:]) for x in values)

    def without_gradient(rows: Any, table: Any, bias: Any, *targets: Any) -> Any:
        def step(total: Any, inputs: Any) -> Any:
            added, _, values = losses(inputs, table, bias)
            return total + added, values

        total, values = jax.lax.scan(step, jnp.zeros(()), cut(rows, *targets))
        return total, joined(values)

    def with_gradients(rows: Any, table: Any, bias: Any, *targets: Any) -> Any:
        def step(carry: Any, inputs: Any) -> Any:
            total, of_table, of_bias = carry
            added, gradient, values = losses(inputs, table, bias)
            of_table = of_table + gradient.T @ inputs[0]
            carry = total + added, of_table, of_bias + gradient.sum(0)
            return carry, (values, gradient @ table)

        start = (jnp.zeros(()), jnp.zeros_like(table), jnp.zeros_like(bias))
        (total, *sums), (values, of_rows) = jax.lax.scan(step, start, cut(rows, *targets))
        return (total, joined(values)), (*joined([of_rows]), *sums)

    def backward(gradients: Any, upstream: Any) -> Any:
        no_gradient = (None for _ in (labels, *others))
        return (*(upstream[0] * x for x in gradients), *no_gradient)

    if not has_gradient:
        return without_gradient(rows, table, bias, labels, *others)
    call = jax.custom_vjp(without_gradient)
    call.defvjp(with_gradients, backward)
    return call(rows, table, bias, labels, *others)
