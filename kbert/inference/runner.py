"""Runs layers on rows of tokens, batch by batch.

Shapes: R rows, B rows of a batch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from kbert.core.graphs import on_cpu
from kbert.core.late import has_tensorflow, tf
from kbert.core.types import Tensors
from kbert.data.tables.rows import Rows, gather
from kbert.inference.batches import by_length, pad
from kbert.inference.forward import compiled


class Runner:
    """Runs a function of layers on rows, in batches of similar lengths and few shapes.

    Both parts are compiled once. The features of a batch are assembled on the CPU, in one graph for
    all rows with the same columns. The function runs on the device of the layers.

    Args:
        function: function from features to outputs, a tensor (B, …) or a structure of such.
        *layers: layers whose weights the function uses.
        assemble: function from the columns of B rows to features; it runs in a graph.
        check: whether to raise ValueError if outputs are not finite.

    Attributes:
        forward: compiled `function`, from arrays to arrays; another runtime may replace it.

    Example:
        >>> ids = tf.ragged.constant([[5, 6, 7], [8], [9, 4]], dtype=tf.int32)
        >>> rows = token_rows(np.array([3, 1, 2]), ids=ids)
        >>> runner = Runner(lambda features: features["ids"][:, 0] * 10,
        ...                 assemble=lambda columns: {"ids": columns["ids"].to_tensor()})
        >>> [(index.tolist(), found.tolist()) for index, found in runner.each(rows, batch_size=2)]
        [([0, 2], [50, 90]), ([1], [80])]
    """

    def __init__(
        self,
        function: Callable[[Tensors], Any],
        *layers: keras.layers.Layer,
        assemble: Callable[[dict[str, Any]], dict[str, Any]],
        check: bool = True,
    ) -> None:
        self.forward: Callable[[dict[str, Any]], Any] = compiled(
            function, *layers, check=check, eager_first=True
        )
        self._assemble = assemble
        self._assemblers: dict[tuple, Callable] = {}

    def each(self, rows: Rows, batch_size: int, **which: Any) -> Iterator[tuple[np.ndarray, Any]]:
        """Yields the outputs of the function for the rows, batch by batch.

        Args:
            rows: R rows.
            batch_size: maximum number of rows per batch.
            **which: arguments `numbers`, `cost` and `most` of `batches`.

        Yields:
            The numbers of B rows, and their outputs.
        """
        for index, features in self.batches(rows, batch_size, **which):
            outputs = self.forward(pad(features))
            yield index, keras.tree.map_structure(operator.itemgetter(slice(len(index))), outputs)

    def batches(
        self,
        rows: Rows,
        batch_size: int,
        *,
        numbers: np.ndarray | None = None,
        cost: np.ndarray | None = None,
        most: int | None = None,
    ) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        """Yields the features of batches of rows with similar lengths, the longest first.

        Args:
            rows: R rows.
            batch_size: maximum number of rows per batch.
            numbers: numbers of the rows to use; None = all rows.
            cost: memory cost of each row in a batch, (R,); None = equal costs.
            most: maximum cost of a batch, which is its number of rows times its largest row cost;
                None = no limit. A single row may exceed it.

        Yields:
            The numbers of B rows, and their features.
        """
        numbers = np.arange(len(rows)) if numbers is None else np.asarray(numbers)
        cost = np.ones(len(rows), np.int64) if cost is None else cost
        for near in by_length(rows.lengths[numbers], batch_size):
            index = numbers[near]
            largest = max(int(cost[index].max()), 1)
            step = len(index) if most is None else max(1, most // largest)
            for part in (index[i : i + step] for i in range(0, len(index), step)):
                yield part, self._features(rows, part)

    def _features(self, rows: Rows, index: np.ndarray) -> dict[str, Any]:
        """Returns the features of the rows of numbers `index`, assembled on the CPU."""
        if not has_tensorflow():
            return self._assemble(gather(rows.columns, index))
        kinds = tuple(
            (name, x.dtype, getattr(x, "ragged_rank", 0), *x.shape[1:])
            for name, x in rows.columns.items()
        )
        assembler = self._assemblers.get(kinds)
        if assembler is None:
            specs = {name: _for_any_size(x) for name, x in rows.columns.items()}
            assembler = on_cpu(
                lambda columns, index: self._assemble(gather(columns, index)),
                specs,
                tf.TensorSpec([None], tf.int64),
            )
            self._assemblers[kinds] = assembler
        return assembler(rows.columns, index)


def token_rows(lengths: np.ndarray, **ids: tf.RaggedTensor) -> Rows:
    """Returns rows of token ids, where each row is an example: one text or pair.

    Args:
        lengths: number of tokens of each row in a batch, (R,).
        **ids: columns of token ids, (R, ragged) each.

    Example:
        >>> ids = tf.ragged.constant([[5, 6], [8]], dtype=tf.int32)
        >>> token_rows(np.array([2, 1]), first=ids).columns["first"].to_list()
        [[5, 6], [8]]
    """
    return Rows(ragged=ids, dense={}, lengths=lengths, examples=np.arange(len(lengths)))


def _for_any_size(column: tf.Tensor | tf.RaggedTensor) -> tf.TypeSpec:
    """Returns the spec of a column for any number of rows, of any length if they are ragged."""
    if isinstance(column, tf.RaggedTensor):
        shape = [None] * column.shape.rank
        return tf.RaggedTensorSpec(shape, column.dtype, column.ragged_rank, column.row_splits.dtype)
    return tf.TensorSpec([None, *column.shape[1:]], column.dtype)
