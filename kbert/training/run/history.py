"""The history of a run: its values, and how the run ended."""

import math
import signal

import keras

from kbert.core.types import Logs
from kbert.training.run.best import BestWeights

# Reasons why a run ended before its last step.
PATIENCE, CALLBACK = "patience", "a callback"


class History(keras.callbacks.History):
    """Keras' history of a whole run, including restarts, with how the run ended.

    Attributes:
        history: Name -> value of every epoch; a phase of pretraining counts as an epoch. Held-out
            values are `val_…`.
        epoch: Numbers of those epochs.
        step: Updates made.
        steps: Values of every step so far, in order: `step`, `loss`, the task's terms, … Empty
            without a folder, and on hosts other than the chief.
        evaluations: Values of every evaluation so far, in order; in the same cases those of the
            last call alone.
        best_step: Updates made at the best evaluation; `None` for a run without a metric.
        best_value: The metric at the best evaluation.
        best_loss: The loss at the best evaluation; `None` if evaluations have no loss.
        weights_by: `"a callback"` if one set the weights that the task has at the end of the run,
            as Keras' `EarlyStopping` does with `restore_best_weights`.
        stopped_by: Number of the signal that ended the run early, if any; the same call resumes.
        ended_by: `"patience"` or `"a callback"` if that ended the run before its last step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.step = 0
        self.steps: list[dict] = []
        self.evaluations: list[dict] = []
        self.best_step: int | None = None
        self.best_value: float | None = None
        self.best_loss: float | None = None
        self.weights_by: str | None = None
        self.stopped_by: int | None = None
        self.ended_by: str | None = None
        self._sentence = ""

    def on_train_begin(self, logs: Logs = None) -> None:
        """Keeps the epochs before a restart, which Keras' `History` would delete here."""

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended the run early."""
        return self.stopped_by is not None

    def close(self, best: BestWeights | None, trained: bool, place: str) -> None:
        """Sets the best values and the sentence of how the run ended; call it last.

        Args:
            best: the best weights.
            trained: whether this call made a step.
            place: text with the best step's position in the plan, such as " (epoch 3 of 3)".
        """
        ending = "trained for" if self.ended_by is None else f"ended by {self.ended_by} after"
        if self.stopped_by is not None:
            ending = f"stopped by {signal.Signals(self.stopped_by).name} (it can be resumed) after"
        elif not trained:
            ending = f"already finished, nothing is left to train: {ending}"
        self._sentence = f"{ending} {self.step:,} steps"
        if best is None or best.step is None:
            return
        self.best_step, self.best_value = best.step, best.value
        self.best_loss = best.loss if math.isfinite(best.loss) else None
        self._sentence += f"; best {best.metric} {best.value:.4g} after step {best.step:,}{place}"
        if self.weights_by is not None:
            self._sentence += f"; the task has the weights set by {self.weights_by}"
        elif best.keeps_weights and self.stopped_by is None:
            self._sentence += ", whose weights are restored"

    def __str__(self) -> str:
        return self._sentence
