"""Experiments on several tasks that share an encoder, and the files that describe them.

A file of tasks is TOML, or JSON of the same shape. Paths are relative to its folder:

    sampling = "sqrt"                 # or another argument of `MultiTaskExperiment`
    defaults = {max_length = 128}     # keys of every task

    [tasks.mnli]                      # a named task of this name
    train = "MNLI/train.tsv"
    dev = "MNLI/dev_matched.tsv"

    [tasks.praise]                    # or any name, with the named task
    task = "classify"
    train = "reviews.csv"
    dev_share = 0.1
    columns = {text = "review", label = "stars"}
"""

import json
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from absl import logging

from kbert.catalog.named_tasks import named_task, task_options
from kbert.core.options import Options, option
from kbert.core.types import PathLike
from kbert.data import Table
from kbert.edit import adapters
from kbert.experiments.experiment import Experiment, Trainable
from kbert.experiments.results import is_of_class
from kbert.experiments.settings import Settings, extended, flag_options
from kbert.io.paths import Path, is_remote, read_settings
from kbert.tasks import FineTuningTask, MultiTask, TableTask
from kbert.tasks.fine_tuning.multi_task import ANNEALED, SAMPLING, check_task_names
from kbert.training.run.history import History
from kbert.training.run.record import SAME, Resume

# Settings of a run that several tasks cannot have together, beside their defaults.
_OF_ONE_TASK = ("class_weights", "freeze", "prune_weights", "quantization_aware", "sample_weight")
# Settings of a run of which each task has its own value.
_OWN = ("metric", "tune_threshold")


class MultiTaskOptions(Options):
    """Options of several tasks on one encoder."""

    sampling: str = option(
        ANNEALED,
        help="Probability of a task in a step, see `kbert.tasks.MultiTask.fit`.",
        choices=SAMPLING,
    )
    steps_per_epoch: int | None = option(
        None, help="Steps of an epoch; None = the batches of all examples.", at_least=1
    )
    train_encoder: bool = option(
        True, help="Whether the encoder is trained too if each task has an adapter."
    )


