"""Pretraining for a number of updates, in phases: the base of runs on text."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import keras

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.io.paths import Path
from kbert.tasks.dataset_objective import AFTER_FIT
from kbert.tasks.settings import StepsSettings, checkpoint_defaults
from kbert.training.optimization.optimizers import make_optimizer
from kbert.training.optimization.schedules import WarmupDecay, settable
from kbert.training.optimization.settings import WARMUP_STEPS, default_warmup
from kbert.training.run.averaging import average_checkpoints, use_moving_average
from kbert.training.run.compiled import check_compiled, settings_in_use
from kbert.training.run.history import History
from kbert.training.run.monitor import LINE
from kbert.training.run.objective import Evaluate, Objective, batch_evaluation
from kbert.training.run.phases import Epochs, Phase, Start
from kbert.training.run.record import SAME, Resume
from kbert.training.run.run import Run
from kbert.training.run.signals import raise_stopped
from kbert.training.step.keras_arguments import refuse_schedule
from kbert.training.step.mixin import TrainStep
from kbert.training.step.state import scope_of, seed_dropout
from kbert.training.strategies import Strategy, current_strategy


class StepsObjective(Objective):
    """Objective of a number of updates in phases; a subclass defines the batches by `dataset`.

    Args:
        task: a `Task`.
        model: model to train: the task, or a model that contains it; None = the task.
        notes: further entries of run.json, which no number depends on.
        **settings: the fields of `settings`.

    Attributes:
        settings: class of the settings.
        options: instance of that class, with all settings.
        plan: the phases; a subclass sets it.
    """

    settings: ClassVar[type[StepsSettings]]
    usual_warmup: ClassVar[int] = WARMUP_STEPS  # the maximum, if `warmup_steps` is not set
    plan: Sequence[Phase]

    def __init__(
        self,
        task: Any,
        *,
        model: Any = None,
        notes: Mapping[str, Any] = types.MappingProxyType({}),
        **settings: Any,
    ) -> None:
        self.task, self.model = task, task if model is None else model
        self.notes = notes
        if "steps" not in settings:
            raise TypeError(
                "fit() requires the number of updates: fit(data, steps=…). Received: none"
            )
        refuse_schedule(settings)
        defaults = {**checkpoint_defaults(settings), **self.usual()}
        self.options: Any = self.settings.from_arguments({**defaults, **settings}, "fit")
        self.is_compiled = self.model.compiled_by_user
        if self.is_compiled:
            check_compiled(self.settings, settings)

    def usual(self) -> dict[str, Any]:
        """Returns name -> default of the settings whose default depends on the task."""
        return {}

    def dataset(self, phase: Phase, split: str, **stream: Any) -> tf.data.Dataset:
        """Returns the batches of a phase.

        Args:
            phase: the phase.
            split: "train" or "held_out".
            **stream: further arguments of the dataset: `start`, the position to resume from;
                `epochs`, None = endless; `num_hosts` and `host_index`, for this host's rows.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `dataset`.")

    def data(self) -> Mapping[str, Any]:
        """Returns what identifies the training data, for `identity`."""
        raise NotImplementedError(f"{type(self).__name__} must define `data`.")

    def scores(self) -> dict[str, float]:
        """Computes further scores {name: number} on held-out data, in addition to the losses."""
        return {}

    @property
    def why_no_evaluation(self) -> str | None:
        """Reason why there is no evaluation, for error messages; None if there is one."""
        raise NotImplementedError(f"{type(self).__name__} must define `why_no_evaluation`.")

    @property
    def evaluates(self) -> bool:  # type: ignore[override]  # by the data
        return self.why_no_evaluation is None

    def batches(
        self, stage: Phase | Epochs, start: Start, *, num_hosts: int = 1, host_index: int = 0
    ) -> tf.data.Dataset:
        hosts = {"num_hosts": num_hosts, "host_index": host_index}
        return self.dataset(cast(Phase, stage), "train", start=start, **hosts)

    def evaluation(
        self, task: TrainStep, stage: Phase | Epochs, strategy: Strategy
    ) -> Evaluate | None:
        if not self.evaluates:
            return None
        hosts = {"num_hosts": strategy.num_hosts, "host_index": strategy.host_index}
        batches = self.dataset(cast(Phase, stage), "held_out", epochs=1, **hosts)
        batches = batches.take(self.options.evaluation_steps or -1)
        return batch_evaluation(task, batches, strategy, self.scores)

    @property
    def unchecked(self) -> list[str]:  # type: ignore[override]  # by the settings
        return ["backend", *self.options.unchecked(), *self.notes]

    def identity(self) -> Mapping[str, Any]:
        model = self.task.model
        return {
            "backend": keras.backend.backend(),
            getattr(model, "prefix", type(model).__name__.lower()): model.config.to_dict(),
            "task": {**self.task.record, **self.model.settings},
            "precision": self.model.dtype_policy.name,
            **self.data(),
            "settings": settings_in_use(self.options, self.model, self.options.to_dict()),
            **self.notes,
        }

    def compile(self, callbacks: Sequence[keras.callbacks.Callback] = ()) -> None:
        """Compiles the model with the run's settings, unless the user has called `compile`.

        `callbacks` are those of the run: if one sets the learning rate, the rate starts constant.
        """
        if self.is_compiled:
            return
        options = self.options
        warmup = options.warmup_steps
        if warmup is None:
            least = 1 if options.decay == "inverse_sqrt" else 0  # which is relative to the warm-up
            warmup = max(least, default_warmup(options.steps, self.usual_warmup))
        schedule = WarmupDecay(
            options.learning_rate,
            options.steps,
            warmup,
            options.decay,
            options.decay_power,
            options.decay_join,
            options.decay_share,
        )
        scales = getattr(self.model, "rate_scales", None)
        optimizer = make_optimizer(options.optimizer, schedule, options, rate_scales=scales)
        self.model.compile_by_default(
            settable(optimizer, callbacks),
            micro_batches=options.micro_batches,
            clip_norm=options.clip_norm or None,
            recompute=options.recompute,
            jit_compile="auto" if options.xla is None else options.xla,
        )

    def fit(
        self,
        *,
        model_dir: PathLike | None = None,
        resume: Resume = SAME,
        verbose: str | int = "auto",
        callbacks: Sequence[keras.callbacks.Callback] = (),
        strategy: Strategy | None = None,
    ) -> History:
        """Trains the model and returns the history; for the other arguments see `Task.fit`.

        `strategy` sets the devices; None = those of the scope that the task was created in.
        """
        if self.options.evaluate_every is not None and not self.evaluates:
            raise ValueError(
                f"`evaluate_every` needs held-out data. Received: {self.why_no_evaluation}"
            )
        if self.options.average_checkpoints > 1 and model_dir is None:
            raise ValueError(
                "average_checkpoints requires a `model_dir`, which has the checkpoints. Received: "
                f"average_checkpoints={self.options.average_checkpoints}, model_dir=None"
            )
        with scope_of(self.task) if strategy is None else strategy.scope():
            seed_dropout(self.task, self.options.seed)
            self.compile(callbacks)
            history = Run(
                task=self.model,
                objective=self,
                plan=self.plan,
                settings=self.options,
                model_dir=model_dir,
                strategy=strategy,
                resume=resume,
                verbose=LINE if verbose == "auto" else verbose,
                callbacks=callbacks,
            ).train()
            if history.interrupted:
                raise_stopped(cast(int, history.stopped_by), history.step)
            if self.options.average_checkpoints > 1 or self.options.ema is not None:
                self._average(strategy or current_strategy(), model_dir, history.step, verbose)
        self.task.check_answers(AFTER_FIT)
        return history

    def _average(
        self, strategy: Strategy, model_dir: PathLike | None, step: int, verbose: str | int
    ) -> None:
        """Sets the model to its averaged weights, evaluates it and writes average.json.

        The average is the moving average with `ema`, else the mean of the last checkpoints in
        `model_dir`. Without a `model_dir` nothing is written. `step` is the run's last update.
        """
        options = self.options
        strategy.agrees(step)  # all wait until the chief has saved the last checkpoint
        if options.ema is not None:
            use_moving_average(self.model)
            record: dict[str, Any] = {"ema": options.ema}
            description = f"the moving average of the weights, with a decay of {options.ema}"
        else:
            folder = Path(cast(PathLike, model_dir)) / "checkpoints"
            steps = average_checkpoints(self.model, folder, options.average_checkpoints)
            record = {"steps": steps}
            description = f"the mean of the checkpoints of steps {', '.join(map(str, steps))}"
        evaluate = self.evaluation(self.model, self.plan[-1], strategy)
        values = {} if evaluate is None else {k: float(v) for k, v in evaluate().items()}
        if not strategy.is_chief:
            return
        if verbose:
            print(f"the model is {description}")
            if values:
                listed = " · ".join(f"{name} {value:.4g}" for name, value in values.items())
                print(f"evaluation of it: {listed}")
        if model_dir is not None:
            content = json.dumps({**record, **values}, indent=2) + "\n"
            atomic.write(Path(model_dir) / "average.json", content.encode())
