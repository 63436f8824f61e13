"""Classification of texts and of pairs of texts.

Shapes: N examples, B rows, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert import metrics
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Tensor, Tensors, Terms
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.signatures import Signature
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.labels import (
    Labels,
    check_several,
    class_answer,
    class_scores,
    class_weights_of,
    indicator_columns,
    names_of_classes,
    thresholds_of,
)
from kbert.tasks.fine_tuning.logit_rows import LogitRows
from kbert.tasks.fine_tuning.options import TextClassifierOptions
from kbert.tasks.fine_tuning.text_rows import TextRows, sentence_head
from kbert.tasks.fine_tuning.zero_shot import ClassAnswers
from kbert.tasks.losses import Prediction, accuracy, binary_cross_entropy, cross_entropy, detection


class ClassRows(LogitRows):
    """Export of a classifier: the outputs are the logits and their probabilities."""

    def outputs(self, features: Mapping[str, Any]) -> dict[str, Any]:
        logits = super().outputs(features)
        return {**logits, **self.task.outputs(logits, features)}


class TextClassifier(FineTuningTask):
    """Classifies texts or pairs of texts, into one class or, with `multi_label`, any number.

    `predict` returns for each text `{"label": "spam", "probability": 0.98, "probabilities":
    {"ham": 0.02, "spam": 0.98}}`; with `multi_label` it has `labels`, a list, instead of label and
    probability. `evaluate` returns accuracy, macro F1, Matthews' correlation and, for two classes,
    the F1 of the second. If the data has a column `group`, it also returns `exact_match`, the
    share of groups whose rows are all right. With `multi_label` see `kbert.metrics.multi_label`.

    Args:
        encoder: a `kbert.Encoder` with a pooler, a `kbert.models.ElmoEncoder`, a
            `kbert.models.DecoderEncoder`, or a `kbert.models.Seq2SeqEncoder` with a pooler.
        tokenizer: the encoder's tokenizer.
        labels: names of the classes, or their number, for LABEL_0, LABEL_1, …; required.
            `kbert.class_names` returns those of labelled data.
        name: name of the model.
        **options: settings:

            {options}

    Raises:
        ValueError: a setting is out of range or does not fit the encoder, or the encoder has no
            pooler.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "free", "money", "lunch"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = TextClassifier(kbert.Encoder(config), tokenizer, ["ham", "spam"])
        >>> answer, = task.predict(["free money"])
        >>> list(answer["probabilities"])
        ['ham', 'spam']
    """

    kind = "classify"
    options: ClassVar = TextClassifierOptions
    held_elsewhere = ("labels", "multi_label")
    prediction_settings = ("labels", "multi_label", "both_orders")
    shown_metrics = ("accuracy",)
    needs_pooler = True
    takes_characters = True
    augmentable = True
    takes_decoders = True
    takes_seq2seq = True
    row_export = ClassRows
    file_answers = ClassAnswers

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: TokenizerLike,
        labels: Sequence[str] | int | None = None,
        **options: Any,
    ) -> None:
        self._classes = Labels(labels)
        super().__init__(encoder, tokenizer, labels=self._classes.names, **options)
        if not self.multi_label:
            check_several(self.labels, type(self).__name__)
        self.texts = TextRows(self)
        self.head_dropout = self.make_dropout()
        width = None if self._features is None else self._features.pooling.units
        self.classifier = sentence_head(encoder, len(self.labels), width)
        self.build()

    def _check_settings(self) -> None:
        super()._check_settings()
        thresholds_of(self.labels, self.threshold)  # raises for an invalid one

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return self._classes.names

    @property
    def metric(self) -> str:  # type: ignore[override]  # by the task's settings
        """Name of the value by which `fit` selects the best weights."""
        return "micro_f1" if self.multi_label else "accuracy"

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "classifier": self.classifier}

    def call(self, batch: Tensors, training: bool = False, return_read: bool = False) -> Tensors:
        """Returns the logits `classifier` (B, C).

        With `return_read` also "read", the encoder's inputs and outputs for `language_model_loss`.
        """
        logits, read = self.texts.logits(batch, self._head, training, return_read)
        return {"classifier": logits, **({"read": read} if return_read else {})}

    def _head(self, pooled: Tensor, training: bool) -> Tensor:
        return self.classifier(self.head_dropout(pooled, training=training))

    @classmethod
    def takes_label_lists(cls, settings: Mapping[str, Any]) -> bool:
        """Returns whether `multi_label` is set."""
        return bool(settings.get("multi_label"))

    @classmethod
    def adapt_table(
        cls, table: Table, columns: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Table:
        """Converts classes to names; with `multi_label`, merges several columns into lists."""
        if cls.takes_label_lists(settings):
            return indicator_columns(table, columns.get("label"))
        if "label" not in table:
            return table
        return table.with_column("label", names_of_classes(table))

    def targets(self, table: Table) -> np.ndarray:
        """Returns indices of classes (N,) int32; with `multi_label` indicators (N, C) float32.

        Raises ValueError for a label that is not a class.
        """
        return self._classes.indicators(table) if self.multi_label else self._classes.ids(table)

    def weigh_classes(self, rows: Rows, class_weights: str | Mapping[str, float]) -> Rows:
        weights = class_weights_of(self.labels, class_weights, rows.dense["labels"])
        labels = rows.dense["labels"]
        # With several labels per row, the weight is for the positives of a class; others have 1.
        label_weights = np.where(labels > 0, weights, 1.0) if self.multi_label else weights[labels]
        return dataclasses.replace(
            rows, dense={**rows.dense, "label_weights": label_weights.astype(np.float32)}
        )

    def check_held_out(self, table: Table, held_out: Table) -> None:
        self._classes.check_seen(table, held_out)

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        _, logits, weights = self.predictions(logits, batch)["classifier"]
        answer = (logits, batch["labels"], weights)
        if not self.multi_label:
            return {"cross_entropy": cross_entropy(*answer)}, {"accuracy": accuracy(*answer)}
        return {"cross_entropy": binary_cross_entropy(*answer)}, detection(*answer)

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        logits, weights = logits["classifier"], batch["label_weights"]
        if not self.multi_label:
            return {"classifier": Prediction("classes", logits, weights)}
        if len(weights.shape) == 1:
            weights = weights[:, None]
        weights = ops.broadcast_to(weights, ops.shape(logits))  # (B, C)
        return {"classifier": Prediction("labels", logits, weights)}

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        activate = ops.sigmoid if self.multi_label else ops.softmax
        return {"probabilities": activate(logits["classifier"])}

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Sequence:
        thresholds = thresholds_of(self.labels, self.threshold) if self.multi_label else None
        return [class_answer(self.labels, x["probabilities"], thresholds) for x in outputs]

    def score(self, table: Table, answers: Sequence[Any]) -> dict[str, float]:
        if self.multi_label:
            return metrics.multi_label(self._classes.indicators(table), self._indicators(answers))
        return class_scores(self._classes, table, answers)

    def score_names(self, table: Table) -> list[str] | None:
        if self.multi_label:
            return ["micro_f1", "macro_f1", "subset_accuracy"]
        binary_scores = ["f1"] if len(self.labels) == 2 else []
        group_scores = ["exact_match"] if "group" in table else []
        return ["accuracy", "macro_f1", "matthews", *binary_scores, *group_scores]

    def _indicators(self, answers: Sequence[Any]) -> np.ndarray:
        indicators = np.zeros((len(answers), len(self.labels)), np.int32)
        for row, answer in enumerate(answers):
            indicators[row, self._classes.indices(answer["labels"])] = 1
        return indicators

    def reports(self, table: Table, answers: Sequence[Any]) -> list[Any]:
        if self.multi_label:
            indicators = self._classes.indicators(table), self._indicators(answers)
            return [metrics.multi_label_report(*indicators, self.labels)]
        predictions = self._classes.indices([answer["label"] for answer in answers])
        return [metrics.classification_report(self._classes.ids(table), predictions, self.labels)]

    def report(self, data: Any, labels: Any = None, **options: Any) -> metrics.Report:
        """Returns precision, recall and F1 of each class, and the confusion matrix.

        Args:
            data: labelled examples, in the form of `fit`.
            labels: labels of the examples, if `data` has none.
            **options: `batch_size` and `verbose` of `predict`.

        Raises:
            ValueError: the data does not fit; or `multi_label` is set: `evaluate` returns the
                scores then.
        """
        if self.multi_label:
            raise ValueError(
                "report() requires one label per row: use evaluate() for several labels. "
                "Received: a task with multi_label=True"
            )
        return super().report(data, labels, **options)

    @classmethod
    def can_tune(cls, settings: Mapping[str, Any]) -> bool:
        """Returns whether `multi_label` is set, so that there is a threshold."""
        return cls.takes_label_lists(settings)

    def tune(self, data: Any, **options: Any) -> str:
        return f"threshold={self.tune_threshold(data, **options):.4g}"

    def tune_threshold(
        self, data: Any, labels: Any = None, *, per_class: bool = False, **options: Any
    ) -> float | dict[str, float]:
        """Sets `threshold` to the value with the best F1 on labelled examples.

        Args:
            data: labelled examples that the task was not trained on.
            labels: labels of the examples, if `data` has none.
            per_class: whether to set a threshold for each class, by its own F1, instead of a single
                one by micro F1.
            **options: `batch_size` and `verbose` of `predict`.

        Returns:
            The threshold, which is saved with the task.

        Raises:
            ValueError: the data does not fit, or `multi_label` is not set.
        """
        if not self.multi_label:
            raise ValueError(
                "A threshold requires multi_label=True: with one label per text, the most probable "
                "label is predicted. Received: multi_label=False"
            )
        table = self.as_table(data, labels)
        targets = self._classes.indicators(table)
        answers = self.predict(table, **options)
        probabilities = np.array([list(answer["probabilities"].values()) for answer in answers])
        if per_class:
            best = [
                metrics.best_threshold(p, t)
                for p, t in zip(probabilities.T, targets.T, strict=True)
            ]
            self.threshold: float | dict[str, float] = dict(zip(self.labels, best, strict=True))
        else:
            self.threshold = metrics.best_threshold(probabilities, targets)
        return self.threshold

    def signatures(self, pairs: bool = False) -> dict[str, Signature]:
        """Returns the entry points `classify` for texts and `classify_pairs` for pairs of texts.

        Args:
            pairs: whether `classify_pairs` comes first, as `serving_default`.

        Returns:
            `classify`: `text` (B,) strings -> `labels` (B, C), the names of all classes, and
            `scores` (B, C), their probabilities; and `label` (B,), the most probable class, with
            its `score` (B,), or with `multi_label` `chosen` (B, C), whether a label is assigned.
            `classify_pairs`: `first` and `second` (B,) strings -> the same. A text that is too
            long is read in windows if the task has a doc_stride, else truncated. Bytes that are
            not UTF-8 are dropped.
        """
        names, thresholds = self.labels, thresholds_of(self.labels, self.threshold)

        def answer(features: Tensors) -> dict[str, tf.Tensor]:
            scores = self.outputs(self(features), features)["probabilities"]
            labels = tf.broadcast_to(tf.constant(names), tf.shape(scores))
            outputs = {"labels": labels, "scores": scores}
            if self.multi_label:
                return {**outputs, "chosen": scores >= tf.constant(thresholds, tf.float32)}
            best = tf.argmax(scores, 1)
            label = tf.gather(tf.constant(names), best)
            return {**outputs, "label": label, "score": tf.reduce_max(scores, 1)}

        return self.texts.signatures("classify", answer, pairs)
