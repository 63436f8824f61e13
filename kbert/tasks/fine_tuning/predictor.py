"""Prediction with a fine-tuned task: from a table of any size to rows, outputs and answers.

Shapes: N examples, R rows, B rows of a batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.finite import refuse_not_finite
from kbert.core.late import tf, try_without_tensorflow
from kbert.core.types import Tensors
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.io.progress import Progress
from kbert.layers.token_embeddings import whole_logits
from kbert.tasks.losses import Pair

# A part of a table and its rows of tokens, small enough for memory.
Part = tuple[Table, Rows]


class Predictor:
    """Runs a task's model over tables: compiled once, in batches of rows of similar length.

    A task's `predict` and `evaluate` use it.

    Args:
        task: a `kbert.tasks.FineTuningTask`.
        logits: function that computes the task's logits instead of its layers, from arrays to
            arrays; None = the task's layers, in a graph.
        outputs: function from logits and features that computes the outputs instead of the task's
            `outputs`; None = the task's.

    Attributes:
        logits: the argument.
    """

    def __init__(
        self,
        task: Any,
        logits: Callable[[Tensors], Tensors] | None = None,
        outputs: Callable[[Tensors, Tensors], dict[str, Any]] | None = None,
    ) -> None:
        self._task = task
        self._outputs: Callable[..., dict[str, Any]] = task.outputs if outputs is None else outputs
        self.logits = logits
        layers = task.parts.values() if logits is None else ()
        answer, measure = (functools.partial(self._run, labelled=x) for x in (False, True))
        # No check in evaluations: the loss already shows that values are not finite.
        self._runner = inference.Runner(answer, *layers, assemble=self._assemble, check=False)
        self._losses = inference.compiled(measure, *layers, check=False)
        if logits is not None:
            self._runner.forward = _by_runtime(answer, logits)
            self._losses = _by_runtime(measure, logits)

    def predict_and_count(
        self, table: Table, *, batch_size: int = inference.BATCH_SIZE, verbose: str | int = "auto"
    ) -> tuple[Sequence, int]:
        """Predicts a part of a longer input.

        Args:
            table: the part.
            batch_size: maximum number of rows in a batch.
            verbose: 1 = a progress bar, 0 = none, "auto" = a bar if it takes long.

        Returns:
            The answers, and the number of truncated examples, for `report_cut` on the whole input.
        """
        inference.check_batch_size(batch_size)
        answers, _, cut = try_without_tensorflow(
            lambda: self._answer(self.parts(table), len(table), batch_size, verbose)
        )
        return answers, cut

    def parts(self, table: Table, labelled: bool = False) -> Iterator[Part]:
        """Yields (part of the table, its rows of tokens) for parts that fit into memory.

        With `labelled` the rows have labels. A table without rows is one part.
        """
        numbers = range(len(table))
        for _, rows in inference.chunks(numbers):
            part = table if len(rows) == len(table) else table.take(rows)
            yield part, self._task.tokenize(part, labelled)
        if not numbers:
            yield table, self._task.tokenize(table, labelled)

    def measure(
        self, table: Table, parts: Iterable[Part], batch_size: int, verbose: str | int
    ) -> tuple[dict[str, float], int]:
        """Returns the values of an evaluation, and the number of truncated examples.

        Args:
            table: labelled examples.
            parts: the table in parts, from `parts`.
            batch_size: maximum number of rows in a batch.
            verbose: 1 = a progress bar, 0 = none, "auto" = a bar if it takes long.
        """
        if not len(table):
            raise ValueError("An evaluation needs examples. Received: a table without rows")
        answers, sums, cut = self._answer(parts, len(table), batch_size, verbose, labelled=True)
        losses = {name: float(total / count) for name, (total, count) in sums.items() if count}
        separate_losses = losses if len(losses) > 1 else {}
        return {
            "loss": sum(losses.values()),
            **separate_losses,
            **self._task.score(table, answers),
        }, cut

    def outputs(
        self,
        rows: Rows,
        batch_size: int,
        progress: Callable[[float], Any] = lambda share: None,
        labelled: bool = False,
    ) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
        """Runs the model on rows.

        Args:
            rows: the R rows.
            batch_size: maximum number of rows in a batch if they have `task.row_length` tokens;
                longer rows, with several windows, make smaller batches.
            progress: function that is called with the finished share of the rows after each batch.
            labelled: whether the rows have labels.

        Returns:
            The outputs of each row, R dicts of arrays; and the losses as arrays
            (Σ weight · loss, Σ weight), none without labels.

        Raises:
            ValueError: outputs without labels are not finite.
        """
        forward = self._losses if labelled else self._runner.forward
        outputs: list[dict[str, np.ndarray]] = [{} for _ in range(len(rows))]
        rows_done = 0
        sums: dict[str, np.ndarray] = {}
        for index, features in self.padded_batches(rows, batch_size):
            batch_outputs, losses = forward(features)
            if not labelled:
                refuse_not_finite(batch_outputs, "the model's answers")
            for position, row in enumerate(index):
                outputs[row] = {name: x[position] for name, x in batch_outputs.items()}
            sums = {name: sums.get(name, 0.0) + np.stack(pair) for name, pair in losses.items()}
            rows_done += len(index)
            progress(rows_done / len(rows))
        return outputs, sums

    def batches(
        self, rows: Rows, batch_size: int, numbers: np.ndarray | None = None
    ) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        """Yields the model's inputs in batches of rows of similar length, the longest first.

        Args:
            rows: the R rows.
            batch_size: maximum number of rows in a batch if they have `task.row_length` tokens.
            numbers: indices of the rows to use; None = all.

        Yields:
            The indices of B rows, and their features.
        """
        max_tokens = batch_size * self._task.row_length
        return self._runner.batches(
            rows, batch_size, numbers=numbers, cost=rows.lengths, most=max_tokens
        )

    def padded_batches(
        self, rows: Rows, batch_size: int
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yields `batches` padded by `inference.pad` to few shapes; copies of rows have weight 0.

        Args:
            rows: the R rows.
            batch_size: maximum number of rows in a batch if they have `task.row_length` tokens.

        Yields:
            The indices of B rows, and the model's input arrays.
        """
        for index, assembled in self.batches(rows, batch_size):
            features = inference.pad(assembled)
            features["label_weights"] = _without_copies(features["label_weights"], len(index))
            yield index, features

    def first_outputs(self, rows: Rows, count: int) -> dict[str, Any]:
        """Returns the outputs of the task's `call` for a batch of the first `count` rows."""
        row_numbers = np.arange(min(count, len(rows)))
        _, features = next(self.batches(rows, count, row_numbers))
        return whole_logits(self._task({name: np.asarray(x) for name, x in features.items()}))

    def check_trained(self, rows: Rows, count: int, what: str) -> None:
        """Raises ValueError if the answers to training rows are not finite.

        Args:
            rows: rows made by `tokenize`.
            count: number of rows to check, from the first.
            what: name of what is checked, for the message.
        """
        inference.check_sample(lambda: self.first_outputs(rows, count), what)

    def _assemble(self, columns: dict[str, Any]) -> dict[str, Any]:
        features = self._task.assemble(columns)
        any_feature = next(iter(features.values()))
        if isinstance(any_feature, np.ndarray):
            return {"label_weights": np.ones(len(any_feature), np.float32), **features}
        return {"label_weights": tf.ones(tf.shape(any_feature)[:1]), **features}

    def _answer(
        self,
        parts: Iterable[Part],
        count: int | None,
        batch_size: int,
        verbose: str | int,
        labelled: bool = False,
    ) -> tuple[Any, dict[str, Any], int]:
        """Returns all answers, the sums of the losses and the number of truncated examples.

        The sums are name -> (Σ weight · loss, Σ weight), none without `labelled`. `parts` are those
        of a table with `count` examples, which only the progress bar needs.
        """
        answers: list[Any] = []
        sums: dict[str, Any] = {}
        num_done, cut = 0, 0
        with Progress("", count, " examples", verbose=verbose) as bar:
            for part, rows in parts:

                def progress(share: float, before: int = num_done, size: int = len(part)) -> None:
                    bar.show(before + int(share * size))

                outputs, losses = self.outputs(rows, batch_size, progress, labelled)
                answers.append(self._task.decode(part, rows, outputs))
                sums = {name: sums.get(name, 0.0) + pair for name, pair in losses.items()}
                num_done += len(part)
                cut += rows.cut
        is_array = isinstance(answers[0], np.ndarray)
        return np.concatenate(answers) if is_array else list(chain(*answers)), sums, cut

    def _run(
        self, features: Tensors, logits: Tensors | None = None, *, labelled: bool
    ) -> tuple[dict[str, Any], dict[str, Pair]]:
        """Returns the outputs of a batch, and its losses, name -> (Σ weight · loss, Σ weight).

        `logits` are the batch's logits; None = those of the task's layers. Without `labelled` there
        are no losses.
        """
        logits = self._task(features) if logits is None else logits
        losses = self._task.terms(logits, features)[0] if labelled else {}
        pairs = {k: tuple(ops.cast(x, "float32") for x in pair) for k, pair in losses.items()}
        return self._outputs(logits, features), pairs


def _by_runtime(run: Callable, logits: Callable[[Tensors], Tensors]) -> Callable:
    """Returns a function from features to outputs and losses, as arrays, with a runtime's logits.

    `run` is `Predictor._run`; `logits` computes the logits from features instead of the task.
    """

    def forward(features: Tensors) -> Any:
        tensors = {name: ops.convert_to_tensor(x) for name, x in logits(features).items()}
        return keras.tree.map_structure(ops.convert_to_numpy, run(features, tensors))

    return forward


def _without_copies(weights: np.ndarray, rows: int) -> np.ndarray:
    """Sets the weights (B, …) after the first `rows` to 0: `inference.pad` fills up with copies."""
    is_real = np.arange(len(weights)) < rows
    return weights * is_real.reshape(-1, *[1] * (weights.ndim - 1)).astype(weights.dtype)
