"""What the methods of training share: tables of vectors with Adagrad, and the shape of a learner.

Shapes: R rows of a table, D width.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.core.types import Arrays
from kbert.word_vectors.vectors import WordVectors


class Table:
    """Vectors that are trained, and Adagrad's sums of squared gradients.

    Args:
        values: first vectors, (R, D) float32.
        squares: first sum of squares of all numbers.
    """

    def __init__(self, values: np.ndarray, squares: float) -> None:
        self.values = tf.Variable(values.astype(np.float32, copy=False))
        self.squares = tf.Variable(tf.fill(values.shape, np.float32(squares)))

    def update(self, rows: tf.Tensor, slopes: tf.Tensor, rate: tf.Tensor) -> None:
        """Updates rows by Adagrad; the gradients of one row are summed first.

        Args:
            rows: rows to update, with repetitions.
            slopes: gradient of each of `rows`, (…, D).
            rate: learning rate.
        """
        unique, positions = tf.unique(rows)
        slopes = tf.math.unsorted_segment_sum(slopes, positions, tf.size(unique))
        self.squares.scatter_add(tf.IndexedSlices(slopes**2, unique))
        scale = tf.math.rsqrt(tf.gather(self.squares, unique))
        self.values.scatter_sub(tf.IndexedSlices(rate * slopes * scale, unique))


class Learner(abc.ABC):
    """A method at work on a corpus: makes examples, learns from a batch of them, gives vectors.

    An epoch has `num_blocks` blocks of examples of about the same size. The examples of a block
    depend on the seed, the epoch and the block alone, so that training resumes anywhere.

    Attributes:
        tables: name -> what is trained, and stored in a checkpoint.
        num_blocks: number of blocks of an epoch.
        amount: size of an epoch, for the progress bar.
        unit: unit of `amount`.
    """

    tables: dict[str, Table]
    num_blocks: int
    amount: int
    unit: str

    @abc.abstractmethod
    def examples(self, epoch: int, block: int) -> Any:
        """Returns the examples of a block in random order; `len` gives their number."""

    @abc.abstractmethod
    def step(self, examples: Any, part: slice, rng: np.random.Generator, share: float) -> None:
        """Learns from a batch.

        Args:
            examples: examples of a block.
            part: the batch, as a slice of `examples`.
            rng: random generator of this step.
            share: finished share of the training, from 0 to 1.
        """

    @abc.abstractmethod
    def word_vectors(self) -> WordVectors:
        """Returns the vectors as they are now, the most frequent words first."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns name -> array of all that is trained."""
        return {
            f"{name}/{part}": getattr(table, part).numpy()
            for name, table in self.tables.items()
            for part in ("values", "squares")
        }

    def restore(self, arrays: Arrays) -> None:
        """Sets all that is trained; `arrays` has the names and shapes of `arrays()`."""
        for name, table in self.tables.items():
            table.values.assign(arrays[f"{name}/values"])
            table.squares.assign(arrays[f"{name}/squares"])


def first_vectors(rows: int, width: int, seed: int) -> np.ndarray:
    """Returns random vectors (R, D) in the range of word2vec.c: from -0.5 / D to 0.5 / D."""
    rng = np.random.default_rng(seed)
    return (rng.random((rows, width), np.float32) - np.float32(0.5)) / np.float32(width)
