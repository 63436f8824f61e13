"""Tasks on tables: they train, predict and evaluate on examples in columns.

Shapes: N examples, R rows after tokenisation, B rows of a batch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.late import tf, try_without_tensorflow
from kbert.core.options import Options, takes
from kbert.core.types import Tensors, Terms
from kbert.data.readers.tables import if_file
from kbert.data.tables.bucketing import bucketed_batches
from kbert.data.tables.rows import Rows, join
from kbert.data.tables.shards import StoredRows
from kbert.data.tables.table import Table, as_table
from kbert.tasks.columns import Columns
from kbert.tasks.fine_tuning.objective import TableObjective
from kbert.tasks.fine_tuning.options import RowOptions
from kbert.tasks.fine_tuning.predictor import Predictor
from kbert.tasks.fine_tuning.settings import FitSettings
from kbert.tasks.fine_tuning.task_options import expose_options
from kbert.tasks.task import Task
from kbert.training.run.history import History
from kbert.training.run.record import SAME, Resume
from kbert.training.step.keras_arguments import (
    EVALUATE,
    PREDICT,
    refuse_others,
    refusing_x,
)


class TableTask(Task):
    """A task on a table of examples, on any model.

    `FineTuningTask` is the one on an encoder, and says what a task declares. A subclass defines
    `tokenize`, `assemble`, `terms`, `decode`, `score` and `check_labels`, and sets `chosen` to its
    settings, an instance of `options`.

    Args:
        model: model that the task is built on.
        tokenizer: tokenizer whose ids index the model's token table.
        name: name of the task.
    """

    chosen: Any
    # The named edit of the model that the task uses, see `EncoderTask`.
    variant: str | None = None
    columns: ClassVar[Columns] = Columns()
    options: ClassVar[type[Options]] = RowOptions
    metric: ClassVar[str] = "loss"
    # Names of the metrics that are percentages, for means over several tasks.
    percentages: ClassVar[Collection[str]] = ()
    # Whether `prepare_rows` supports the task: its rows must not depend on the whole table.
    prepares_rows: ClassVar[bool] = True
    # Whether labels stay valid if words of the texts are replaced by similar words.
    augmentable: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        expose_options(cls)

    @property
    def settings(self) -> dict[str, Any]:
        return self.chosen.to_dict()

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        """Tokenises a table, or a part of one, to rows; with `labelled` they have their labels."""
        raise NotImplementedError(f"{type(self).__name__} must define `tokenize`.")

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Returns batch-first features from the columns of B `Rows`; runs in a graph.

        The caller adds `label_weights` if there are none, and sets them to 0 for copies of rows
        that fill up a batch.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `assemble`.")

    def check_labels(self, table: Table) -> None:
        """Raises ValueError if a table has no labels, or an invalid one."""
        self.tokenize(table, labelled=True)

    def as_table(self, data: Any, labels: Any = None) -> Table:
        """Converts data, with the labels if it has none, to a table; see `kbert.data.as_table`.

        The path of a file is read by `kbert.data.read_table`, a `tfds:` name by `read_tfds`.
        """
        return as_table(if_file(data), labels)

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        """Returns losses and metrics of a labelled batch, from the logits of `call`.

        Both are dicts name -> (Σ weight · value, Σ weight), with `label_weights` as the weights.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `terms`.")

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Sequence:
        """Returns one answer per example of the table.

        `outputs[i]` are the `outputs` of row i of `rows`, as arrays without the batch axis.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `decode`.")

    def score(self, table: Table, answers: Sequence) -> dict[str, float]:
        """Returns the task's metrics {name: number}: `answers` of `decode` against the labels."""
        raise NotImplementedError(f"{type(self).__name__} must define `score`.")

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        """Returns the tensors that `decode` needs, by `keras.ops`; by default the logits, float32.

        The tensors are batch-first, float32 or int32. The batch may have no labels.
        """
        return {name: ops.cast(x, "float32") for name, x in logits.items()}

    def check_held_out(self, table: Table, held_out: Table) -> None:
        """Raises ValueError if the labels of held-out data do not fit the training data, `table`.

        By default accepts all.
        """

    def settings_of_data(self, table: Table) -> dict[str, Any]:
        """Returns name -> value of the settings that follow from training data, for `fit` to set.

        By default empty. Settings that the user has chosen are not among them.
        """
        return {}

    def main_metric(self, held_out: Table) -> str:
        """Returns the metric that selects the best weights; by default `metric`."""
        return self.metric

    def score_names(self, table: Table) -> list[str] | None:
        """Returns the names of the metrics for a table, if known before prediction, else None."""

    def reports(self, table: Table, answers: Sequence) -> list[Any]:
        """Returns reports on labelled answers, in addition to metrics; the most important first.

        Each report has a text; one with a confusion matrix is a `kbert.metrics.Report`.
        """
        return []

    @classmethod
    def takes_label_lists(cls, settings: Mapping[str, Any]) -> bool:
        """Returns whether rows have lists of labels, given constructor arguments; by default no."""
        return False

    @classmethod
    def adapt_table(
        cls, table: Table, columns: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Table:
        """Converts a table read from a file to the form of the task; by default unchanged.

        Args:
            table: the columns that were read.
            columns: the task's name of a column -> the file's name, or several names.
            settings: the known constructor arguments.
        """
        return table

    def describe_example(self, table: Table, row: int) -> str:
        """Returns the expected answer of an example, for a preview; by default its label."""
        label = table[self.columns.label][row]
        if isinstance(label, list | tuple):
            return ", ".join(map(str, label)) or "no label"
        return str(label)

    def token_marks(self, features: Mapping[str, np.ndarray]) -> dict[int, str]:
        """Returns token index -> text that a preview shows after that token: its expected answer.

        `features` are those of one row, without the batch axis. By default empty.
        """
        return {}

    @classmethod
    def can_tune(cls, settings: Mapping[str, Any]) -> bool:
        """Returns whether a task with these settings has a threshold that `tune` can set."""
        return False

    def tune(self, data: Any, **options: Any) -> str:
        """Sets the threshold to the best value on labelled data; returns it as "name=value"."""
        raise NotImplementedError(f"{type(self).__name__} must define `tune`.")

    def encode_texts(self, texts: Sequence[str]) -> tf.RaggedTensor:
        """Returns the token ids of texts, (N, ragged) int32, computed in chunks to bound memory."""
        chunks = [chunk for _, chunk in inference.chunks(texts)] or [[]]
        return join([self.tokenizer.encode(chunk) for chunk in chunks])

    def make_objective(self, data: Any, labels: Any = None, **settings: Any) -> TableObjective:
        return TableObjective(self, data, labels, **settings)

    @takes(FitSettings)
    @refusing_x
    def fit(  # type: ignore[override]  # a table and labels where Keras has x and y
        self,
        data: Any,
        labels: Any = None,
        *,
        validation_data: Any = None,
        validation_split: float = 0.0,
        model_dir: str | os.PathLike | None = None,
        resume: Resume = SAME,
        verbose: str | int = "auto",
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **settings: Any,
    ) -> History:
        """Trains on a table of labelled examples.

        If `compile` was not called, the optimizer is AdamW with bias correction (Zhang et al. 2021,
        "Revisiting few-sample BERT fine-tuning", https://arxiv.org/abs/2006.05987), linear warm-up
        and linear decay. With a callback that sets the learning rate, such as Keras'
        `LearningRateScheduler`, the rate starts as a constant. An adapter has its own default rate.
        The same seed and initial weights give the same numbers. A stopped run with a `model_dir`
        resumes when called again, with the same numbers as an uninterrupted run.

        Args:
            data: labelled examples, as `kbert.data.as_table` takes them: a list of texts or
                (first, second) tuples, columns, a frame, a `Table`, …; the path of a file that
                `kbert.data.read_table` reads, with kbert's names of columns; a `tfds:` name for
                `kbert.data.read_tfds`; or a folder that `kbert.tasks.prepare_rows` wrote, for
                tables larger than memory.
            labels: labels of the examples, if `data` has none.
            validation_data: held-out examples in a form of `data`, or a tuple of data and labels;
                evaluated after each epoch.
            validation_split: share of `data` that is held out instead: its last rows, which are
                evaluated and not trained on. Shuffle rows that are sorted by label first.
            model_dir: folder for checkpoints and logs, from which training resumes. If the run in
                it is complete, the task gets its weights.
            resume: "same" raises if `model_dir` was begun with other data or settings; "changed"
                resumes with the new ones; names of settings allow only these to change.
            verbose: 1 = a progress bar, 2 = a line per epoch, 0 = silent; "auto" = 1 in a terminal
                or a notebook, else 2.
            callbacks: Keras callbacks: a list, one or None.
            **settings: the fields of `FitSettings`:

                {options}

        Returns:
            Losses and values of each epoch.

        Raises:
            TypeError: an argument is unknown; for arguments of Keras the message has the
                alternative.
            ValueError: data or settings do not fit (bad data is named by file and line); settings
                of the optimizer, such as `learning_rate`, are given after `compile`; or the final
                weights give answers that are not finite.
            NonFiniteLoss: a loss is NaN or infinite; the weights are the last finite ones.
            KeyboardInterrupt: after Ctrl-C; with a `model_dir`, once a checkpoint is written.
                (SystemExit after SIGTERM.)
            RuntimeError: another process writes to `model_dir`.
        """
        return super().fit(
            data,
            labels,
            validation_data=validation_data,
            validation_split=validation_split,
            model_dir=model_dir,
            resume=resume,
            verbose=verbose,
            callbacks=callbacks,
            **settings,
        )

    def build(self, input_shape: Any | None = None) -> None:
        """Checks the settings; the parts are built when they are created."""
        self._check_settings()

    def _check_settings(self) -> None:
        """Raises ValueError if the settings do not fit each other, the model or the tokenizer.

        The constructor calls it by `build`, and every change of a setting does.
        """

    def _settings_changed(self) -> None:
        self._check_settings()
        super()._settings_changed()
        for traced in ("predictor", "_gated"):  # the latter is that of `attributions`
            self.__dict__.pop(traced, None)

    @functools.cached_property
    def predictor(self) -> Predictor:
        """The `Predictor` that runs the task over tables."""
        return Predictor(self)

    @refusing_x
    def predict(
        self,
        data: Any,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
        **others: Any,
    ) -> Sequence:
        """Predicts an answer for each example.

        Args:
            data: examples in the form of `fit`, without labels; or one text. A string is a text,
                so a file is a `pathlib.Path`; rows that its reader leaves out have no answer.
            batch_size: maximum number of rows in a batch.
            verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.
            **others: not supported; for arguments of Keras' `predict` the error has the
                alternative.

        Returns:
            One answer per example, in order; see the task.

        Raises:
            TypeError: an argument is not supported.
            ValueError: the data does not fit.
        """
        refuse_others(others, PREDICT, "predict")
        table = self.as_table([data] if isinstance(data, str | bytes) else data)
        answers, cut = self.predictor.predict_and_count(
            table, batch_size=batch_size, verbose=verbose
        )
        self.report_cut(cut, len(table))
        return answers

    @refusing_x
    def evaluate(  # type: ignore[override]  # a table and labels where Keras has x and y
        self,
        data: Any,
        labels: Any = None,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
        **others: Any,
    ) -> dict[str, float]:
        """Returns the task's metrics on labelled examples, and the mean loss.

        Args:
            data: labelled examples in the form of `fit`.
            labels: labels of the examples, if `data` has none.
            batch_size: maximum number of rows in a batch.
            verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.
            **others: not supported; for arguments of Keras' `evaluate` the error has the
                alternative.

        Returns:
            `loss`, and the metrics of the task's `score`.

        Raises:
            TypeError: an argument is not supported.
            ValueError: the data does not fit, or has no rows.
        """
        refuse_others(others, EVALUATE, "evaluate")
        inference.check_batch_size(batch_size)
        table = self.as_table(data, labels)

        def measure() -> tuple[dict[str, float], int]:
            parts = self.predictor.parts(table, labelled=True)
            return self.predictor.measure(table, parts, batch_size, verbose)

        scores, cut = try_without_tensorflow(measure)
        self.report_cut(cut, len(table))
        return scores

    def report(
        self,
        data: Any,
        labels: Any = None,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
    ) -> Any:
        """Returns a report on labelled examples, such as the scores of each class.

        Args:
            data: labelled examples in the form of `fit`.
            labels: labels of the examples, if `data` has none.
            batch_size: maximum number of rows in a batch.
            verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.

        Returns:
            The first of the task's `reports`; `print` shows it.

        Raises:
            ValueError: the data does not fit, or the task has no report.
        """
        table = self.as_table(data, labels)
        self.check_labels(table)
        reports = self.reports(table, self.predict(table, batch_size=batch_size, verbose=verbose))
        if not reports:
            raise ValueError(
                "report() is not supported by this task: use evaluate() for its scores. "
                f"Received: a {type(self).__name__}"
            )
        return reports[0]

    def batches(self, rows: Rows | StoredRows, **options: Any) -> tf.data.Dataset:
        """Returns a dataset of batches of the rows, for `fit`; options as in `bucketed_batches`."""
        return bucketed_batches(rows, self.assemble, **options)

    def weigh_classes(self, rows: Rows, class_weights: str | Mapping[str, float]) -> Rows:
        """Returns the rows with `label_weights` by class; by default raises ValueError.

        `class_weights` are name of a class -> weight, or "balanced", by inverse frequency.
        """
        raise ValueError(
            "class_weights are supported for tasks with classes only. Received: "
            f"class_weights={class_weights!r} for a {type(self).__name__}"
        )
