"""What runs of fine-tuning have in common: a task by name, a pretrained model, the data."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

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
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.prepared import prepare_rows
from kbert.training.run.history import History
from kbert.training.run.record import SAME, Resume

# Of the order in which rows are drawn for development data, which no setting changes.
_SPLIT_SEED = 0
_SHOWN_LABELS = 10
_WEIGHTS = ("sample_weight", "class_weights")


class Experiment:
    """A task by name, a pretrained model and data: what runs have in common.

    Args:
        task: a name of `kbert.experiments.TASKS`, such as "sst2", "ner" or "classify".
        preset: folder or name of a pretrained model, see `kbert.hub.locate`.
        train: a path as the task's reader takes it, or data as `kbert.data.as_table` takes it.
        dev: the same, of development data: it chooses the best checkpoint.
        test: the same, of data that is only measured, or without labels only predicted.
        dev_share: share of `train` to keep apart as development data where there is no `dev`;
            whatever it is, `train` keeps a row of each class.
        labels: names of the classes, where more are wanted than occur in `train`.
        columns: our name of a column -> the file's, see `kbert.experiments.reading`.
        label_separator: what stands between the labels of one text, for "multilabel".
        sample_weight: the column of a file of `train` that the setting of this name weighs the
            loss by, so that it is read too.
        rows_folder: for the training data's tokens, where `train` is a file that is larger than
            memory: it is read a part at a time, as `kbert.tasks.prepare_rows` does. `dev` is given
            then. The folder serves every run on this data with this tokenizer and `max_length`.

    Raises:
        ValueError: an unknown task, data that cannot be read, neither `dev` nor `dev_share`, a
            label of `dev` that `train` does not have, fewer than two classes, or a test set of
            GLUE that is not the published one.

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
                f"`labels` are of tasks with classes. Received: {list(labels)} for a "
                f"{self.task_class.__name__}"
            )
        self.preset = os.fspath(preset)

        options: dict[str, Any] = {"columns": columns, "label_separator": label_separator}
        others = () if sample_weight is None else (sample_weight,)
        self.train: Table | TableParts
        if (dev is None) == (dev_share is None):
            raise ValueError(
                "Development data chooses the best checkpoint: give `dev`, or `dev_share` to keep "
                f"a share of `train` apart. Received: dev={dev!r:.80}, dev_share={dev_share}"
            )
        if self.rows_folder is None:
            self.train = read(self.named, train, split="train", others=others, **options)
        elif dev_share is not None or not self.task_class.prepares_rows:
            raise ValueError(
                "`rows_folder` is for a task whose examples are read a part at a time, with its "
                f"development data in `dev`. Received: rows_folder={self.rows_folder!r} for "
                f"{self.named.name}, dev_share={dev_share}"
            )
        else:
            self.train = TableParts(self.named, train, others=others, **options)

        def table(data: Any, split: str) -> Table:
            return read(self.named, data, split=split, **options)

        if isinstance(self.train, Table) and dev_share is not None:
            self.train, self.dev = _split(self.train, dev_share)
        else:
            self.dev = table(dev, "dev")
        self.test = None if test is None else table(test, "test")
        if (
            self.test is not None
            and self.named.glue
            and not is_labelled(self.task_class.columns, self.test)
        ):
            check_submission(self.named, self.test)
        seen = labels_of(self.train, self.named)
        found = labels or self.named.labels or seen
        self.labels = None if found is None else list(found)
        if self.named.labels is None and self.labels is not None:
            self._check_labels(self.labels, seen or [])

    @property
    def task_class(self) -> type[FineTuningTask]:
        """The class of tasks that is trained."""
        return self.named.task_class

    @property
    def head(self) -> Table:
        """The training data, of a file that is read in parts the first rows."""
        return self.train if isinstance(self.train, Table) else self.train.head

    def _check_labels(self, labels: list[str], seen: list[str]) -> None:
        """A class that is in no training example cannot be learned."""
        self.head[self.task_class.columns.label]  # raises where there is none
        several = self.task_class.takes_label_lists(self.named.fixed)
        if len(labels) < 2 and not several:
            raise ValueError(
                f"A {self.task_class.__name__} learns two classes or more. Received: "
                f"{labels} in all {len(self.train)} rows of the training data"
            )
        self._check_table(self.train, labels, "is none of those named: name it (labels)")
        self._check_table(self.dev, seen, "does not occur in the training data: add examples of it")
        if self.test is not None:
            self._check_table(self.test, labels, "is no class of the model: name it (labels)")

    def _check_table(self, table: Table | TableParts, known: list[str], problem: str) -> None:
        """Raises for a label that is not known; `problem` ends with one of two ways out."""
        places = label_places(table, self.named)
        new = sorted(set(places) - set(known))
        if new:
            raise ValueError(
                f"{places[new[0]]}: the label {new[0]!r} {problem}, or "
                f"leave its rows out. Received: {len(new)} such label(s), "
                f"{', '.join(map(repr, new[:5]))}"
            )

    def settings(self, **settings: Any) -> Settings:
        """The task's defaults with other values."""
        return settings_for(self.named, **settings)

    def make_task(self, settings: Settings) -> FineTuningTask:
        """What is trained: `new_task`, with the adapter, or what 8 bits or a pruning need."""
        task = self.new_task(settings)
        if settings.quantization_aware:
            task = quantization_aware(task)
        if settings.adapter is not None:
            adapters.insert(task, adapters.parse(settings.adapter), "task")
        if settings.prune_weights is not None:
            task = pruning.parse(settings.prune_weights).prepare(task)
        return task

    def finish(self, task: FineTuningTask, settings: Settings) -> FineTuningTask:
        """What a run keeps of the task that it has trained: without scores of its weights."""
        if settings.prune_weights is not None:
            task = pruning.parse(settings.prune_weights).finish(task)
        return task

    def callbacks(self, settings: Settings) -> list[keras.callbacks.Callback]:
        """Those of `fit` that the settings want."""
        return [] if settings.prune_weights is None else [pruning.parse(settings.prune_weights)]

    def new_task(self, settings: Settings) -> FineTuningTask:
        """The pretrained encoder under a newly initialised head."""
        keras.utils.set_random_seed(settings.seed)
        arguments = self.named.arguments(settings)
        if self.labels is not None:
            arguments["labels"] = self.labels
        return self.task_class.from_preset(
            self.preset, settings.precision, new_head=True, **arguments
        )

    def fits(self, task: FineTuningTask, settings: Settings) -> dict[str, tuple[Any, Settings]]:
        """What is trained in turn, by the name of the stage: whose `fit`, with which settings."""
        return {"": (task, settings)}

    def write_rows(self, task: FineTuningTask, settings: Settings, verbose: str | int) -> None:
        """Tokenises training data that is larger than memory, or what an earlier call left."""
        if isinstance(self.train, TableParts):
            weights = {name: getattr(settings, name) for name in _WEIGHTS}
            prepare_rows(
                task, iter(self.train), cast(str, self.rows_folder), verbose=verbose, **weights
            )

    def fit_arguments(self, settings: Settings) -> dict[str, Any]:
        """Those of `fit`; rows on disk have their weights."""
        arguments = settings.training()
        return arguments if self.rows_folder is None else arguments | dict.fromkeys(_WEIGHTS)

    def fit(
        self,
        task: FineTuningTask,
        settings: Settings,
        model_dir: Path,
        verbose: str | int = "auto",
        resume: Resume = SAME,
    ) -> History:
        """Trains what `make_task` made, and resumes where an earlier call was stopped.

        Args:
            task: the task.
            settings: those that it was made with.
            model_dir: where checkpoints and logs are written.
            verbose: see `FineTuningTask.fit`.
            resume: likewise.
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
        """Task, classes and sizes in a line."""
        tables = {"train": self.train, "dev": self.dev, "test": self.test}
        sizes = [f"{name} {len(table):,}" for name, table in tables.items() if table is not None]
        classes = ""
        if self.labels is not None:
            more = ", …" if len(self.labels) > _SHOWN_LABELS else ""
            classes = f" of {', '.join(self.labels[:_SHOWN_LABELS])}{more}"
        return (
            f"{self.named.name}: {self.task_class.__name__}{classes}; examples: {', '.join(sizes)}"
        )

    def identity(self) -> dict[str, Any]:
        """What the results depend on besides the settings, for `run.json`."""
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
    """The table without and with a share of its rows, drawn at random, in their order.

    Where every row has one class, by name, and a class would be missing in the first part, the
    share is drawn from each class, as nearly as whole rows allow, and the last row of a class
    stays. Else the rows are those of version 0.1, whose runs are resumed.
    """
    count = round(len(table) * share)
    if not 0 < count < len(table):
        raise ValueError(
            "`dev_share` must leave rows on both sides. Received: "
            f"dev_share={share} of {len(table)} rows"
        )
    groups = _class_rows(table)
    drawn = _draw(range(len(table)), count)
    if any(drawn.issuperset(rows) for rows in groups):
        counts = _apportion([len(rows) for rows in groups], count)
        drawn = set().union(*map(_draw, groups, counts))
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
    places = np.random.default_rng(_SPLIT_SEED).permutation(len(rows))[:count]
    return {rows[place] for place in places}


def _class_rows(table: Table) -> list[list[int]]:
    """The rows of each class; all rows together where they have no class by name."""
    labels = table.columns.get("label", [])
    if not labels or not all(isinstance(label, str) for label in labels):
        return [list(range(len(table)))]
    found: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        found.setdefault(label, []).append(row)
    return list(found.values())


def _apportion(sizes: list[int], count: int) -> list[int]:
    """So many of each group that `count` come together, in proportion, and one of each is left.

    Fewer come together where there are not as many.

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
