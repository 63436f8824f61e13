"""The common part of fine-tuning runs: a task by name, a pretrained model, the data."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import keras
import numpy as np

from kbert.catalog.named_tasks import named_task
from kbert.core.types import PathLike
from kbert.data import Table
from kbert.edit import adapters, pruning
from kbert.edit.quantization import quantization_aware
from kbert.experiments.catalogue import settings_for
from kbert.experiments.evaluation import check_submission, is_labelled
from kbert.experiments.folder import checksum_of
from kbert.experiments.reading import TableParts, label_places, labels_of, read
from kbert.experiments.settings import Settings
from kbert.io.paths import Path
from kbert.tasks.fine_tuning.prepared import prepare_rows
from kbert.tasks.fine_tuning.table_task import TableTask
from kbert.training.run.history import History
from kbert.training.run.record import SAME, Resume

# Seed of the random choice of rows for development data; no setting changes it.
_SPLIT_SEED = 0
_SHOWN_LABELS = 10
_WEIGHTS = ("sample_weight", "class_weights")


class Trainable(Protocol):
    """What `kbert.experiments.run` trains: one task (`Experiment`), or several on one encoder.

    The methods without a body are documented in `Experiment`.
    """

    @property
    def kind(self) -> str | None: ...
    @property
    def head(self) -> Any: ...
    def settings(self, **settings: Any) -> Settings: ...
    def make_task(self, settings: Settings) -> Any: ...
    def fit(
        self,
        task: Any,
        settings: Settings,
        model_dir: Path,
        verbose: str | int = "auto",
        resume: Resume = SAME,
    ) -> History: ...
    def parts(
        self, task: Any, settings: Settings
    ) -> "dict[str, tuple[Experiment, TableTask, Settings]]": ...
    def main_metric(self, task: Any, settings: Settings) -> str: ...
    def joined(
        self, task: Any, metrics: Mapping[str, dict[str, float]]
    ) -> dict[str, float] | None: ...
    def summary(self) -> str: ...
    def identity(self) -> dict[str, Any]: ...

    @property
    def fit_options(self) -> Mapping[str, Any]:
        """Arguments of the task's `fit` that are not settings."""
        return {}

    def write_rows(self, task: Any, settings: Settings, verbose: str | int) -> None:
        """Prepares the training data on disk; by default the data is in memory."""
        return

    def fits(self, task: Any, settings: Settings) -> dict[str, tuple[Any, Settings]]:
        """Returns the stages of training.

        Args:
            task: the task to train.
            settings: settings of the run.

        Returns:
            Name of a stage -> the object whose `fit` it calls, and the settings of that call.
        """
        return {"": (task, settings)}

    def finish(self, task: Any, settings: Settings) -> Any:
        """Returns a trained task in the form that is saved."""
        return task


