"""A fine-tuned task measured on labelled data: metrics, report by class, every answer."""

import dataclasses
import json
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from kbert import atomic
from kbert.data import Table
from kbert.data.readers import check_glue_submission, write_glue_submission
from kbert.experiments.catalogue import NamedTask
from kbert.metrics import (
    EntityReport,
    Report,
    classification_report,
    entity_report,
    text_table,
)
from kbert.tasks.fine_tuning.base import FineTuned

# Columns of the input that go with an answer: enough to read it by, and no whole article.
_SHOWN = ("id", "text", "first", "second", "question", "choices")
# Where the expected answer stands.
_EXPECTED = ("label", "labels", "answers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a task answered, and how well.

    Attributes:
        metrics: the official ones of the task.
        answers: one an example, as `predict` gives them.
        report: precision, recall and F1 of each class and the confusion matrix; of words for
            tagging; None for tasks without classes and for any number of labels a text.
        entities: the same of entities, where tags mark them.
        labels_report: of any number of labels a text, a table with a row a label.
    """

    metrics: dict[str, float]
    answers: Sequence[Any]
    report: Report | None = None
    entities: EntityReport | None = None
    labels_report: str | None = None

    @property
    def confusion(self) -> dict | None:
        """`matrix` and `names` of the confusion matrix, as JSON can hold them."""
        if self.report is None:
            return None
        return {"matrix": self.report.confusion.tolist(), "names": list(self.report.names)}

    @property
    def text(self) -> str:
        """The reports as text; empty for tasks without classes."""
        reports = (self.entities, self.labels_report or self.report)
        return "\n\n".join(str(report) for report in reports if report is not None)

    def __str__(self) -> str:
        scores = [[n, float(x)] for n, x in self.metrics.items() if not n.startswith("f1_")]
        scores = text_table(["metric", "value"], scores)
        return "\n\n".join(part for part in (self.text, scores) if part)

    def write(self, folder: str | os.PathLike, name: str, table: Table) -> None:
        """Writes `<name>_answers.jsonl`, and `<name>_report.txt` where there is a report."""
        folder = Path(folder)
        write_answers(folder / f"{name}_answers.jsonl", table, self.answers)
        if self.text:
            atomic.write(folder / f"{name}_report.txt", f"{self.text}\n".encode())


def evaluate(
    task: FineTuned, data: Table, *, batch_size: int = 32, verbose: str | int = "auto"
) -> Evaluation:
    """Asks the task for every example and compares.

    Args:
        task: the fine-tuned task.
        data: labelled examples.
        batch_size: rows computed at once.
        verbose: of `predict`.

    Returns:
        The evaluation.

    Raises:
        ValueError: the data has no labels, or others than the task.
    """
    task.check_labels(data)  # before hours of answering
    answers = task.predict(data, batch_size=batch_size, verbose=verbose)
    found = {"metrics": task.score(data, answers), "answers": answers}
    kind = type(task).__name__
    if kind == "TokenClassifier":
        names, true = task.settings["labels"], data["labels"]
        predicted = [answer["labels"] for answer in answers]
        if task.scheme is not None:
            found["entities"] = entity_report(true, predicted)
        found["report"] = classification_report([*chain(*true)], [*chain(*predicted)], names)
    elif kind == "TextClassifier" and task.settings.get("multi_label"):
        found["labels_report"] = _labels_report(task.settings["labels"], data["label"], answers)
    elif kind == "TextClassifier":
        names = task.settings["labels"]
        true = [x if isinstance(x, str) else names[x] for x in data["label"]]
        predicted = [answer["label"] for answer in answers]
        found["report"] = classification_report(true, predicted, names)
    return Evaluation(**found)


def tune_threshold(
    task: FineTuned, data: Table, *, batch_size: int = 32, verbose: str | int = "auto"
) -> str:
    """Sets the task's threshold to what is best on labelled data.

    Args:
        task: a `QuestionAnswerer`, or a `TextClassifier` with `multi_label`.
        data: labelled examples, of questions some without an answer.
        batch_size: rows computed at once.
        verbose: of `predict`.

    Returns:
        What it was set to, as text.

    Raises:
        ValueError: the task has no threshold.
    """
    options = {"batch_size": batch_size, "verbose": verbose}
    if type(task).__name__ == "QuestionAnswerer":
        task.tune_null_threshold(data, **options)
        return f"null_threshold={task.null_threshold:.4g}"
    if not task.settings.get("multi_label"):
        raise ValueError(
            "Only questions that may have no answer and texts with any number of labels have a "
            f"threshold. Received: a {type(task).__name__}"
        )
    return f"threshold={task.tune_threshold(data, **options):.4g}"


def is_labelled(table: Table) -> bool:
    """Whether a table has what is expected of a task, not only what it is asked."""
    return any(name in table for name in _EXPECTED)


def write_answers(path: str | os.PathLike, table: Table, answers: Sequence[Any]) -> None:
    """Writes each answer as a line of JSON, beside what was expected where that is known."""
    lines = answer_lines(table, answers, expected=is_labelled(table))
    atomic.write(path, "".join(f"{line}\n" for line in lines).encode())


def check_submission(named: NamedTask, table: Table) -> None:
    """Checks before the work that GLUE takes answers to these questions.

    Raises:
        ValueError: the task is none of GLUE's server, or the table not its test set.
    """
    if not named.glue:
        raise ValueError(f"GLUE takes answers to its own tasks. Received: {named.name}")
    check_glue_submission(named.name, len(table))


def write_submission(named: NamedTask, answers: Sequence[Any], folder: str | os.PathLike) -> str:
    """Writes answers to a test set of GLUE as its server takes them; returns the file's path.

    The test set is one that `check_submission` lets through.
    """
    plain = [answer["label"] if isinstance(answer, dict) else float(answer) for answer in answers]
    return write_glue_submission(named.name, plain, folder)


def answer_lines(table: Table, answers: Sequence[Any], *, expected: bool) -> list[str]:
    """Each answer as a line of JSON: what was asked, what is expected, what was answered.

    Args:
        table: what was asked.
        answers: of the task.
        expected: whether to write the table's labels beside them, as `expected`.

    Example:
        >>> answer_lines(Table({"text": ["hi"]}), [{"label": "ham"}], expected=False)
        ['{"text": "hi", "label": "ham"}']
    """
    shown = [name for name in _SHOWN if name in table]
    lines = []
    for row, answer in enumerate(answers):
        line = {name: table[name][row] for name in shown}
        if expected:
            line["expected"] = next(table[name][row] for name in _EXPECTED if name in table)
        line |= answer if isinstance(answer, dict) else {"score": float(answer)}
        lines.append(json.dumps(line, ensure_ascii=False, default=_plain))
    return lines


def _plain(value: Any) -> Any:
    """NumPy's values as JSON can hold them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def _labels_report(names: Sequence[str], true: Sequence, answers: Sequence[dict]) -> str:
    """Precision, recall and F1 of each label by itself."""
    rows = []
    for name in names:
        labels = [int(name in labels) for labels in true]
        predictions = [int(name in answer["labels"]) for answer in answers]
        one = classification_report(labels, predictions, ["without", "with"])
        scores = (float(column[1]) for column in (one.precision, one.recall, one.f1))
        rows.append([name, *scores, sum(labels)])
    return text_table(["label", "precision", "recall", "f1", "rows"], rows)
