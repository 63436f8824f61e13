"""What every fine-tuned task shares: from a table of texts to a trained, measured model.

Shapes: N examples, R rows that they are tokenised to, B rows of a batch.
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

# By the names of columns, one example each.
_SAMPLES: dict[str, list[Any]] = {
    **{name: ["a"] for name in ("text", "first", "second", "question", "context")},
    **{"words": [["a"]], "choices": [["a", "a"]]},
}


class TableAnswers(FileAnswers):
    """An answer to each example."""

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

    What runs it (`fit`, a `Predictor`, the experiments and programs) knows nothing of a task but
    what is declared here. A subclass declares

    - `kind`: the name by which presets, programs and experiments find it;
    - `columns`: what a table must have, see `Columns`;
    - `options`: its settings, an `Options` dataclass that extends `RowOptions`: arguments of the
      constructor, in presets, flags of the programs. Each is an attribute of a task, `chosen` holds
      all;
    - `metric`: name of the value of an evaluation, or "loss", that tells which weights are best:
      those with the largest value, or with the smallest loss; `shown_metrics`: what a progress
      line shows of the values that are logged;
    - `predicts_per`: whether it predicts one thing for a "row", for each "token", or a number for
      each "choice" of a row;

    and defines, besides a constructor that makes its head and calls `build`, and `parts`:

    - `targets(table)` -> (N, …) what the loss reads as `labels`, for a task on whole texts and
      pairs, which has a `TextRows` in `texts`. It raises ValueError for a label that is none.
    - or, for others, `tokenize(table, labelled)` -> `Rows`: the rows of a table, whole or a part of
      it. With `labelled` it checks the labels and adds `labels` (R, …)
      to the columns, and `label_weights` where not every row counts 1. `Rows.lengths` are the
      tokens that a row has in a batch, `Rows.examples` tells rows of one example, `Rows.cut` counts
      examples that lost tokens.
    - `call(batch, training=False)` -> dict of logits, by `self.encode(batch, training)`. Where the
      task takes decoders, `return_read=True` adds "read", which `language_model_loss` takes.
    - `terms(logits, batch)` -> losses and metrics of a labelled batch, as `loss_terms` returns
      them: two dicts of pairs (Σ weight · value, Σ weight), weighed by `batch["label_weights"]`.
      (Keras has taken the name `losses`.)
    - `decode(table, rows, outputs)` -> a list or array of one answer an example; `outputs[i]` are
      the `outputs` of row `i`, NumPy arrays without the batch's axis.
    - `score(table, answers)` -> dict of the task's official metrics, floats, against the table's
      labels.
    - `signatures()`: what an export has; see `Task`.

    The rest has defaults: `assemble`, `outputs`, `predictions`, `check_labels`, `check_held_out`,
    `reports`, `adapt_table`, `describe_example`, `token_marks`, `tune`, `sample_outputs`.

    Args:
        encoder: a `kbert.Encoder`, or what else the task takes.
        tokenizer: its tokenizer.
        name: of the model; None = the class's in snake case.
        **options: the fields of the class's `options`.

    Raises:
        ValueError: a setting is out of range or does not go with the encoder, or the encoder
            lacks the pooler that the task needs.
    """

    file_answers: ClassVar[type[FileAnswers]] = TableAnswers
    row_export: ClassVar[type[RowExport]] = LogitRows
    columns: ClassVar[Columns] = Columns()
    options: ClassVar[type[Options]] = RowOptions
    metric: ClassVar[str] = "loss"
    predicts_per: ClassVar[str] = "row"
    # Whether `prepare_rows` writes its rows to disk: those of a part of a table are those that the
    # whole table gives.
    prepares_rows: ClassVar[bool] = True
    # Whether words of its texts may be replaced by others of their kind, and the labels still hold.
    augmentable: ClassVar[bool] = False
    # How whole texts become rows, of a task that reads such.
    texts: TextRows | MaybeNone = None
    auxiliary_lm_weight: float | None = None
    # TensorFlow's graph is for any width; elsewhere each new one is compiled.
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
        most = encoder.config.max_positions
        if self.max_length is not None and self.max_length > most:
            raise ValueError(
                f"As tokens of a row max_length must be from 4 to {most}, the encoder's "
                f"max_positions. Received: max_length={self.max_length!r}"
            )
        if self.needs_pooler and encoder.pooler is None:
            raise ValueError(
                "The head reads the pooled vector, so the encoder must have a pooler: "
                f"{type(self).__name__}.from_preset(path, new_head=True, …) initialises a new one. "
                "Received: a config with pooler_activation=None"
            )
        if isinstance(self.chosen, AuxiliaryOptions):
            weight = auxiliary_weight(encoder, self.auxiliary_lm_weight)
            if self.reads_by_decoder:
                self.auxiliary_lm_weight = weight  # today's default goes into presets

    @property
    def settings(self) -> dict[str, Any]:
        found = self.chosen.to_dict()
        left = () if self.reads_by_decoder else DECODER_OPTIONS
        return {name: value for name, value in found.items() if name not in left}

    def make_dropout(self) -> Dropout:
        """Before a head: at the rate of the option `dropout`, or the encoder's."""
        rate = self.encoder.config.dropout if self.dropout is None else self.dropout
        return Dropout(rate, dtype=self.encoder.dtype_policy, name="dropout")

    @property
    def row_length(self) -> int:
        """The most tokens of a row: `max_length`, or what the encoder takes."""
        return self.max_length or self.encoder.config.max_positions

    @property
    def remedy(self) -> str:
        return "" if self.texts is None else self.texts.remedy

    def targets(self, table: Table) -> np.ndarray:
        """Labels of whole texts; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `targets` or `tokenize`.")

    def as_table(self, data: Any, labels: Any = None) -> Table:
        """Data that a user has in hand as a table, see `kbert.data.as_table`."""
        return as_table(data, labels)

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        """The rows of a table; see the class."""
        rows = self.texts.rows(table)
        return (
            dataclasses.replace(rows, dense={"labels": self.targets(table)}) if labelled else rows
        )

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Ragged ids as what the encoder reads; see `TextRows.build_inputs` for windows."""
        build = super().build_inputs if self.texts is None else self.texts.build_inputs
        return build(first, second)

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        """Losses and metrics; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `terms`.")

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Sequence:
        """Answers; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `decode`.")

    def score(self, table: Table, answers: Sequence) -> dict[str, float]:
        """Metrics; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `score`.")

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Batch-first features of rows, in a graph.

        By default the ragged columns `first` and `second` are packed to `token_ids`, `segment_ids`
        and `padding_mask` (B, T), and the dense columns stay. `label_weights` are added where there
        are none, and are 0 for copies that fill a batch up.
        """
        columns = dict(columns)
        features = self.build_inputs(columns.pop("first"), columns.pop("second", None))
        return {**features, **columns}

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        """What `decode` needs of a batch, in `keras.ops`: by default the logits, as float32.

        The tensors are batch-first, float32 or int32; the batch holds no labels.
        """
        return {name: ops.cast(x, "float32") for name, x in logits.items()}

    def sample_outputs(self) -> dict[str, Any]:
        columns = next((x for x in self.columns.inputs if set(x) <= set(_SAMPLES)), None)
        is_own = not type(self).tokenize.__module__.startswith("kbert.")
        if columns is None or is_own:  # a task of one's own, of whose texts nothing is known
            return super().sample_outputs()
        rows = self.tokenize(as_table({name: _SAMPLES[name] for name in columns}), labelled=False)
        return self.predictor.first_outputs(rows, 1)

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        """Name -> what is predicted, for a student and its teacher to compare.

        By default all logits are numbers, whose squared difference is taken (Ba and Caruana 2014,
        https://arxiv.org/abs/1312.6184).
        """
        return {
            name: Prediction("number", x, _as_wide(batch["label_weights"], x))
            for name, x in logits.items()
        }

    def check_labels(self, table: Table) -> None:
        """Raises ValueError for a table without labels, or with one that the task cannot have."""
        if self.texts is None:
            self.tokenize(table, labelled=True)
        else:
            self.targets(table)

    def check_held_out(self, table: Table, held_out: Table) -> None:
        """Raises ValueError where held-out data cannot be told from what is trained on."""

    def main_metric(self, held_out: Table) -> str:
        """What tells on held-out data which weights are best: `metric`, unless data decides."""
        return self.metric

    def score_names(self, table: Table) -> list[str] | None:
        """Names of the metrics for a table, whatever the answers; None = not known before."""

    def reports(self, table: Table, answers: Sequence) -> list[Any]:
        """What is reported of labelled answers besides metrics, the most important first.

        Each has a text; one with a confusion matrix is a `kbert.metrics.Report`.
        """
        return []

    @classmethod
    def takes_label_lists(cls, settings: Mapping[str, Any]) -> bool:
        """Whether with such settings a row has any number of labels, a list."""
        return False

    @classmethod
    def adapt_table(
        cls, table: Table, columns: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Table:
        """A table out of a file in the form that the task takes; by default as it is.

        Args:
            table: the columns that were read.
            columns: our name of a column -> the file's, or several.
            settings: those of the constructor that are known.
        """
        return table

    def describe_example(self, table: Table, row: int) -> str:
        """What is expected of an example, for a preview: by default its label."""
        label = table[self.columns.label][row]
        if isinstance(label, list | tuple):
            return ", ".join(map(str, label)) or "no label"
        return str(label)

    def token_marks(self, features: Mapping[str, np.ndarray]) -> dict[int, str]:
        """Place in a row of tokens -> what a preview writes behind it: what is expected there."""
        return {}

    @classmethod
    def can_tune(cls, settings: Mapping[str, Any]) -> bool:
        """Whether a task of such settings has a threshold that `tune` finds."""
        return False

    def tune(self, data: Any, **options: Any) -> str:
        """Sets the threshold to what is best on labelled data, and says what it is."""
        raise NotImplementedError(f"{type(self).__name__} must define `tune`.")

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        """The task's terms, and where a decoder is fine-tuned, its own loss on the same texts.

        (Radford et al. 2018, equation 5.) "lm_loss" is the mean over the tokens of a batch and
        "auxiliary" that times `auxiliary_lm_weight`, which is added to the task's loss. It helps to
        learn the task; an evaluation is of the task's loss alone.
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
        """(N, ragged) int32 ids of texts, in chunks of bounded memory."""
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

        Where `compile` was not called: AdamW with bias correction (Zhang et al. 2021, "Revisiting
        few-sample BERT fine-tuning", https://arxiv.org/abs/2006.05987), linear warm-up and linear
        decay; a callback that sets the rate, such as Keras' `LearningRateScheduler`, begins with a
        constant one. An adapter has a rate of its own. With the same seed, on weights that are the
        same, the numbers are the same; a run with a `model_dir` that was ended resumes to the same
        numbers when it is started again.

        Args:
            data: labelled examples, as `kbert.data.as_table` takes them: a list of texts or
                (first, second) tuples, columns, a frame, a `Table` from a file, …; or a folder that
                `kbert.tasks.prepare_rows` wrote, for tables larger than memory.
            labels: their labels, where `data` holds none.
            validation_data: likewise, or a tuple of data and labels: evaluated after each epoch.
            validation_split: share of `data`, its last rows, that is evaluated on instead, and not
                trained on. Rows that are sorted by label must be shuffled before.
            model_dir: where checkpoints and logs are written, to resume from; of one that is at
                its end the task gets the weights.
            resume: "same" refuses a `model_dir` that was begun with other data or settings,
                "changed" resumes with these, and names of settings let those alone change.
            verbose: 1 for a progress bar, 2 for a line an epoch, 0 for silence; "auto" = 1 in a
                terminal or a notebook, else 2.
            callbacks: of Keras.
            **settings: the fields of `FitSettings`:

                {options}

        Returns:
            Losses and values of each epoch.

        Raises:
            TypeError: for an unknown argument; of Keras' own with the way that works here.
            ValueError: for data or settings that do not fit; bad data by file and line; for
                settings of the optimizer, such as `learning_rate`, for one that was compiled; or
                if the weights of the end give answers that are not finite.
            NonFiniteLoss: if a loss is NaN or infinite; the weights are the last finite ones.
            KeyboardInterrupt: after Ctrl-C, with a `model_dir` once a checkpoint is written (and
                SystemExit after SIGTERM).
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
        """What runs the task over tables."""
        return Predictor(self)

    def predict(
        self,
        data: Any,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
        **others: Any,
    ) -> Sequence:
        """Answers for examples.

        Args:
            data: as for `fit`, without labels; or one text.
            batch_size: the most rows that go through the model together.
            verbose: "auto" for a progress bar where it takes longer than a moment, 0 for none.
            **others: none; arguments of Keras' `predict` are refused with the way that works.

        Returns:
            One answer an example, in order; see the task.

        Raises:
            TypeError: for another argument.
            ValueError: for data that does not fit.
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
        """The task's metrics on labelled examples, and the mean loss.

        Args:
            data: as for `fit`.
            labels: the labels, where `data` holds none.
            batch_size: the most rows that go through the model together.
            verbose: as in `predict`.
            **others: none; arguments of Keras' `evaluate` are refused with the way that works.

        Returns:
            `loss`, and what the task's `score` gives.

        Raises:
            TypeError: for another argument.
            ValueError: for data that does not fit, or without a row.
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
        """What is reported of labelled examples besides metrics, such as scores of each class.

        Args:
            data: as for `evaluate`.
            labels: the labels, where `data` holds none.
            batch_size: the most rows that go through the model together.
            verbose: as in `predict`.

        Returns:
            The first of the task's `reports`; `print` shows it.

        Raises:
            ValueError: for data that does not fit, or of a task that has no report.
        """
        table = self.as_table(data, labels)
        self.check_labels(table)
        found = self.reports(table, self.predict(table, batch_size=batch_size, verbose=verbose))
        if not found:
            raise ValueError(
                "evaluate() gives the scores of a task without a report. "
                f"Received: a {type(self).__name__}"
            )
        return found[0]

    def batches(self, rows: Rows | StoredRows, **options: Any) -> tf.data.Dataset:
        """What `fit` trains on: the rows in batches, see `bucketed_batches` for the options."""
        return bucketed_batches(rows, self.assemble, **options)

    def weigh_classes(self, rows: Rows, class_weights: str | Mapping[str, float]) -> Rows:
        """The rows with `label_weights` by their label; for tasks that have classes of rows."""
        raise ValueError(
            f"class_weights belong to tasks with classes. Received: class_weights={class_weights!r}"
            f" for a {type(self).__name__}"
        )


def _snake_case(name: str) -> str:
    """A class's name as a model's.

    >>> _snake_case("TextClassifier")
    'text_classifier'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _as_wide(weights: Any, values: Any) -> Tensor:
    """Weights (B, …) for values (B, …) with more axes."""
    missing = len(values.shape) - len(weights.shape)
    weights = ops.reshape(weights, (*ops.shape(weights), *[1] * missing))
    return ops.broadcast_to(weights, ops.shape(values))
