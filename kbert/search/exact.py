"""Exact nearest-neighbour search, block by block: products of a block, then the best of them.

Memory is bounded by the products of one block of queries and one block of vectors. A block is
searched by groups of `GROUP` neighbouring rows: only the k groups with the highest maxima can
contain the k best. Most products are thus read once, for a maximum, and never sorted. (For an entry
outside of these groups there are k maxima that rank before it: each is at least as high, and in a
lower row if equal.)

Shapes: Q queries, D width, N vectors, P ≥ N rows with padding, R rows of a block, G groups of a
block, K results per query.
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
    """Returns the vectors as float32, scaled to length 1; a zero vector stays zero.

    >>> unit([[3, 4], [0, 0]]).round(1).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    vectors = np.asarray(vectors, np.float32)
    # Divide by the largest entry first: the square of a float32 number can overflow or underflow.
    largest = np.abs(vectors).max(axis=-1, keepdims=True, initial=0)
    vectors = vectors / np.where(largest > 0, largest, 1)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def unit_graph(vectors: tf.Tensor) -> tf.Tensor:
    """Scales float32 tensors (…, D) to length 1, like `unit`; a zero vector stays zero."""
    largest = tf.reduce_max(tf.abs(vectors), axis=-1, keepdims=True)
    vectors = vectors / tf.where(largest > 0, largest, 1)
    return vectors / tf.maximum(tf.norm(vectors, axis=-1, keepdims=True), 1e-12)


def padded(vectors: np.ndarray) -> np.ndarray:
    """Pads vectors (N, D) with rows of zeros to (P, D); P is a multiple of `GROUP`."""
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
    """Merges the best results of earlier blocks with those of one more block of vectors.

    Args:
        scores: scores (Q, K) of the earlier blocks, the highest first.
        rows: rows (Q, K) of these scores.
        queries: query vectors (Q, D).
        block: vectors (R, D), a whole number of groups.
        start: row of the block's first vector.
        end: row from which the block is padding.
        k: number of results to keep.

    Returns:
        Scores and rows, (Q, min(k, K + R)); the lower row first where scores are equal.
    """
    block_scores = tf.matmul(queries, block, transpose_b=True)  # (Q, R)
    size = tf.shape(block)[0]
    block_scores = tf.cond(
        start + size > end,
        lambda: tf.where(start + tf.range(size) < end, block_scores, -np.inf),
        lambda: block_scores,
    )
    best, positions = tf.cond(
        k < size // GROUP,
        lambda: _best_by_groups(block_scores, k),
        lambda: tuple(tf.math.top_k(block_scores, tf.minimum(k, size))),
    )
    # Earlier results have lower rows, and top_k returns the first of equal scores.
    scores = tf.concat([scores, best], 1)
    rows = tf.concat([rows, start + positions], 1)
    scores, chosen = tf.math.top_k(scores, tf.minimum(k, tf.shape(scores)[1]))
    return scores, tf.gather(rows, chosen, batch_dims=1)


def _best_by_groups(found: tf.Tensor, k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the `k` best scores of a block and their places in it, (Q, k), by groups.

    Args:
        found: scores (Q, R) of the block, R a multiple of `GROUP`.
        k: number of results, at most the number G of groups.
    """
    groups = tf.reshape(found, [tf.shape(found)[0], -1, GROUP])  # (Q, G, GROUP)
    _, chosen = tf.math.top_k(tf.reduce_max(groups, -1), k)  # (Q, k)
    chosen = tf.sort(chosen, axis=-1)  # then the first of equal scores has the lower row
    group_scores = tf.gather(groups, chosen, batch_dims=1)  # (Q, k, GROUP)
    best, positions = tf.math.top_k(tf.reshape(group_scores, [tf.shape(found)[0], -1]), k)
    return best, tf.gather(chosen, positions // GROUP, batch_dims=1) * GROUP + positions % GROUP


def nothing(number: int | tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns empty scores and rows (Q, 0) for `number` queries: the results of no block."""
    return tf.zeros([number, 0]), tf.zeros([number, 0], tf.int32)


def best_rows(
    queries: tf.Tensor, vectors: tf.Tensor, count: tf.Tensor, k: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns scores and rows (Q, K) of the best of all vectors, the lower row first on a tie.

    Args:
        queries: query vectors (Q, D) float32.
        vectors: vectors with padding (P, D) float32.
        count: number of vectors without padding, N, at least `k`.
        k: results per query, K.
    """

    def body(start: tf.Tensor, scores: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        block = vectors[start : start + ROWS]
        return start + ROWS, *merge_block(scores, rows, queries, block, start, count, k)

    _, scores, rows = tf.while_loop(
        lambda start, *_: start < count,
        body,
        (tf.constant(0), *nothing(tf.shape(queries)[0])),
        shape_invariants=tuple(tf.TensorShape(x) for x in ([], [None, None], [None, None])),
        parallel_iterations=1,  # or several blocks of products are in memory at a time
    )
    return scores, rows


@functools.cache
def _compiled(function: Callable, kinds: str) -> Callable:
    """Compiles a function to one graph for all shapes.

    Args:
        function: function of tensors.
        kinds: kind of each argument, separated by blanks: "score" (2-D float32), "row" (2-D int32)
            or "number" (int32).
    """
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
    """Runs `best_rows` on blocks of queries and returns scores and rows (Q, K) as arrays.

    Args:
        queries: any number of query vectors (Q, D) float32.
        vectors: vectors with padding (P, D) float32.
        count: number of vectors without padding, N.
        k: results per query, K, at most N.
    """
    run = _compiled(best_rows, "score score number number")
    results = []
    for start in range(0, max(len(queries), 1), QUERIES):
        with full_float32():
            results.append(run(tf.constant(queries[start : start + QUERIES]), vectors, count, k))
    return _joined(results)


def best_of_array(queries: Any, vectors: Any, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and rows (Q, K) of the nearest vectors; the array is read once, in blocks.

    Args:
        queries: query vectors (Q, D).
        vectors: vectors (N, D), also a memory-mapped file.
        k: results per query, K, at most N.
    """
    merge = _compiled(merge_block, "score row score score number number number")
    parts = [slice(i, i + QUERIES) for i in range(0, max(len(queries), 1), QUERIES)]
    results = [nothing(len(queries[part])) for part in parts]
    for start in range(0, len(vectors), ROWS):
        end = min(start + ROWS, len(vectors))
        block = tf.constant(padded(unit(vectors[start:end])))
        for number, part in enumerate(parts):
            with full_float32():
                chosen = tf.constant(unit(queries[part]))
                results[number] = merge(*results[number], chosen, block, start, end, k)
    return _joined(results)


def _joined(found: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """Joins the scores and rows of blocks of queries to two arrays."""
    scores, rows = (np.concatenate([x.numpy() for x in part]) for part in zip(*found, strict=True))
    return scores, rows


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Context with products in full float32; a GPU may default to TensorFloat-32 (3 digits)."""
    config = tf.config.experimental
    was = config.tensor_float_32_execution_enabled()
    config.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        config.enable_tensor_float_32_execution(was)
