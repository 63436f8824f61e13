"""Objectives of fine-tuning: epochs over examples in tables."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np
from absl import logging

from kbert.configs.transformer import TransformerConfig
from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.data.tables.bucketing import BUCKET
from kbert.data.tables.rows import Rows
from kbert.data.tables.shards import StoredRows
from kbert.data.tables.table import Table
from kbert.layers import fused
from kbert.models.edits import variants_of
from kbert.tasks.dataset_objective import AFTER_FIT
from kbert.tasks.fine_tuning.prepared import stored_rows
from kbert.tasks.fine_tuning.sample_weights import (
    SAMPLE_WEIGHT,
    check_column,
    example_weights,
    split_weights,
    weigh_examples,
)
from kbert.tasks.fine_tuning.settings import FitSettings
from kbert.training.optimization import freezing
from kbert.training.optimization.layer_rates import layer_scales, unfreezing_scales
from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import fine_tuning_schedule, settable
from kbert.training.run.compiled import check_compiled, settings_in_use
from kbert.training.run.history import History
from kbert.training.run.objective import Evaluate, Objective
from kbert.training.run.phases import Epochs, Phase, Start
from kbert.training.run.record import Resume
from kbert.training.run.run import Run
from kbert.training.run.signals import raise_stopped
from kbert.training.step.keras_arguments import FIT, refuse_arguments, refuse_schedule
from kbert.training.step.mixin import TrainStep
from kbert.training.step.state import replicas_of, scope_of, seed_dropout
from kbert.training.strategies import Strategy


class EpochsObjective(Objective):
    """Epochs over the rows of tables, with AdamW if the user has not called `compile`.

    A subclass sets `steps_per_epoch`, and with held-out data `evaluate` and `metric`. It defines
    `batches`, `identity` and `check_trained`.

    Args:
        task: task with the model, dropout and devices to use; the first if there are several.
        model: model to train: the task, or a model that contains it.
        settings: the given fields of `FitSettings`.

    Attributes:
        options: all settings, a `FitSettings`.
        evaluate: function that evaluates the model on held-out data.
        metric: name of the value that selects the best weights.
        settings_of_data: pairs (task, name -> value): the settings that follow from the training
            data, which `fit` sets.
    """

    evaluate: Evaluate | None = None
    metric: str | None = None
    settings_of_data: Sequence[tuple[Any, Mapping[str, Any]]] = ()
    steps_per_epoch: int

    def __init__(self, task: Any, model: TrainStep, settings: Mapping[str, Any]) -> None:
        refuse_arguments(settings, FIT, "fit")
        refuse_schedule(settings)
        self.task, self.model = task, model
        self.options = FitSettings.from_arguments(settings, "fit")
        self.is_compiled = model.compiled_by_user
        self.micro_batches = self.options.micro_batches
        if self.is_compiled:
            check_compiled(FitSettings, settings)
            self.micro_batches = model.micro_batches
        rows, replicas = self.options.batch_size, replicas_of(task)
        if rows % (replicas * self.micro_batches):
            raise ValueError(
                "batch_size must be divisible by devices times micro_batches. Received: "
                f"batch_size={rows}, {replicas} devices, micro_batches={self.micro_batches}"
            )

    @property
    def is_fused(self) -> bool:
        """Whether functions compiled for each shape of a batch save more time than they take."""
        return True

    @property
    def evaluates(self) -> bool:  # type: ignore[override]  # by the data
        return self.evaluate is not None

    def evaluation(
        self, task: TrainStep, stage: Phase | Epochs, strategy: Strategy
    ) -> Evaluate | None:
        return self.evaluate

    def check_trained(self, count: int) -> None:
        """Raises ValueError if the final weights give answers that are not finite.

        Args:
            count: number of rows to check.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `check_trained`.")

    def fit(
        self,
        *,
        model_dir: PathLike | None,
        resume: Resume,
        verbose: str | int,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> History:
        """Trains the model and returns its history; for the arguments see `FineTuningTask.fit`."""
        options = self.options
        if options.checkpoint_every is not None and model_dir is None:
            raise ValueError(
                "checkpoint_every requires a `model_dir`. "
                f"Received: checkpoint_every={options.checkpoint_every}, model_dir=None"
            )
        plan = Epochs(epochs=options.epochs, steps_per_epoch=self.steps_per_epoch)
        seed_dropout(self.task, options.seed)
        with self._frozen(), scope_of(self.task):
            if not self.is_compiled:
                self._compile(plan.end, callbacks)
            self.model.step_state.fused = self.is_fused
            run = Run(
                task=self.model,
                objective=self,
                plan=plan,
                settings=options.replace(metric=self.metric),
                model_dir=model_dir,
                resume=resume,
                verbose=verbose,
                callbacks=callbacks,
            )
            with self._set_by_data():
                history = run.train()
        if history.interrupted:
            raise_stopped(cast(int, history.stopped_by), history.step)
        # The number of rows that a step has in memory.
        self.check_trained(options.batch_size // (self.micro_batches * replicas_of(self.task)))
        return history

    def _compile(self, steps: int, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Compiles the model with AdamW and the default schedule of fine-tuning.

        `steps` is the number of updates of the run; a callback may set the learning rate.
        """
        options = self.options
        optimizer = AdamW(
            fine_tuning_schedule(options.learning_rate, steps, options.warmup_share, options.decay),
            weight_decay=options.weight_decay,
            bias_correction=True,
            rate_scales=self._rate_scales(steps),
        )
        # XLA on TensorFlow would recompile for every width of a batch.
        jit_compile = False if keras.backend.backend() == "tensorflow" else "auto"
        self.model.compile_by_default(
            settable(optimizer, callbacks),
            micro_batches=options.micro_batches,
            recompute=options.recompute,
            jit_compile=jit_compile,
        )
        logging.info("compile() was not called: training with AdamW at %g", options.learning_rate)

    def _rate_scales(self, steps: int) -> dict[str, Any]:
        """Returns path of a weight -> factor of its rate; `steps` are the updates of the run."""
        options, model = self.options, self.task.model
        decay, epochs = options.layer_decay, options.unfreeze_every
        decayed = None if decay is None else layer_scales(model, decay)
        if epochs is None:
            return decayed or {}
        scales = unfreezing_scales(model, epochs * self.steps_per_epoch, decayed)
        frozen = sum(scale.first_step >= steps for scale in scales.values())
        if frozen:
            logging.warning(
                "unfreeze_every=%g: %d of the encoder's %d weights stay frozen to the end",
                *(epochs, frozen, len(scales)),
            )
        return scales

    @contextlib.contextmanager
    def _set_by_data(self) -> Iterator[None]:
        """Sets `settings_of_data`; a ValueError, by which a run is refused, restores the others."""
        new = [(task, *item) for task, values in self.settings_of_data for item in values.items()]
        old = [(task, name, getattr(task, name)) for task, name, _ in new]
        for setting in new:
            setattr(*setting)
        try:
            yield
        except ValueError:
            for setting in old:
                setattr(*setting)
            raise

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[None]:
        """Freezes the weights that match the setting `freeze`, and thaws them at the end."""
        patterns = self.options.freeze
        names = freezing.freeze(self.task, patterns) if patterns else []
        try:
            yield
        finally:
            if names:
                freezing.thaw(self.task, names)


class TableObjective(EpochsObjective):
    """Epochs over the examples of one task; for more on the arguments see `FineTuningTask.fit`.

    Args:
        task: a `TableTask`.
        data: labelled examples: data for a table, or rows on disk.
        labels: labels of the data, if it has none.
        validation_data: held-out examples, evaluated between epochs.
        validation_split: share of the data that is held out instead.
        model: model to train, whose `batches` makes the batches; None = the task.
        **settings: the fields of `FitSettings`.

    Raises:
        TypeError: an argument is unknown.
        ValueError: data or settings do not fit.
    """

    def __init__(
        self,
        task: Any,
        data: Any,
        labels: Any = None,
        *,
        validation_data: Any = None,
        validation_split: float = 0.0,
        model: Any = None,
        **settings: Any,
    ) -> None:
        model = task if model is None else model
        settings, weights = split_weights(settings)
        self.variants = variants_of(task.model)
        self.variants.train([task.variant])
        if not model.compiled_by_user:
            settings = {**self.variants.fit_settings(task.variant), **settings}
        super().__init__(task, model, settings)
        options = self.options
        table: Table | None = None
        rows: Rows | StoredRows | None = stored_rows(task, data)
        if isinstance(rows, StoredRows):
            _refuse_of_tables(options, labels=labels, validation_split=validation_split or None)
            self.num_examples = rows.num_examples
        else:
            table = task.as_table(data, labels)
            self.settings_of_data = [(task, task.settings_of_data(table))]
            if weights is not None:
                table = table.with_column(SAMPLE_WEIGHT, weights)
            check_column(table, options.sample_weight, task.columns)
            if validation_split:
                table, validation_data = _split_end(table, validation_split, validation_data)
            rows = _weighted_rows(task, table, options)
            self.num_examples = len(table)
        task.report_cut(rows.cut, self.num_examples)
        self.rows = rows
        self.steps_per_epoch = math.ceil(len(rows) / options.batch_size)
        self.held_out, self.metric = None, options.metric
        if validation_data is not None:
            self.held_out = task.as_table(validation_data)
            self.evaluate = self._evaluation(table, self.held_out)
            self.metric = self._known_metric(options.metric or task.main_metric(self.held_out))

    @property
    def is_fused(self) -> bool:
        rows, config = self.rows, self.task.model.config
        if not isinstance(rows, Rows) or not isinstance(config, TransformerConfig):
            return True  # much data, or few such functions
        widths = np.unique(-(-rows.lengths // BUCKET))
        work = fused.work(rows.lengths, config.num_layers, config.hidden_size, config.num_heads)
        return self.options.epochs * work >= fused.MIN_WORK * len(widths)

    def batches(
        self, stage: Phase | Epochs, start: Start, *, num_hosts: int = 1, host_index: int = 0
    ) -> tf.data.Dataset:
        return self.model.batches(
            self.rows,
            batch_size=self.options.batch_size,
            seed=self.options.seed,
            by_length=self.options.by_length,
            start=start,
            num_hosts=num_hosts,
            host_index=host_index,
        )

    def identity(self) -> Mapping[str, Any]:
        return {
            "task": {**self.task.record, **self.model.settings},
            "examples": self.num_examples,
            "data_checksum": self.rows.checksum,
            "held_out_checksum": None if self.held_out is None else self.held_out.checksum,
            **self.variants.record(self.task.variant),
            **settings_in_use(self.options, self.model, self.options.identity()),
        }

    def check_trained(self, count: int) -> None:
        self.task.predictor.check_trained(self.rows.first(count), count, AFTER_FIT)

    def _evaluation(self, table: Table | None, held_out: Table) -> Callable[[], dict[str, float]]:
        """Returns a function that evaluates the task on `held_out`; checks and tokenises it now.

        `table` is the training data, whose labels the held-out ones must fit; None = rows on disk.
        """
        if not len(held_out):
            raise ValueError("validation_data needs examples. Received: a table without rows")
        return evaluation_of(self.task, table, held_out, self.options.batch_size)

    def _known_metric(self, metric: str) -> str:
        """Returns `metric`; raises ValueError if evaluations of the task have no such value."""
        scores = self.task.score_names(self.held_out)
        metric_names = ["loss", *(scores or [])]
        if scores is not None and metric not in metric_names:
            raise ValueError(
                f"metric must be one of the values of an evaluation, {', '.join(metric_names)}. "
                f"Received: metric={metric!r}"
            )
        return metric


def evaluation_of(
    task: Any, table: Table | None, held_out: Table, batch_size: int, name: str = ""
) -> Callable[[], dict[str, float]]:
    """Returns a function that evaluates a task on held-out data, which is tokenised once, now.

    Args:
        task: a `TableTask`.
        table: the training data, whose labels the held-out ones must fit; None = rows on disk.
        held_out: labelled examples.
        batch_size: maximum number of rows in a batch.
        name: name of the task in warnings, with a space at its end.

    Raises:
        ValueError: the labels do not fit.
    """
    if table is not None:
        task.check_held_out(table, held_out)
    predictor = task.predictor
    parts = list(predictor.parts(held_out, labelled=True))
    task.report_cut(sum(rows.cut for _, rows in parts), len(held_out), f"held-out {name}")
    return lambda: predictor.measure(held_out, parts, batch_size, verbose=0)[0]


def _weighted_rows(task: Any, table: Table, options: FitSettings) -> Rows:
    """Returns the rows of a table, weighted by the options; raises ValueError if there are none."""
    if not len(table):
        raise ValueError("Training needs examples. Received: a table without rows")
    rows = task.tokenize(table, labelled=True)
    if not len(rows):
        raise ValueError(f"Training needs words. Received: {len(table)} examples without any")
    if options.class_weights is not None:
        rows = task.weigh_classes(rows, options.class_weights)
    if options.sample_weight is not None:
        rows = weigh_examples(rows, example_weights(table, options.sample_weight))
    return rows


def _refuse_of_tables(options: FitSettings, **given: Any) -> None:
    """Raises ValueError if arguments that need a table are given with rows on disk.

    They are `given`, name -> value or None, and the weights in the options.
    """
    given |= {"class_weights": options.class_weights, "sample_weight": options.sample_weight}
    if unsupported := [name for name, value in given.items() if value is not None]:
        raise ValueError(
            "These arguments are not supported for rows on disk, which include their labels: pass "
            "weights to prepare_rows(…, sample_weight=…, class_weights=…), and held-out data as "
            "validation_data. "
            f"Received: {', '.join(unsupported)}"
        )


def _split_end(table: Table, share: float, validation_data: Any) -> tuple[Table, Table]:
    """Splits off the last `share` of a table's rows as held-out data; returns both tables.

    Raises ValueError if a side is empty, or `validation_data` is given too (not None).
    """
    first_held_out = math.floor(len(table) * (1 - share)) if 0 < share < 1 else 0
    if validation_data is not None or not 0 < first_held_out < len(table):
        also_received = "" if validation_data is None else " and validation_data"
        raise ValueError(
            "validation_split must be a share between 0 and 1 that leaves at least one row on "
            "both sides, and excludes validation_data. Received: "
            f"validation_split={share}{also_received}, {len(table)} rows"
        )
    return table[:first_held_out], table[first_held_out:]
