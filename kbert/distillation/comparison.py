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

_TIMED_EXAMPLES = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """One model on the data.

    Attributes:
        values: its evaluation, by name.
        layers: of its encoder.
        parameters: of encoder and head.
        seconds: of a forward of the data, without tokenising.
    """

    values: Mapping[str, float]
    layers: int
    parameters: int
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """A student and its teacher, on the same data in the same process.

    Attributes:
        metric: the one that is compared.
        student: the smaller.
        teacher: the larger.
    """

    metric: str
    student: Measured
    teacher: Measured

    @property
    def retention(self) -> float:
        """The student's metric over the teacher's; of a loss, where less is better, the inverse.

        Not a number where the teacher's value is not above 0, such as a correlation of 0.
        """
        kept, whole = self.student.values[self.metric], self.teacher.values[self.metric]
        if self.metric.endswith("loss"):
            kept, whole = whole, kept
        return kept / whole if whole > 0 else math.nan

    @property
    def speed(self) -> float:
        """The teacher's time over the student's."""
        return self.teacher.seconds / self.student.seconds

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; no retention is None."""
        retention = None if math.isnan(self.retention) else self.retention
        ratios = {"retention": retention, "speed": self.speed}
        return {**dataclasses.asdict(self), **ratios}

    def __str__(self) -> str:
        kept = "-" if math.isnan(self.retention) else f"{self.retention:.1%}"
        rows = []
        for name, one in (("teacher", self.teacher), ("student", self.student)):
            is_student = one is self.student
            rows.append(
                [
                    *(name, one.layers, one.values[self.metric]),
                    kept if is_student else "100.0%",
                    f"{one.parameters:,}",
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
    """Measures both on labelled data.

    The time is that of the forward of the same batches, the first 1,024 examples, on what the
    process runs on; the models alternate, and the fastest round of each counts.

    Args:
        student: the smaller.
        teacher: the larger, for the same data.
        data: labelled examples, as for `fit`.
        metric: name of the value that is compared; None = the task's.
        batch_size: rows of a batch.
        rounds: how often each is timed.

    Returns:
        The comparison; `print` shows a table.

    Raises:
        ValueError: data without labels, or a metric that the task does not have.

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
    """Name -> seconds of a forward of the table."""
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
            begun = time.perf_counter()
            for batch in batches:
                forward(batch)
            if round_:  # graphs are traced in the first
                best[name] = min(best[name], time.perf_counter() - begun)
    return best