class Experiment(Trainable):
    """A task by name, a pretrained model and data, for one run or several.

    Args:
        task: name of a task in `kbert.experiments.TASKS`, such as "sst2", "ner" or "classify".
        preset: folder or name of a pretrained model, see `kbert.hub.locate`.
        train: training data: a path for the task's reader, or data for `kbert.data.as_table`.
        dev: development data, in the same forms; it chooses the best checkpoint.
        test: test data, in the same forms; it is measured, or only predicted if it has no labels.
        dev_share: share of `train` that is split off as development data if there is no `dev`;
            for any share `train` keeps a row of each label.
        labels: names of the classes, if there are more than occur in `train`.
        columns: kbert's name of a column -> the file's name, see `kbert.experiments.reading`.
        label_separator: separator between the labels of one text, for "multilabel".
        sample_weight: column of the file `train` that holds the weights of examples in the loss;
            it is read for the setting of this name.
        rows_folder: folder for the tokenised training data, if `train` is a file larger than
            memory. The file is read in parts, as by `kbert.tasks.prepare_rows`, and `dev` is
            required. Runs on the same data with the same tokenizer and `max_length` can share the
            folder.

    Raises:
        ValueError: the task is unknown, data cannot be read, not exactly one of `dev` and
            `dev_share` is given, `dev` has a label that `train` lacks, there are fewer than two
            classes, or an unlabelled test set of GLUE or SuperGLUE is not the published
            one.

    Example:
        >>> data = {"text": ["free money", "see you"] * 10, "label": ["spam", "ham"] * 10}
        >>> experiment = Experiment("classify", preset="bert-tiny", train=data, dev_share=0.1)
        >>> experiment.labels, len(experiment.train), len(experiment.dev)
        (['ham', 'spam'], 18, 2)
    """

    def __init__(
        self,
        task: str,
        *,
        preset: PathLike,
        train: Any,
        dev: Any = None,
        test: Any = None,
        dev_share: float | None = None,
        labels: Sequence[str] | None = None,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        label_separator: str = ",",
        sample_weight: str | None = None,
        rows_folder: PathLike | None = None,
    ) -> None:
        self.named = named_task(task)
        self.rows_folder = None if rows_folder is None else os.fspath(rows_folder)
        if labels is not None and not self.named.has_classes:
            raise ValueError(
                f"`labels` is supported by tasks with classes only. Received: {list(labels)} for "
                f"a {self.task_class.__name__}"
            )
        self.preset = os.fspath(preset)

        options: dict[str, Any] = {"columns": columns, "label_separator": label_separator}
        extra_columns = () if sample_weight is None else (sample_weight,)
        self.train: Table | TableParts
        if (dev is None) == (dev_share is None):
            raise ValueError(
                "Exactly one of `dev` and `dev_share` (to hold out a share of `train`) must be "
                f"given, to select the best checkpoint. Received: dev={dev!r:.80}, "
                f"dev_share={dev_share}"
            )
        if self.rows_folder is None:
            self.train = read(self.named, train, split="train", others=extra_columns, **options)
        elif dev_share is not None or not self.task_class.prepares_rows:
            raise ValueError(
                "`rows_folder` requires a task whose data can be read in parts, and development "
                f"data in `dev`. Received: rows_folder={self.rows_folder!r} for "
                f"{self.named.name}, dev_share={dev_share}"
            )
        else:
            self.train = TableParts(self.named, train, others=extra_columns, **options)

        def table(data: Any, split: str) -> Table:
            return read(self.named, data, split=split, **options)

        if isinstance(self.train, Table) and dev_share is not None:
            self.train, self.dev = _split(self.train, dev_share)
        else:
            self.dev = table(dev, "dev")
        self.test = None if test is None else table(test, "test")
        if (
            self.test is not None
            and self.named.benchmark
            and not is_labelled(self.task_class.columns, self.test)
        ):
            check_submission(self.named, self.test)
        seen_labels = labels_of(self.train, self.named)
        label_names = labels or self.named.labels or seen_labels
        self.labels = None if label_names is None else list(label_names)
        if self.named.labels is None and self.labels is not None:
            self._check_labels(self.labels, seen_labels or [])

    @property
    def task_class(self) -> type[TableTask]:
        """Class of the trained task."""
        return self.named.task_class

    @property
    def kind(self) -> str | None:
        """Kind of the model that a run writes."""
        return self.task_class.kind

    @property
    def head(self) -> Table:
        """The training data; only the first rows if it is a file that is read in parts."""
        return self.train if isinstance(self.train, Table) else self.train.head

    def _check_labels(self, labels: list[str], seen: list[str]) -> None:
        """Raises ValueError if a class cannot be learned or a label is unknown.

        Args:
            labels: names of the classes.
            seen: names of the classes in the training data.
        """
        self.head[self.task_class.columns.label]  # raises if there is no such column
        several = self.task_class.takes_label_lists(self.named.fixed)
        if len(labels) < 2 and not several:
            raise ValueError(
                f"A {self.task_class.__name__} requires at least two classes. Received: {labels} "
                f"in all {len(self.train)} rows of the training data"
            )
        self._check_table(self.train, labels, "must be one of the given labels: add it to `labels`")
        self._check_table(self.dev, seen, "must occur in the training data: add examples of it")
        if self.test is not None:
            self._check_table(self.test, labels, "must be a class of the model: add it to `labels`")

    def _check_table(self, table: Table | TableParts, known: list[str], problem: str) -> None:
        """Raises ValueError, with file and line, if a table has an unknown label.

        Args:
            table: labelled examples.
            known: the allowed labels.
            problem: what must hold, and one remedy; the message adds another.
        """
        first_rows = label_places(table, self.named)
        new = sorted(set(first_rows) - set(known))
        if new:
            raise ValueError(
                f"{first_rows[new[0]]}: the label {new[0]!r} {problem}, or remove its rows. "
                f"Received: {len(new)} such label(s), {', '.join(map(repr, new[:5]))}"
            )

    def settings(self, **settings: Any) -> Settings:
        """Returns the task's default settings with some fields changed; see `settings_for`."""
        return settings_for(self.named, **settings)

    def make_task(self, settings: Settings) -> TableTask:
        """Makes the task to train: `new_task`, with its adapter, 8-bit rounding or pruning."""
        task = self.new_task(settings)
        if settings.quantization_aware:
            task = quantization_aware(task)
        if settings.adapter is not None:
            adapters.insert(task, adapters.parse(settings.adapter), "task")
        if settings.prune_weights is not None:
            task = pruning.parse(settings.prune_weights).prepare(task)
        return task

    def finish(self, task: TableTask, settings: Settings) -> TableTask:
        """Returns a trained task in the form that is saved: without the scores of pruning."""
        if settings.prune_weights is not None:
            task = pruning.parse(settings.prune_weights).finish(task)
        return task

    def callbacks(self, settings: Settings) -> list[keras.callbacks.Callback]:
        """Returns the callbacks of `fit` that the settings require, those of pruning."""
        return [] if settings.prune_weights is None else [pruning.parse(settings.prune_weights)]

    def new_task(self, settings: Settings) -> TableTask:
        """Makes a task of the pretrained encoder with a new head; sets all random seeds."""
        keras.utils.set_random_seed(settings.seed)
        return self.task_class.from_preset(
            self.preset, settings.precision, new_head=True, **self.arguments(settings)
        )

    def arguments(self, settings: Settings) -> dict[str, Any]:
        """Returns the constructor arguments of the task, with the classes of the data."""
        labels = {} if self.labels is None else {"labels": self.labels}
        return {**self.named.arguments(settings), **labels}

    def parts(
        self, task: TableTask, settings: Settings
    ) -> "dict[str, tuple[Experiment, TableTask, Settings]]":
        """Returns what a trained model is measured on: by name the data, the task, its settings.

        The name is empty if the experiment is on one task.
        """
        return {"": (self, task, settings)}

    def main_metric(self, task: TableTask, settings: Settings) -> str:
        """Returns the name of the metric that selects the best weights."""
        return settings.metric or task.main_metric(self.dev)

    def joined(
        self, task: TableTask, metrics: Mapping[str, dict[str, float]]
    ) -> dict[str, float] | None:
        """Returns the metrics of a run from those of its parts; None if none is measured."""
        return metrics.get("")

    def write_rows(self, task: TableTask, settings: Settings, verbose: str | int) -> None:
        """Tokenises training data larger than memory to `rows_folder`; resumes an earlier call.

        Args:
            task: task that tokenises.
            settings: settings of the run, for the weights of examples.
            verbose: progress bar: "auto", 0 or 1.
        """
        if isinstance(self.train, TableParts):
            weights = {name: getattr(settings, name) for name in _WEIGHTS}
            prepare_rows(
                task, iter(self.train), cast(str, self.rows_folder), verbose=verbose, **weights
            )

    def fit_arguments(self, settings: Settings) -> dict[str, Any]:
        """Returns the arguments of `fit`; without weights if the rows on disk contain them."""
        arguments = settings.training()
        return arguments if self.rows_folder is None else arguments | dict.fromkeys(_WEIGHTS)

    def fit(
        self,
        task: TableTask,
        settings: Settings,
        model_dir: Path,
        verbose: str | int = "auto",
        resume: Resume = SAME,
    ) -> History:
        """Trains a task, and resumes an earlier call that was stopped.

        Args:
            task: result of `make_task`.
            settings: the settings that the task was made with.
            model_dir: folder for checkpoints and logs.
            verbose: 1 = a progress bar, 2 = a line per epoch, 0 = silent; "auto" = 1 in a terminal
                or a notebook, else 2.
            resume: "same" raises if `model_dir` was begun with other data or settings; "changed"
                resumes with the new ones; names of settings allow only these to change.

        Returns:
            The history of the training.
        """
        return task.fit(
            self.rows_folder or self.train,
            validation_data=self.dev,
            model_dir=model_dir,
            resume=resume,
            verbose=verbose,
            callbacks=self.callbacks(settings),
            **self.fit_arguments(settings),
        )

    def summary(self) -> str:
        """Returns task, classes and sizes of the data in one line."""
        tables = {"train": self.train, "dev": self.dev, "test": self.test}
        sizes = [f"{name} {len(table):,}" for name, table in tables.items() if table is not None]
        classes = ""
        if self.labels is not None:
            suffix = ", …" if len(self.labels) > _SHOWN_LABELS else ""
            classes = f" of {', '.join(self.labels[:_SHOWN_LABELS])}{suffix}"
        return (
            f"{self.named.name}: {self.task_class.__name__}{classes}; examples: {', '.join(sizes)}"
        )

    def identity(self) -> dict[str, Any]:
        """Returns what the results depend on besides the settings, for `run.json`.

        Returns:
            Name of the task, preset and its checksum, labels, and rows and checksum of each table.
        """
        tables = {"train": self.train, "dev": self.dev, "test": self.test}
        return {
            "task": self.named.name,
            "preset": self.preset,
            "preset_checksum": checksum_of(self.preset),
            "labels": self.labels,
            "data": {
                name: f"{len(table):,} rows, checksum {table.checksum:08x}"
                for name, table in tables.items()
                if table is not None
            },
        }


