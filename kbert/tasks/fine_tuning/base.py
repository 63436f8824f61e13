"""The base of fine-tuned tasks: from a table of texts to a trained and evaluated model.

Shapes: N examples, R rows after tokenisation, B rows of a batch.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.late import tf
from kbert.core.options import Options, takes
from kbert.core.protocols import TokenizerLike
from kbert.core.types import MaybeNone, Tensor, Tensors, Terms
from kbert.data.tables.bucketing import BUCKET, bucketed_batches
from kbert.data.tables.rows import Rows, join
from kbert.data.tables.shards import StoredRows
from kbert.data.tables.table import Table, as_table
from kbert.layers import Dropout
from kbert.signatures.row_export import RowExport
from kbert.tasks.columns import Columns
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.file_answers import FileAnswers
from kbert.tasks.fine_tuning.auxiliary_lm import auxiliary_weight, language_model_loss
from kbert.tasks.fine_tuning.logit_rows import LogitRows
from kbert.tasks.fine_tuning.objective import TableObjective
from kbert.tasks.fine_tuning.options import DECODER_OPTIONS, AuxiliaryOptions, RowOptions
from kbert.tasks.fine_tuning.predictor import Predictor
from kbert.tasks.fine_tuning.settings import FitSettings
from kbert.tasks.fine_tuning.task_options import expose_options, options_of
from kbert.tasks.fine_tuning.text_rows import TextRows
from kbert.tasks.losses import Prediction
from kbert.training.run.history import History
from kbert.training.run.record import SAME, Resume
from kbert.training.step.keras_arguments import (
    EVALUATE,
    PREDICT,
    refuse_others,
)

# Name of a column -> a column with one example.
_SAMPLES: dict[str, list[Any]] = {
    **{name: ["a"] for name in ("text", "first", "second", "question", "context")},
    **{"words": [["a"]], "choices": [["a", "a"]]},
}


class TableAnswers(FileAnswers):
    """Files with one answer per example."""

    program = "kbert-predict"

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        answers, cut = self.task.predictor.predict_and_count(
            table, batch_size=batch_size, verbose=0
        )
        return self.written(answers), cut


class FineTuningTask(EncoderTask):
    """A task on a table of examples: one class in one file.

    `fit`, the `Predictor`, the experiments and the programs use only what is declared here. A
    subclass declares

    - `kind`: the name of the task in presets, programs and experiments;
    - `columns`: the columns that a table must have, see `Columns`;
    - `options`: the settings, an `Options` dataclass that extends `RowOptions`. They are
      constructor arguments, saved in presets, and flags of the programs. Each is an attribute of
      the task; `chosen` has all of them;
    - `metric`: name of the evaluation value that selects the best weights: those with the largest
      value, or for "loss" with the smallest; `shown_metrics`: the logged values that a progress
      line shows;
    - `predicts_per`: whether it makes one prediction per "row", one per "token", or a number for
      each "choice" of a row;

    and defines, in addition to `parts` and a constructor that makes the head and calls `build`:

    - `targets(table)` -> (N, …), the `labels` of the loss, for a task on whole texts and pairs,
      which has a `TextRows` in `texts`. It raises ValueError for an invalid label.
    - or, for other tasks, `tokenize(table, labelled)` -> `Rows`: the rows of a table or of a part
      of it. With `labelled` it checks the labels and adds `labels` (R, …) to the columns, and
      `label_weights` if not every row has weight 1. `Rows.lengths` are the tokens of each row in a
      batch, `Rows.examples` the example of each row, `Rows.cut` the number of truncated examples.
    - `call(batch, training=False)` -> dict of logits, by `self.encode(batch, training)`. If the
      task supports decoders, `return_read=True` adds "read", for `language_model_loss`.
    - `terms(logits, batch)` -> losses and metrics of a labelled batch, as `loss_terms` returns
      them: two dicts of pairs (Σ weight · value, Σ weight), weighted by `batch["label_weights"]`.
      (Keras already uses the name `losses`.)
    - `decode(table, rows, outputs)` -> a list or array with one answer per example; `outputs[i]`
      are the `outputs` of row `i`, NumPy arrays without the batch axis.
    - `score(table, answers)` -> dict of the task's official metrics, floats, against the table's
      labels.
    - `signatures()`: the entry points of an export; see `Task`.

    The rest has defaults: `assemble`, `outputs`, `predictions`, `check_labels`, `check_held_out`,
    `reports`, `adapt_table`, `describe_example`, `token_marks`, `tune`, `sample_outputs`.

    Args:
        encoder: a `kbert.Encoder`, or another encoder that the task supports.
        tokenizer: the encoder's tokenizer.
        name: name of the model; None = the class name in snake case.
        **options: the fields of the class's `options`.

    Raises:
        ValueError: a setting is out of range or does not fit the encoder, or the encoder lacks the
            pooler that the task needs.
    """

    file_answers: ClassVar[type[FileAnswers]] = TableAnswers
    row_export: ClassVar[type[RowExport]] = LogitRows
    columns: ClassVar[Columns] = Columns()
    options: ClassVar[type[Options]] = RowOptions
    metric: ClassVar[str] = "loss"
    predicts_per: ClassVar[str] = "row"
    # Whether `prepare_rows` supports the task: its rows must not depend on the whole table.
    prepares_rows: ClassVar[bool] = True
    # Whether labels stay valid if words of the texts are replaced by similar words.
    augmentable: ClassVar[bool] = False
    # How whole texts become rows, for tasks on whole texts.
    texts: TextRows | MaybeNone = None
    auxiliary_lm_weight: float | None = None
    # A TensorFlow graph accepts any width; other backends compile for each new width.
    width_multiple = BUCKET if keras.backend.backend() == "tensorflow" else 8 * BUCKET

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        expose_options(cls)

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: TokenizerLike,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(encoder, tokenizer, name=name or _snake_case(type(self).__name__))
        self.chosen = options_of(type(self), options)
        max_positions = encoder.config.max_positions
        if self.max_length is not None and self.max_length > max_positions:
            raise ValueError(
                f"max_length must be between 4 and {max_positions} (the encoder's max_positions). "
                f"Received: max_length={self.max_length!r}"
            )
        if self.needs_pooler and encoder.pooler is None:
            raise ValueError(
                "The head reads the pooled vector, so the encoder must have a pooler: "
                f"{type(self).__name__}.from_preset(path, new_head=True, …) initialises a new one. "
                f"Received: a {type(encoder).__name__} without one (pooler_activation=None)"
            )
        if isinstance(self.chosen, AuxiliaryOptions):
            weight = auxiliary_weight(encoder, self.auxiliary_lm_weight)
            if self.reads_by_decoder:
                self.auxiliary_lm_weight = weight  # presets store the current default

    @property
    def settings(self) -> dict[str, Any]:
        settings = self.chosen.to_dict()
        omitted = () if self.reads_by_decoder else DECODER_OPTIONS
        return {name: value for name, value in settings.items() if name not in omitted}

    def make_dropout(self) -> Dropout:
        """Returns the dropout before a head, at the rate of the option `dropout` or the encoder."""
        rate = self.encoder.config.dropout if self.dropout is None else self.dropout
        return Dropout(rate, dtype=self.encoder.dtype_policy, name="dropout")

    @property
    def row_length(self) -> int:
        """Maximum number of tokens in a row: `max_length`, or the encoder's `max_positions`."""
        return self.max_length or self.encoder.config.max_positions

    @property
    def remedy(self) -> str:
        return "" if self.texts is None else self.texts.remedy

    def targets(self, table: Table) -> np.ndarray:
        """Returns the labels (N, …) of a table of texts; raises ValueError for an invalid one."""
        raise NotImplementedError(f"{type(self).__name__} must define `targets` or `tokenize`.")

    def as_table(self, data: Any, labels: Any = None) -> Table:
        """Converts data, with the labels if it has none, to a table; see `kbert.data.as_table`."""
        return as_table(data, labels)

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        """Tokenises a table, or a part of one, to rows; with `labelled` they have their labels."""
        rows = self.texts.rows(table)
        return (
            dataclasses.replace(rows, dense={"labels": self.targets(table)}) if labelled else rows
        )

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Packs token ids of texts, or of pairs with `second`, into the encoder's inputs (B, T).

        With windows they are (B, W, T); see `TextRows.build_inputs`.
        """
        build = super().build_inputs if self.texts is None else self.texts.build_inputs
        return build(first, second)

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

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Returns batch-first features from the columns of B `Rows`; runs in a graph.

        By default the ragged columns `first` and `second` are packed to `token_ids`, `segment_ids`
        and `padding_mask` (B, T), and the dense columns stay. The caller adds `label_weights` if
        there are none, and sets them to 0 for copies of rows that fill up a batch.
        """
        columns = dict(columns)
        features = self.build_inputs(columns.pop("first"), columns.pop("second", None))
        return {**features, **columns}

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        """Returns the tensors that `decode` needs, by `keras.ops`; by default the logits, float32.

        The tensors are batch-first, float32 or int32. The batch may have no labels.
        """
        return {name: ops.cast(x, "float32") for name, x in logits.items()}

    def sample_outputs(self) -> dict[str, Any]:
        columns = next((x for x in self.columns.inputs if set(x) <= set(_SAMPLES)), None)
        is_own = not type(self).tokenize.__module__.startswith("kbert.")
        if columns is None or is_own:  # a user's task, whose texts are unknown
            return super().sample_outputs()
        rows = self.tokenize(as_table({name: _SAMPLES[name] for name in columns}), labelled=False)
        return self.predictor.first_outputs(rows, 1)

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        """Returns the predictions by name, to compare a student with its teacher.

        By default all logits are numbers, compared by their squared difference (Ba and Caruana
        2014, https://arxiv.org/abs/1312.6184).
        """
        return {
            name: Prediction("number", x, _as_wide(batch["label_weights"], x))
            for name, x in logits.items()
        }

    def check_labels(self, table: Table) -> None:
        """Raises ValueError if a table has no labels, or an invalid one."""
        if self.texts is None:
            self.tokenize(table, labelled=True)
        else:
            self.targets(table)

    def check_held_out(self, table: Table, held_out: Table) -> None:
        """Raises ValueError if the labels of held-out data do not fit the training data, `table`.

        By default accepts all.
        """

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

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        """Returns the task's terms, for a decoder with the language-model loss on the same texts.

        (Radford et al. 2018, equation 5.) "lm_loss" is the mean over the tokens of a batch.
        "auxiliary" is that times `auxiliary_lm_weight`, and is added to the task's loss. It helps
        to learn the task; an evaluation uses only the task's loss.
        """
        if not self.auxiliary_lm_weight:
            return self.terms(self(batch, training=training), batch)
        logits = dict(self(batch, training=training, return_read=True))
        read = logits.pop("read")
        total, count = language_model_loss(self.encoder, read, batch["label_weights"])
        losses, metrics = self.terms(logits, batch)
        losses = {**losses, "auxiliary": (self.auxiliary_lm_weight * total, count)}
        return losses, {**metrics, "lm_loss": (total, count)}

    def encode_texts(self, texts: Sequence[str]) -> tf.RaggedTensor:
        """Returns the token ids of texts, (N, ragged) int32, computed in chunks to bound memory."""
        chunks = [chunk for _, chunk in inference.chunks(texts)] or [[]]
        return join([self.tokenizer.encode(chunk) for chunk in chunks])

    def make_objective(self, data: Any, labels: Any = None, **settings: Any) -> TableObjective:
        return TableObjective(self, data, labels, **settings)

    @takes(FitSettings)
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
                (first, second) tuples, columns, a frame, a `Table` from a file, …; or a folder that
                `kbert.tasks.prepare_rows` wrote, for tables larger than memory.
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
            callbacks: Keras callbacks.
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

    @functools.cached_property
    def predictor(self) -> Predictor:
        """The `Predictor` that runs the task over tables."""
        return Predictor(self)

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
            data: examples in the form of `fit`, without labels; or one text.
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
        parts = self.predictor.parts(table, labelled=True)
        scores, cut = self.predictor.measure(table, parts, batch_size, verbose)
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


def _snake_case(name: str) -> str:
    """Converts the name of a class to that of a model.

    >>> _snake_case("TextClassifier")
    'text_classifier'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _as_wide(weights: Any, values: Any) -> Tensor:
    """Broadcasts weights (B, …) to values (B, …) with more axes."""
    missing = len(values.shape) - len(weights.shape)
    weights = ops.reshape(weights, (*ops.shape(weights), *[1] * missing))
    return ops.broadcast_to(weights, ops.shape(values))
