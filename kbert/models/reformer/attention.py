"""Attention within chunks: of the sequence itself, or of its tokens sorted by hash bucket.

(Kitaev et al. 2020, "Reformer", https://arxiv.org/abs/2001.04451, section 2; trax/layers/research/
efficient_attention.py of google/trax.)

Shapes: `B` batch, `T` tokens, `H` width of a stream, `N` heads, `D` width of a head, `R` rounds of
hashing, `M` chunks of `W` tokens, `S` tokens that a chunk attends to.
"""

import functools
import math
import random
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers import Dense, Dropout

# Score of a masked token; score of the token itself, which counts only if all others are masked.
_NOTHING, _ITSELF = -1e9, -1e5


class LocalAttention(keras.layers.Layer):
    """Attention of a token to its own chunk and to neighbouring chunks.

    The chunks form a ring: the last precedes the first.

    Args:
        num_heads: number of heads.
        head_size: width of a head.
        chunk_length: tokens in a chunk. A sequence has at most that many, or several whole chunks.
        chunks_before: number of chunks before its own that a token attends to.
        chunks_after: number of chunks after its own that a token attends to.
        causal: whether tokens do not attend to later tokens.
        dropout: dropout rate on the probabilities.
        initializer_range: standard deviation of the kernels' initial values, see `Dense`.

    Example:
        >>> attention = LocalAttention(2, head_size=4, chunk_length=2, chunks_before=1)
        >>> outputs, probabilities = attention(ops.ones((1, 6, 8)), return_attention=True)
        >>> tuple(outputs.shape), tuple(probabilities.shape)
        ((1, 6, 8), (1, 2, 6, 6))
    """

    projections = 3  # query, key and value
    name_of_projections = "qkv"

    def __init__(
        self,
        num_heads: int,
        *,
        head_size: int,
        chunk_length: int,
        chunks_before: int = 1,
        chunks_after: int = 0,
        causal: bool = False,
        dropout: float = 0.0,
        initializer_range: float | None = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_size = head_size
        self.chunk_length = chunk_length
        self.beside = (chunks_before, chunks_after)
        self.causal = causal
        self.initializer_range = initializer_range
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape: Shape) -> None:
        width = self.num_heads * self.head_size
        common = {
            "initializer_range": self.initializer_range,
            "use_bias": False,
            "dtype": self.dtype_policy,
        }
        self.projection = Dense(self.projections * width, name=self.name_of_projections, **common)
        self.output_dense = Dense(input_shape[-1], name="output", **common)
        self.projection.build(input_shape)
        self.output_dense.build((*input_shape[:-1], width))

    def call(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        training: bool = False,
        return_attention: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends within chunks; T is at most `chunk_length`, or a multiple of it.

        Args:
            x: (B, T, H).
            padding_mask: (B, T), 0 for padding, which is not attended to; None = no padding.
            training: whether dropout is active.
            return_attention: whether the probabilities are returned.

        Returns:
            The outputs (B, T, H), and the probabilities (B, N, T, T) before dropout, or None.
        """
        query, key, value = self._heads(x)
        length = ops.shape(x)[1]
        chunk, beside = self._chunk(length)
        positions = ops.reshape(ops.arange(length, dtype="int32"), (1, 1, -1, chunk))
        mask = None if padding_mask is None else ops.cast(padding_mask, "int32")
        mask = None if mask is None else ops.reshape(mask, (ops.shape(x)[0], 1, -1, chunk))
        query, key, value = (_cut(x, chunk) for x in (query, key, value))
        key = key / math.sqrt(self.head_size)
        scores, key_positions = self._scores(query, key, beside, positions, mask)
        outputs, probabilities, _ = self._attend(scores, value, beside, training)
        if not return_attention:
            return self._merged(_joined(outputs)), None
        attention = _spread(probabilities, key_positions, length)  # (B, N, M, W, T)
        return self._merged(_joined(outputs)), _joined(attention)

    def _heads(self, x: Tensor) -> list[Tensor]:
        """Returns the projections of x (B, T, H), (B, N, T, D) each.

        They are query, key and value; in `LSHAttention` query and key are one.
        """
        batch, length, _ = ops.shape(x)
        shape = (batch, length, self.projections, self.num_heads, self.head_size)
        return ops.unstack(
            ops.transpose(ops.reshape(self.projection(x), shape), (2, 0, 3, 1, 4)),
            self.projections,
            axis=0,
        )

    def _merged(self, outputs: Tensor) -> Tensor:
        """Merges the heads by the output layer: (B, N, T, D) -> (B, T, H)."""
        batch, heads, length, size = ops.shape(outputs)
        outputs = ops.transpose(outputs, (0, 2, 1, 3))
        return self.output_dense(ops.reshape(outputs, (batch, length, heads * size)))

    def _chunk(self, length: Any) -> tuple[Any, tuple[int, int]]:
        """Returns the chunk length, and the numbers of neighbours before and after.

        `length` is T. A sequence of at most `chunk_length` tokens is one chunk without neighbours.
        If T is unknown (a tensor), such a sequence is its own neighbour. Every token is then
        attended to equally often, which does not change the result.
        """
        return (length, (0, 0)) if self._is_one_chunk(length) else (self.chunk_length, self.beside)

    def _is_one_chunk(self, length: Any) -> bool:
        return isinstance(length, int) and length <= self.chunk_length

    def _scores(
        self,
        query: Tensor,
        key: Tensor,
        beside: tuple[int, int],
        places: Tensor,
        marks: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Returns the scores (B, N, M, W, S) in float32, and the positions of the keys.

        The positions are (B or 1, N or 1, M, S).

        Args:
            query: (B, N, M, W, D).
            key: (B, N, M, W, D), already scaled.
            beside: numbers of neighbouring chunks before and after.
            places: (B or 1, N or 1, M, W), positions of the tokens in the sequence.
            marks: (B or 1, N or 1, M, W), 0 for padding; None = no padding.
        """
        key = _with_neighbours(key, beside)
        scores = ops.cast(ops.matmul(query, ops.swapaxes(key, -1, -2)), "float32")
        key_positions = _with_neighbours(places, beside)
        keep = None
        if marks is not None:
            keep = _with_neighbours(marks, beside)[..., None, :] > 0
        if self.causal:
            is_not_later = places[..., None] >= key_positions[..., None, :]
            keep = is_not_later if keep is None else ops.logical_and(keep, is_not_later)
        if keep is not None:
            scores = ops.where(keep, scores, _NOTHING)
        return scores, key_positions

    def _attend(
        self, scores: Tensor, value: Tensor, beside: tuple[int, int], training: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns outputs (B, N, M, W, D), probabilities, and the log-sum-exp of the scores.

        The logarithm is in two summands, (B, N, M, W, 2): the largest score and the rest. If a
        token sees only itself, float32 cannot represent the sum of both precisely enough.

        Args:
            scores: (B, N, M, W, S), masked scores.
            value: (B, N, M, W, D).
            beside: numbers of neighbouring chunks before and after.
            training: whether dropout is active.
        """
        largest = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
        exponentials = ops.exp(scores - largest)
        sums = ops.sum(exponentials, axis=-1, keepdims=True)
        probabilities = ops.cast(exponentials / sums, self.compute_dtype)
        weights = self.dropout(probabilities, training=training)
        outputs = ops.matmul(weights, _with_neighbours(value, beside))
        return outputs, probabilities, ops.concatenate([largest, ops.log(sums)], axis=-1)


class LSHAttention(LocalAttention):
    """Attention of a token to tokens of its own hash bucket and of neighbouring ones.

    Query and key are the same vector. The bucket of a token is the random direction that is nearest
    to it. Tokens are sorted by bucket and attend within chunks of that order. A token attends to
    itself only if there is no other token to attend to. Several rounds are averaged with weights:
    each round's share of the exponentiated scores.

    Args:
        *sizes: positional arguments of `LocalAttention`: the number of heads.
        bucket_factors: even numbers, whose product is the number of buckets.
        num_hashes: rounds of hashing, R.
        hash_seed: seed of the directions; None = new ones at each call in training.
        **options: keyword arguments of `LocalAttention`.

    Example:
        >>> attention = LSHAttention(2, head_size=4, chunk_length=2, bucket_factors=(4,))
        >>> outputs, buckets, _ = attention(ops.ones((1, 6, 8)))
        >>> tuple(outputs.shape), tuple(buckets.shape)
        ((1, 6, 8), (1, 2, 1, 6))
    """

    projections = 2
    name_of_projections = "qk_v"

    def __init__(
        self,
        *sizes: int,
        bucket_factors: tuple[int, ...],
        num_hashes: int = 1,
        hash_seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*sizes, **options)
        self.bucket_factors = bucket_factors
        self.num_hashes = num_hashes
        self.hash_seed = hash_seed
        if hash_seed is None:
            self.seed_generator = keras.random.SeedGenerator(random.randrange(2**31))

    def call(  # type: ignore[override]
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        training: bool = False,
        return_attention: bool = False,
        buckets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Attends within chunks of the tokens sorted by bucket; T is as in `LocalAttention`.

        Args:
            x: (B, T, H).
            padding_mask: (B, T), 0 for padding, which is not attended to; None = no padding.
            training: whether dropout is active.
            return_attention: whether the probabilities are returned.
            buckets: (B, N, R, T), buckets of the tokens; None = computed by hashing.

        Returns:
            The outputs (B, T, H); the buckets, None if the sequence is one chunk; and the
            probabilities (B, N, T, T), or None.
        """
        query_key, value = self._heads(x)
        batch, heads, length, size = ops.shape(query_key)
        chunk, beside = self._chunk(length)
        mask = None if padding_mask is None else ops.cast(padding_mask, "int32")
        if self._is_one_chunk(length):
            rounds, order = 1, None
            positions = ops.arange(length, dtype="int32")[None, None]  # (1, 1, T)
        else:
            rounds = self.num_hashes
            if buckets is None:
                buckets = self._hash(query_key, mask, training)
            order = _order(buckets)  # (B, N, R T), index = round * T + position
            positions = order % length
            query_key, value = (_rows(x, positions) for x in (query_key, value))
        chunk_positions = ops.reshape(positions, (*ops.shape(positions)[:2], -1, chunk))
        if mask is not None:
            mask = ops.broadcast_to(mask[:, None], (batch, heads, length))
            mask = _rows(mask[..., None], chunk_positions)[..., 0] if order is not None else mask
            mask = ops.reshape(mask, (batch, heads, -1, chunk))
        query, value = _cut(query_key, chunk), _cut(value, chunk)
        key = _normed(query) / math.sqrt(size)
        scores, key_positions = self._scores(query, key, beside, chunk_positions, mask)
        is_other = chunk_positions[..., None] != key_positions[..., None, :]
        scores = ops.where(is_other, scores, _ITSELF)
        outputs, probabilities, sums = self._attend(scores, value, beside, training)
        attention = (
            _joined(_spread(probabilities, key_positions, length)) if return_attention else None
        )
        outputs = _joined(outputs)
        if order is not None:
            back = ops.argsort(order, axis=-1)
            outputs, sums = _rows(outputs, back), _rows(_joined(sums), back)
            attention = None if attention is None else _rows(attention, back)
            if rounds > 1:
                shape = (batch, heads, rounds, length, -1)
                largest, remainder = ops.split(ops.reshape(sums, shape), 2, axis=-1)
                largest = largest - ops.max(largest, axis=2, keepdims=True)
                shares = ops.softmax(largest + remainder, axis=2)  # (B, N, R, T, 1)
                outputs = _mixed(outputs, shares, shape)
                attention = None if attention is None else _mixed(attention, shares, shape)
        return self._merged(outputs), buckets, attention

    def _hash(self, x: Tensor, marks: Tensor | None, training: bool) -> Tensor:
        """Returns the hash buckets of vectors: (B, N, T, D) -> (B, N, R, T) int32.

        `marks` (B, T) is 0 for padding, which gets a bucket after all others; None = no padding.
        """
        x = ops.cast(ops.stop_gradient(x), "float32")
        rotations = ops.cast(self.rotations(training), "float32")
        turned = ops.einsum("bntd,ndrk->bnrtk", x, rotations)
        buckets: Any = 0
        start, product = 0, 1
        for number in self.bucket_factors:
            part = turned[..., start : start + number // 2]
            nearest = ops.argmax(ops.concatenate([part, -part], axis=-1), axis=-1)
            buckets = buckets + product * ops.cast(nearest, "int32")
            start, product = start + number // 2, product * number
        if marks is not None:
            buckets = ops.where(marks[:, None, None] > 0, buckets, product)
        return buckets

    def rotations(self, training: bool) -> Tensor:
        """Returns random directions for hashing, (N, D, R, half of the sum of `bucket_factors`).

        With a `hash_seed`, and in inference, they are always the same.
        """
        half = sum(self.bucket_factors) // 2
        shape = (self.num_heads, self.head_size, self.num_hashes, half)
        if self.hash_seed is None and training:
            return keras.random.normal(shape, seed=self.seed_generator, dtype="float32")
        return ops.convert_to_tensor(_directions(self.hash_seed or 0, shape))


@functools.cache
def _directions(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns normal random numbers of `shape` by NumPy: the same on every backend and with XLA."""
    return np.random.default_rng(seed).standard_normal(shape, "float32")


def _cut(x: Tensor, chunk: Any) -> Tensor:
    """Splits tokens into chunks of W = `chunk` tokens: (B, N, M W, D) -> (B, N, M, W, D)."""
    batch, heads, _, size = ops.shape(x)
    return ops.reshape(x, (batch, heads, -1, chunk, size))


def _joined(x: Tensor) -> Tensor:
    """Joins the chunks: (B, N, M, W, D) -> (B, N, M W, D)."""
    batch, heads, chunks, chunk, size = ops.shape(x)
    return ops.reshape(x, (batch, heads, chunks * chunk, size))


def _with_neighbours(x: Tensor, beside: tuple[int, int]) -> Tensor:
    """Adds its neighbours to each chunk, in a ring: (B, N, M, W, ...) -> (B, N, M, S, ...).

    `beside` are the numbers of neighbouring chunks before and after.
    """
    before, after = beside
    if not before and not after:
        return x
    parts = [x if i == 0 else ops.roll(x, -i, axis=2) for i in range(-before, after + 1)]
    return ops.concatenate(parts, axis=3)


def _spread(probabilities: Tensor, others: Tensor, length: Any) -> Tensor:
    """Adds up the probabilities of S keys by token: (B, N, M, W, S) -> (B, N, M, W, T).

    `others` (B or 1, N or 1, M, S) are the positions of the keys; `length` is T.
    """
    return ops.matmul(probabilities, ops.one_hot(others, length, dtype=probabilities.dtype))


def _normed(x: Tensor) -> Tensor:
    """Divides each vector by the root of its mean square."""
    wide = ops.cast(x, "float32")
    square = ops.mean(ops.square(wide), axis=-1, keepdims=True)
    return ops.cast(wide * ops.rsqrt(square + 1e-6), x.dtype)


def _order(buckets: Tensor) -> Tensor:
    """Returns the indices that sort tokens by bucket in each round: (B, N, R, T) -> (B, N, R T).

    An index is round * T + position. Tokens of a bucket keep their order.
    """
    batch, heads, rounds, length = ops.shape(buckets)
    order = ops.cast(ops.argsort(buckets, axis=-1), "int32")  # stable on every backend
    order = order + ops.arange(rounds, dtype="int32")[:, None] * length
    return ops.reshape(order, (batch, heads, rounds * length))


def _rows(x: Tensor, places: Tensor) -> Tensor:
    """Gathers rows of x (B, N, T, D) in each head by `places` (B, N, ...): -> (B, N, ..., D)."""
    batch, heads, length, size = ops.shape(x)
    first = ops.arange(batch * heads, dtype="int32") * length
    first = ops.reshape(first, (batch, heads, *(1 for _ in places.shape[2:])))
    return ops.take(ops.reshape(x, (-1, size)), first + ops.cast(places, "int32"), axis=0)


def _mixed(x: Tensor, shares: Tensor, shape: tuple) -> Tensor:
    """Adds up the rounds, weighted by their shares: (B, N, R T, D) -> (B, N, T, D).

    `shares` is (B, N, R, T, 1), and `shape` is (B, N, R, T, -1).
    """
    return ops.sum(ops.reshape(x, shape) * ops.cast(shares, x.dtype), axis=2)
