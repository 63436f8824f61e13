"""The callback of a run: it logs, evaluates, saves and stops, all between two steps."""

import signal
import time
import warnings
from collections.abc import Callable, Sequence

import keras

from kbert.training.run.checkpoints import Checkpoints
from kbert.training.run.curves import Curves
from kbert.training.run.log import ProgressLine, RunLog
from kbert.training.run.phases import Phase, tokens_until
from kbert.training.run.values import StepValues


class Monitor(keras.callbacks.Callback):
    """Watches over one run; `train` makes it.

    Args:
        first_step: Updates made before, in an earlier process.
        phases: The phases of the run.
        checkpoints: Where to save.
        steps: Log of the steps.
        evaluations: Log of the evaluations.
        progress: Line to show, or `None` for silence.
        curves: TensorBoard's curves, or `None`.
        evaluate_every: Steps between evaluations.
        checkpoint_every: Steps between checkpoints.
        checkpoint_minutes: Minutes between checkpoints.
        extra_scores: More values of an evaluation, by name; called on the chief alone.
        bridge: Step of the checkpoint that the run goes on from, if it only bridged a stop.
        is_chief: Whether to write at all.
    """

    def __init__(
        self,
        *,
        first_step: int,
        phases: Sequence[Phase],
        checkpoints: Checkpoints,
        steps: RunLog,
        evaluations: RunLog,
        progress: ProgressLine | None,
        curves: Curves | None,
        evaluate_every: int | None,
        checkpoint_every: int | None,
        checkpoint_minutes: float | None,
        extra_scores: Callable[[], dict[str, float]] | None,
        bridge: int | None,
        is_chief: bool,
    ) -> None:
        super().__init__()
        self.step = first_step
        self.stopped_by: int | None = None
        self._signal: int | None = None
        self._phases = phases
        self._checkpoints = checkpoints
        self._values = StepValues(steps if is_chief else None)
        self._evaluations = evaluations
        self._progress = progress
        self._curves = curves
        self._evaluate_every = evaluate_every
        self._checkpoint_every = checkpoint_every
        self._checkpoint_seconds = checkpoint_minutes and 60 * checkpoint_minutes
        self._extra_scores = extra_scores
        self._scores: dict[str, float] = {}  # the latest
        self._bridge = bridge
        self._is_chief = is_chief
        self._saved_at = time.monotonic()

    def begin_phase(self, phase: Phase, evaluation_dataset) -> None:
        """Tells what the next `fit` trains on."""
        self._phase = phase
        self._evaluation_dataset = evaluation_dataset
        self._values.looked_at = None  # the first step traces and compiles: no measure of speed

    def stop(self, number: int) -> None:
        """Asks for a checkpoint and the end after the step that runs, for signal `number`.

        `stopped_by` tells when that has been done.
        """
        self._signal = number

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.step += 1
        self._values.add(self.step, logs)
        at_end = self.step == self._phases[-1].end
        evaluate = self._evaluation_dataset is not None and (
            at_end or (self._evaluate_every and self.step % self._evaluate_every == 0)
        )
        due = at_end or self._is_time_to_save()
        stops = self._signal is not None
        if due or stops or evaluate or self._values.is_due() or self.step == self._phase.end:
            self._look()
        if evaluate:
            self._evaluate()
        stopped_by = self._signal  # one that comes later finds the next step
        bridges = stopped_by is not None and not due
        save = due or bridges  # the signal may have come during the evaluation
        if save and self._is_chief:
            progress = {"bridge": True} if bridges else {}
            self._checkpoints.save(self.model, self.step, progress, replaces=self._bridge)
            self._bridge = None
            self._saved_at = time.monotonic()
        if evaluate or save:
            self._values.looked_at = time.monotonic()  # neither counts as training
        if stopped_by is not None:
            self.stopped_by = stopped_by
            self.model.stop_training = True
            name = signal.Signals(stopped_by).name
            self._note(f"stopped by {name}: checkpoint of step {self.step} written")

    def _is_time_to_save(self) -> bool:
        if self._checkpoint_every and self.step % self._checkpoint_every == 0:
            return True
        seconds = self._checkpoint_seconds
        return seconds is not None and time.monotonic() - self._saved_at >= seconds

    def _look(self) -> None:
        """Checks, logs and shows the values of the steps since the last look."""
        before = self._values.looked_at
        seen = self._values.look(self.model.derived_metrics, self._checkpoints.describe())
        values = {name: value for name, value in seen[-1].items() if name != "step"}
        self._draw("train", values)
        if self._progress is not None:
            if before is not None:
                tokens = len(seen) * self._phase.tokens_per_step
                self._progress.measure(tokens, self._values.looked_at - before)
            done = tokens_until(self._phases, self.step)
            at_end = self.step == self._phases[-1].end
            self._progress.show(self.step, done, {**values, **self._scores}, last=at_end)

    def _evaluate(self) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        dataset = self._evaluation_dataset
        with warnings.catch_warnings():
            # Held-out batches do end; Keras warns where it could not foresee when.
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            values = self.model.evaluate(dataset, verbose=0, return_dict=True)
        if self._extra_scores is not None and self._is_chief:
            self._scores = self._extra_scores()
            values |= self._scores
        values = {name: float(value) for name, value in values.items()}
        terms = {k: v for k, v in values.items() if k not in self.model.derived_metrics}
        if self._is_chief:
            self._evaluations.append([{"step": self.step, **terms}])
        self._draw("evaluation", values)
        shown = " · ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._note(f"evaluation after step {self.step:,}: {shown}")

    def _draw(self, group: str, values: dict) -> None:
        if self._curves is not None:
            self._curves.write(self.step, group, values)

    def _note(self, text: str) -> None:
        if self._progress is not None:
            self._progress.note(text)
