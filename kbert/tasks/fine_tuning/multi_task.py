"""Several fine-tuned tasks on one encoder, trained together.

Shapes: B rows of a batch, S steps of a run, K terms (losses and metrics) of a task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, Self

import keras
import numpy as np
from absl import logging

from kbert import inference
from kbert.checkpoints import preset
from kbert.core import late
from kbert.core.late import tf
from kbert.core.types import PathLike, Tensor, Tensors, Terms
from kbert.data.pipeline import exact_options
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.models.edits import variants_of
from kbert.models.keras_model import KerasEdits
from kbert.tasks.dataset_objective import AFTER_FIT
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.objective import EpochsObjective, evaluation_of
from kbert.tasks.fine_tuning.sample_weights import check_column
from kbert.training.run.history import History
from kbert.training.run.objective import Evaluate
from kbert.training.run.phases import Epochs, Phase, Start
from kbert.training.run.record import SAME, Resume
from kbert.training.step.keras_arguments import EVALUATE, refuse_others, refusing_x
from kbert.training.step.mixin import TrainStep, check_compares_whole_batches

ANNEALED, PROPORTIONAL, SQUARE_ROOT, UNIFORM = "annealed", "proportional", "sqrt", "uniform"
SAMPLING = (ANNEALED, PROPORTIONAL, SQUARE_ROOT, UNIFORM)
_TASK = "task"  # feature of a batch: the number of its task


class MultiTask(KerasEdits, TrainStep, keras.Model):
    """Tasks that share an encoder, each with its own head; every step trains one of them.

    (Caruana 1997; Liu et al. 2019, "MT-DNN", https://arxiv.org/abs/1901.11504, algorithm 1. With an
    adapter of kind "pal" in each: Stickland & Murray 2019, https://arxiv.org/abs/1902.02671.)

    Prediction uses the single tasks: `multi.tasks["rte"].predict(pairs)`. Presets and exports have
    a subfolder for each task, from which it is loaded and served like any other. Losses and values
    are prefixed with the task's name, such as `rte_cross_entropy` and `rte_accuracy`.

    Args:
        tasks: name -> a task. All tasks are on the same encoder. Each may have its own adapter in
            it.
        train_encoder: whether the encoder's own weights are trained if the tasks have adapters.
        metrics: name of a task -> the metric that counts in the `mean` of an evaluation; by default
            the task's `metric`.
        name: name of the model.

    Raises:
        TypeError: `tasks` is not a mapping, or a task is not a `FineTuningTask`.
        ValueError: the tasks are not on one encoder, share an adapter, or a name is invalid.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=7))
        >>> multi = MultiTask({
        ...     "praise": kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"]),
        ...     "stars": kbert.tasks.TextRegressor(encoder, tokenizer)})
        >>> texts = ["good", "bad"] * 4
        >>> data = {"praise": (texts, ["yes", "no"] * 4), "stars": (texts, [5, 1] * 4)}
        >>> history = multi.fit(data, epochs=1, batch_size=4, verbose=0)
        >>> sorted(multi.evaluate(data, verbose=0))[:3]
        ['loss', 'mean', 'praise_accuracy']
    """

    repeats_paths = True  # of heads

    def __init__(
        self,
        tasks: Mapping[str, FineTuningTask],
        *,
        train_encoder: bool = True,
        metrics: Mapping[str, str] = MappingProxyType({}),
        name: str = "multi_task",
    ) -> None:
        _check(tasks)
        if not train_encoder and any(task.variant is None for task in tasks.values()):
            raise ValueError(
                "train_encoder=False trains named edits instead of the encoder: each task must "
                "have one (`kbert.edit`). Received: tasks without one"
            )
        first_task = next(iter(tasks.values()))
        super().__init__(name=name, dtype=first_task.dtype_policy)
        self.tasks = dict(tasks)
        self.train_encoder = train_encoder
        self.metrics_of_tasks = dict(metrics)
        if self.metrics_of_tasks:
            self.check_names(self.metrics_of_tasks, all_of_them=False)
        self.built = True
        for task in self.tasks.values():
            task.trainers.add(self)

    @property
    def encoder(self) -> keras.Model:
        """The encoder that the tasks share."""
        return next(iter(self.tasks.values())).encoder

    @property
    def learners(self) -> Mapping[str, Any]:
        """Name of a task -> what makes its batches and losses; by default the task."""
        return self.tasks

    @property
    def settings(self) -> dict[str, Any]:
        """The records of the tasks by name, as saved in a run's record."""
        return {name: task.record for name, task in self.tasks.items()}

    def build(self, input_shape: Any | None = None) -> None:
        """Does nothing: the tasks are already built."""

    def call(self, batch: Tensors, training: bool = False) -> dict[str, Any]:
        """Raises NotImplementedError: a batch belongs to one of the tasks."""
        raise NotImplementedError(
            "Only single tasks can be called: multi.tasks[name](batch). "
            f"Received: a call of several, {', '.join(self.tasks)}"
        )

    def get_config(self) -> dict[str, Any]:
        """Raises NotImplementedError: a `.keras` file has no place for the tasks' tokenizer."""
        raise NotImplementedError(self._each("save_to_preset(folder)"))

    def save_to_preset(self, path: PathLike) -> None:
        """Writes each task, with the encoder, to a subfolder of its name, and `multi_task.json`.

        `Task.from_preset(f"{path}/rte")` loads one of them. A task with a new head may start from
        the whole folder: `TextClassifier.from_preset(path, new_head=True, labels=…)`.

        Args:
            path: the folder; created if missing.

        Raises:
            ValueError: the folder holds another model, or a task's weights or answers are not
                finite.
        """
        preset.write_several(path, preset.MULTI_TASK_FILE, self.tasks)

    def export(self, directory: PathLike, **options: Any) -> dict[str, str]:
        """Exports each task to a subfolder of its name; returns name -> the path written.

        A server loads each as a model of its own. To export one task, call
        `multi.tasks[name].export(folder)`.

        Args:
            directory: folder of the exports.
            **options: arguments of `Task.export`, for every task.
        """
        return {
            name: task.export(Path(directory) / name, **options)
            for name, task in self.tasks.items()
        }

    def predict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError: each task predicts by itself."""
        raise NotImplementedError(self._each("predict(texts)"))

    def enable_lora(self, rank: int, **options: Any) -> Self:
        """Adds the adapter "lora", which all tasks share; see `KerasEdits.enable_lora`.

        Raises:
            ValueError: tasks have their own adapters.
        """
        if edited_tasks := [name for name, task in self.tasks.items() if task.variant is not None]:
            raise ValueError(
                "enable_lora() adds a named edit for all tasks, so no task may have its own named "
                f"edit. Received: named edits of {', '.join(edited_tasks)}"
            )
        return super().enable_lora(rank, **options)

    def _each(self, call: str) -> str:
        return (
            f"Only single tasks support this method: multi.tasks[name].{call}. "
            f"Received: a {type(self).__name__} of {', '.join(self.tasks)}"
        )

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        """Returns the losses and metrics of all tasks.

        For a batch of another task, a task reads rows of one token with weight 0. (A condition
        would save this, but does not work with fused layers on TensorFlow 2.21: their gradients
        cannot find the tensors of a branch.)
        """
        losses: dict[str, Any] = {}
        metrics: dict[str, Any] = {}
        for name, learner in self.learners.items():
            terms = learner.loss_terms(_own(batch, name), training)
            for merged, task_terms in zip((losses, metrics), terms, strict=True):
                merged |= {f"{name}_{key}": pair for key, pair in task_terms.items()}
        return losses, metrics

    @refusing_x
    def fit(  # type: ignore[override]  # tables by the tasks' names
        self,
        data: Mapping[str, Any],
        *,
        validation_data: Mapping[str, Any] | None = None,
        sampling: str = ANNEALED,
        steps_per_epoch: int | None = None,
        model_dir: PathLike | None = None,
        resume: Resume = SAME,
        verbose: str | int = "auto",
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **settings: Any,
    ) -> History:
        """Trains all tasks; each step trains one of them.

        Args:
            data: name -> labelled examples, or a tuple of data and labels, in the form of each
                task's `fit`.
            validation_data: held-out data in the form of `data`, evaluated after each epoch. The
                best weights are those with the largest `mean` of the tasks' metrics, or without one
                the smallest `loss`, unless `metric` is set.
            sampling: probability of a task: "proportional" to its number of examples, to the square
                root of it ("sqrt"), "uniform", or "annealed". The last goes from proportional to
                nearly uniform: the number of examples to the power of 1 - 0.8 (e - 1) / (E - 1) in
                epoch e of E (Stickland & Murray, section 4.1).
            steps_per_epoch: number of steps of an epoch; None = the batches of all examples.
            model_dir: folder for checkpoints and logs, from which training resumes.
            resume: "same" raises if `model_dir` was begun with other data or settings; "changed"
                resumes with the new ones; names of settings allow only these to change.
            verbose: 1 = a progress bar, 2 = a line per epoch, 0 = silent; "auto" = 1 in a terminal
                or a notebook, else 2.
            callbacks: Keras callbacks: a list, one or None.
            **settings: the fields of `FitSettings`.

        Returns:
            Losses and values of each epoch.

        Raises:
            ValueError: data or settings do not fit.
        """
        objective = TasksObjective(
            self,
            data,
            validation_data=validation_data,
            sampling=sampling,
            steps_per_epoch=steps_per_epoch,
            **settings,
        )
        return objective.fit(
            model_dir=model_dir, resume=resume, verbose=verbose, callbacks=callbacks
        )

    @refusing_x
    def evaluate(  # type: ignore[override]
        self,
        data: Mapping[str, Any],
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
        **others: Any,
    ) -> dict[str, float]:
        """Returns the metrics of each task in `data`, their `mean` and the sum of the losses.

        The mean is over one metric per task: that of `metrics`, or its `metric`. If that is the
        loss, which has other units, it is the first of `score_names`: Pearson's correlation for a
        regressor. A task without any is left out; if none is left, there is no mean. Percentages,
        such as the F1 of SQuAD, are divided by 100 in it.

        Args:
            data: name -> labelled examples, in the form of `fit`; tasks may be missing.
            batch_size: maximum number of rows in a batch.
            verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.
            **others: not supported; for arguments of Keras' `evaluate` the error has the
                alternative.
        """
        refuse_others(others, EVALUATE, "evaluate")
        self.check_names(data, all_of_them=False)
        tables = {name: self.tasks[name].as_table(x) for name, x in data.items()}
        options: dict[str, Any] = {"batch_size": batch_size, "verbose": verbose}
        return self.joined(
            tables, {name: self.tasks[name].evaluate(x, **options) for name, x in tables.items()}
        )

    def joined(
        self, tables: Mapping[str, Table], values: Mapping[str, Mapping[str, float]]
    ) -> dict[str, float]:
        """Returns the values of an evaluation from those of each task; see `evaluate`.

        Args:
            tables: name -> labelled examples that the task was evaluated on.
            values: name -> the values of the task.

        Raises:
            ValueError: a metric of the mean is not among the values.
        """
        main = {name: self.main_metric(name, tables[name], x) for name, x in values.items()}
        return {
            **{f"{name}_{key}": x for name, own in values.items() for key, x in own.items()},
            "loss": sum(own["loss"] for own in values.values()),
            **self.mean(main, values),
        }

    def mean(
        self, metrics: Mapping[str, str | None], values: Mapping[str, Mapping[str, float]]
    ) -> dict[str, float]:
        """Returns {"mean": mean of one metric per task}, on a scale of 0 to 1; {} without any.

        Args:
            metrics: name of a task -> its `main_metric`; None = none.
            values: name of a task -> its values. A metric that is not among them is left out.
        """
        shares = [
            values[name][metric] / (100 if metric in self.tasks[name].percentages else 1)
            for name, metric in metrics.items()
            if metric is not None and metric in values[name]
        ]
        return {"mean": sum(shares) / len(shares)} if shares else {}

    def main_metric(
        self, name: str, table: Table, values: Collection[str] | None = None
    ) -> str | None:
        """Returns the metric of a task that counts in the `mean`; None if there is none.

        Args:
            name: name of the task.
            table: labelled examples.
            values: names of the values of an evaluation on them; None = `score_names` of the task,
                if they are known before an evaluation.

        Raises:
            ValueError: the evaluation has no such value, or it is the loss.
        """
        task = self.tasks[name]
        scores = task.score_names(table)
        metric = self.metrics_of_tasks.get(name)
        if metric is None and task.metric == "loss":
            return next(iter(scores or []), None)
        metric = metric or task.metric
        scores = scores if values is None else [value for value in values if value != "loss"]
        if scores is not None and metric not in scores:
            raise ValueError(
                f"The metric of {name} must be one of the values of its evaluation, "
                f"{', '.join(scores)}. Received: {metric!r}"
            )
        return metric

    def usual_metric(self, tables: Mapping[str, Table]) -> str:
        """Returns the value that selects the best weights: "mean", or "loss" if there is no mean.

        `tables` are name -> labelled examples to evaluate the task on.
        """
        main = [self.main_metric(name, table) for name, table in tables.items()]
        return "mean" if any(metric is not None for metric in main) else "loss"

    def check_metric(
        self,
        metric: str,
        tables: Mapping[str, Table],
        leave_out: Callable[[str], bool] | None = None,
    ) -> None:
        """Raises ValueError unless evaluations have the value `metric`.

        Args:
            metric: name of a value, such as "mean".
            tables: name -> labelled examples to evaluate the task on.
            leave_out: function that returns whether a task's value is refused; None = none is.
        """
        known = list(dict.fromkeys([self.usual_metric(tables), "loss"]))
        for name, table in tables.items():
            scores = self.tasks[name].score_names(table)
            if scores is None and metric.startswith(f"{name}_"):
                return  # its values are not known before an evaluation
            keys = [key for key in ("loss", *(scores or ())) if not (leave_out and leave_out(key))]
            known += [f"{name}_{key}" for key in keys]
        if metric not in known:
            raise ValueError(f"`metric` must be one of {', '.join(known)}. Received: {metric!r}")

    def batches(
        self,
        rows: Mapping[str, Rows],
        plan: np.ndarray,
        steps_per_epoch: int,
        *,
        start: Sequence[int] = (0, 0, 0),
        **options: Any,
    ) -> tf.data.Dataset:
        """Returns the batches of a run: those of each task's `fit`, in the order of the plan.

        Args:
            rows: name of a task -> its rows.
            plan: (S,), number of the task of each step, see `task_plan`.
            steps_per_epoch: steps of an epoch.
            start: `position` of the batch to resume after.
            **options: further arguments of `kbert.data.tables.bucketing.bucketed_batches`.

        Returns:
            A dataset of dicts: the features of all tasks under "NAME/FEATURE", "task" (B,) and
            "position" (B, 3). "task" is the number of the batch's task; the features of all other
            tasks are zeros.
        """
        steps_done = int(start[0]) * steps_per_epoch + int(start[1])
        counts = np.bincount(plan[:steps_done], minlength=len(self.tasks))
        datasets = []
        for count, (name, learner) in zip(counts, self.learners.items(), strict=True):
            steps = math.ceil(len(rows[name]) / options["batch_size"])
            task_start = (int(count) // steps, int(count) % steps, 0)
            datasets.append(learner.batches(rows[name], start=task_start, **options))
        specs = {
            name: dataset.element_spec for name, dataset in zip(self.tasks, datasets, strict=True)
        }
        padded_datasets = [
            dataset.map(_among_others(name, number, specs))
            for number, (name, dataset) in enumerate(zip(self.tasks, datasets, strict=True))
        ]
        next_steps = np.arange(steps_done + 1, len(plan) + 1)
        positions = np.stack(
            [next_steps // steps_per_epoch, next_steps % steps_per_epoch, 0 * next_steps], 1
        )
        choice = tf.data.Dataset.from_tensor_slices(plan[steps_done:].astype(np.int64))
        planned_batches = tf.data.Dataset.choose_from_datasets(
            padded_datasets, choice, stop_on_empty_dataset=False
        )
        next_positions = tf.data.Dataset.from_tensor_slices(positions.astype(np.int32))

        def with_position(batch: Tensors, position: Tensor) -> Tensors:
            return {**batch, "position": tf.zeros_like(batch[_TASK])[:, None] + position[None]}

        merged = tf.data.Dataset.zip((planned_batches, next_positions)).map(with_position)
        return merged.prefetch(tf.data.AUTOTUNE).with_options(exact_options())

    def check_names(self, data: Mapping[str, Any], all_of_them: bool = True) -> None:
        """Raises ValueError unless the keys of `data` are names of tasks.

        Args:
            data: name -> data.
            all_of_them: whether every task must be in `data`.
        """
        if not isinstance(data, Mapping):
            raise ValueError(
                f"Data must be a dict with the tasks' names as keys, {', '.join(self.tasks)}. "
                f"Received: {type(data).__name__}: {data!r:.80}"
            )
        unknown = set(data) - set(self.tasks)
        missing = set(self.tasks) - set(data) if all_of_them else set()
        if unknown or missing or not data:
            raise ValueError(
                f"The keys of the data must be the tasks' names, {', '.join(self.tasks)}. "
                f"Received: {', '.join(data) or 'none'}"
            )


class TasksObjective(EpochsObjective):
    """Objective on the examples of several tasks, of which each step trains one.

    The arguments are a `MultiTask` and those of its `fit`.
    """

    def __init__(
        self,
        multi: MultiTask,
        data: Mapping[str, Any],
        *,
        validation_data: Mapping[str, Any] | None,
        sampling: str,
        steps_per_epoch: int | None,
        **settings: Any,
    ) -> None:
        if sampling not in SAMPLING:
            raise ValueError(
                f"`sampling` must be one of {', '.join(SAMPLING)}. Received: {sampling!r}"
            )
        single_task_settings = ("class_weights", "freeze", "sample_weight")
        given = {**settings, "freeze": settings.get("freeze") or None}  # () by default
        if unsupported := [x for x in single_task_settings if given.get(x) is not None]:
            raise ValueError(
                "These settings are supported for single tasks only. "
                f"Received: {', '.join(unsupported)}"
            )
        multi.check_names(data)
        super().__init__(next(iter(multi.tasks.values())), multi, settings)
        self.multi, self.sampling, options = multi, sampling, self.options
        self.rows = {}
        tables = {name: task.as_table(data[name]) for name, task in multi.tasks.items()}
        for name, task in multi.tasks.items():
            check_column(tables[name], None, task.columns)
            self.rows[name] = task.tokenize(tables[name], labelled=True)
            if not len(self.rows[name]):
                raise ValueError(f"Training needs examples. Received: {name} without any")
            task.report_cut(self.rows[name].cut, len(tables[name]), f"{name} ")
            check_compares_whole_batches(task, self.micro_batches)
        self.settings_of_data = [
            (task, task.settings_of_data(tables[name])) for name, task in multi.tasks.items()
        ]
        sizes = [len(rows) for rows in self.rows.values()]
        if steps_per_epoch is None:
            steps_per_epoch = sum(math.ceil(size / options.batch_size) for size in sizes)
        if not isinstance(steps_per_epoch, int) or steps_per_epoch < 1:
            raise ValueError(
                "`steps_per_epoch` must be an integer of at least 1, or None. "
                f"Received: {steps_per_epoch!r}"
            )
        self.steps_per_epoch = steps_per_epoch
        self.drawn = task_plan(sizes, options.epochs, steps_per_epoch, sampling, options.seed)
        self._warn_of_absent_tasks()
        self.metric = options.metric
        self.held_out: dict[str, Table] = {}
        if validation_data is not None:
            multi.check_names(validation_data, all_of_them=False)
            self.evaluate = self._evaluation(tables, validation_data)
            self.metric = options.metric or multi.usual_metric(self.held_out)
            multi.check_metric(self.metric, self.held_out)
        self.variants = variants_of(multi.encoder)
        self.variants.train([task.variant for task in multi.tasks.values()], multi.train_encoder)

    def batches(self, stage: Phase | Epochs, start: Start, **hosts: int) -> tf.data.Dataset:
        return self.multi.batches(
            self.rows,
            self.drawn,
            self.steps_per_epoch,
            start=start,
            batch_size=self.options.batch_size,
            seed=self.options.seed,
            by_length=self.options.by_length,
            **hosts,
        )

    def identity(self) -> Mapping[str, Any]:
        held_out = {name: table.checksum for name, table in self.held_out.items()}
        return {
            "tasks": [[name, record] for name, record in self.multi.settings.items()],
            "sampling": self.sampling,
            "steps_per_epoch": self.steps_per_epoch,
            "train_encoder": self.multi.train_encoder,
            **({"metrics": metrics} if (metrics := self.multi.metrics_of_tasks) else {}),
            "data_checksums": {name: rows.checksum for name, rows in self.rows.items()},
            **({"held_out_checksums": held_out} if held_out else {}),
            **self.variants.record(),
            **self.options.identity(),
        }

    def check_trained(self, count: int) -> None:
        for name, task in self.multi.tasks.items():
            task.predictor.check_trained(self.rows[name], count, f"{name}, by {AFTER_FIT}")

    def _evaluation(
        self, tables: Mapping[str, Table], validation_data: Mapping[str, Any]
    ) -> Evaluate:
        """Returns a function that evaluates the tasks on `validation_data`.

        It is name -> labelled examples; `tables` are the training data. Raises ValueError if a task
        in it has no examples, or labels that do not fit.
        """
        tasks, size = self.multi.tasks, self.options.batch_size
        held_out = {name: tasks[name].as_table(x) for name, x in validation_data.items()}
        evaluations = {}
        for name, table in held_out.items():
            if not len(table):
                raise ValueError(f"An evaluation needs examples. Received: {name} without any")
            self.multi.main_metric(name, table)  # raises before the training
            evaluations[name] = evaluation_of(tasks[name], tables[name], table, size, f"{name} ")
        self.held_out = held_out
        return lambda: self.multi.joined(
            held_out, {name: evaluate() for name, evaluate in evaluations.items()}
        )

    def _warn_of_absent_tasks(self) -> None:
        """Warns of each task that has no step in one or more epochs."""
        plan = self.drawn.reshape(self.options.epochs, self.steps_per_epoch)
        for number, name in enumerate(self.multi.tasks):
            if absent_epochs := [str(1 + x) for x in np.flatnonzero((plan != number).all(1))]:
                logging.warning(
                    "%s has no steps in epoch %s, where its values are 0: steps_per_epoch is small",
                    name,
                    ", ".join(absent_epochs[:9]),
                )


def task_plan(
    sizes: Sequence[int], epochs: int, steps_per_epoch: int, sampling: str, seed: int
) -> np.ndarray:
    """Samples the number of the task that each step trains, (S,), from the seed and the epoch.

    Args:
        sizes: number of examples of each task.
        epochs: number of epochs, E.
        steps_per_epoch: steps of an epoch.
        sampling: probability of a task, see `MultiTask.fit`.
        seed: random seed.

    Example:
        >>> task_plan([900, 100], 1, 1000, "proportional", 0).mean().round(2).item()
        0.1
    """
    epoch_plans = []
    for epoch in range(epochs):
        power = {PROPORTIONAL: 1.0, SQUARE_ROOT: 0.5, UNIFORM: 0.0}.get(sampling)
        if power is None:  # annealed
            power = 1.0 - 0.8 * epoch / max(epochs - 1, 1)
        weights = np.asarray(sizes, "float64") ** power
        rng = np.random.default_rng([seed, epoch])
        epoch_plans.append(rng.choice(len(sizes), size=steps_per_epoch, p=weights / weights.sum()))
    return np.concatenate(epoch_plans)


def load_one(
    asked: type[Any], folder: Path, *, new_head: bool = False, **options: Any
) -> FineTuningTask:
    """Loads the shared encoder with a new head, for `from_preset` of a task.

    Args:
        asked: class whose `from_preset` was called.
        folder: folder that `MultiTask.save_to_preset` has written.
        new_head: must be True; the trained heads are loaded from the subfolders.
        **options: arguments of `Task.from_preset`.

    Raises:
        ValueError: `new_head` is not set, or the tasks have named edits.
    """
    folders = preset.task_folders(folder)
    if not new_head:
        raise ValueError(
            "The folder contains several tasks on one encoder: load one of them, "
            f"{', '.join(map(str, folders.values()))}. Received: {folder}"
        )
    first = next(iter(folders.values()))
    if not read_json(first / preset.CONFIG_FILE).keys().isdisjoint(late.TABLE["edits of a preset"]):
        raise ValueError(
            "Tasks with named edits do not share all weights: start from one of them, "
            f"{', '.join(map(str, folders.values()))}. Received: {folder}"
        )
    return asked.from_preset(first, new_head=True, **options)


def check_task_names(names: Collection[Any]) -> None:
    """Raises ValueError unless there are names, which can be prefixes of the tasks' values."""
    wrong_names = [x for x in names if not (isinstance(x, str) and re.fullmatch(r"(?!val_)\w+", x))]
    if wrong_names or not names:
        raise ValueError(
            "Names of tasks must consist of letters, digits and underscores and must not begin "
            "with val_, the prefix of held-out values. "
            f"Received: {', '.join(map(repr, wrong_names)) or 'no task'}"
        )


