"""Fused operations between the matrix products of a training step, each one pass over memory.

On TensorFlow every elementwise operation of a layer reads and writes its whole tensor, and so does
every step of its gradient: a quarter of the time of a BERT-base step. Here such a chain is one
function compiled by XLA, with a handwritten gradient that saves as few tensors as possible. The
matrix products stay in TensorFlow. The plain layers are the reference; inference and the other
backends run them. `fuses` is the only switch, and a test checks that both agree.

Shapes: `...` any leading axes, `W` the last axis, `B` batch, `N` heads, `T` tokens, `S` tokens that
are attended to.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from kbert.core.contexts import is_fused
from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.core.types import Tensor

# Compilation takes a tenth of a second for every shape, which does not pay off for narrow layers.
MIN_WIDTH = 128
# Nor for few steps. All functions of an encoder take 1.4 s of a CPU for each shape of a batch, and
# save about 4e-9 s for each number between the products, see `work`.
MIN_WORK = 4e8


def fuses(width: int | None, training: bool) -> bool:
    """Whether a layer of `width` columns uses this module: in training, on TensorFlow, from 128 on.

    A width of None, which is unknown, gives False, and so does `kbert.core.contexts.fusion(False)`.
    """
    wide = width is not None and width >= MIN_WIDTH
    is_possible = bool(training) and wide and keras.backend.backend() == "tensorflow"
    return is_possible and is_fused()


def work(lengths: np.ndarray, num_layers: int, hidden_size: int, num_heads: int) -> float:
    """Returns how many numbers the layers compute between the matrix products for some sequences.

    Per token and layer these are about 8 hidden widths, and the scores of the attention.

    Args:
        lengths: number of tokens of each sequence.
        num_layers: layers of the model.
        hidden_size: its hidden width.
        num_heads: its heads.
    """
    tokens = lengths.astype(np.float64)
    return num_layers * float(np.sum(tokens * (8 * hidden_size + num_heads * tokens)))


def gelu(x: Tensor, approximate: bool) -> Tensor:
    """Returns the GELU of x (..., W), by the error function or, if `approximate`, by tanh."""
    forward, backward = _gelu(approximate)

    @tf.custom_gradient
    def call(x: tf.Tensor) -> Any:
        return forward(x), lambda upstream: backward(x, upstream)

    return call(x)


def dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Sets a share `rate` of x (..., W) to zero and scales up the rest; `seed` is (2,) int32."""
    dropped = _dropout(rate)

    @tf.custom_gradient
    def call(x: tf.Tensor) -> Any:
        return dropped(x, seed), lambda upstream: dropped(upstream, seed)

    return call(x)


def layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float, centred: bool = True
) -> Tensor:
    """Applies layer normalisation to x (..., W); gamma and beta are (W,) float32.

    There is no shift if beta is None, and RMS normalisation (no mean) if `centred` is False.
    """
    forward, backward = _norm(epsilon, centred)
    beta = tf.zeros_like(gamma) if beta is None else beta

    @tf.custom_gradient
    def call(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        y, mean, scale = forward(x, gamma, beta)
        return y, lambda upstream: backward(upstream, x, mean, scale, gamma)

    return call(x, tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))


