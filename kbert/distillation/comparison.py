"""A student compared with its teacher: quality, size and speed."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kbert import inference
from kbert.data import Table
from kbert.metrics import text_table
from kbert.tasks import FineTuningTask
from kbert.training.run.settings import is_lower_better

_TIMED_EXAMPLES = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of one model on the data.

    Attributes:
        values: results of the evaluation, by name.
        layers: number of layers of the encoder.
        parameters: number of parameters of encoder and head.
        seconds: time of a forward pass over at most 1,024 examples, without tokenization.
    """

    values: Mapping[str, float]
    layers: int
    parameters: int
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Measurements of a student and its teacher on the same data, in the same process.

    Attributes:
        metric: name of the metric that is compared.
        student: measurements of the student.
        teacher: measurements of the teacher.
    """

    metric: str
    student: Measured
    teacher: Measured

    @property
    def retention(self) -> float:
        """The student's metric divided by the teacher's.

        For a metric such as a loss, whose smallest value is best, it is the inverse. It is NaN if
        the divisor is not above 0, such as a correlation of 0.
        """
        numerator, divisor = self.student.values[self.metric], self.teacher.values[self.metric]
        if is_lower_better(self.metric):
            numerator, divisor = divisor, numerator
        return numerator / divisor if divisor > 0 else math.nan

    @property
    def speed(self) -> float:
        """The teacher's time divided by the student's."""
        return self.teacher.seconds / self.student.seconds

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON; a retention of NaN becomes None."""
        retention = None if math.isnan(self.retention) else self.retention
        ratios = {"retention": retention, "speed": self.speed}
        return {**dataclasses.asdict(self), **ratios}

    def __str__(self) -> str:
        retained = "-" if math.isnan(self.retention) else f"{self.retention:.1%}"
        rows = []
        for name, measured in (("teacher", self.teacher), ("student", self.student)):
            is_student = measured is self.student
            rows.append(
                [
                    *(name, measured.layers, measured.values[self.metric]),
                    retained if is_student else "100.0%",
                    f"{measured.parameters:,}",
                    f"{self.speed:.2f} x" if is_student else "1.00 x",
                ]
            )
        header = ["model", "layers", self.metric, "retained", "parameters", "speed"]
        return text_table(header, rows)


def compare(
    student: FineTuningTask,
    teacher: FineTuningTask,
    data: Any,
    *,
    metric: str | None = None,
    batch_size: int = 32,
    rounds: int = 3,
) -> Comparison:
    """Compares quality, size and speed of a student and its teacher on labelled data.

    The time is that of a forward pass over the same batches of the first 1,024 examples, on the
    device of the process. The models alternate, and the fastest round of each counts.

    Args:
        student: the smaller task.
        teacher: the larger task, for the same data.
        data: labelled examples, in any form that `fit` accepts.
        metric: name of the value to compare; None = the student task's metric.
        batch_size: rows per batch.
        rounds: number of timed rounds per model.

    Returns:
        The comparison; `print` shows it as a table.

    Raises:
        ValueError: the data have no labels, or the task does not have the metric.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> config = kbert.EncoderConfig(vocabulary_size=7, hidden_size=8, num_layers=2,
        ...                              num_heads=2, intermediate_size=16)
        >>> teacher = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
        >>> student = kbert.student(teacher, num_layers=1)
        >>> found = compare(student, teacher, (["good", "bad"], ["yes", "no"]))
        >>> found.metric, found.student.layers, found.student.parameters < found.teacher.parameters
        ('accuracy', 1, True)
    """
    table = student.as_table(data)
    models = {"student": student, "teacher": teacher}
    seconds = _seconds(
        models, table.take(range(min(len(table), _TIMED_EXAMPLES))), batch_size, rounds
    )
    measured = {
        name: Measured(
            values=task.evaluate(table, batch_size=batch_size, verbose=0),
            layers=task.encoder.config.num_layers,
            parameters=task.count_params(),
            seconds=seconds[name],
        )
        for name, task in models.items()
    }
    metric = metric or student.metric
    if metric not in measured["student"].values:
        raise ValueError(
            f"metric must be one of {', '.join(measured['student'].values)}. Received: {metric!r}"
        )
    return Comparison(metric=metric, **measured)


def _seconds(
    models: Mapping[str, FineTuningTask], table: Table, batch_size: int, rounds: int
) -> dict[str, float]:
    """Returns name of the model -> seconds of the fastest forward pass over the table.

    Args:
        models: name -> model; must have "student", which makes the batches.
        table: labelled examples.
        batch_size: rows per batch.
        rounds: number of timed passes per model.
    """
    rows = models["student"].tokenize(table, labelled=True)
    endless = models["student"].batches(rows, batch_size=batch_size, seed=0)
    count = -(-len(rows) // batch_size)
    batches = [
        {name: np.asarray(value) for name, value in batch.items()}
        for batch in itertools.islice(endless, count)
    ]

    def forward_of(task: FineTuningTask) -> Callable[[dict[str, Any]], Any]:
        return inference.compiled(lambda batch: dict(task(batch)), *task.parts.values())

    forwards = {name: forward_of(task) for name, task in models.items()}
    best = dict.fromkeys(models, float("inf"))
    for round_ in range(rounds + 1):
        for name, forward in forwards.items():
            start = time.perf_counter()
            for batch in batches:
                forward(batch)
            if round_:  # graphs are traced in the first round, which does not count
                best[name] = min(best[name], time.perf_counter() - start)
    return best