class MultiTaskExperiment(Trainable):
    """Several tasks that are trained together on one encoder, by `kbert.tasks.MultiTask`.

    `kbert.experiments.run`, `seeds`, `grid` and `preview` accept it instead of an `Experiment`. The
    preset that a run writes has a subfolder for each task, which is a preset itself; answers and
    reports are in `tasks/`. The best weights are those with the best `mean` over one metric per
    task, on a scale of 0 to 1, unless the setting `metric` is another value, such as
    `rte_accuracy`.

    Args:
        experiments: name -> the experiment on a single task. All have the same preset.
        settings: name -> settings of the task, such as `max_length`; `metric`, which counts in the
            mean; and `tune_threshold`. The defaults are those of the named task.
        **options: the fields of `MultiTaskOptions`: `sampling`, `steps_per_epoch` and
            `train_encoder`.

    Raises:
        TypeError: an experiment is not an `Experiment`, but of a subclass.
        ValueError: a name is invalid, the presets differ, a task is not on an encoder or has rows
            on disk, or a setting is invalid.

    Example:
        >>> texts = ["free money", "see you"] * 10
        >>> data = {"text": texts, "label": ["spam", "ham"] * 10}
        >>> numbers = {"text": texts, "label": [1.0, 0.0] * 10}
        >>> options = {"preset": "bert-tiny", "dev_share": 0.1}
        >>> experiment = MultiTaskExperiment({
        ...     "mail": Experiment("classify", train=data, **options),
        ...     "score": Experiment("regress", train=numbers, **options)})
        >>> print(experiment.summary())
        mail: classify: TextClassifier of ham, spam; examples: train 18, dev 2
        score: regress: TextRegressor; examples: train 18, dev 2
    """

    kind = "multi_task"

    def __init__(
        self,
        experiments: Mapping[str, Experiment],
        settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        check_task_names(experiments)
        self.experiments = dict(experiments)
        self.options = MultiTaskOptions.from_arguments(options, "MultiTaskExperiment")
        if unknown := sorted(set(settings) - set(experiments)):
            raise ValueError(
                f"`settings` must be those of the tasks, {', '.join(experiments)}. Received: "
                f"{', '.join(unknown)}"
            )
        self.own_settings: dict[str, Settings] = {}
        for name, single in experiments.items():
            if type(single) is not Experiment:  # the `fit` of a subclass would not be called
                raise TypeError(
                    "Tasks that are trained together must each be a kbert.experiments.Experiment. "
                    f"Received: a {type(single).__name__} as {name}"
                )
            if not issubclass(single.task_class, FineTuningTask):
                raise ValueError(
                    "Only tasks on an encoder can be trained together. Received: a "
                    f"{single.task_class.__name__} as {name}"
                )
            if single.rows_folder is not None:
                raise ValueError(
                    "Tasks that are trained together need their data in memory, without "
                    f"`rows_folder`. Received: rows_folder={single.rows_folder!r} of {name}"
                )
            given = settings.get(name, {})
            allowed = (*flag_options(single.task_class.options), *_OWN)
            if others := [key for key in given if key not in allowed]:
                raise ValueError(
                    f"Settings of a {single.task_class.__name__} among several tasks are "
                    f"{', '.join(allowed)}; others are the run's. Received: {', '.join(others)} "
                    f"of {name}"
                )
            self.own_settings[name] = single.settings(**given)
        presets = {single.preset for single in experiments.values()}
        if len(presets) > 1:
            raise ValueError(
                "Tasks that are trained together must have the same preset. Received: "
                f"{', '.join(sorted(presets))}"
            )

    @property
    def fit_options(self) -> Mapping[str, Any]:
        """Arguments of `fit` that are not settings."""
        options = self.options
        return {"sampling": options.sampling, "steps_per_epoch": options.steps_per_epoch}

    @property
    def head(self) -> dict[str, Table]:
        """Name of a task -> its training data."""
        return {name: single.head for name, single in self.experiments.items()}

    def settings(self, **settings: Any) -> Settings:
        """Returns the default settings of a run with some fields changed.

        The default of a setting is the one that all tasks have. If the tasks' defaults differ, it
        is the general one, and a warning names the tasks.

        Args:
            **settings: fields of `Settings`.

        Raises:
            ValueError: a setting is that of a single task, or invalid.
        """
        given = {name: x for name, x in settings.items() if x is not None}
        usual = {name: Settings.field_of(name).default for name in _OF_ONE_TASK}
        if refused := [
            name for name in _OF_ONE_TASK if given.get(name, usual[name]) != usual[name]
        ]:
            raise ValueError(
                "These settings are supported for single tasks only. Received: "
                f"{', '.join(refused)}"
            )
        of_tasks = {name for kind in task_options().values() for name in flag_options(kind)}
        if refused := sorted(given.keys() & {*of_tasks, "tune_threshold"}):
            raise ValueError(
                "The tasks have their own values of these settings: set them for each (in a file "
                "under [tasks.NAME], or for all under [defaults]). Received: "
                f"{', '.join(refused)}"
            )
        if given.get("adapter") is not None:
            rate = adapters.parse(given["adapter"]).learning_rate  # raises if it is invalid
            if not self.options.train_encoder:
                given = {"learning_rate": rate, **given}
        elif not self.options.train_encoder:
            raise ValueError(
                "train_encoder=False requires an `adapter`, which is trained instead. Received: "
                "train_encoder=False without one"
            )
        return Settings.from_arguments({**self._usual(given), **given}, "experiments.run")

    def _usual(self, given: Collection[str]) -> dict[str, Any]:
        """Returns the recommended settings that all tasks share, and warns of the others.

        Args:
            given: names of settings that are given, of which it does not warn.
        """
        names = {name for single in self.experiments.values() for name in single.named.defaults}
        usual = {}
        for name in sorted(names.difference(_OWN)):
            values = {task: getattr(own, name) for task, own in self.own_settings.items()}
            default = Settings.field_of(name).default
            if len(set(values.values())) == 1:
                usual[name] = next(iter(values.values()))
            elif name not in given:
                logging.warning(
                    "%s is %s for all tasks; recommended for a single task: %s",
                    name,
                    default,
                    ", ".join(f"{task} {x}" for task, x in values.items() if x != default),
                )
        return usual

    def make_task(self, settings: Settings) -> MultiTask:
        """Makes the tasks on one pretrained encoder, with new heads; sets all random seeds."""
        # An encoder without a pooler gets one from the first task that needs it.
        singles = sorted(self.experiments.items(), key=lambda x: not x[1].task_class.needs_pooler)
        tasks: dict[str, Any] = {}
        for name, single in singles:
            own = self._settings_of(name, settings)
            if tasks:
                first = next(iter(tasks.values()))
                arguments = single.arguments(own)
                tasks[name] = single.task_class(first.encoder, first.tokenizer, **arguments)
            else:
                tasks[name] = single.new_task(own)
        tasks = {name: tasks[name] for name in self.experiments}
        if settings.adapter is not None:
            for name, task in tasks.items():
                adapters.insert(task, adapters.parse(settings.adapter), name)
        chosen = {name: own.metric for name, own in self.own_settings.items() if own.metric}
        multi = MultiTask(tasks, train_encoder=self.options.train_encoder, metrics=chosen)
        if settings.metric is not None:
            held_out = {name: single.dev for name, single in self.experiments.items()}
            multi.check_metric(settings.metric, held_out, leave_out=is_of_class)
        return multi

    def fit(
        self,
        task: MultiTask,
        settings: Settings,
        model_dir: Path,
        verbose: str | int = "auto",
        resume: Resume = SAME,
    ) -> History:
        """Trains the tasks together, and resumes an earlier call; see `Experiment.fit`."""
        return task.fit(
            {name: single.train for name, single in self.experiments.items()},
            validation_data={name: single.dev for name, single in self.experiments.items()},
            model_dir=model_dir,
            resume=resume,
            verbose=verbose,
            **self.fit_options,
            **settings.training(),
        )

    def parts(
        self, task: MultiTask, settings: Settings
    ) -> dict[str, tuple[Experiment, TableTask, Settings]]:
        """Returns name of a task -> its data, the task and its settings."""
        return {
            name: (single, task.tasks[name], self._settings_of(name, settings))
            for name, single in self.experiments.items()
        }

    def main_metric(self, task: MultiTask, settings: Settings) -> str:
        """Returns the name of the metric that selects the best weights."""
        held_out = {name: single.dev for name, single in self.experiments.items()}
        return settings.metric or task.usual_metric(held_out)

    def joined(
        self, task: MultiTask, metrics: Mapping[str, dict[str, float]]
    ) -> dict[str, float] | None:
        """Returns the metrics of all tasks, prefixed with their names, and the `mean`.

        Scores of single classes are left out. Without a measured task the result is None.
        """
        values = {
            f"{name}_{key}": x
            for name, own in metrics.items()
            for key, x in own.items()
            if not is_of_class(key)
        }
        main_names = {n: task.main_metric(n, self.experiments[n].dev) for n in metrics}
        # Test data may have fewer values than the development data.
        return {**values, **task.mean(main_names, metrics)} if metrics else None

    def summary(self) -> str:
        """Returns a line for each task: name, classes and sizes of the data."""
        return "\n".join(
            single.summary() if name == single.named.name else f"{name}: {single.summary()}"
            for name, single in self.experiments.items()
        )

    def identity(self) -> dict[str, Any]:
        """Returns what the results depend on besides the settings, for `run.json`."""
        tasks, shared = {}, {}
        for name, single in self.experiments.items():
            identity = single.identity()
            shared = {key: identity.pop(key) for key in ("preset", "preset_checksum")}
            own = self.own_settings[name].identity()
            names = (*flag_options(single.task_class.options), *_OWN)
            tasks[name] = {**identity, **{key: own[key] for key in names if key in own}}
        return {**shared, "tasks": tasks, **self.options.to_dict()}

    def _settings_of(self, name: str, settings: Settings) -> Settings:
        """Returns the settings of a run with those of a task.

        There is no adapter if the encoder is trained too: no other encoder fits the adapter, which
        is saved in the task's preset only.
        """
        shared = {key: x for key, x in settings.arguments().items() if key not in _OWN}
        if self.options.train_encoder:
            shared["adapter"] = None
        return self.own_settings[name].replace(**shared)


class TaskEntry(Options):
    """What a file says of a task, besides the settings of its kind."""

    task: str | None = option(None, help="Name of the named task; default: the table's name.")
    train: str | None = option(None, help="Training data, see `Experiment`.")
    dev: str | None = option(None, help="Development data.")
    dev_share: float | None = option(
        None, help="Share of `train` to hold out instead of `dev`.", at_least=0, at_most=1
    )
    test: str | None = option(None, help="Test data.")
    labels: tuple[str, ...] | None = option(None, help="Names of the classes.")
    columns: Mapping[str, Any] | None = option(
        None, help="kbert's name of a column -> the file's name."
    )
    label_separator: str = option(",", help="Separator between the labels of a text.")
    metric: str | None = option(None, help="The metric that counts in the mean.")
    tune_threshold: bool | None = option(None, help="Whether to tune the threshold.")

    def check(self) -> None:
        if self.train is None:
            raise ValueError("`train` must be given: the training data. Received: none")


def read_task_file(path: PathLike, *, preset: PathLike) -> MultiTaskExperiment:
    """Reads a file of tasks, with their data.

    Args:
        path: a TOML file, or JSON if its name ends in `.json`; see the text at the top.
        preset: folder or name of a pretrained model.

    Returns:
        The experiment.

    Raises:
        ValueError: the file is not TOML or JSON, a key is unknown, or an experiment is invalid; the
            message names the file and the task.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with open(os.path.join(folder, "mail.csv"), "w") as file:
        ...     _ = file.write("text,label\\n" + "free money,spam\\nsee you,ham\\n" * 10)
        >>> path = os.path.join(folder, "tasks.toml")
        >>> with open(path, "w") as file:
        ...     _ = file.write('[tasks.mail]\\ntask = "classify"\\ntrain = "mail.csv"\\n'
        ...                    'dev_share = 0.1\\nmax_length = 32\\n')
        >>> experiment = read_task_file(path, preset="bert-tiny")
        >>> experiment.own_settings["mail"].max_length
        32
    """
    path = os.fspath(path)
    try:
        text = read_settings(path).decode("utf-8")
        content = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except ValueError as error:  # the errors of decoding and of both libraries
        raise ValueError(f"{path} must be TOML, or JSON named .json. Received: {error}") from None
    tables = [content.get(key, {}) for key in ("defaults", "tasks")] if _is_table(content) else []
    if not tables or not all(map(_is_table, tables)) or not all(map(_is_table, tables[1].values())):
        raise ValueError(
            f"{path} must have a table for each task, [tasks.NAME], and may have one of [defaults] "
            f"for all. Received: {content!r:.200}"
        )
    defaults, entries = tables
    try:
        check_task_names(entries)
        given = {key: x for key, x in content.items() if key not in ("defaults", "tasks")}
        _refuse_of_run(given, MultiTaskOptions)
        options = MultiTaskOptions.from_dict(given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    experiments, settings = {}, {}
    for name, entry in entries.items():
        try:
            made = _read_entry(name, {**defaults, **entry}, Path(path).parent, preset)
            experiments[name], settings[name] = made
        except ValueError as error:
            raise ValueError(f"{path}, [tasks.{name}]: {error}") from error
    return MultiTaskExperiment(experiments, settings, **options.arguments())


def _read_entry(
    name: str, entry: dict[str, Any], folder: Path, preset: PathLike
) -> tuple[Experiment, dict[str, Any]]:
    """Returns the experiment of a table in a file, and the settings of its task.

    Args:
        name: name of the table.
        entry: its content, with the defaults.
        folder: folder that paths are relative to.
        preset: folder or name of a pretrained model.
    """
    named = named_task(TaskEntry.checked("task", entry.get("task")) or name)
    known = extended(TaskEntry, task_options()[named.kind])
    _refuse_of_run(entry, known)
    fields = known.from_dict(entry).arguments()
    data = {key: fields.pop(key) for key in TaskEntry.names() if key not in _OWN}
    del data["task"]
    for key in ("train", "dev", "test"):
        if data[key] is not None and not data[key].startswith("tfds:") and not is_remote(data[key]):
            data[key] = os.fspath(folder / data[key])
    single = Experiment(named.name, preset=preset, **data)
    return single, {key: x for key, x in fields.items() if x is not None}


def _refuse_of_run(keys: Iterable[str], known: type[Options]) -> None:
    """Raises ValueError if a key is a setting of the run, and not one of the `known` keys."""
    if of_run := [key for key in keys if key in Settings.names() and key not in known.names()]:
        raise ValueError(
            "Settings of the run apply to all tasks: give them to the run (to a program as flags), "
            f"not in the file. Received: {', '.join(of_run)}"
        )


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)
