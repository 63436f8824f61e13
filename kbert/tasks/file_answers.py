"""Predictions of a task for the records of a file."""

from collections.abc import Sequence
from typing import Any, ClassVar

from kbert.core.options import Options
from kbert.data.tables.table import Table


class NoAnswerOptions(Options):
    """No options, for tasks whose answers depend only on constructor arguments."""


class FileAnswers:
    """The interface by which a program predicts files with a task.

    This base class does not support files. A task that does sets `file_answers` to a subclass,
    which declares `program` and `options` and defines `answer`.

    Args:
        task: task that makes the predictions.
    """

    # The program that predicts files with the task; None = no program.
    program: ClassVar[str | None] = None
    # Whether a pretrained model, whose head is another, answers too: no trained head is needed.
    pretrained: ClassVar[bool] = False
    # The settings of predictions, which are flags of the program.
    options: ClassVar[type[Options]] = NoAnswerOptions
    # Records that are answered before they are written: the most that is lost if killed.
    at_once: ClassVar[int] = 1024

    def __init__(self, task: Any) -> None:
        self.task = task

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        """Returns the answers to a part of an input, in the form written to files.

        Args:
            table: records, with one of the sets of the task's input columns.
            options: instance of the class `options`.
            batch_size: rows of a batch.
            first: number of the first record in the whole input. Random draws depend on it, so an
                input answered in parts gets the same answers as in one go.

        Returns:
            Tuple of the answers and a count. Each record's answer is a dict or a number, for JSON
            or NumPy. The count is the number of truncated records, for the task's `report_cut`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `answer`.")

    def written(self, answers: Sequence) -> Sequence:
        """Returns answers of `predict` as written to files, dicts or numbers; here unchanged."""
        return answers
