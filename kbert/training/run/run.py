"""The training loop of every run: phases of pretraining, or epochs of fine-tuning.

A run with a folder can be killed at any moment and resumes exactly; `kbert.training.run.files`
describes the files of the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.training.hosts import Hosts, make_hosts
from kbert.training.run.background import Background
from kbert.training.run.best import BestWeights
from kbert.training.run.files import RunFiles
from kbert.training.run.history import History
from kbert.training.run.monitor import LINE, Monitor
from kbert.training.run.objective import Objective
from kbert.training.run.phases import Epochs, Phase, Start
from kbert.training.run.record import FIXED, SAME, Resume, check_resume
from kbert.training.run.settings import RunSettings
from kbert.training.run.signals import stopping
from kbert.training.step.keras_arguments import callback_list, check_callbacks, check_trainable
from kbert.training.step.mixin import TrainStep
from kbert.training.strategies import Strategy, current_strategy

_DEFAULTS = RunSettings()  # type: ignore[call-arg]  # all fields have defaults
_EVALUATED = ("metric", "patience", "evaluate_every")  # settings that need held-out data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Trains a task on an objective by a plan, with checkpoints and exact resume.

    The plan is a sequence of phases, each with batches of one shape, or epochs over the same data.
    A background thread writes checkpoints at the end of the run and of each epoch, on SIGTERM and
    SIGINT (Ctrl-C; a second one ends the process at once), and as often as requested. A run that
    was killed and restarted has the same losses, best weights and count of evaluations without
    progress as one that was not. Callbacks must save their own state. If the run is already at its
    end, the task gets its weights, as if the call had trained it. Only one process at a time may
    write to a folder (`kbert.io.atomic`).

    A phase begins at the window after the last one read. The rest of that window is skipped.
    If the last batch extended into the next window, those few rows are repeated.

    With a `metric` and `keep_best`, the task gets the best weights at the end. Of equal values the
    one with the smaller loss is best. Weights that a callback sets at the end of training stay, for
    example those of Keras' `EarlyStopping(restore_best_weights=True)`.

    Args:
        task: A compiled `TrainStep` model, created in `strategy.scope()`.
        objective: Objective that provides batches and evaluation.
        plan: Phases in order, or `Epochs`.
        settings: Settings of when the run evaluates, saves and ends.
        model_dir: Folder that everything is written to; the same folder means the same run. `None`:
            nothing is written, nothing can be resumed, and signals keep their usual effect.
        strategy: Devices of the run; by default those of the scope the task was created in.
        resume: Settings that may have changed when a run resumes: `"same"` for none, `"changed"`
            for any, or their names.
        verbose: `"line"` for a line with speed and time left (phases only), or Keras' values: 0 for
            silence, 1 for a progress bar, 2 for a line per epoch, `"auto"` for 1 in a terminal or
            notebook, else 2.
        callbacks: Keras callbacks: a list, one or None. A phase counts as an epoch for them. While
            one has an attribute `may_be_best` that is False, evaluations do not count for the best
            weights.

    Raises:
        ValueError: Settings contradict each other.

    Example:
        >>> import numpy as np
        >>> from kbert.training import Objective
        >>> class Line(TrainStep, keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = self.add_weight(name="slope", initializer="zeros")
        ...         self.built = True
        ...     def loss_terms(self, batch, training):
        ...         error = keras.ops.square(self.slope * batch["x"] - batch["y"])
        ...         return {"error": (keras.ops.sum(error), keras.ops.size(error))}, {}
        >>> class Slope(Objective):
        ...     evaluates = True
        ...     def batches(self, stage, start, **hosts):
        ...         batch = {"x": np.ones((4, 1), "float32"), "y": np.full((4, 1), 3.0, "float32")}
        ...         return tf.data.Dataset.from_tensors(batch).repeat()
        ...     def evaluation(self, task, stage, strategy):
        ...         return lambda: {"slope": float(task.slope.value)}
        >>> line = Line()
        >>> line.compile(keras.optimizers.SGD(0.5), run_eagerly=True)
        >>> run = Run(task=line, objective=Slope(), plan=Epochs(epochs=3, steps_per_epoch=1),
        ...           settings=RunSettings(metric="slope"), verbose=0)
        >>> history = run.train()
        >>> history.history["val_slope"]
        [0.5, 1.0, 1.5]
        >>> print(history)
        trained for 3 steps; best slope 1.5 after step 3 (epoch 3 of 3), whose weights are restored
    """

    task: TrainStep
    objective: Objective
    plan: Sequence[Phase] | Epochs
    settings: RunSettings = _DEFAULTS
    model_dir: PathLike | None = None
    strategy: Strategy | None = None
    resume: Resume = SAME
    verbose: str | int = LINE
    callbacks: Sequence[keras.callbacks.Callback] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "callbacks", callback_list(self.callbacks))
        check_callbacks(self.task, self.callbacks, in_run=True)
        check_trainable(self.task)
        check_resume(self.resume, self.model_dir)
        _check_average(self.task)
        self._check()

    @property
    def stages(self) -> tuple[Phase | Epochs, ...]:
        """The plan, in order."""
        return (self.plan,) if isinstance(self.plan, Epochs) else tuple(self.plan)

    @property
    def end(self) -> int:
        """Updates of the whole run."""
        return self.stages[-1].end

    def train(self) -> History:
        """Trains to the end of the plan, from where an earlier call stopped.

        Returns:
            The history of the run, including steps and epochs before a restart.

        Raises:
            NonFiniteLoss: A loss is NaN or infinite. The last checkpoint is from before that step,
                and the step does not change the weights.
            ValueError: Settings contradict those that the run was started with, or `metric` is not
                one of the values.
            RuntimeError: A dataset ends early, another process writes to the folder, hosts do not
                see the same checkpoints, or one of the hosts ended.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._scope())
            strategy = self.strategy or current_strategy()
            for stage in self.stages:
                if isinstance(stage, Phase) and stage.batch_size is not None:
                    strategy.check_batch(stage.batch_size, self.task.micro_batches)
            hosts = make_hosts(strategy.host_index, strategy.num_hosts)
            files, latest = None, None
            if self.model_dir is not None:
                if strategy.is_chief:
                    stack.enter_context(atomic.refusing_others(self.model_dir))
                files = RunFiles(self.model_dir, self.settings, is_chief=strategy.is_chief)
                record, unchecked = self.objective.identity(), self.objective.unchecked
                end, fixed = self.end, ()
                if isinstance(self.plan, Epochs):
                    # Fewer epochs than before are fine: the longer run's best weights are used.
                    end, fixed = None, FIXED
                    record = {**record, "steps_per_epoch": self.plan.steps_per_epoch}
                latest = files.open(record, unchecked, self.resume, end, fixed)
            background = stack.enter_context(Background())
            monitor = Monitor(
                self.task,
                self.stages,
                self.settings,
                callbacks=self.callbacks,
                verbose=self.verbose,
                strategy=strategy,
                hosts=hosts,
                files=files,
                background=background,
            )
            if files is not None:
                stack.enter_context(hosts.listening())
                stack.enter_context(stopping(monitor.stop))
            if latest is not None:
                monitor.load(latest)
                self._warn_of_lost_state(monitor)
            first_step = monitor.step
            try:
                self._train(monitor, files, latest, strategy, hosts)
            except Exception as error:
                if not hosts.lost_another(error):
                    raise
                raise RuntimeError(
                    f"Another host of this run ended, or cannot be reached, after step "
                    f"{monitor.step}. Start the run again on all hosts to resume it. "
                    f"{files.checkpoints.describe() if files is not None else ''}"
                    f"Received on host {strategy.host_index} of {strategy.num_hosts}: "
                    f"{_last_line(error)}"
                ) from error
            background.wait()
            return self._close(monitor, first_step)

    def _train(
        self,
        monitor: Monitor,
        files: RunFiles | None,
        latest: dict[str, Any] | None,
        strategy: Strategy,
        hosts: Hosts,
    ) -> None:
        """Trains every stage that is not over, one `fit` after another.

        Args:
            monitor: callbacks and state of the run.
            files: files of the run; None without a folder.
            latest: checkpoint to resume from, as `Checkpoints.latest` returns it; None = none.
            strategy: devices of the run.
            hosts: processes of the run.
        """
        start: Start = (0, 0, 0)
        if latest is not None and not monitor.is_over:
            start = tuple(latest["position"])

        def batches(stage: Phase | Epochs) -> tf.data.Dataset:
            return self.objective.batches(
                stage, start, num_hosts=strategy.num_hosts, host_index=strategy.host_index
            )

        if monitor.is_over:  # the code after a run needs its weights
            self._check_end(monitor.step)
            self._restore(batches(self.stages[-1]), files, latest, strategy)
            return
        is_resumed, first_epoch = False, 0
        for stage in self.stages:
            if monitor.step == stage.first_step > 0:
                start = (start[0], start[1] + 1, 0)
            if monitor.step < stage.end and not monitor.is_over:
                evaluate = self.objective.evaluation(self.task, stage, strategy)
                if evaluate is not None:
                    evaluate = functools.partial(hosts.from_chief, evaluate)
                monitor.begin_stage(stage, first_epoch, evaluate)
            while monitor.step < stage.end and not monitor.is_over:
                dataset = batches(_stage_from(stage, monitor.step))
                if not is_resumed:
                    self._restore(dataset, files, latest, strategy)
                    is_resumed = True
                epoch, steps_done = divmod(monitor.step - stage.first_step, stage.steps_per_epoch)
                TrainStep.fit(
                    self.task,
                    strategy.distribute(dataset),
                    initial_epoch=first_epoch + epoch,
                    # An epoch that began before the restart gets its own `fit`, of the steps left.
                    epochs=first_epoch + (epoch + 1 if steps_done else stage.epochs),
                    steps_per_epoch=stage.steps_per_epoch - steps_done,
                    callbacks=monitor,
                    verbose=0,
                )
                start = tuple(self.task.step_state.position.value.numpy().tolist())
            first_epoch += stage.epochs
        monitor.finish()

    def _close(self, monitor: Monitor, first_step: int) -> History:
        """Returns the history of a run that is over; restores the best weights, if they are kept.

        Args:
            monitor: callbacks and state of the run.
            first_step: updates made before this call of `train`.
        """
        history, best = monitor.close(first_step, self._place(monitor.best)), monitor.best
        if best is not None and not history.interrupted and monitor.weights_by is None:
            best.restore(self.task)
        if self.verbose != LINE and self.verbose:
            print(history)
        elif monitor.progress is not None and monitor.step == first_step:
            monitor.progress.note(str(history))
        return history

    def _restore(
        self,
        dataset: tf.data.Dataset,
        files: RunFiles | None,
        latest: dict[str, Any] | None,
        strategy: Strategy,
    ) -> None:
        """Creates the optimizer's slots and restores the newest checkpoint, if there is one.

        Args:
            dataset: batches, of which only the structure is used.
            files: files of the run; None without a folder.
            latest: checkpoint to restore, as `Checkpoints.latest` returns it; None = none.
            strategy: devices of the run; RuntimeError if its hosts see different checkpoints.
        """
        self.task.prepare(dataset.element_spec)
        if files is None:
            return
        step = 0 if latest is None else latest["step"]
        if not strategy.agrees(step):
            raise RuntimeError(
                "All hosts must see the same checkpoints: put the folder on a file system they "
                f"share. Received: {files.folder}, with step {step} on host {strategy.host_index}"
            )
        if latest is not None:
            files.checkpoints.restore(self.task, step)

    def _scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the scope of the run's strategy.

        Without one, it is the scope of the task's strategy on TensorFlow, and an empty context on
        other backends.
        """
        strategy = self.strategy or getattr(self.task, "distribute_strategy", None)
        return strategy.scope() if strategy else contextlib.nullcontext()

    def _warn_of_lost_state(self, monitor: Monitor) -> None:
        """Warns if callbacks restore best weights, which they know only since the restart."""
        restoring = (x for x in self.callbacks if getattr(x, "restore_best_weights", False))
        names = [type(x).__name__ for x in restoring]
        if names and not monitor.is_over:
            warnings.warn(
                f"{', '.join(names)} restores the best weights since step {monitor.step}, where "
                "the run resumes, not those of the whole run. Use `metric` and `patience` of "
                "`fit`, which cover the whole run",
                stacklevel=3,
            )

    def _check_end(self, step: int) -> None:
        """Warns if the checkpoint, of `step`, is beyond the end of the run."""
        if step > self.end:
            warnings.warn(
                f"The run ends at step {self.end}, but its checkpoint is that of step {step}: its "
                "weights are loaded, and nothing is trained",
                stacklevel=4,
            )

    def _place(self, best: BestWeights | None) -> str:
        """Returns the epoch of the best step as text, " (epoch 3 of 3)"; "" for phases."""
        if best is None or best.step is None or not isinstance(self.plan, Epochs):
            return ""
        return f" (epoch {-(-best.step // self.plan.steps_per_epoch)} of {self.plan.epochs})"

    def _check(self) -> None:
        """Raises ValueError if the settings do not fit the objective, the plan or each other."""
        options = {name: getattr(self.settings, name) for name in _EVALUATED}
        options = {name: value for name, value in options.items() if value is not None}
        if options and not self.objective.evaluates:
            raise ValueError(
                "`metric`, `patience` and `evaluate_every` require held-out data. "
                f"Received: {', '.join(f'{k}={v!r}' for k, v in options.items())} without any"
            )
        if self.settings.metric is None and self.settings.patience is not None:
            raise ValueError(
                "`patience` requires `metric`, the value to monitor. "
                f"Received: None with patience={self.settings.patience}"
            )
        if self.verbose == LINE and not all(isinstance(stage, Phase) for stage in self.stages):
            raise ValueError(
                'verbose="line" is supported for phases only, whose tokens are known. '
                f"Received: {self.plan}"
            )


def _stage_from(stage: Phase | Epochs, step: int) -> Phase | Epochs:
    """Returns a copy of the stage whose `done` counts its updates among the first `step`."""
    return dataclasses.replace(stage, done=step - stage.first_step)


def _check_average(task: TrainStep) -> None:
    """Raises ValueError if the optimizer has Keras' `use_ema`."""
    if getattr(task.optimizer, "use_ema", False):
        raise ValueError(
            "Keras' `use_ema` is not supported in a run: it would replace the weights by their "
            "average at the end of every `fit`, which a run calls several times. Compile with "
            "kbert.training.AdamW(rate, ema=0.99), and call use_moving_average(task) after the "
            f"run. Received: {type(task.optimizer).__name__} with use_ema=True"
        )


def _last_line(error: Exception) -> str:
    """Returns the most informative line of an engine's error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative_lines = [line for line in lines if "aborted" in line or "failed" in line]
    return (informative_lines or lines or [type(error).__name__])[0]
