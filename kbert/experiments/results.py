"""Results of runs: of one, and of a series."""

import dataclasses
import math
import statistics
from typing import Any

from kbert.core.types import MaybeNone
from kbert.io.paths import Path
from kbert.metrics import text_table
from kbert.training.run.log import duration, human


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run.

    Attributes:
        folder: where it lies.
        metric: name of the metric that chose the best checkpoint.
        dev: metrics on the development data, of the best checkpoint.
        test: metrics on the test data, where there is some that is labelled.
        best_value: `metric`, when the best checkpoint was chosen.
        best_step: updates before it.
        best_loss: the loss there; None in results of versions before.
        steps: updates made.
        seconds: of training, evaluations among it; of a run that was stopped, since its last start.
        confusion: `matrix` and `names` on the development data, of tasks with classes.
        threshold: what the task's threshold was tuned to, as text.
        peak_memory: largest bytes of the process, or of the accelerator, until the end of the run.
        settings: all of `kbert.experiments.Settings`.
    """

    folder: Path
    metric: str
    dev: dict[str, float]
    test: dict[str, float] | None
    best_value: float | MaybeNone
    best_step: int | MaybeNone
    steps: int
    seconds: float
    confusion: dict[str, Any] | None
    threshold: str | None
    peak_memory: int
    settings: dict[str, Any]
    best_loss: float | None = None

    @property
    def score(self) -> tuple[float, float]:
        """What decides, the larger the better: the metric on the development data, then the loss.

        As of two evaluations of one run (`kbert.training.run.best`).
        """
        value = -self.best_value if self.metric.endswith("loss") else self.dev[self.metric]
        return value, -math.inf if self.best_loss is None else -self.best_loss

    @property
    def preset(self) -> Path:
        """Folder of the best model."""
        return self.folder / "preset"

    def summary(self) -> str:
        """Time, memory and where the best checkpoint is from, as text."""
        parts = [
            f"best {self.metric} after step {self.best_step:,} of {self.steps:,}",
            f"{duration(self.seconds)}",
            f"peak memory {human(self.peak_memory)}B",
        ]
        return " · ".join(parts + ([self.threshold] if self.threshold else []))

    def to_dict(self) -> dict:
        """As JSON can hold it, without the folder."""
        fields = dataclasses.asdict(self)
        del fields["folder"]
        return fields

    @classmethod
    def from_dict(cls, folder: Path, fields: dict) -> "Result":
        """What `to_dict` gave."""
        return cls(folder=folder, **fields)

    def __str__(self) -> str:
        rows = [{"data": "dev", **self.dev}]
        if self.test:
            rows.append({"data": "test", **self.test})
        return _table(rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """The results of several runs that differ in some settings.

    Attributes:
        folder: where they lie.
        names: the settings that they differ in.
        results: the runs, in the order they were made.
    """

    folder: Path
    names: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def best(self) -> Result:
        """The run with the best development metric, or of equals the smallest loss."""
        return max(self.results, key=lambda result: result.score)

    @property
    def preset(self) -> Path:
        """Folder of the best run's model."""
        return self.folder / "preset"

    def metrics(self, data: str = "dev") -> dict[str, list[float]]:
        """Metric -> its value in every run, on "dev" or "test"; none where that has no labels."""
        values = [getattr(result, data) or {} for result in self.results]
        return {name: [value[name] for value in values] for name in values[0]}

    def summary(self, data: str = "dev") -> dict[str, tuple[float, float]]:
        """Metric -> (mean, standard deviation of the sample, 0 for a single run)."""
        return {
            name: (statistics.fmean(x), statistics.stdev(x) if len(x) > 1 else 0.0)
            for name, x in self.metrics(data).items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row a run: what it differs in, its metrics on dev, on test, and its seconds."""
        return [
            {
                **{name: result.settings[name] for name in self.names},
                **result.dev,
                **{f"test {name}": x for name, x in (result.test or {}).items()},
                "seconds": round(result.seconds),
            }
            for result in self.results
        ]

    def __str__(self) -> str:
        """The table: seeds with mean and standard deviation, a grid from best to worst."""
        rows = self.rows()
        if self.names == ("seed",):
            groups = {"": self.summary("dev"), "test ": self.summary("test")}
            for row, of in (("mean", 0), ("sd", 1)):
                values = {p + n: x[of] for p, group in groups.items() for n, x in group.items()}
                rows.append({"seed": row, **values})
        else:
            order = sorted(range(len(rows)), key=lambda i: self.results[i].score, reverse=True)
            rows = [rows[i] for i in order]
        return _table(rows)


def _table(rows: list[dict[str, Any]]) -> str:
    """Rows under the names that any of them has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    # The F1 of each class is in the report.
    names = [name for name in names if not name.removeprefix("test ").startswith("f1_")]
    cells = [[row.get(name) for name in names] for row in rows]
    if "learning_rate" in names:  # four decimals are too few for it
        place = names.index("learning_rate")
        for line in cells:
            line[place] = f"{line[place]:g}"
    return text_table(names, cells)
