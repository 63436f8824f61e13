"""Results of one run, and of a series of runs."""

import dataclasses
import math
import statistics
from collections.abc import Mapping
from itertools import chain
from typing import Any

from kbert.core.finite import nan_last
from kbert.core.types import MaybeNone
from kbert.io.paths import Path
from kbert.metrics import text_table
from kbert.training.run.log import duration, human
from kbert.training.run.settings import is_lower_better


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run.

    Attributes:
        folder: folder of the run.
        metric: name of the metric that chose the best checkpoint.
        dev: metrics of the best checkpoint on the development data.
        test: metrics on the test data; None without labelled test data.
        best_value: value of `metric` at the evaluation that chose the best checkpoint.
        best_step: number of updates before the best checkpoint.
        best_loss: loss at the best checkpoint; None in results of former versions.
        steps: total number of updates.
        seconds: duration of training and its evaluations; for a run that was stopped, only since
            its last start.
        confusion: `matrix` and `names` on the development data, for tasks with classes.
        threshold: the tuned threshold of the task, as text; None if it was not tuned.
        peak_memory: peak memory of the process, or of the accelerator, until the end of the run,
            in bytes.
        settings: all fields of `kbert.experiments.Settings`.
        tasks: of several tasks: name -> its `dev`, `test`, `threshold` and `confusion`. The
            metrics in `dev` and `test` of the result are then prefixed with the names.
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
    tasks: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def score(self) -> tuple[float, float]:
        """Sort key of runs, larger is better: metric on the development data, then minus the loss.

        A metric such as a loss, whose smallest value is best, counts with minus; NaN comes last.
        Evaluations of one run are compared in the same way (`kbert.training.run.best`).
        """
        value = -self.best_value if is_lower_better(self.metric) else self.dev[self.metric]
        loss = math.inf if self.best_loss is None else self.best_loss
        return nan_last(value), nan_last(-loss)

    @property
    def preset(self) -> Path:
        """Folder of the best model."""
        return self.folder / "preset"

    def summary(self) -> str:
        """Returns time, memory and the step of the best checkpoint, as text."""
        best = f"no best {self.metric} in {self.steps:,} steps"
        if self.best_step is not None:
            best = f"best {self.metric} after step {self.best_step:,} of {self.steps:,}"
        parts = [
            best,
            f"{duration(self.seconds)}",
            f"peak memory {human(self.peak_memory)}B",
        ]
        return " · ".join(parts + ([self.threshold] if self.threshold else []))

    def to_dict(self) -> dict:
        """Returns the fields, as JSON can hold them, without the folder."""
        fields = dataclasses.asdict(self)
        del fields["folder"]
        return fields

    @classmethod
    def from_dict(cls, folder: Path, fields: dict) -> "Result":
        """Returns the result in a folder, from the fields that `to_dict` returned."""
        return cls(folder=folder, **fields)

    def __str__(self) -> str:
        if self.tasks:
            lines = {name: (part["dev"], part["test"]) for name, part in self.tasks.items()}
            lines["all tasks"] = (_only_mean(self.dev), _only_mean(self.test))
            # The columns of dev come before those of test.
            columns = dict.fromkeys(name for dev, _ in lines.values() for name in _shown(dev))
            return _table(
                [
                    {"task": name, **columns, **_shown(dev), **_of_test(_shown(test))}
                    for name, (dev, test) in lines.items()
                ]
            )
        rows = [{"data": "dev", **_shown(self.dev)}]
        if self.test:
            rows.append({"data": "test", **_shown(self.test)})
        return _table(rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """The results of several runs that differ in some settings.

    Attributes:
        folder: folder of the series.
        names: the settings that the runs differ in.
        results: results of the runs, in the order of execution.
        combined: "ensemble" or "soup", the name of a subfolder with a model made of all runs ->
            its `dev` and `test` metrics, and `runs`, their folders.
    """

    folder: Path
    names: tuple[str, ...]
    results: tuple[Result, ...]
    combined: Mapping[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def best(self) -> Result:
        """The run with the best development metric; ties are decided by the smaller loss."""
        return max(self.results, key=lambda result: result.score)

    @property
    def preset(self) -> Path:
        """Folder of the best run's model."""
        return self.folder / "preset"

    def metrics(self, data: str = "dev") -> dict[str, list[float]]:
        """Returns metric -> its value in every run, in the order of execution.

        A run whose model never predicts a type of entities that the labels lack has no F1 of that
        type: it counts as 0. Any other metric of the first run must be in all of them.

        Args:
            data: "dev" or "test"; without labelled test data the result is {}.
        """
        values = [getattr(result, data) or {} for result in self.results]
        types = [name for name in chain.from_iterable(values) if name.startswith("f1_")]
        missing = dict.fromkeys(types, 0.0)
        return {name: [(missing | value)[name] for value in values] for name in values[0] | missing}

    def summary(self, data: str = "dev") -> dict[str, tuple[float, float]]:
        """Returns metric -> (mean, sample standard deviation) over the runs.

        The deviation of a single run is 0.

        Args:
            data: "dev" or "test".
        """
        return {
            name: (statistics.fmean(x), statistics.stdev(x) if len(x) > 1 else 0.0)
            for name, x in self.metrics(data).items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row per run: the settings in `names`, metrics on dev and test, and seconds."""
        return [
            {
                **{name: result.settings[name] for name in self.names},
                **result.dev,
                **_of_test(result.test),
                "seconds": round(result.seconds),
            }
            for result in self.results
        ]

    def __str__(self) -> str:
        """Returns the table: seeds with mean and standard deviation, a grid from best to worst."""
        rows = self.rows()
        if self.names == ("seed",):
            groups = {"": self.summary("dev"), "test ": self.summary("test")}
            for row, of in (("mean", 0), ("sd", 1)):
                values = {p + n: x[of] for p, group in groups.items() for n, x in group.items()}
                rows.append({"seed": row, **values})
            if self.combined:
                best = {"dev": self.best.dev, "test": self.best.test}
                rows += [
                    {"seed": name, **scores["dev"], **_of_test(scores["test"])}
                    for name, scores in {"best": best, **self.combined}.items()
                ]
        else:
            order = sorted(range(len(rows)), key=lambda i: self.results[i].score, reverse=True)
            rows = [rows[i] for i in order]
        if not self.best.tasks:  # the metrics of several tasks are prefixed with names, even "f1"
            rows = [
                {name: x for name, x in row.items() if not is_of_class(name.removeprefix("test "))}
                for row in rows
            ]
        return _table(rows)


def is_of_class(name: str) -> bool:
    """Returns whether a metric of a task is the F1 of a class: it is in a report, not in tables."""
    return name.startswith("f1_")


def _shown(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """Returns the metrics of a task that a table shows."""
    return {name: x for name, x in (metrics or {}).items() if not is_of_class(name)}


def _only_mean(metrics: dict[str, float] | None) -> dict[str, float]:
    """Returns the mean over several tasks, of metrics that may have one."""
    return {name: x for name, x in (metrics or {}).items() if name == "mean"}


def _of_test(metrics: dict[str, float] | None) -> dict[str, float]:
    """Returns metrics on the test data by the names of their columns in a table."""
    return {f"test {name}": x for name, x in (metrics or {}).items()}


def _table(rows: list[dict[str, Any]]) -> str:
    """Formats rows, by column name, as a text table; the columns are all names in a row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name) for name in names] for row in rows]
    if "learning_rate" in names:  # the table's four decimals are too few for learning rates
        index = names.index("learning_rate")
        for line in cells:
            line[index] = f"{line[index]:g}"
    return text_table(names, cells)