def _split(table: Table, share: float) -> tuple[Table, Table]:
    """Splits a table at random into development data and the rest; both keep the order.

    The rows are drawn from the whole table, as in version 0.1, so that its runs can be resumed. One
    case differs: labels are names, and the rest would lack one. If every row has one label, the
    share is then drawn from each class, as nearly as whole rows allow, and each class keeps a row
    in the rest. If rows have lists of labels, the first row of each such label stays in the rest.

    Args:
        table: the table.
        share: share of development data, between 0 and 1.

    Returns:
        The rest, and the development data.

    Raises:
        ValueError: one of both would be empty.
    """
    count = round(len(table) * share)
    if not 0 < count < len(table):
        raise ValueError(
            "`dev_share` must leave rows on both sides. Received: "
            f"dev_share={share} of {len(table)} rows"
        )
    groups = _label_rows(table)
    drawn = _draw(range(len(table)), count)
    one_each = sorted(itertools.chain(*groups)) == list(range(len(table)))
    if one_each and any(map(drawn.issuperset, groups)):
        counts = _apportion([len(rows) for rows in groups], count)
        drawn = set().union(*map(_draw, groups, counts))
    for group in groups:
        if drawn.issuperset(group):
            drawn.remove(group[0])
    if not drawn:
        raise ValueError(
            "`dev_share` must leave a row of each class for training. Received: "
            f"dev_share={share} of {len(table)} rows of {len(groups)} classes"
        )
    rows = range(len(table))
    return (
        table.take([row for row in rows if row not in drawn]),
        table.take([row for row in rows if row in drawn]),
    )


