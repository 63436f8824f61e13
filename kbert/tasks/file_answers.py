"""How a task answers the records of a file."""

from collections.abc import Sequence
from typing import Any, ClassVar

from kbert.core.options import Options
from kbert.data.tables.table import Table


class NoAnswerOptions(Options):
    """For a task whose answers follow from what it was built with."""


class FileAnswers:
    """What a program that answers files asks of a task; here nothing answers.

    A kind of tasks that a program answers files with has a class of its own as its `file_answers`,
    which declares `program` and `options` and defines `answer`.

    Args:
        task: what answers.
    """

    # The program that answers files with the task; None = there is none.
    program: ClassVar[str | None] = None
    # What may be chosen of answers: flags of the program.
    options: ClassVar[type[Options]] = NoAnswerOptions
    # Records that are answered before they are written: what a kill may cost.
    at_once: ClassVar[int] = 1024

    def __init__(self, task: Any) -> None:
        self.task = task

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        """The answers to a part of an input, as a file has them.

        Args:
            table: records, with one of the sets of the task's input columns.
            options: an instance of the class `options`.
            batch_size: rows that go through the model together.
            first: the number of the first record in the whole input, which what is drawn at random
                follows from: an input that is answered in parts has the answers of the whole.

        Returns:
            For each record a dict or a number, as JSON or NumPy have them; and how many records
            were too long and lost tokens, for the task's `report_cut` of the whole.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `answer`.")

    def written(self, answers: Sequence) -> Sequence:
        """Answers of `predict` as a file has them: dicts, or numbers."""
        return answers
