"""Attention of long sequences, whose scores exist for one chunk of queries at a time.

Plain attention saves the scores, the probabilities and the dropped probabilities of all tokens for
the gradient. Here the logarithm of each softmax's sum is saved instead, and the backward pass
computes the scores again (Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory",
https://arxiv.org/abs/2112.05682; Dao et al. 2022, "FlashAttention",
https://arxiv.org/abs/2205.14135, section 3.1; whole rows of scores instead of tiles).

Shapes: `B` batch, `N` heads, `T` tokens, `S` tokens that are attended to, `D` width of a head, `C`
queries of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from kbert.core.types import Tensor
from kbert.layers import fused
from kbert.layers.bias import bias_rows
from kbert.layers.positions import alibi_bias

# Most queries of a chunk. With 128, 4,096 tokens need a fifteenth less memory and 7 % more time.
CHUNK_SIZE = 256


class Threshold:
    """From how many queries on scores are in chunks, see `chunk_attention_from`.

    At 1,024 tokens a step takes 2 % more time and half of the memory.
    """

    tokens: int | None = 1024


def chunk_attention_from(tokens: int | None) -> None:
    """Sets from how many queries on a training step computes scores in chunks.

    Chunks take less memory and a little more time (`benchmarks/chunks.py`). The number counts for
    all attentions of the process, in steps that are traced afterwards. It is 1,024 at first.

    Args:
        tokens: number of queries, at least 1; None = scores are never computed in chunks.

    Raises:
        ValueError: `tokens` is neither None nor a whole number of at least 1.

    Example:
        >>> chunk_attention_from(512)
        >>> chunk_attention_from(1024)
    """
    is_number = isinstance(tokens, int) and not isinstance(tokens, bool)
    if tokens is not None and not (is_number and tokens >= 1):
        raise ValueError(
            "`tokens` must be a whole number of at least 1, or None for no chunks. Received: "
            f"{tokens!r}"
        )
    Threshold.tokens = tokens


def is_in_chunks(length: int | None, max_length: int | None = None) -> bool | None:
    """Whether a training step computes the scores of `length` queries in chunks.

    Args:
        length: number of queries; None = unknown in the graph that is traced.
        max_length: most queries there may be; None = any number.

    Returns:
        None if it depends on the number of queries when the graph runs.
    """
    least = Threshold.tokens
    if least is None or keras.backend.backend() not in ("tensorflow", "jax"):
        return False
    if length is not None:
        return length >= least
    return None if max_length is None or max_length >= least else False


def chunk_size(length: int) -> int:
    """Returns the number of queries of a chunk: chunks of equal size, at most `CHUNK_SIZE`."""
    return -(-length // -(-length // CHUNK_SIZE))


class Scores(NamedTuple):
    """Scores without the mask's bias, for all queries or for a chunk of them.

    Attributes:
        products: function `(start, rows, tensors)` that returns the scores (B, N, C, S) of C
            queries from number `start` on, in the compute dtype. It must read no variables. Beyond
            the last query the rows are zeros, and the scores may be anything.
        rows: tensors (B, N, P, W) with a row for each query.
        tensors: tensors that the scores of every query are computed from.
        has_chunks: whether `products` can compute a chunk of the queries.
    """

    products: Callable[[Any, list[Any], list[Any]], Tensor]
    rows: list[Tensor]
    tensors: list[Tensor]
    has_chunks: bool = True

    def whole(self) -> Tensor:
        """Returns the scores of all queries, (B, N, P, S); `start` is the integer 0."""
        return self.products(0, self.rows, self.tensors)

    def joined(self, others: Scores) -> Scores:
        """Returns the scores of the same queries for more keys, after these."""
        number, count = len(self.rows), len(self.tensors)

        def products(start: Any, rows: list[Any], tensors: list[Any]) -> Tensor:
            parts = [
                self.products(start, rows[:number], tensors[:count]),
                others.products(start, rows[number:], tensors[count:]),
            ]
            return ops.concatenate(parts, axis=-1)

        rows, tensors = [*self.rows, *others.rows], [*self.tensors, *others.tensors]
        return Scores(products, rows, tensors, self.has_chunks and others.has_chunks)


class ScoreBias(NamedTuple):
    """What is added to the scores in float32, for all queries or for some.

    Attributes:
        mask: tensor that broadcasts to (B, N, P, S), or None.
        queries: (P,) or (B, P), positions of the queries for ALiBi; None = no ALiBi.
        keys: (S,) or (B, S), positions of the keys for ALiBi.
        num_heads: number of heads, N.
        more: number of further keys at the end, to which every query attends; None = none.
    """

    mask: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None
    num_heads: int = 1
    more: Any = None

    def of(self, rows: Tensor | None = None) -> Tensor | None:
        """Returns the bias of the queries `rows` (C,), or of all; None if nothing is added."""
        bias, queries = self.mask, self.queries
        if rows is not None:
            bias = bias_rows(bias, rows)
            queries = None if queries is None else ops.take(queries, rows, axis=-1)
        if queries is not None:
            falls = alibi_bias(queries, self.keys, self.num_heads)
            bias = falls if bias is None else falls + ops.cast(bias, "float32")
        if bias is None or self.more is None:
            return bias
        return ops.pad(bias, ((0, 0), (0, 0), (0, 0), (0, self.more)))


def attention_in_chunks(
    scores: Scores, value: Tensor, bias: ScoreBias, *, rate: float, seed: Tensor | None
) -> Tensor:
    """Returns `dropout(softmax(scores + bias)) @ value`, (B, N, T, D).

    The softmax is computed in float32.

    Args:
        scores: scores of the T queries.
        value: (B, N, S, D).
        bias: bias of the scores.
        rate: dropout rate on the probabilities.
        seed: seed of the masks, from `Dropout.next_seed`; may be None if the rate is 0.

    Example:
        >>> x = ops.ones((1, 2, 5, 4))
        >>> scores = Scores(lambda start, rows, tensors: ops.matmul(rows[0], tensors[0]),
        ...                 [x], [ops.ones((1, 2, 4, 5))])
        >>> y = attention_in_chunks(scores, x, ScoreBias(), rate=0.0, seed=None)
        >>> tuple(y.shape), float(y[0, 0, 4, 0])
        ((1, 2, 5, 4), 1.0)
    """
    engine = {"tensorflow": _on_tensorflow, "jax": _on_jax}[keras.backend.backend()]
    length = ops.shape(scores.rows[0])[2]
    # Chunks of equal size; a number of tokens that no trace knows may be zero.
    number = -(-length // CHUNK_SIZE)
    if not isinstance(length, int):
        number = ops.maximum(number, 1)
    size = -(-length // number)
    missing = number * size - length
    if not isinstance(missing, int) or missing:
        padding = ((0, 0), (0, 0), (0, missing), (0, 0))
        scores = scores._replace(rows=[ops.pad(x, padding) for x in scores.rows])

    def bias_of(bias: ScoreBias, start: Tensor) -> Tensor:
        rows = ops.minimum(start + ops.arange(size, dtype="int32"), length - 1)
        some = bias.of(rows)
        return ops.zeros((1, 1, 1, 1)) if some is None else ops.cast(some, "float32")

    outputs = engine(scores, value, bias, bias_of, rate, seed, size, number)
    return outputs[..., :length, :]


def _on_tensorflow(
    scores: Scores,
    value: Any,
    bias: ScoreBias,
    bias_of: Callable[[ScoreBias, Any], Any],
    rate: float,
    seed: Any,
    size: Any,
    number: Any,
) -> Any:
    """Attends in a loop over the chunks; the backward pass is a second one.

    Args:
        scores: scores, with `number * size` rows.
        value: (B, N, S, D).
        bias: bias of the scores. The gradient of its mask has a loop of its own, which a graph
            drops unless the mask is trained.
        bias_of: function from `bias` and the first query of a chunk to the bias of the chunk's
            scores.
        rate: dropout rate.
        seed: (2,) int32, or None.
        size: queries of a chunk.
        number: number of chunks.
    """
    import tensorflow as tf

    attend, differentiate = fused.attention_chunk(rate)
    leading = scores.rows[0].shape[:2]
    static = size if isinstance(size, int) else None
    has_mask = bias.mask is not None and tf.as_dtype(bias.mask.dtype).is_floating

    def seed_of(start: tf.Tensor) -> tf.Tensor:
        if seed is None:
            return tf.zeros(2, tf.int32)
        return seed + tf.stack([0, start * (0x9E3779B1 - 2**32)])  # odd: spreads small numbers

    def cut(x: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        chunk = tf.slice(x, [0, 0, start, 0], [-1, -1, size, -1])
        return tf.ensure_shape(chunk, [*x.shape[:2], static, x.shape[3]])

    def array(width: int, dtype: Any) -> tf.TensorArray:
        return tf.TensorArray(dtype, number, element_shape=[*leading, static, width])

    def joined(chunks: tf.TensorArray) -> tf.Tensor:
        x = tf.transpose(chunks.stack(), [1, 2, 0, 3, 4])  # (B, N, M, C, W)
        batch, heads, *_ = ops.shape(x)
        return tf.reshape(x, [batch, heads, number * size, x.shape[-1]])

    def loop(body: Callable, *carry: Any) -> Any:
        # One chunk after the other: two at once would need twice the memory.
        return tf.while_loop(
            lambda i, *_: i < number, body, (tf.constant(0), *carry), parallel_iterations=1
        )[1:]

    def summed(parts: list[Any], sums: tuple) -> tuple:
        return tuple(
            x if part is None else x + tf.cast(part, tf.float32)
            for x, part in zip(sums, parts, strict=True)
        )

    @tf.custom_gradient
    def call(value: tf.Tensor, mask: tf.Tensor, *tensors: tf.Tensor) -> Any:
        rows, others = list(tensors[: len(scores.rows)]), list(tensors[len(scores.rows) :])
        masked = bias._replace(mask=mask) if has_mask else bias

        def forward(i: tf.Tensor, outputs: tf.TensorArray, logs: tf.TensorArray) -> Any:
            start = i * size
            products = scores.products(start, [cut(x, start) for x in rows], others)
            weights, log, factors = attend(products, bias_of(masked, start), seed_of(start))
            output = tf.cast(tf.matmul(weights, value), tf.float32) * factors
            return i + 1, outputs.write(i, tf.cast(output, value.dtype)), logs.write(i, log)

        carry = array(value.shape[-1], value.dtype), array(1, tf.float32)
        outputs, logs = map(joined, loop(forward, *carry))

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            def of_products(start: tf.Tensor, products: tf.Tensor, of_output: tf.Tensor) -> Any:
                output = tf.cast(cut(outputs, start), tf.float32)
                inner = output * tf.cast(of_output, tf.float32)
                return differentiate(
                    products,
                    bias_of(masked, start),
                    cut(logs, start),
                    tf.matmul(of_output, value, transpose_b=True),
                    tf.reduce_sum(inner, axis=-1, keepdims=True),
                    seed_of(start),
                )

            def backward(i: tf.Tensor, arrays: tuple, sums: tuple) -> Any:
                start = i * size
                chunks, of_output = [cut(x, start) for x in rows], cut(upstream, start)
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch([*chunks, *others])
                    products = scores.products(start, chunks, others)
                weights, slopes = of_products(start, products, of_output)
                found = tape.gradient(products, [*chunks, *others], output_gradients=slopes)
                of_rows, of_others = found[: len(rows)], found[len(rows) :]
                arrays = tuple(a.write(i, x) for a, x in zip(arrays, of_rows, strict=True))
                of_value = tf.matmul(weights, of_output, transpose_a=True)
                return i + 1, arrays, summed([of_value, *of_others], sums)

            def backward_of_mask(i: tf.Tensor, total: tf.Tensor) -> Any:
                start = i * size
                products = scores.products(start, [cut(x, start) for x in rows], others)
                _, slopes = of_products(start, products, cut(upstream, start))
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(mask)
                    biased = tf.zeros_like(slopes, tf.float32) + bias_of(masked, start)
                found = tape.gradient(biased, mask, output_gradients=tf.cast(slopes, tf.float32))
                return i + 1, *summed([tf.convert_to_tensor(found)], (total,))

            of_mask = None
            if has_mask:
                (of_mask,) = loop(backward_of_mask, tf.zeros_like(mask, tf.float32))
                of_mask = tf.cast(of_mask, mask.dtype)
            arrays = tuple(array(x.shape[-1], x.dtype) for x in rows)
            sums = tuple(tf.zeros_like(x, tf.float32) for x in (value, *others))
            arrays, sums = loop(backward, arrays, sums)
            sums = [tf.cast(x, y.dtype) for x, y in zip(sums, (value, *others), strict=True)]
            return [sums[0], of_mask, *map(joined, arrays), *sums[1:]]

        return outputs, gradient

    mask = bias.mask if has_mask else tf.zeros(())
    return call(*map(tf.convert_to_tensor, (value, mask, *scores.rows, *scores.tensors)))


def _on_jax(
    scores: Scores,
    value: Any,
    bias: ScoreBias,
    bias_of: Callable[[ScoreBias, Any], Any],
    rate: float,
    seed: Any,
    size: int,
    number: int,
) -> Any:
    """Attends in a loop that saves its inputs; see `_on_tensorflow`."""
    import jax

    def cut(x: Any) -> Any:  # (M, B, N, C, W)
        return ops.moveaxis(ops.reshape(x, (*x.shape[:2], number, size, x.shape[3])), 2, 0)

    @jax.checkpoint
    def attend(start: Any, rows: list) -> Any:
        products = scores.products(start, rows, scores.tensors).astype("float32")
        weights = jax.nn.softmax(products + bias_of(bias, start), axis=-1)
        if rate:
            key = jax.random.fold_in(jax.random.wrap_key_data(seed), start)
            kept = jax.random.bernoulli(key, 1.0 - rate, weights.shape)
            weights = jax.numpy.where(kept, weights / (1.0 - rate), 0.0)
        return weights.astype(value.dtype) @ value

    starts = ops.arange(number, dtype="int32") * size
    outputs = jax.lax.map(lambda inputs: attend(*inputs), (starts, [cut(x) for x in scores.rows]))
    outputs = ops.moveaxis(outputs, 0, 2)  # (B, N, M, C, D)
    return ops.reshape(outputs, (*outputs.shape[:2], number * size, outputs.shape[-1]))
