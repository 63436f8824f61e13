"""Stores of an index: they keep its vectors and compare them, with TensorFlow or FAISS.

Shapes: Q queries, D width, N vectors, M some of the vectors, P ≥ N rows with padding, K results per
query.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kbert.core.late import optional, tf
from kbert.search.exact import best_of_rows, padded


class Store(Protocol):
    """N vectors, stored as they are compared (at length 1 for cosines)."""

    def add(self, vectors: np.ndarray) -> None:
        """Appends vectors (M, D) float32."""

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """Returns a copy of the vectors (M, D) of `rows`, numbers in the order of adding."""

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns dot products and rows of the best vectors for each query, (Q, K) each.

        The highest product comes first, the lower row first on a tie.

        Args:
            queries: query vectors (Q, D) float32.
            k: results per query, K, at most N.
        """


class TensorFlowStore:
    """Vectors in one variable, on TensorFlow's device.

    Added vectors are copied into the variable when it is next needed: many small parts cost one
    copy.
    """

    def __init__(self) -> None:
        self._variable: Any = None
        self._count = 0  # vectors in the variable
        self._added: list[np.ndarray] = []

    def add(self, vectors: np.ndarray) -> None:
        self._added.append(vectors)

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        variable, count = self.variable()
        if isinstance(rows, slice):
            return variable[:count][rows].numpy()
        return tf.gather(variable, rows).numpy()

    def variable(self) -> tuple[tf.Variable, int]:
        """Returns the variable (P, D), with all added vectors, and their number N."""
        if self._added:
            with tf.init_scope():  # outside of a graph that is being traced
                stored = [] if self._variable is None else [self._variable[: self._count].numpy()]
                vectors = np.concatenate([*stored, *self._added])
                self._variable = tf.Variable(padded(vectors), trainable=False, name="vectors")
            self._count, self._added = len(vectors), []
        return self._variable, self._count

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        variable, count = self.variable()
        return best_of_rows(queries, variable.read_value(), count, k)


class FaissStore:
    """Vectors in FAISS's `IndexFlatIP`, on the CPU.

    Results with equal scores are sorted by row. FAISS does not specify which of several equal
    scores at the K-th rank it returns.
    """

    def __init__(self, width: int) -> None:
        self._index = optional("faiss", "faiss", 'backend="faiss"').IndexFlatIP(width)

    def add(self, vectors: np.ndarray) -> None:
        self._index.add(np.ascontiguousarray(vectors))

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        numbers = np.arange(self._index.ntotal)[rows]
        return self._index.reconstruct_batch(numbers)

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, rows = self._index.search(np.ascontiguousarray(queries), k)
        order = np.lexsort((rows, -scores), axis=1)
        return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
