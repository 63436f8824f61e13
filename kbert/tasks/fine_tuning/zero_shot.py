"""Zero-shot classification: classes that are named after the training, by a model of entailment.

Shapes: N texts, L labels, R pairs of a text and a label, C classes of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kbert import inference
from kbert.core.options import Options
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.inference.texts import warn_of_cut
from kbert.io.progress import Progress
from kbert.tasks.fine_tuning.base import TableAnswers
from kbert.tasks.fine_tuning.labels import class_answer
from kbert.tasks.fine_tuning.options import TEMPLATE, ZeroShotOptions
from kbert.tasks.fine_tuning.predictor import Predictor

if TYPE_CHECKING:
    from kbert.tasks.fine_tuning.text_classifier import TextClassifier

_CONTRADICTION = ("contradiction", "not_entailment", "non_entailment")
_LIKELY = 0.5  # least probability of a label that is assigned, with `multi_label`


class ZeroShotClassifier:
    """Classifies texts into classes that are only named, by a model of textual entailment.

    (Yin, Hay & Roth 2019, https://arxiv.org/abs/1909.00161, section 5.) Each label becomes a
    hypothesis, such as "This example is sports.", and the model reads the text with each
    hypothesis. The probabilities of a text's labels are the softmax of their logits of entailment.
    With `multi_label`, or if there is only one label, the labels are independent: the probability
    of a label is the softmax of its logits of entailment and contradiction.

        classifier = kbert.TextClassifier.from_preset("facebook/bart-large-mnli")
        zero_shot = kbert.ZeroShotClassifier(classifier, ["sports", "politics"])
        zero_shot.predict(["They won the final."])

    Args:
        classifier: a `kbert.TextClassifier` of pairs, of which the first entails the second or not.
        labels: the labels; None = each `predict` names them.
        template: text of a hypothesis, in which "{}" stands for the label.
        multi_label: whether a text may have any number of labels.
        entailment: the classifier's label of entailment; None = the one whose name begins with
            "entail", in any case.
        contradiction: the classifier's label of contradiction, which only independent labels need;
            None = "contradiction" or "not_entailment", or the other one of two labels.

    Raises:
        TypeError: the classifier is not a `TextClassifier`.
        ValueError: the classifier has no such label or is one of several labels, or the template
            has no "{}".

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "free", "money", "lunch"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> classifier = kbert.TextClassifier(
        ...     kbert.Encoder(config), tokenizer, ["entailment", "not_entailment"])
        >>> answer, = ZeroShotClassifier(classifier).predict(["free money"], ["money", "lunch"])
        >>> sorted(answer["probabilities"])
        ['lunch', 'money']
    """

    def __init__(
        self,
        classifier: TextClassifier,
        labels: Sequence[str] | None = None,
        *,
        template: str = TEMPLATE,
        multi_label: bool = False,
        entailment: str | None = None,
        contradiction: str | None = None,
    ) -> None:
        if getattr(classifier, "kind", None) != "classify":
            raise TypeError(
                "The model must be a kbert.TextClassifier of entailment. Received: "
                f"{classifier!r:.80}"
            )
        if classifier.multi_label:
            raise ValueError(
                "The classifier must give each pair one label, entailment or another. Received: a "
                "classifier with multi_label=True"
            )
        if "{}" not in template:
            raise ValueError(
                "`template` must have {} in the place of the label. Received: "
                f"template={template!r}"
            )
        self.classifier = classifier
        self.labels = None if labels is None else label_names(labels)
        self.template = template
        self.multi_label = multi_label
        self._entailment = _entailment_of(classifier.labels, entailment)
        self._contradiction = _contradiction_of(classifier.labels, contradiction, self._entailment)
        if multi_label:
            self._needed_contradiction()  # raises now
        own = classifier.predictor.logits  # None, or a runtime's
        self._predictor = Predictor(classifier, own, outputs=lambda logits, batch: dict(logits))

    def predict(
        self,
        texts: Any,
        labels: Sequence[str] | None = None,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
    ) -> list[dict[str, Any]]:
        """Classifies texts.

        A text that is too long with a hypothesis is truncated at its end; the hypothesis is not.
        If the classifier has a `doc_stride`, it is read in windows instead.

        Args:
            texts: one text or several.
            labels: the labels; None = those of the constructor.
            batch_size: maximum number of rows, pairs of text and label, in a batch.
            verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.

        Returns:
            An answer for each text, in the form of `TextClassifier.predict`: `label`, `probability`
            and `probabilities`. With `multi_label` the answer has `labels`, those with a
            probability of at least 0.5, instead of `label` and `probability`. The probabilities are
            in descending order.

        Raises:
            ValueError: there are no labels, or a hypothesis leaves no room for a text.
        """
        texts = inference.as_texts(texts)
        answers, cut = self.predict_and_count(texts, labels, batch_size=batch_size, verbose=verbose)
        warn_of_cut(cut, len(texts), self.classifier.row_length, remedy=self.classifier.remedy)
        return answers

    def predict_and_count(
        self,
        texts: Sequence[str | bytes],
        labels: Sequence[str] | None = None,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
    ) -> tuple[list[dict[str, Any]], int]:
        """Classifies a part of a longer input; arguments and answers are those of `predict`.

        Returns:
            The answers, and the number of truncated texts.
        """
        inference.check_batch_size(batch_size)
        names = self.labels if labels is None else label_names(labels)
        if names is None:
            raise ValueError("`labels` must name the classes. Received: labels=None")
        if len(names) == 1:
            self._needed_contradiction()
        hypotheses = [self.template.replace("{}", name) for name in names]
        answers: list[dict[str, Any]] = []
        total_cut, size = 0, max(inference.CHUNK // len(names), 1)
        with Progress("", len(texts), " texts", verbose=verbose) as bar:
            for start in range(0, len(texts), size):
                part = texts[start : start + size]
                rows, cut = self._rows(part, hypotheses)

                def progress(share: float, start: int = start, count: int = len(part)) -> None:
                    bar.show(start + int(share * count))

                outputs, _ = self._predictor.outputs(rows, batch_size, progress)
                logits = np.array([x["classifier"] for x in outputs])  # (R, C)
                logits = logits.reshape(len(part), len(names), -1)
                answers += [self._answer(names, x) for x in logits]
                total_cut += cut
        return answers, total_cut

    def _rows(self, texts: Sequence[Any], hypotheses: Sequence[str]) -> tuple[Rows, int]:
        """Returns the R = N · L rows of a text with a hypothesis, and how many texts are truncated.

        The hypotheses of a text follow one another.
        """
        task = self.classifier
        first, second = (inference.as_rows(task.encode_texts(x)) for x in (texts, hypotheses))
        budget = task.row_length - task.form.specials(2)
        if budget <= (longest := max(map(len, second))):
            raise ValueError(
                f"A hypothesis must leave room for a text in a row of {task.row_length} tokens, of "
                f"which {budget} are those of texts. Received: a hypothesis of {longest} tokens"
            )
        cut = 0
        if task.texts.doc_stride is None:
            cut = sum(len(x) > budget - longest for x in first)
            pairs = [(x[: budget - len(y)], y) for x in first for y in second]
        else:
            pairs = [(x, y) for x in first for y in second]
        columns = [inference.as_ragged(side) for side in zip(*pairs, strict=True)]
        return task.texts.rows_of_ids(*columns), cut

    def _answer(self, names: Sequence[str], logits: np.ndarray) -> dict[str, Any]:
        """Returns the answer for a text from the logits (L, C) of its labels."""
        if self.multi_label or len(names) == 1:
            sides = logits[:, [self._entailment, self._needed_contradiction()]]
            probabilities = softmax(sides)[:, 0]
        else:
            probabilities = softmax(logits[:, self._entailment])
        order = np.argsort(-probabilities, kind="stable")
        thresholds = np.full(len(names), _LIKELY) if self.multi_label else None
        return class_answer([names[i] for i in order], probabilities[order], thresholds)

    def _needed_contradiction(self) -> int:
        """Returns the index of contradiction; raises ValueError if the classifier has none."""
        if self._contradiction is None:
            raise ValueError(
                "Independent labels, with multi_label=True or a single label, require the "
                "classifier's label of contradiction: pass contradiction=…. Received: a classifier "
                f"with the labels {', '.join(self.classifier.labels)}"
            )
        return self._contradiction


class ClassAnswers(TableAnswers):
    """Files with the classes of texts, of the classifier or by zero-shot classification."""

    options = ZeroShotOptions
    _made: tuple[Options, ZeroShotClassifier] | None = None

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        chosen = cast(ZeroShotOptions, options)
        if not chosen.candidate_labels:
            return super().answer(table, options, batch_size=batch_size, first=first)
        if "text" not in table:
            raise ValueError(
                "Zero-shot classification (candidate_labels) requires the column `text`. "
                f"Received: {', '.join(table.columns)} in {table.source}"
            )
        if self._made is None or self._made[0] != options:  # compiled once for all parts
            made = ZeroShotClassifier(
                self.task,
                chosen.candidate_labels,
                template=chosen.hypothesis_template,
                multi_label=chosen.multi_label,
            )
            self._made = (options, made)
        return self._made[1].predict_and_count(table["text"], batch_size=batch_size, verbose=0)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the softmax over the last axis, in float64."""
    exponentials = np.exp(np.float64(logits) - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def label_names(labels: Sequence[str]) -> list[str]:
    """Returns labels as a list; raises ValueError if there are none, or one twice."""
    names = [labels] if isinstance(labels, str) else list(labels)
    if not names or len({*names}) < len(names):
        raise ValueError(f"`labels` must be one or more different names. Received: {names!r}")
    return names


def _entailment_of(labels: Sequence[str], asked: str | None) -> int:
    """Returns the index of a classifier's label of entailment; `asked` is its name or None."""
    found = [i for i, name in enumerate(labels) if name.lower().startswith("entail")]
    if asked is not None:
        found = [i for i, name in enumerate(labels) if name == asked]
    if len(found) != 1:
        raise ValueError(
            "One of the classifier's labels must be that of entailment, or be named by the "
            "argument `entailment` of ZeroShotClassifier. "
            f"Received: entailment={asked!r}, and the labels {', '.join(labels)}"
        )
    return found[0]


def _contradiction_of(labels: Sequence[str], asked: str | None, entailment: int) -> int | None:
    """Returns the index of a classifier's label of contradiction; None if its name is not known."""
    if asked is not None and (asked not in labels or labels.index(asked) == entailment):
        raise ValueError(
            "`contradiction` must be a label of the classifier, and not that of entailment. "
            f"Received: contradiction={asked!r}, and the labels {', '.join(labels)}"
        )
    names = [name.lower().replace("-", "_").replace(" ", "_") for name in labels]
    found = [i for i, name in enumerate(names) if name in _CONTRADICTION]
    if asked is not None:
        found = [labels.index(asked)]
    elif len(labels) == 2:
        found = [1 - entailment]
    return found[0] if len(found) == 1 else None