def _draw(rows: Sequence[int], count: int) -> set[int]:
    """Returns `count` of the row numbers, drawn at random with a fixed seed."""
    positions = np.random.default_rng(_SPLIT_SEED).permutation(len(rows))[:count]
    return {rows[position] for position in positions}


def _label_rows(table: Table) -> list[list[int]]:
    """Returns the row numbers of each label; [] if labels are not strings, or lists of them."""
    column = table.columns.get("label", table.columns.get("labels", []))
    rows_by_label: dict[str, list[int]] = {}
    for row, value in enumerate(column):
        for label in dict.fromkeys(value) if isinstance(value, list) else (value,):
            if not isinstance(label, str):
                return []
            rows_by_label.setdefault(label, []).append(row)
    return list(rows_by_label.values())


def _apportion(sizes: list[int], count: int) -> list[int]:
    """Distributes `count` over groups in proportion to their sizes; each group keeps one member.

    The sum is smaller than `count` if the groups do not have enough members.

    >>> _apportion([6, 3, 1], 5), _apportion([1, 1, 2], 3)
    ([3, 2, 0], [0, 0, 1])
    """
    shares = [size * count / sum(sizes) for size in sizes]
    counts = [min(int(share), size - 1) for share, size in zip(shares, sizes, strict=True)]
    while sum(counts) < count:
        free = [i for i, size in enumerate(sizes) if counts[i] < size - 1]
        if not free:
            break
        counts[max(free, key=lambda i: (shares[i] - counts[i], -i))] += 1
    return counts
