"""How a fine-tuned task answers: a table of any size to rows, outputs of the model, answers.

Shapes: N examples, R rows, B rows of a batch.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from kbert import inference
from kbert.core.types import Tensors
from kbert.data.tables.rows import Rows, gather
from kbert.data.tables.table import Table
from kbert.finite import refuse_not_finite
from kbert.io.progress import Progress
from kbert.tasks.losses import Pair

# A part of a table and its rows of tokens: as much as memory always holds.
Part = tuple[Table, Rows]


class Predictor:
    """Runs a task's model over tables: compiled once, in batches of rows of like length.

    It is no part of the task: `predict` and `evaluate` of a task hand over to it.

    Args:
        task: a `kbert.tasks.FineTuningTask`.
        logits: what computes the task's logits in the place of its layers, from arrays to arrays;
            None = its layers, in a graph.
    """

    def __init__(self, task: Any, logits: Callable[[Tensors], Tensors] | None = None) -> None:
        self._task = task
        self._assemblers: dict[tuple, Callable] = {}
        self._outputs, self._losses = (
            self._forward(labelled, logits) for labelled in (False, True)
        )

    def _forward(self, labelled: bool, logits: Callable[[Tensors], Tensors] | None) -> Callable:
        """From the features of a batch to its outputs and losses, arrays."""
        run = functools.partial(self._run, labelled=labelled)
        if logits is None:
            return inference.compiled(run, *self._task.parts.values(), check=False)

        def by_runtime(features: Tensors) -> Any:
            found = run(
                features, {name: ops.convert_to_tensor(x) for name, x in logits(features).items()}
            )
            return tf.nest.map_structure(ops.convert_to_numpy, found)

        return by_runtime

    def predict_and_count(
        self, table: Table, *, batch_size: int = inference.BATCH_SIZE, verbose: str | int = "auto"
    ) -> tuple[Sequence, int]:
        """`predict` for a part of a longer input.

        Args:
            table: the part.
            batch_size: as in `predict`.
            verbose: as in `predict`.

        Returns:
            The answers, and how many examples were cut, for `report_cut` of the whole.
        """
        inference.check_batch_size(batch_size)
        answers, _, cut = self._answer(self.parts(table), len(table), batch_size, verbose)
        return answers, cut

    def parts(self, table: Table, labelled: bool = False) -> Iterator[Part]:
        """The table tokenised, so much of it at a time as memory always holds."""
        count = len(table)
        for start in range(0, max(count, 1), inference.CHUNK):
            rows = range(start, min(start + inference.CHUNK, count))
            part = table if len(rows) == count else table.take(rows)
            yield part, self._task.tokenize(part, labelled)

    def measure(
        self, table: Table, parts: Iterable[Part], batch_size: int, verbose: str | int
    ) -> tuple[dict[str, float], int]:
        """The values of an evaluation, and how many examples were cut.

        Args:
            table: labelled examples.
            parts: the table, as `parts` gives it.
            batch_size: as in `predict`.
            verbose: as in `predict`.
        """
        if not len(table):
            raise ValueError("An evaluation needs examples. Received: a table without rows")
        answers, sums, cut = self._answer(parts, len(table), batch_size, verbose, labelled=True)
        losses = {name: float(total / count) for name, (total, count) in sums.items() if count}
        shown = losses if len(losses) > 1 else {}
        return {"loss": sum(losses.values()), **shown, **self._task.score(table, answers)}, cut

    def outputs(
        self,
        rows: Rows,
        batch_size: int,
        progress: Callable[[float], Any] = lambda share: None,
        labelled: bool = False,
    ) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
        """Runs the model.

        Args:
            rows: R of them.
            batch_size: the most rows of `task.row_length` tokens in a batch; of longer ones, which
                are several windows, fewer.
            progress: told the share of the rows that is done, after each batch.
            labelled: whether the rows have labels.

        Returns:
            The outputs of each row, R dicts of arrays; and the losses as arrays
            (Σ weight · loss, Σ weight), none without labels.

        Raises:
            ValueError: without labels, outputs that are not finite.
        """
        forward = self._losses if labelled else self._outputs
        outputs: list[dict[str, np.ndarray]] = [{} for _ in range(len(rows))]
        done = 0
        sums: dict[str, np.ndarray] = {}
        for index, features in self.padded_batches(rows, batch_size):
            found, losses = forward(features)
            if not labelled:  # an evaluation says by its loss that something is wrong
                refuse_not_finite(found, "the model's answers")
            for place, row in enumerate(index):
                outputs[row] = {name: x[place] for name, x in found.items()}
            sums = {name: sums.get(name, 0.0) + np.stack(pair) for name, pair in losses.items()}
            done += len(index)
            progress(done / len(rows))
        return outputs, sums

    def batches(
        self, rows: Rows, batch_size: int, numbers: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        """What the model reads of rows of like length, the longest first.

        Args:
            rows: R of them.
            batch_size: as in `outputs`.
            numbers: of the rows that are wanted; None = all.

        Yields:
            The numbers of B rows, and their features.
        """
        numbers = np.arange(len(rows)) if numbers is None else numbers
        for index in self._indices(rows.lengths[numbers], batch_size):
            yield numbers[index], self._assemble(rows, numbers[index])

    def padded_batches(
        self, rows: Rows, batch_size: int
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """`batches` in few shapes, as `inference.pad` makes them; copies of rows count nothing."""
        for index, assembled in self.batches(rows, batch_size):
            features = inference.pad(assembled)
            features["label_weights"] = _without_copies(features["label_weights"], len(index))
            yield index, features

    def _indices(self, lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
        most = batch_size * self._task.row_length
        for index in inference.by_length(lengths, batch_size):
            step = max(1, most // max(int(lengths[index[0]]), 1))
            yield from (index[i : i + step] for i in range(0, len(index), step))

    def _assemble(self, rows: Rows, index: Any) -> dict[str, tf.Tensor]:
        kinds = tuple(
            (name, x.dtype, getattr(x, "ragged_rank", 0), *x.shape[1:])
            for name, x in rows.columns.items()
        )
        made = self._assemblers.get(kinds)
        if made is None:

            def assemble(columns: dict[str, Any], index: tf.Tensor) -> dict[str, tf.Tensor]:
                features = self._task.assemble(gather(columns, index))
                features.setdefault("label_weights", tf.ones(tf.shape(index)))
                return features

            specs = {name: _for_any_size(x) for name, x in rows.columns.items()}
            made = inference.on_cpu(assemble, specs, inference.ROWS)
            self._assemblers[kinds] = made
        return made(rows.columns, index)

    def _answer(
        self,
        parts: Iterable[Part],
        count: int | None,
        batch_size: int,
        verbose: str | int,
        labelled: bool = False,
    ) -> tuple[Any, dict[str, Any], int]:
        """Answers for all examples, the sums of the losses, how many examples were cut."""
        answers: list[Any] = []
        sums: dict[str, Any] = {}
        done, cut = 0, 0
        with Progress("", count, " examples", verbose=verbose) as bar:
            for part, rows in parts:

                def progress(share: float, before: int = done, size: int = len(part)) -> None:
                    bar.show(before + int(share * size))

                outputs, losses = self.outputs(rows, batch_size, progress, labelled)
                answers.append(self._task.decode(part, rows, outputs))
                sums = {name: sums.get(name, 0.0) + pair for name, pair in losses.items()}
                done += len(part)
                cut += rows.cut
        is_array = isinstance(answers[0], np.ndarray)
        return np.concatenate(answers) if is_array else list(chain(*answers)), sums, cut

    def _run(
        self, features: Tensors, logits: Tensors | None = None, *, labelled: bool
    ) -> tuple[dict[str, Any], dict[str, Pair]]:
        logits = self._task(features) if logits is None else logits
        losses = self._task.terms(logits, features)[0] if labelled else {}
        pairs = {k: tuple(ops.cast(x, "float32") for x in pair) for k, pair in losses.items()}
        return self._task.outputs(logits, features), pairs


def _without_copies(weights: np.ndarray, rows: int) -> np.ndarray:
    """The copies that `inference.pad` fills a batch up with count nothing."""
    real = np.arange(len(weights)) < rows
    return weights * real.reshape(-1, *[1] * (weights.ndim - 1)).astype(weights.dtype)


def _for_any_size(column: tf.Tensor | tf.RaggedTensor) -> tf.TypeSpec:
    if isinstance(column, tf.RaggedTensor):
        shape = [None] * column.shape.rank
        return tf.RaggedTensorSpec(shape, column.dtype, column.ragged_rank, column.row_splits.dtype)
    return tf.TensorSpec([None, *column.shape[1:]], column.dtype)
