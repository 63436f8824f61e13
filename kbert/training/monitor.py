"""The callback of a run: it logs, evaluates, saves and stops, all between two steps.

Values stay on the device until it is time to look at them: waiting for each step's loss would
leave an accelerator idle between steps. They are looked at, and so written and checked for NaN,
about once a second and before every checkpoint: nothing that is not finite is ever saved.
"""

import math
import signal
import time
import warnings
from collections.abc import Sequence

import keras

from kbert.training.checkpoints import Checkpoints
from kbert.training.curves import Curves
from kbert.training.phases import Phase, tokens_until
from kbert.training.runlog import ProgressLine, RunLog

SECONDS_BETWEEN_LOOKS = 1.0


class NonFiniteLoss(FloatingPointError):
    """A loss, metric or gradient became NaN or infinite; training on would be in vain."""


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
        is_chief: bool,
    ):
        super().__init__()
        self.step = first_step
        self.stopped_by: int | None = None
        self._signal: int | None = None
        self._phases = phases
        self._checkpoints = checkpoints
        self._steps = steps
        self._evaluations = evaluations
        self._progress = progress
        self._curves = curves
        self._evaluate_every = evaluate_every
        self._checkpoint_every = checkpoint_every
        self._checkpoint_seconds = checkpoint_minutes and 60 * checkpoint_minutes
        self._is_chief = is_chief
        self._saved_at = time.monotonic()
        self._unseen: list[tuple[int, dict]] = []

    def begin_phase(self, phase: Phase, evaluation_dataset) -> None:
        """Tells what the next `fit` trains on."""
        self._phase = phase
        self._evaluation_dataset = evaluation_dataset
        self._looked_at = None  # the first step traces and compiles: no measure of speed

    def stop(self, number: int) -> None:
        """Asks for a checkpoint and the end after the step that runs, for signal `number`.

        `stopped_by` tells when that has been done.
        """
        self._signal = number

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self._unseen.append((self.step, logs))
        at_end = self.step == self._phases[-1].end
        evaluate = self._evaluation_dataset is not None and (
            at_end or (self._evaluate_every and self.step % self._evaluate_every == 0)
        )
        save = at_end or self._signal is not None or self._is_time_to_save()
        now = time.monotonic()
        if self._looked_at is None:
            self._look(measure=False)
        elif (
            save
            or evaluate
            or now - self._looked_at >= SECONDS_BETWEEN_LOOKS
            or self.step == self._phase.end
        ):
            self._look(measure=True)
        if evaluate:
            self._evaluate()
        stopped_by = self._signal  # one that comes later finds the next step
        save = save or stopped_by is not None  # it may have come during the evaluation
        if save and self._is_chief:
            self._checkpoints.save(self.model, self.step)
            self._saved_at = time.monotonic()
        if evaluate or save:
            self._looked_at = time.monotonic()  # neither counts as training
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

    def _look(self, measure: bool) -> None:
        """Fetches, checks, logs and shows the values of the steps since the last look."""
        lines = []
        for step, logs in self._unseen:
            values = {name: float(value) for name, value in logs.items()}
            # A derived metric is a function of another, and may overflow.
            terms = {k: v for k, v in values.items() if k not in self.model.derived_metrics}
            if not all(map(math.isfinite, terms.values())):
                self._append(self._steps, lines)
                raise NonFiniteLoss(self._explain(step, terms))
            lines.append({"step": step, **terms})
        self._append(self._steps, lines)
        self._draw("train", values)
        now = time.monotonic()
        if self._progress is not None:
            if measure:
                tokens = len(lines) * self._phase.tokens_per_step
                self._progress.measure(tokens, now - self._looked_at)
            done = tokens_until(self._phases, self.step)
            self._progress.show(self.step, done, values, last=self.step == self._phases[-1].end)
        self._looked_at = now
        self._unseen.clear()

    def _evaluate(self) -> None:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        dataset = self._evaluation_dataset
        with warnings.catch_warnings():
            # Held-out batches do end; Keras warns where it could not foresee when.
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            values = self.model.evaluate(dataset, verbose=0, return_dict=True)
        values = {name: float(value) for name, value in values.items()}
        terms = {k: v for k, v in values.items() if k not in self.model.derived_metrics}
        self._append(self._evaluations, [{"step": self.step, **terms}])
        self._draw("evaluation", values)
        shown = " · ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._note(f"evaluation after step {self.step:,}: {shown}")

    def _explain(self, step: int, terms: dict) -> str:
        bad = ", ".join(f"{k} is {v}" for k, v in terms.items() if not math.isfinite(v))
        saved = self._checkpoints.steps()
        last = (
            f"The last good checkpoint is that of step {saved[-1]}" if saved else "None was saved"
        )
        return (
            f"{bad} at step {step}. {last}, in {self._checkpoints.folder}. A lower learning rate, "
            "a longer warm-up or float32 may help; started as before, the run does the same again"
        )

    def _append(self, log: RunLog, lines: list[dict]) -> None:
        if self._is_chief and lines:
            log.append(lines)

    def _draw(self, group: str, values: dict) -> None:
        if self._curves is not None:
            self._curves.write(self.step, group, values)

    def _note(self, text: str) -> None:
        if self._progress is not None:
            self._progress.note(text)
