"""The nearest of all vectors, exactly: products of blocks, and the best of each block.

Memory is bounded by a block of queries times a block of vectors. The best of a block are looked for
among its groups of `GROUP` neighbours: only the k groups with the highest maxima can hold them, so
that most products are read once, for a maximum, and never sorted. (An entry outside of these groups
has k maxima before it, each at least as high and, where equal, in a lower row.)

Shapes: Q queries, D width, N vectors, P ≥ N rows with padding, R rows of a block, G groups of it,
K found.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kbert.core.graphs import graph
from kbert.core.late import tf

# A block of products has 64 MiB.
QUERIES, ROWS, GROUP = 512, 32768, 64


def unit(vectors: Any) -> np.ndarray:
    """The vectors as float32 at length 1; a vector of zeros stays one.

    >>> unit([[3, 4], [0, 0]]).round(1).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    vectors = np.asarray(vectors, np.float32)
    # By the largest entry first: squares of what float32 holds may be more, or less, than it holds.
    largest = np.abs(vectors).max(axis=-1, keepdims=True, initial=0)
    vectors = vectors / np.where(largest > 0, largest, 1)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def unit_graph(vectors: tf.Tensor) -> tf.Tensor:
    """`unit` of tensors."""
    largest = tf.reduce_max(tf.abs(vectors), axis=-1, keepdims=True)
    vectors = vectors / tf.where(largest > 0, largest, 1)
    return vectors / tf.maximum(tf.norm(vectors, axis=-1, keepdims=True), 1e-12)


def padded(vectors: np.ndarray) -> np.ndarray:
    """(N, D) -> (P, D), whole groups: the rest is zeros."""
    return np.pad(vectors, [(0, -len(vectors) % GROUP), (0, 0)])


def merge_block(
    scores: tf.Tensor,
    rows: tf.Tensor,
    queries: tf.Tensor,
    block: tf.Tensor,
    start: tf.Tensor,
    end: tf.Tensor,
    k: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The best of what was found before and of one block of vectors.

    Args:
        scores: (Q, K) of the blocks before, the highest first.
        rows: (Q, K) their rows.
        queries: (Q, D).
        block: (R, D), whole groups.
        start: row of its first vector.
        end: row from which on the block is padding.
        k: how many are kept.

    Returns:
        Scores and rows, (Q, min(k, K + R)); the lower row first where scores are equal.
    """
    found = tf.matmul(queries, block, transpose_b=True)  # (Q, R)
    size = tf.shape(block)[0]
    found = tf.cond(
        start + size > end,
        lambda: tf.where(start + tf.range(size) < end, found, -np.inf),
        lambda: found,
    )
    best, places = tf.cond(
        k < size // GROUP,
        lambda: _best_by_groups(found, k),
        lambda: tuple(tf.math.top_k(found, tf.minimum(k, size))),
    )
    # What was found before has lower rows, and top_k takes the first of equal ones.
    scores = tf.concat([scores, best], 1)
    rows = tf.concat([rows, start + places], 1)
    scores, chosen = tf.math.top_k(scores, tf.minimum(k, tf.shape(scores)[1]))
    return scores, tf.gather(rows, chosen, batch_dims=1)


def _best_by_groups(found: tf.Tensor, k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    groups = tf.reshape(found, [tf.shape(found)[0], -1, GROUP])  # (Q, G, GROUP)
    _, chosen = tf.math.top_k(tf.reduce_max(groups, -1), k)  # (Q, k)
    chosen = tf.sort(chosen, axis=-1)  # so that the first of equal scores is the lower row
    held = tf.gather(groups, chosen, batch_dims=1)  # (Q, k, GROUP)
    best, places = tf.math.top_k(tf.reshape(held, [tf.shape(found)[0], -1]), k)
    return best, tf.gather(chosen, places // GROUP, batch_dims=1) * GROUP + places % GROUP


def nothing(number: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Scores and rows (Q, 0) of so many queries, before the first block."""
    return tf.zeros([number, 0]), tf.zeros([number, 0], tf.int32)


def best_rows(
    queries: tf.Tensor, vectors: tf.Tensor, count: tf.Tensor, k: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Scores and rows (Q, K) of the best of all vectors, the lower row first on a tie.

    Args:
        queries: (Q, D) float32.
        vectors: (P, D) float32.
        count: N, at least k.
        k: K.
    """

    def body(start: tf.Tensor, scores: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        block = vectors[start : start + ROWS]
        return start + ROWS, *merge_block(scores, rows, queries, block, start, count, k)

    _, scores, rows = tf.while_loop(
        lambda start, *_: start < count,
        body,
        (tf.constant(0), *nothing(tf.shape(queries)[0])),
        shape_invariants=tuple(tf.TensorShape(x) for x in ([], [None, None], [None, None])),
        parallel_iterations=1,  # or several blocks of products are there at a time
    )
    return scores, rows


@functools.cache
def _compiled(function: Callable, kinds: str) -> Callable:
    """The function as one graph of matrices of scores and of rows, and of numbers."""
    specs = {
        "score": tf.TensorSpec([None, None], tf.float32),
        "row": tf.TensorSpec([None, None], tf.int32),
        "number": tf.TensorSpec([], tf.int32),
    }
    signature = [specs[kind] for kind in kinds.split()]
    return graph(function, autograph=False, input_signature=signature)


def best_of_rows(
    queries: np.ndarray, vectors: tf.Tensor, count: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """`best_rows` for any number of queries, as arrays.

    Args:
        queries: (Q, D) float32.
        vectors: (P, D) float32.
        count: N.
        k: K, at most N.
    """
    run = _compiled(best_rows, "score score number number")
    found = []
    for start in range(0, max(len(queries), 1), QUERIES):
        with full_float32():
            found.append(run(tf.constant(queries[start : start + QUERIES]), vectors, count, k))
    return _joined(found)


def best_of_array(queries: Any, vectors: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and rows (Q, K) of the nearest vectors of an array that is read once, in blocks.

    Args:
        queries: (Q, D).
        vectors: (N, D), also a memory-mapped file.
        k: K, at most N.
    """
    merge = _compiled(merge_block, "score row score score number number number")
    parts = [slice(i, i + QUERIES) for i in range(0, max(len(queries), 1), QUERIES)]
    found = [nothing(len(queries[part])) for part in parts]
    for start in range(0, len(vectors), ROWS):
        end = min(start + ROWS, len(vectors))
        block = tf.constant(padded(unit(vectors[start:end])))
        for number, part in enumerate(parts):
            with full_float32():
                chosen = tf.constant(unit(queries[part]))
                found[number] = merge(*found[number], chosen, block, start, end, k)
    return _joined(found)


def _joined(found: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    scores, rows = (np.concatenate([x.numpy() for x in part]) for part in zip(*found, strict=True))
    return scores, rows


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Products in float32, where a GPU would take TensorFloat-32, which keeps three digits."""
    config = tf.config.experimental
    was = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(was)