def _check(tasks: Mapping[str, FineTuningTask]) -> None:
    """Raises TypeError or ValueError if `tasks`, name -> task, cannot be trained together."""
    if not isinstance(tasks, Mapping):
        raise TypeError(
            "tasks must be a dict of names and tasks, {'praise': task, …}. "
            f"Received: {type(tasks).__name__}: {tasks!r:.80}"
        )
    check_task_names(tasks)
    for name, task in tasks.items():
        if not isinstance(task, FineTuningTask):
            raise TypeError(
                "Only tasks on tables (FineTuningTask) can be trained together. "
                f"Received: a {type(task).__name__} as {name}"
            )
    if len({id(task) for task in tasks.values()}) < len(tasks):
        raise ValueError(
            f"Each name must have another task. Received: {len(tasks)} names, one task twice"
        )
    encoders = {id(task.encoder) for task in tasks.values()}
    if len(encoders) > 1:
        raise ValueError(
            "Tasks that are trained together must share one encoder. "
            f"Received: {len(tasks)} tasks on {len(encoders)} encoders"
        )
    variants = [task.variant for task in tasks.values()]
    if len(set(variants) - {None}) < sum(x is not None for x in variants):
        raise ValueError(f"Each task must have its own named edit, or none. Received: {variants}")


def _own(batch: Tensors, name: str) -> dict[str, Any]:
    """Returns the features of the task `name` in a batch, without its prefix "name/"."""
    prefix = f"{name}/"
    return {k.removeprefix(prefix): x for k, x in batch.items() if k.startswith(prefix)}


def _among_others(
    name: str, number: int, specs: Mapping[str, Mapping[str, tf.TensorSpec]]
) -> Callable[[Tensors], Tensors]:
    """Returns a function from a batch of the task `name` to one with the features of all tasks.

    The other tasks' features are zeros with as few columns as possible. `number` is the task's
    index; `specs` are the features of each task, by its name.
    """

    def among_others(batch: Tensors) -> Tensors:
        rows = tf.shape(batch["rows"])[0]
        # 1, but unknown to the graph, like the lengths of real batches.
        dynamic_one = tf.minimum(rows, 1)
        merged: dict[str, Any] = {}
        for other_name, spec in specs.items():
            for key, feature in spec.items():
                if other_name == name:
                    value = batch[key]
                else:
                    sizes = [dynamic_one if size is None else size for size in feature.shape[1:]]
                    value = tf.zeros(tf.stack([rows, *sizes]), feature.dtype)
                merged[f"{other_name}/{key}"] = tf.ensure_shape(value, feature.shape)
        return {**merged, _TASK: tf.fill([feature.shape[0]], number)}

    return among_others