def dropout_add_norm(
    outputs: Tensor,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    rate: float,
    epsilon: float,
    seed: Tensor | None,
) -> Tensor:
    """Returns `norm(x + dropout(outputs))`, (..., W): layer normalisation after a residual.

    `gamma` and `beta` are (W,) float32, scale and shift; `rate` is the dropout rate, `epsilon` is
    added to the variance. `seed` is (2,) int32 and may be None if the rate is 0.
    """
    forward, backward = _dropout_add_norm(rate, epsilon)
    seed = tf.zeros(2, tf.int32) if seed is None else seed

    @tf.custom_gradient
    def call(outputs: tf.Tensor, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        y, total, mean, scale = forward(outputs, x, gamma, beta, seed)
        return y, lambda upstream: backward(upstream, total, mean, scale, gamma, seed)

    return call(outputs, x, tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates heads x (B, N, T, D) by the angles of `kbert.layers.positions.rotation`.

    `cos` and `sin` get no gradient.
    """

    @tf.custom_gradient
    def call(x: tf.Tensor) -> Any:
        return _rotate()(x, cos, sin), lambda upstream: _rotate()(upstream, cos, -sin)

    return call(x)


def attention_probabilities(
    scores: Tensor, bias: Tensor | None, *, rate: float, seed: Tensor | None
) -> Tensor:
    """Returns `dropout(softmax(scores + bias))`: (B, N, T, S), normalised in float32.

    Args:
        scores: (B, N, T, S), in the compute dtype, which is also the dtype of the result.
        bias: bias of any float dtype that broadcasts to the scores, added in float32; or None.
        rate: dropout rate.
        seed: (2,) int32; may be None if the rate is 0.
    """
    forward, backward = _attention(rate)
    bias = tf.zeros((1, 1, 1, 1)) if bias is None else tf.cast(bias, tf.float32)
    seed = tf.zeros(2, tf.int32) if seed is None else seed

    @tf.custom_gradient
    def call(scores: tf.Tensor, bias: tf.Tensor) -> Any:
        probabilities, weights = forward(scores, bias, seed)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # `identity`: in the gradient of a branch, TensorFlow 2.21 loses tensors of the branch
            # that a compiled function captures itself.
            of_scores = backward(upstream, tf.identity(probabilities), seed)
            return of_scores, _sum_to(tf.cast(of_scores, tf.float32), tf.shape(bias))

        return weights, gradient

    return call(scores, bias)


@functools.cache
def attention_chunk(rate: float) -> tuple[Callable, Callable]:
    """Returns the compiled forward and backward functions of softmax and dropout for a chunk.

    `forward(scores, bias, seed)` returns the dropped exponentials (B, N, C, S), and (B, N, C, 1)
    float32 for each of the C rows: the logarithm of their sum before dropout, and one over it. The
    weights are the exponentials times the latter. In float16, where a product of so many numbers
    may overflow, the exponentials are divided already, and the factor is 1.

    `backward(scores, bias, logs, upstream, inner, seed)` returns the dropped weights and the
    gradient of the scores. `upstream` is the gradient of the dropped weights, `inner` (B, N, C, 1)
    the sum of a row's outputs times their gradients.
    """

    def forward(scores: tf.Tensor, bias: tf.Tensor, seed: tf.Tensor) -> Any:
        wide = _wide(scores) + bias
        highest = tf.reduce_max(wide, axis=-1, keepdims=True)
        exponents = tf.exp(wide - highest)
        sums = tf.reduce_sum(exponents, axis=-1, keepdims=True)
        logs, factors = highest + tf.math.log(sums), 1.0 / sums
        if scores.dtype == tf.float16:
            exponents, factors = exponents * factors, tf.ones_like(factors)
        return tf.cast(_drop(exponents, rate, seed), scores.dtype), logs, factors

    def backward(
        scores: tf.Tensor,
        bias: tf.Tensor,
        logs: tf.Tensor,
        upstream: tf.Tensor,
        inner: tf.Tensor,
        seed: tf.Tensor,
    ) -> Any:
        probabilities = tf.exp(_wide(scores) + bias - logs)
        of_scores = probabilities * (_drop(_wide(upstream), rate, seed) - inner)
        weights = _drop(probabilities, rate, seed)
        return tf.cast(weights, scores.dtype), tf.cast(of_scores, scores.dtype)

    return _compiled(forward), _compiled(backward)


def _sum_to(x: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Returns x summed over the axes along which `shape` was broadcast to it, in that shape.

    This is the gradient of broadcasting; it is pruned from the graph if unused.
    """
    _, axes = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(x), s1=shape)
    return tf.reshape(tf.reduce_sum(x, axes), shape)


def _compiled(function: Callable) -> Callable:
    return graph(function, autograph=False, jit_compile=True)


def _wide(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


def _mean(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, axis=-1, keepdims=True)


def _sum_rows(x: tf.Tensor) -> tf.Tensor:
    """Returns the sum of x (..., W) over all axes but the last, (W,)."""
    return tf.reduce_sum(tf.reshape(x, (-1, x.shape[-1])), axis=0)


@functools.cache
def _gelu(approximate: bool) -> tuple[Callable, Callable]:
    """Returns the compiled forward and backward functions of GELU.

    `approximate` chooses the tanh approximation. The forward function maps x to y; the backward one
    maps x and the gradient of y to the gradient of x.
    """
    root, cubic = math.sqrt(2 / math.pi), 0.044715

    def erf_forward(x: tf.Tensor) -> tf.Tensor:
        wide = _wide(x)
        return tf.cast(0.5 * wide * (1.0 + tf.math.erf(wide * math.sqrt(0.5))), x.dtype)

    def erf_backward(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        wide = _wide(x)
        below = 0.5 * (1.0 + tf.math.erf(wide * math.sqrt(0.5)))
        density = tf.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
        return tf.cast(_wide(upstream) * (below + wide * density), x.dtype)

    def tanh_forward(x: tf.Tensor) -> tf.Tensor:
        wide = _wide(x)
        tanh = tf.tanh(root * (wide + cubic * wide * wide * wide))
        return tf.cast(0.5 * wide * (1.0 + tanh), x.dtype)

    def tanh_backward(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        wide = _wide(x)
        square = wide * wide
        tanh = tf.tanh(root * wide * (1.0 + cubic * square))
        slope = (1.0 - tanh * tanh) * root * (1.0 + 3.0 * cubic * square)
        return tf.cast(_wide(upstream) * 0.5 * (1.0 + tanh + wide * slope), x.dtype)

    if approximate:
        return _compiled(tanh_forward), _compiled(tanh_backward)
    return _compiled(erf_forward), _compiled(erf_backward)


def _drop(x: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    if not rate:
        return x
    return tf.where(_kept(tf.shape(x), rate, seed), x * (1.0 / (1.0 - rate)), 0.0)


def _kept(shape: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns a dropout mask of `shape`, true for a share 1 - `rate`; `seed` is (2,) int32.

    The mask comes from a hash of each entry's index, so it is not saved for the gradient.
    Multipliers and shifts are those of "lowbias32" (https://github.com/skeeto/hash-prospector). The
    first word of the seed shifts the sequence; the second separates sequences that would otherwise
    differ only by a shift. Only the upper bits matter, so the last shift of the hash is omitted.
    """
    seeds = tf.bitcast(seed, tf.uint32)
    # One seed word is a counter: without hashing it, masks of two steps would differ by a constant.
    first = _hash(seeds[0] + _hash(seeds[1] + _word(0x9E3779B9)))
    second = _hash(first + _word(0x85EBCA6B))
    # An entry's index times a constant, as the sum of a row's part and a column's: XLA would store
    # the product for all entries, and read it from memory in each step.
    factor, width = _word(0x9E3779B1), tf.cast(shape[-1], tf.uint32)
    rows = _numbers(tf.reduce_prod(shape[:-1])) * (width * factor) + first
    columns = _numbers(shape[-1]) * factor
    x = tf.reshape(rows, tf.concat([shape[:-1], [1]], 0)) + columns
    x = _shifted(x, 16) * _word(0x7FEB352D)
    x = (_shifted(x, 15) + second) * _word(0x846CA68B)
    return x >= _word(round(rate * 2**32))


def _numbers(count: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.range(count), tf.uint32)


def _hash(x: tf.Tensor) -> tf.Tensor:
    x = _shifted(x, 16) * _word(0x7FEB352D)
    return _shifted(_shifted(x, 15) * _word(0x846CA68B), 16)


def _shifted(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _word(bits)))


def _word(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint32)


@functools.cache
def _dropout(rate: float) -> Callable:
    return _compiled(lambda x, seed: tf.cast(_drop(_wide(x), rate, seed), x.dtype))


def _normalised(
    total: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, centred: bool = True
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the normalised x (..., W) in its dtype, its mean and its 1 / deviation (..., 1).

    The statistics are float32. With `centred=False`, the mean is 0 (RMS norm).

    Args:
        total: x (..., W).
        gamma: scale (W,).
        beta: shift (W,).
        epsilon: number added to the variance.
        centred: whether the mean is subtracted.
    """
    wide = _wide(total)
    mean = _mean(wide) if centred else tf.zeros_like(wide[..., :1])
    distance = wide - mean
    scale = tf.math.rsqrt(_mean(distance * distance) + epsilon)
    return tf.cast(distance * scale * gamma + beta, total.dtype), mean, scale


def _norm_gradient(
    upstream: tf.Tensor,
    total: tf.Tensor,
    mean: tf.Tensor,
    scale: tf.Tensor,
    gamma: tf.Tensor,
    centred: bool = True,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the gradients of `total` (..., W) in float32, gamma (W,) and beta (W,).

    `upstream` (..., W) is the gradient of the normalised output; `mean` and `scale` (..., 1) come
    from `_normalised`.
    """
    upstream = _wide(upstream)
    normed = (_wide(total) - mean) * scale
    inner = upstream * gamma
    shift = _mean(inner) if centred else 0.0
    of_total = scale * (inner - shift - normed * _mean(inner * normed))
    return of_total, _sum_rows(upstream * normed), _sum_rows(upstream)


@functools.cache
def _norm(epsilon: float, centred: bool) -> tuple[Callable, Callable]:
    """Returns the compiled forward and backward functions of a norm.

    The forward function returns y, mean and scale; the backward one the gradients of x, gamma and
    beta.
    """

    def forward(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        return _normalised(x, gamma, beta, epsilon, centred)

    def backward(upstream: tf.Tensor, x: tf.Tensor, *kept: tf.Tensor) -> Any:
        mean, scale, gamma = kept
        of_x, of_gamma, of_beta = _norm_gradient(upstream, x, mean, scale, gamma, centred)
        return tf.cast(of_x, x.dtype), of_gamma, of_beta

    return _compiled(forward), _compiled(backward)


@functools.cache
def _dropout_add_norm(rate: float, epsilon: float) -> tuple[Callable, Callable]:
    """Returns the compiled forward and backward functions of `norm(x + dropout(outputs))`.

    `rate` is that of the dropout. The forward function returns y, the sum, its mean and scale; the
    backward one the gradients of outputs, x, gamma and beta.
    """

    def forward(
        outputs: tf.Tensor, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, seed: tf.Tensor
    ) -> Any:
        total = tf.cast(_wide(x) + _drop(_wide(outputs), rate, seed), x.dtype)
        y, mean, scale = _normalised(total, gamma, beta, epsilon)
        return y, total, mean, scale

    def backward(upstream: tf.Tensor, total: tf.Tensor, *kept: tf.Tensor) -> Any:
        *kept, seed = kept
        of_total, of_gamma, of_beta = _norm_gradient(upstream, total, *kept)
        of_outputs = tf.cast(_drop(of_total, rate, seed), total.dtype)
        return of_outputs, tf.cast(of_total, total.dtype), of_gamma, of_beta

    return _compiled(forward), _compiled(backward)


@functools.cache
def _rotate() -> Callable:
    """Returns the compiled function that rotates x (..., D), as pairs (i, i + D / 2)."""

    def forward(x: tf.Tensor, cos: tf.Tensor, sin: tf.Tensor) -> tf.Tensor:
        left, right = tf.split(_wide(x), 2, axis=-1)
        turned = tf.concat([left * cos - right * sin, right * cos + left * sin], axis=-1)
        return tf.cast(turned, x.dtype)

    return _compiled(forward)


@functools.cache
def _attention(rate: float) -> tuple[Callable, Callable]:
    """Returns the compiled forward and backward functions of softmax and dropout.

    The forward function maps scores and bias to the probabilities before and after dropout; the
    backward one returns the gradient of the scores.
    """

    def forward(scores: tf.Tensor, bias: tf.Tensor, seed: tf.Tensor) -> Any:
        wide = _wide(scores) + bias
        exponents = tf.exp(wide - tf.reduce_max(wide, axis=-1, keepdims=True))
        probabilities = exponents * (1.0 / tf.reduce_sum(exponents, axis=-1, keepdims=True))
        weights = _drop(probabilities, rate, seed)
        return tf.cast(probabilities, scores.dtype), tf.cast(weights, scores.dtype)

    def backward(upstream: tf.Tensor, probabilities: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        wide = _wide(probabilities)
        inner = _drop(_wide(upstream), rate, seed)
        of_scores = wide * (inner - tf.reduce_sum(inner * wide, axis=-1, keepdims=True))
        return tf.cast(of_scores, probabilities.dtype)

    return _compiled(forward), _compiled(backward)
