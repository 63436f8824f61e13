"""What happens between the steps of a fine-tuning run; `fine_tune` makes it."""

import signal
from collections.abc import Callable, Sequence

import keras
import numpy as np

from kbert.training.run.best import BestWeights
from kbert.training.run.checkpoints import Checkpoints
from kbert.training.run.log import RunLog
from kbert.training.run.values import StepValues

# Why a run is over before its last epoch.
PATIENCE, CALLBACK = "patience", "a callback"


class FineTuningHistory(keras.callbacks.History):
    """Keras' history, with what became of the run.

    Attributes:
        step: Updates made.
        best_step: Updates before the best evaluation; `None` without evaluations.
        best_value: The metric then.
        stopped_by: Number of the signal that ended it, if one did; the same call goes on.
        ended_by: `"patience"` or `"a callback"` where that ended it before its last epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch = []
        self.step = 0
        self.best_step: int | None = None
        self.best_value: float | None = None
        self.stopped_by: int | None = None
        self.ended_by: str | None = None
        self._sentence = ""

    def on_train_begin(self, logs=None) -> None:
        """Keeps the epochs before a restart, which Keras' own forgets here."""

    def close(self, run: "Run", epochs: int) -> None:
        """Takes down how the run ended."""
        self.step, self.stopped_by, self.ended_by = run.step, run.stopped_by, run.ended_by
        how = "trained for" if run.ended_by is None else f"ended by {run.ended_by} after"
        if run.stopped_by is not None:
            how = f"stopped by {signal.Signals(run.stopped_by).name}, to be gone on with, after"
        self._sentence = f"{how} {run.step:,} steps"
        best = run.best
        if best is None or best.step is None:
            return
        self.best_step, self.best_value = best.step, best.value
        epoch = -(-best.step // run.steps_per_epoch)
        self._sentence += (
            f"; best {best.metric} {best.value:.4g} after step {best.step:,} "
            f"(epoch {epoch} of {epochs})"
        )
        if best.keeps_weights and run.stopped_by is None:
            self._sentence += ", whose weights the task has"

    def __str__(self) -> str:
        return self._sentence


class Run:
    """Logs, evaluates, keeps the best, saves and stops.

    Args:
        task: The compiled task.
        steps_per_epoch: Updates of an epoch.
        evaluate: Gives the values on held-out data, or `None`.
        evaluate_every: Steps between evaluations within an epoch.
        best: The best weights, or `None` where nothing says which those are.
        patience: Evaluations in a row without a better value that end the run.
        checkpoints: Where to save, or `None`.
        checkpoint_every: Steps between checkpoints within an epoch.
        steps: Log of the steps, or `None`.
        evaluations: Log of the evaluations, or `None`.
        history: Of the epochs so far.

    Attributes:
        step: Updates made.
        stopped_by: Number of the signal that ended the run, once a checkpoint is written.
        ended_by: Why the run is at its end before its last epoch.
    """

    def __init__(
        self,
        task,
        *,
        steps_per_epoch: int,
        evaluate: Callable[[], dict[str, float]] | None,
        evaluate_every: int | None,
        best: BestWeights | None,
        patience: int | None,
        checkpoints: Checkpoints | None,
        checkpoint_every: int | None,
        steps: RunLog | None,
        evaluations: RunLog | None,
        history: FineTuningHistory,
    ) -> None:
        self.step = 0
        self.stopped_by: int | None = None
        self.ended_by: str | None = None
        self.steps_per_epoch = steps_per_epoch
        self.best = best
        self.task = task
        self._evaluate_every = evaluate_every
        self._ask = evaluate
        self._patience = patience
        self._checkpoints = checkpoints
        self._checkpoint_every = checkpoint_every
        self._steps = steps
        self._evaluations = evaluations
        self._history = history
        self._values = StepValues(steps)
        self._signal: int | None = None
        self._evaluated: tuple[int, dict] = (0, {})  # step and values of the last evaluation
        self._spoken_of: int | None = None  # the best step of the checkpoint before
        self._sums: list | None = None  # of an epoch that was begun in an earlier process

    @property
    def is_over(self) -> bool:
        """Whether no step is to follow."""
        return self.stopped_by is not None or self.ended_by is not None

    def load(self, latest: dict | None) -> None:
        """Takes up what a checkpoint says, and cuts the logs off there."""
        if latest is not None:
            progress = latest["progress"]
            self.step, self.ended_by = latest["step"], progress["ended_by"]
            self._sums, self._evaluated = progress["sums"], tuple(progress["evaluated"])
            self._history.epoch = progress["epochs"]
            self._history.history = progress["history"]
            if self.best is not None and progress["best"] is not None:
                self.best.load(progress["best"])
                self._spoken_of = self.best.step
        for log in (self._steps, self._evaluations):
            log.truncate(self.step)

    def stop(self, number: int) -> None:
        """Asks for a checkpoint and the end after the step that runs, for signal `number`."""
        self._signal = number

    def begin_epoch(self) -> None:
        """Goes on counting in an epoch that was begun in an earlier process."""
        if self._sums is not None:
            self._set_sums(np.asarray(self._sums, "float32"))
            self._sums = None

    def after_step(self, logs: dict) -> None:
        """Looks, evaluates and saves where it is time to; not at the end of an epoch."""
        self.step += 1
        self._values.add(self.step, logs)
        if self.step % self.steps_per_epoch == 0:
            return  # `after_epoch` does what is due
        if self._is_time(self._evaluate_every):
            self.evaluate()
        elif self._values.is_due():
            self._look()
        number = self._signal  # one that comes later finds the next step
        if self.ended_by is None and (number is not None or self._is_time(self._checkpoint_every)):
            self.save()
            self.stopped_by = number
        if self.is_over:
            self.task.stop_training = True

    def evaluate(self) -> dict[str, float]:
        """The values on held-out data after this step; asked for once."""
        self._look()
        if self._ask is None:
            return {}
        if self._evaluated[0] == self.step:
            return self._evaluated[1]
        self._sync()
        sums = self._get_sums()
        values = {name: float(value) for name, value in self._ask().items()}
        self._set_sums(sums)  # an evaluation by Keras counts in the same place
        if self._evaluations is not None:
            self._evaluations.append([{"step": self.step, **values}])
        self._evaluated = (self.step, values)
        if self.best is not None:
            self.best.update(self.task, self.step, values)
            if self._patience is not None and self.best.waited >= self._patience:
                self.ended_by = PATIENCE
        return values

    def end_epoch(self) -> None:
        """Saves, once the callbacks have seen the epoch's values, and stops where that is due."""
        if self.task.stop_training and not self.is_over:
            self.ended_by = CALLBACK
        number = self._signal
        self.save()
        self.stopped_by = number
        if self.is_over:
            self.task.stop_training = True

    def save(self) -> None:
        """Writes a checkpoint, after the best weights that it speaks of."""
        if self._checkpoints is None:
            return
        self._look()
        self._sync()
        if self.best is not None:
            self.best.save()
        progress = {
            "ended_by": self.ended_by,
            "best": self.best and self.best.state,
            "evaluated": self._evaluated,
            "epochs": self._history.epoch,
            "history": self._history.history,
            "sums": self._get_sums().tolist() if self.step % self.steps_per_epoch else None,
        }
        self._checkpoints.save(self.task, self.step, progress)
        if self.best is not None:
            self.best.forget_before(self._spoken_of)
            self._spoken_of = self.best.step

    def _is_time(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _look(self) -> None:
        where = "" if self._checkpoints is None else self._checkpoints.describe()
        self._values.look(self.task.derived_metrics, where)

    def _sync(self) -> None:
        if hasattr(self.task, "jax_state_sync"):
            self.task.jax_state_sync()  # within fit, JAX keeps the state outside the variables

    def _get_sums(self) -> np.ndarray:
        ratios, _ = self.task.metrics
        return np.array(keras.ops.convert_to_numpy(ratios.sums))

    def _set_sums(self, sums: np.ndarray) -> None:
        ratios, _ = self.task.metrics
        ratios.sums.assign(sums)


class Callbacks(keras.callbacks.CallbackList):
    """The callbacks of one run, which may take two calls of `fit`; the run comes first and last.

    Args:
        run: The run.
        callbacks: The caller's, and the history.
        params: What Keras tells callbacks: `epochs`, `steps` of an epoch, `verbose`.
    """

    def __init__(
        self, run: Run, callbacks: Sequence[keras.callbacks.Callback], params: dict
    ) -> None:
        super().__init__(
            list(callbacks), add_progbar=params["verbose"] != 0, model=run.task, **params
        )
        self._run = run
        self._has_begun = False
        self._logs = None

    def on_train_begin(self, logs=None) -> None:
        if not self._has_begun:
            self._has_begun = True
            super().on_train_begin(logs)

    def on_train_end(self, logs=None) -> None:
        self._logs = logs

    def finish(self) -> None:
        """Tells the callbacks that the run is over, once."""
        if self._has_begun:
            super().on_train_end(self._logs)

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self._run.begin_epoch()
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch, logs=None) -> None:
        super().on_train_batch_begin(self._run.step % self._run.steps_per_epoch, logs)

    def on_train_batch_end(self, batch, logs=None) -> None:
        batch = self._run.step % self._run.steps_per_epoch
        self._run.after_step(logs)
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch, logs=None) -> None:
        run = self._run
        if run.stopped_by is not None:
            return  # the epoch is not over
        if run.step < (epoch + 1) * run.steps_per_epoch and not run.task.stop_training:
            raise RuntimeError(
                f"The dataset ended too early: an epoch has {run.steps_per_epoch} steps. "
                f"Received: {run.step - epoch * run.steps_per_epoch} of epoch {epoch + 1}"
            )
        values = {f"val_{name}": value for name, value in run.evaluate().items()}
        super().on_epoch_end(epoch, {**logs, **values})
        run.end_epoch()
