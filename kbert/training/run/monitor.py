"""Work between the steps of a run: logging, evaluation, best weights, checkpoints and stopping."""

import copy
import functools
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from kbert.core.types import Logs
from kbert.io import fingerprints
from kbert.training.hosts import Hosts
from kbert.training.run.background import Background
from kbert.training.run.best import BestWeights, weights_of
from kbert.training.run.checkpoints import Checkpoints, copy_state, read_variables
from kbert.training.run.files import RunFiles
from kbert.training.run.history import CALLBACK, PATIENCE, History
from kbert.training.run.log import ProgressLine
from kbert.training.run.objective import Evaluate
from kbert.training.run.phases import Epochs, Phase, phases_of, tokens_until
from kbert.training.run.settings import RunSettings
from kbert.training.run.values import StepValues
from kbert.training.step.mixin import TrainStep
from kbert.training.step.verbosity import keras_verbosity
from kbert.training.strategies import Strategy

LINE = "line"  # value of `verbose`


class Monitor(keras.callbacks.CallbackList):
    """Callback list of a run, which may consist of several calls of `fit`; created by `Run`.

    At the end of a step or an epoch the run evaluates before it calls the caller's callbacks, so
    they see the values on held-out data. It saves after them, so their changes are saved too, even
    those at the end of training.

    Args:
        task: The compiled task.
        stages: The plan of the run, in order.
        settings: Settings of when the run evaluates, saves and ends.
        callbacks: The caller's callbacks.
        verbose: `"line"`, or a value of Keras' `verbose`.
        strategy: Devices of the run.
        hosts: Processes of the run.
        files: Files of the run, or `None` without a folder.
        background: Thread that writes checkpoints.

    Attributes:
        step: Updates made.
        stopped_by: Number of the signal that ended the run, once a checkpoint is written.
        ended_by: Reason why the run ended before its last step.
        weights_by: "a callback" if one set the weights that the task has at the end.
        best: The best weights, or `None` without a metric.
        progress: The progress line, or `None`.
    """

    def __init__(
        self,
        task: TrainStep,
        stages: Sequence[Phase | Epochs],
        settings: RunSettings,
        *,
        callbacks: Sequence[keras.callbacks.Callback],
        verbose: str | int,
        strategy: Strategy,
        hosts: Hosts,
        files: RunFiles | None,
        background: Background,
    ) -> None:
        history = History()
        keras_verbose = 0 if verbose == LINE else keras_verbosity(verbose)
        super().__init__(
            [*callbacks, history],
            add_progbar=keras_verbose != 0,
            model=task,
            epochs=sum(stage.epochs for stage in stages),
            steps=stages[0].steps_per_epoch,
            updates=stages[-1].end,  # of the whole run; in Keras all epochs have the same length
            verbose=keras_verbose,
        )
        self.best: BestWeights | None = None
        if settings.metric is not None:
            folder = None if files is None else files.best
            self.best = BestWeights(settings, folder)
        self.progress: ProgressLine | None = None
        if verbose == LINE and strategy.is_chief:
            end = stages[-1].end
            self.progress = ProgressLine(end, tokens_until(phases_of(stages), end))
        self.step = 0
        self.stopped_by: int | None = None
        self.ended_by: str | None = None
        self.weights_by: str | None = None
        self._plan = stages
        self._settings = settings
        self._epochs = history
        self._files = files
        self._background = background
        self._strategy = strategy
        self._hosts = hosts
        self._values = StepValues(files.steps if files and strategy.is_chief else None)
        self._evaluated: tuple[int, dict[str, float]] = (
            0,
            {},
        )  # step and values of the last evaluation
        self._saved_best: int | None = None  # the best step of the previous checkpoint
        self._sums: list | None = None  # sums of an epoch that began in an earlier process
        self._saved_at = time.monotonic()
        self._has_begun = self._has_finished = False
        self._last_logs: Logs = None

    @property
    def is_over(self) -> bool:
        """Whether the run has made its last step, was stopped by a signal or ended early."""
        last_step = self._plan[-1].end
        return self.stopped_by is not None or self.ended_by is not None or self.step >= last_step

    def load(self, latest: dict[str, Any]) -> None:
        """Restores the state of the run from `latest`, which `Checkpoints.latest` returned."""
        progress = latest["progress"]  # checkpoints of the previous version lack most of it
        self.step, self.ended_by = latest["step"], progress.get("ended_by")
        self.weights_by = progress.get("weights_by")
        self._sums = progress.get("sums")
        self._epochs.epoch = progress.get("epochs", [])
        self._epochs.history = progress.get("history", {})
        if self.best is not None and progress.get("best") is not None:
            self.best.load(progress["best"])
            self._saved_best = self.best.step

    def stop(self, number: int) -> None:
        """Requests a checkpoint and the end of the run after this step, for signal `number`.

        On several hosts the run ends after the last step that any host has begun. `stopped_by` is
        set when it is done.
        """
        self._hosts.stop(number)

    def begin_stage(
        self, stage: Phase | Epochs, first_epoch: int, evaluate: Evaluate | None
    ) -> None:
        """Sets the stage that the next calls of `fit` train.

        Args:
            stage: phase, or epochs, to train.
            first_epoch: number of epochs before the stage; a phase counts as one.
            evaluate: function that returns the values on held-out data; None without such data.
        """
        self._stage, self._first_epoch, self._measure = stage, first_epoch, evaluate
        self.weights_by = None  # left from a shorter run
        self._values.fetched_at = None  # the first step compiles: it does not count for the speed

    def finish(self) -> None:
        """Calls the callbacks' `on_train_end`, once per run, and sets `weights_by`."""
        if not self._has_begun or self._has_finished:
            return
        self._has_finished = True
        old_fingerprints = self._fingerprints()
        super().on_train_end(self._last_logs)
        # Checked separately: if the last epoch is the best, restoring it changes no weight.
        restores = any(
            getattr(callback, "restore_best_weights", False)
            and getattr(callback, "best_weights", None) is not None
            for callback in self.callbacks
        )
        if self.stopped_by is None and (restores or old_fingerprints != self._fingerprints()):
            self.weights_by = CALLBACK

    def close(self, first_step: int, place: str) -> History:
        """Returns the history of the run, with how it ended.

        Args:
            first_step: updates made before this call.
            place: text with the best step's position in the plan, such as " (epoch 3 of 3)".
        """
        history = self._epochs
        history.step = self.step
        history.stopped_by, history.ended_by = self.stopped_by, self.ended_by
        history.weights_by = self.weights_by
        if self._files is not None and self._strategy.is_chief:
            history.steps = self._files.steps.read()
            history.evaluations = self._files.evaluations.read()
        history.close(self.best, trained=self.step > first_step, place=place)
        return history

    def _fingerprints(self) -> dict[str, int]:
        """Returns weight name -> CRC-32; {} if no callback overrides `on_train_end`."""
        base = keras.callbacks.Callback.on_train_end
        # Looked up on the object: the function of a LambdaCallback is not on its class.
        hooks = (getattr(callback.on_train_end, "__func__", None) for callback in self.callbacks)
        if all(function is base for function in hooks):
            return {}
        self._sync()
        weights = read_variables(weights_of(self.model))
        return {name: fingerprints.crc32([array]) for name, array in weights.items()}

    # Called by Keras.

    def on_train_begin(self, logs: Logs = None) -> None:
        if not self._has_begun:
            self._has_begun = True
            super().on_train_begin(logs)

    def on_train_end(self, logs: Logs = None) -> None:
        self._last_logs = logs

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        per_epoch = self._stage.steps_per_epoch
        self._epoch_start = self._stage.first_step + (epoch - self._first_epoch) * per_epoch
        if self._sums is not None:  # it began in an earlier process: keep its sums
            sums, self._sums = np.asarray(self._sums, "float32"), None
            ratios, *_ = self.model.metrics
            if sums.shape == tuple(ratios.sums.shape):
                self._set_sums(sums)
            else:
                logging.warning(
                    "The run was started by a version with other values: those of this epoch are "
                    "counted from the restart"
                )
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        super().on_train_batch_begin(self.step - self._epoch_start, logs)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        batch = self.step - self._epoch_start
        self._after_step(logs)
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self.stopped_by is not None:
            return  # the epoch is not over
        self._check_length()
        is_last = isinstance(self._stage, Epochs) or self.step == self._plan[-1].end
        values = {}
        if is_last or self.model.stop_training or self._is_time(self._settings.evaluate_every):
            values = {f"val_{name}": value for name, value in self._evaluate().items()}
        self._fetch()
        self._last_logs = {**(logs or {}), **values}
        super().on_epoch_end(epoch, self._last_logs)
        if self.model.stop_training and not self.is_over:
            self.ended_by = CALLBACK
        if self.is_over:
            self.finish()
        self._save_or_stop(is_last or self.ended_by is not None)
        if self.is_over:
            self.model.stop_training = True

    # Actions of the run.

    def _check_length(self) -> None:
        """Raises RuntimeError if the dataset ended before the last step of the epoch or phase."""
        end = self._epoch_start + self._stage.steps_per_epoch
        if self.step < end and not self.model.stop_training:
            kind = "phase" if isinstance(self._stage, Phase) else "epoch"
            raise RuntimeError(
                f"The dataset ended too early: its {kind} needs {end - self._epoch_start} steps. "
                f"Received: {self.step - self._epoch_start} steps, then the end"
            )

    def _after_step(self, logs: Logs) -> None:
        """Counts a step and keeps its values; evaluates, fetches, saves or stops if that is due."""
        self._background.check()
        self.step += 1
        self._values.add(self.step, logs)
        if self.step == self._epoch_start + self._stage.steps_per_epoch:
            return  # `on_epoch_end` follows
        if self._is_time(self._settings.evaluate_every):
            self._evaluate()
        elif self._values.is_due():
            self._fetch()
        if self.ended_by is None:  # else `on_epoch_end` follows
            self._save_or_stop(False)
        if self.is_over:
            self.model.stop_training = True

    def _is_time(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    @property
    def _has_waited(self) -> bool:
        """Whether `checkpoint_minutes` have passed since the last checkpoint."""
        minutes = self._settings.checkpoint_minutes
        return minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes

    def _fetch(self) -> None:
        """Fetches the values of the steps since the last fetch; checks, logs and shows them."""
        last_fetched_at = self._values.fetched_at
        step_values = self._values.fetch(self.model.derived_metrics, self._last_good)
        if not step_values:
            return
        values = {name: value for name, value in step_values[-1].items() if name != "step"}
        self._draw("train", values)
        if self.progress is not None and isinstance(self._stage, Phase):  # epochs have none
            if last_fetched_at is not None:
                tokens = len(step_values) * self._stage.tokens_per_step
                self.progress.measure(tokens, self._values.fetched_at - last_fetched_at)
            names = ("loss", *self.model.shown_metrics)
            shown = {name: values[name] for name in names if name in values}
            # Values that only evaluations measure.
            shown |= {name: x for name, x in self._evaluated[1].items() if name not in values}
            at_end = self.step == self._plan[-1].end
            tokens_done = tokens_until(phases_of(self._plan), self.step)
            self.progress.show(self.step, tokens_done, shown, last=at_end)

    def _last_good(self) -> str:
        if self._files is None:
            return ""
        self._background.wait()
        return self._files.checkpoints.describe()

    def _evaluate(self) -> dict[str, float]:
        """Returns name -> value on held-out data; {} without such data.

        Evaluates at most once after each step. A new evaluation is logged, updates the best weights
        and ends the run if `patience` is exhausted.
        """
        self._fetch()
        if self._measure is None:
            return {}
        if self._evaluated[0] == self.step:
            return self._evaluated[1]
        self._sync()
        sums = self._get_sums()
        values = {name: float(value) for name, value in self._measure().items()}
        if sums is not None:
            self._set_sums(sums)  # Keras' evaluation adds to the same sums
        self._evaluated = (self.step, values)
        terms = {k: v for k, v in values.items() if k not in self.model.derived_metrics}
        self._epochs.evaluations.append({"step": self.step, **terms})
        if self._files is not None and self._strategy.is_chief:
            self._files.evaluations.append([{"step": self.step, **terms}])
        self._draw("evaluation", values)
        summary = " · ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._note(f"evaluation after step {self.step:,}: {summary}")
        if self.best is not None and self._may_be_best:
            self.best.update(self.model, self.step, values)
            patience = self._settings.patience
            if patience is not None and self.best.waited >= patience:
                self.ended_by = PATIENCE
        self._values.fetched_at = time.monotonic()  # evaluation does not count as training time
        return values

    @property
    def _may_be_best(self) -> bool:
        """Whether these weights may count as the best: no callback has a false `may_be_best`."""
        return all(getattr(callback, "may_be_best", True) for callback in self.callbacks)

    def _save_or_stop(self, at_end: bool) -> None:
        """Saves a checkpoint if it is due, or if all hosts stop after this step.

        Args:
            at_end: whether a checkpoint is due because an epoch or the run ends.
        """
        number = self._hosts.stops_after(self.step)  # a later signal is handled at the next step
        every, has_waited = self._settings.checkpoint_every, self._has_waited
        due = at_end or self._is_time(every) or (every is None and has_waited)
        if due or has_waited or number is not None:
            self._save(bridges=not due)
        if number is not None:
            self._background.wait()
            self.stopped_by = number
            name = signal.Signals(number).name
            self._note(f"stopped by {name}: checkpoint of step {self.step} written")

    def _save(self, bridges: bool) -> None:
        """Starts writing a checkpoint in the background, after the best weights, if they are new.

        Args:
            bridges: whether it is written only because the run is stopped, or by the clock between
                those of `checkpoint_every`; see `Checkpoints.remove_bridges`.
        """
        if self._files is None:
            return
        self._fetch()
        is_mid_epoch = self.step != self._epoch_start + self._stage.steps_per_epoch
        sums = self._get_sums() if is_mid_epoch else None
        if self._strategy.is_chief:
            progress = {
                "ended_by": self.ended_by,
                **({} if self.weights_by is None else {"weights_by": self.weights_by}),
                "best": self.best and self.best.state,
                "epochs": self._epochs.epoch,
                "history": self._epochs.history,
                "sums": None if sums is None else sums.tolist(),
                **({"bridge": True} if bridges else {}),
            }
            arrays = copy_state(self.model)
            write_best = self.best.unsaved() if self.best else None
            self._background.start(
                functools.partial(
                    self._write,
                    *(self._files.checkpoints, arrays, self.step, copy.deepcopy(progress)),
                    *(write_best, self._saved_best),
                )
            )
            self._saved_best = None if self.best is None else self.best.step
        self._saved_at = self._values.fetched_at = time.monotonic()

    def _write(
        self,
        checkpoints: Checkpoints,
        arrays: dict[str, np.ndarray],
        step: int,
        progress: dict[str, Any],
        write_best: Callable[[], None] | None,
        saved_best: int | None,
    ) -> None:
        """Writes the best weights and a checkpoint, in the background thread.

        Args:
            checkpoints: folder of the checkpoints.
            arrays: copy of the state that the checkpoint contains.
            step: updates made.
            progress: state of the run, for the checkpoint.
            write_best: function that writes the best weights if they are new; None without a
                metric.
            saved_best: best step of the previous checkpoint; weights from before it are removed.
        """
        if write_best is not None:
            write_best()
        checkpoints.publish(arrays, step, progress)
        if self.best is not None:
            self.best.forget_before(saved_best)

    def _sync(self) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # within fit, JAX keeps the state outside the variables

    def _get_sums(self) -> np.ndarray | None:
        """Returns the (K, 2) sums of the epoch so far: numerator and denominator of K values.

        `None` on several hosts, which would have to read them together. There the values of a
        resumed epoch are those since the restart.
        """
        if self._strategy.num_hosts > 1:
            return None
        self._sync()
        ratios, *_ = self.model.metrics
        return np.array(keras.ops.convert_to_numpy(ratios.sums))

    def _set_sums(self, sums: np.ndarray) -> None:
        ratios, *_ = self.model.metrics
        ratios.sums.assign(sums)

    def _draw(self, group: str, values: dict[str, float]) -> None:
        if self._files is not None and self._files.curves is not None:
            self._files.curves.write(self.step, group, values)

    def _note(self, text: str) -> None:
        if self.progress is not None:
            self.progress.note(text)
