"""Where an index holds its vectors, and what compares them: TensorFlow, or FAISS.

Shapes: Q queries, D width, N vectors, M of them, P ≥ N rows with padding, K found.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kbert.core.late import optional, tf
from kbert.search.exact import best_of_rows, padded


class Store(Protocol):
    """Vectors as they are compared, N of them."""

    def add(self, vectors: np.ndarray) -> None:
        """Appends (M, D) float32."""

    def take(self, rows: np.ndarray | slice) -> np.ndarray:
        """(M, D), those of some rows, a copy."""

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Products and rows (Q, K), the highest first, the lower row first where equal."""


class TensorFlowStore:
    """Vectors in one variable, on TensorFlow's device.

    What is added goes into the variable when it is next needed: many small parts cost one copy.
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
        """The variable (P, D) and N."""
        if self._added:
            with tf.init_scope():  # outside of the graph that may be traced just now
                before = [] if self._variable is None else [self._variable[: self._count].numpy()]
                vectors = np.concatenate([*before, *self._added])
                self._variable = tf.Variable(padded(vectors), trainable=False, name="vectors")
            self._count, self._added = len(vectors), []
        return self._variable, self._count

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        variable, count = self.variable()
        return best_of_rows(queries, variable.read_value(), count, k)


class FaissStore:
    """Vectors in FAISS's `IndexFlatIP`, on the CPU.

    FAISS does not say which of equal scores it finds last: those found are put in the order of
    their rows, but the K-th may stand for another row of its score.
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
