"""The model of a fine-tuned task run over tokenised rows, compiled once, in batches of like length.

Shapes: R rows, B rows of a batch.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from kbert import inference
from kbert.data.tables.rows import Rows, gather

SECONDS_BEFORE_A_BAR = 2.0


class Runner:
    """Outputs of a task's model for rows, and the sums of its losses.

    Args:
        task: a `FineTuned`.
        labelled: whether the rows have labels.
    """

    def __init__(self, task: Any, labelled: bool) -> None:
        self._task = task
        self._labelled = labelled
        self._assemblers: dict[str, Callable] = {}
        self._forward = inference.compiled(self._run, *task.parts.values())

    def __call__(
        self, rows: Rows, batch_size: int, progress: Callable[[float], Any]
    ) -> tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]:
        """Runs the model.

        Args:
            rows: R of them.
            batch_size: the most rows of `task.row_length` tokens in a batch; of longer ones, which
                are several windows, fewer.
            progress: told the share of the rows that is done, after each batch.

        Returns:
            The outputs of each row, R dicts of arrays; and the losses as arrays
            (Σ weight · loss, Σ weight), none without labels.
        """
        outputs: list[dict[str, np.ndarray]] = [{} for _ in range(len(rows))]
        done = 0
        sums: dict[str, np.ndarray] = {}
        for index, assembled in self.batches(rows, batch_size):
            features = inference.pad(assembled)
            features["label_weights"] = _without_copies(features["label_weights"], len(index))
            found, losses = self._forward(features)
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
            batch_size: as in a call.
            numbers: of the rows that are wanted; None = all.

        Yields:
            The numbers of B rows, and their features.
        """
        numbers = np.arange(len(rows)) if numbers is None else numbers
        for index in self._batches(rows.lengths[numbers], batch_size):
            yield numbers[index], self._assemble(rows, numbers[index])

    def _batches(self, lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
        most = batch_size * self._task.row_length
        for index in inference.by_length(lengths, batch_size):
            step = max(1, most // max(int(lengths[index[0]]), 1))
            yield from (index[i : i + step] for i in range(0, len(index), step))

    def _assemble(self, rows, index):
        specs = {name: _for_any_size(x) for name, x in rows.columns.items()}
        made = self._assemblers.get(repr(specs))
        if made is None:

            def assemble(columns, index):
                features = self._task.assemble(gather(columns, index))
                features.setdefault("label_weights", tf.ones(tf.shape(index)))
                return features

            made = inference.on_cpu(assemble, specs, inference.ROWS)
            self._assemblers[repr(specs)] = made
        return made(rows.columns, index)

    def _run(self, features):
        logits = self._task(features)
        losses = self._task.terms(logits, features)[0] if self._labelled else {}
        pairs = {k: tuple(ops.cast(x, "float32") for x in pair) for k, pair in losses.items()}
        return self._task.outputs(logits, features), pairs


def _without_copies(weights, rows):
    """The copies that `inference.pad` fills a batch up with count nothing."""
    real = np.arange(len(weights)) < rows
    return weights * real.reshape(-1, *[1] * (weights.ndim - 1)).astype(weights.dtype)


def _for_any_size(column):
    if isinstance(column, tf.RaggedTensor):
        shape = [None] * column.shape.rank
        return tf.RaggedTensorSpec(shape, column.dtype, column.ragged_rank, column.row_splits.dtype)
    return tf.TensorSpec([None, *column.shape[1:]], column.dtype)


class ProgressBar:
    """A bar that appears where the work takes longer than a moment.

    Args:
        total: examples.
        verbose: "auto", 1 for a bar at once, 0 for none.
    """

    def __init__(self, total: int, verbose: str | int) -> None:
        from tqdm.auto import tqdm

        delay = SECONDS_BEFORE_A_BAR if verbose == "auto" else 0
        self._bar = tqdm(total=total, unit=" examples", delay=delay, disable=not verbose)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._bar.close()

    def show(self, before: int, size: int, share: float) -> None:
        """Shows that a share of `size` more examples is done, after those `before`."""
        self._bar.update(before + int(share * size) - self._bar.n)
