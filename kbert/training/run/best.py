"""The best weights of a run by a metric, and the number of evaluations since then."""

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import keras
import numpy as np

from kbert.core.finite import nan_last
from kbert.core.types import MaybeNone
from kbert.io.paths import Path
from kbert.training.run.checkpoints import (
    Checkpoints,
    named_state,
    read_variables,
    set_variables,
)
from kbert.training.run.settings import RunSettings
from kbert.training.step.mixin import TrainStep


class BestWeights:
    """Keeps the weights of the best evaluation so far, in memory and, once written, in a folder.

    Of two equal values (common if a class is rare) the one with the smaller loss is best; of equal
    losses, the first. NaN, such as the correlation with a constant, is worse than every number.

    Args:
        settings: Settings of the run. Evaluations are compared by their `metric`; without
            `keep_best` only the value and the count are kept.
        folder: Folder that `unsaved` writes the weights to, or `None`.

    Attributes:
        step: Updates made at the best evaluation; `None` before the first evaluation.
        value: The metric at the best evaluation.
        loss: The loss at the best evaluation; NaN if the evaluation has no loss.
        waited: Evaluations since the value last improved; a smaller loss at an equal value is not
            an improvement.
        keeps_weights: Whether weights are kept.

    Example:
        >>> best = BestWeights(RunSettings(metric="f1", keep_best=False))
        >>> for step, f1, loss in [(10, 0.5, 0.9), (20, 0.7, 0.8), (30, 0.7, 0.6), (40, 0.6, 0.5)]:
        ...     best.update(None, step, {"loss": loss, "f1": f1})
        >>> best.step, best.value, best.waited
        (30, 0.7, 2)
    """

    def __init__(self, settings: RunSettings, folder: Path | None = None) -> None:
        self.metric = cast(str, settings.metric)
        self._sign = -1 if settings.mode == "min" else 1
        self.step: int | None = None
        self.value = self.loss = math.nan
        self.waited = 0
        self.keeps_weights = settings.keep_best
        self._arrays: dict[str, np.ndarray] | MaybeNone = None
        # Arguments of `Checkpoints.write` for weights that are not in the folder yet.
        self._unsaved: tuple[dict[str, np.ndarray], int, dict[str, Any]] | None = None
        self._files = None if folder is None else Checkpoints(folder)

    def update(self, task: TrainStep | MaybeNone, step: int, values: dict[str, float]) -> None:
        """Compares an evaluation with the best one; keeps its values and weights if it is better.

        Args:
            task: The task whose weights were evaluated.
            step: Updates made.
            values: Values of the evaluation, by name.

        Raises:
            ValueError: The metric is not one of the values.
        """
        if self.metric not in values:
            raise ValueError(
                f"`metric` must be one of the values of the evaluation, {', '.join(values)}. "
                f"Received: {self.metric!r}"
            )
        if task is not None and self.metric in task.step_state.loss_names:
            self._sign = -1  # also where its name does not say so, as of a distiller's terms
        value, loss = float(values[self.metric]), float(values.get("loss", math.nan))
        rank, best = self._rank(value, loss), self._rank(self.value, self.loss)
        is_better = self.step is None or rank[0] > best[0]
        self.waited = 0 if is_better else self.waited + 1
        if not is_better and rank <= best:
            return
        self.step, self.value, self.loss = step, value, loss
        if self.keeps_weights:
            self._arrays = read_variables(weights_of(task))
            self._unsaved = (self._arrays, step, {"metric": self.metric, "value": value})

    def unsaved(self) -> Callable[[], None]:
        """Returns a function that writes the best weights so far to the folder, if it lacks them.

        The function has a reference to the weights, so it may run while better ones are found.
        Files of earlier weights stay.
        """
        if self._files is None or self._unsaved is None:
            return lambda: None
        unsaved, self._unsaved = self._unsaved, None
        return functools.partial(self._files.write, *unsaved)

    def forget_before(self, step: int | None) -> None:
        """Removes the weights of steps before `step` from the folder; None removes nothing."""
        if self._files is not None and step is not None:
            self._files.remove(old_step for old_step in self._files.steps() if old_step < step)

    def restore(self, task: TrainStep) -> None:
        """Sets the task's weights to the best ones; does nothing if none are kept.

        Raises:
            ValueError: The file of the best weights is damaged.
        """
        if not self.keeps_weights or self.step is None:
            return
        if self._arrays is None:  # the evaluation was in an earlier process
            files = cast(Checkpoints, self._files)
            files.info(self.step)
            self._arrays = files.read(self.step)
        set_variables(weights_of(task), self._arrays, "the best weights of the run")

    @property
    def state(self) -> dict[str, Any]:
        """State for `load`, JSON-serialisable."""
        state = {"step": self.step, "value": self.value, "waited": self.waited}
        return {**state, "loss": self.loss}

    def load(self, state: dict[str, Any]) -> None:
        """Restores `state`, the value of the property `state` in an earlier process."""
        self.step, self.value, self.waited = state["step"], state["value"], state["waited"]
        # Earlier versions saved no loss and kept the first of equal values: no loss is below this.
        self.loss = state.get("loss", -math.inf)

    def _rank(self, value: float, loss: float) -> tuple[float, float]:
        """Returns (rank of the metric, rank of the loss): larger for better; -inf for NaN."""
        return nan_last(self._sign * value), nan_last(-loss)


def weights_of(task: TrainStep) -> dict[str, keras.Variable]:
    """Returns {name: variable} of the weights in `named_state`, without seeds and optimizer."""
    return {n: v for n, v in named_state(task).items() if n.startswith("weights/")}
