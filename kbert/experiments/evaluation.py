"""Evaluation of a fine-tuned task on labelled data: metrics, report by class, every answer."""

import dataclasses
import datetime
import decimal
import json
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.catalog.named_tasks import NamedTask
from kbert.catalog.super_glue import SuperGlueTask
from kbert.core.types import PathLike
from kbert.data import Table
from kbert.data.readers import write_glue_submission, write_super_glue_submission
from kbert.data.readers.submissions import check_rows
from kbert.experiments.results import is_of_class
from kbert.io import atomic
from kbert.io.paths import Path
from kbert.metrics import Report, text_table
from kbert.tasks import Columns, TableTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The answers of a task, and their metrics.

    Attributes:
        metrics: the official metrics of the task.
        answers: one answer per example, in the form written to files.
        columns: columns of the task's tables.
        reports: further results, such as scores of each class; see `TableTask.reports`.
    """

    metrics: dict[str, float]
    answers: Sequence[Any]
    columns: Columns
    reports: Sequence[Any] = ()

    @property
    def report(self) -> Report | None:
        """The report by class; None for tasks without one."""
        return next((report for report in self.reports if isinstance(report, Report)), None)

    @property
    def confusion(self) -> dict | None:
        """`matrix` and `names` of the confusion matrix, as JSON can hold them; None without it."""
        if self.report is None:
            return None
        return {"matrix": self.report.confusion.tolist(), "names": list(self.report.names)}

    @property
    def text(self) -> str:
        """The reports as text; empty for tasks without classes."""
        return "\n\n".join(map(str, self.reports))

    def __str__(self) -> str:
        scores = [[name, float(x)] for name, x in self.metrics.items() if not is_of_class(name)]
        scores = text_table(["metric", "value"], scores)
        return "\n\n".join(part for part in (self.text, scores) if part)

    def write(self, folder: PathLike, name: str, table: Table) -> None:
        """Writes `<name>_answers.jsonl`, and `<name>_report.txt` if there is a report.

        Args:
            folder: folder of both files.
            name: name of the data, such as "dev".
            table: the examples, in the order of the answers.
        """
        folder = Path(folder)
        write_answers(folder / f"{name}_answers.jsonl", self.columns, table, self.answers)
        if self.text:
            atomic.write(folder / f"{name}_report.txt", f"{self.text}\n".encode())


def predict_and_score(
    task: TableTask, data: Table, *, batch_size: int = 32, verbose: str | int = "auto"
) -> Evaluation:
    """Predicts every example and scores the answers.

    Args:
        task: the fine-tuned task.
        data: labelled examples.
        batch_size: rows computed at once.
        verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.

    Returns:
        The evaluation.

    Raises:
        ValueError: the data has no labels, or labels that the task does not have.
    """
    task.check_labels(data)  # before hours of prediction
    answers = task.predict(data, batch_size=batch_size, verbose=verbose)
    return Evaluation(
        metrics=task.score(data, answers),
        answers=task.file_answers(task).written(answers),
        columns=task.columns,
        reports=task.reports(data, answers),
    )


def tune_threshold(
    task: TableTask, data: Table, *, batch_size: int = 32, verbose: str | int = "auto"
) -> str:
    """Sets the task's threshold to the best value on labelled data.

    Args:
        task: a `QuestionAnswerer`, or a `TextClassifier` with `multi_label`.
        data: labelled examples; some questions must have no answer.
        batch_size: rows computed at once.
        verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.

    Returns:
        The new threshold, as text.

    Raises:
        ValueError: the task has no threshold.
    """
    if not task.can_tune(task.settings):
        raise ValueError(
            "Tuning a threshold requires questions that may have no answer, or texts with any "
            f"number of labels. Received: a {type(task).__name__}"
        )
    return task.tune(data, batch_size=batch_size, verbose=verbose)


def is_labelled(columns: Columns, table: Table) -> bool:
    """Returns whether a table has labels, not only the inputs of a task."""
    return columns.label in table


def write_answers(path: PathLike, columns: Columns, table: Table, answers: Sequence[Any]) -> None:
    """Writes each answer as a line of JSON, with the label if the table has labels.

    Args:
        path: the file.
        columns: columns of the task's tables.
        table: the inputs.
        answers: answers of the task, a dict or a number per row.
    """
    lines = answer_lines(columns, table, answers, expected=is_labelled(columns, table))
    atomic.write(path, "".join(f"{line}\n" for line in lines).encode())


def check_submission(named: NamedTask, table: Table) -> None:
    """Raises unless a benchmark's server accepts answers to a table; call it before predicting.

    Args:
        named: the task.
        table: examples of the test set; only their number is checked.

    Raises:
        ValueError: the task is not one of GLUE or SuperGLUE, or the table is not its test set.
    """
    if named.benchmark is None:
        raise ValueError(
            f"A submission requires a task of GLUE or SuperGLUE. Received: {named.name}"
        )
    check_rows(named.benchmark, len(table))


def write_submission(
    named: NamedTask, table: Table, answers: Sequence[Any], folder: PathLike
) -> str:
    """Writes answers to a test set in the form of its server; returns the file's path.

    Args:
        named: a task of GLUE or SuperGLUE.
        table: the test set, which `check_submission` accepts.
        answers: a number, or a dict with the answer, per example of the table.
        folder: folder of the file.
    """
    # The answer of a task of classes, choices or spans.
    names = ("label", "choice", "answer")
    plain: list[Any] = [
        next(answer[name] for name in names if name in answer)
        if isinstance(answer, dict)
        else float(answer)
        for answer in answers
    ]
    if isinstance(named.benchmark, SuperGlueTask):
        return write_super_glue_submission(named.name, table["id"], plain, folder)
    return write_glue_submission(named.name, plain, folder)


def answer_lines(
    columns: Columns, table: Table, answers: Sequence[Any], *, expected: bool
) -> list[str]:
    """Returns a line of JSON for each answer: the input, the label, the answer.

    Args:
        columns: columns of the task's tables.
        table: the inputs.
        answers: answers of the task, a dict or a number per row.
        expected: whether to write the table's labels too, as `expected`.

    Example:
        >>> answer_lines(Columns(), Table({"text": ["hi"]}), [{"label": "ham"}], expected=False)
        ['{"text": "hi", "label": "ham"}']
    """
    shown = columns.shown_in(table)
    lines = []
    for row, answer in enumerate(answers):
        line = {name: table[name][row] for name in shown}
        if expected:
            line["expected"] = table[columns.label][row]
        line |= answer if isinstance(answer, dict) else {"score": float(answer)}
        lines.append(json.dumps(line, ensure_ascii=False, default=_plain))
    return lines


def _plain(value: Any) -> Any:
    """Converts values for `json.dumps`: NumPy's to lists and numbers, dates and decimals to text.

    Other types raise TypeError.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, datetime.date | datetime.time | decimal.Decimal | uuid.UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be converted to JSON")
