"""Objectives of runs: training batches, evaluation, and an identity."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kbert.core.late import tf
from kbert.training.run.phases import Epochs, Phase, Start
from kbert.training.step.mixin import TrainStep
from kbert.training.strategies import Strategy

Evaluate = Callable[[], dict[str, float]]


class Objective:
    """Provides a `Run` with batches from any position, an evaluation and an identity.

    A subclass defines `batches`. With held-out data it also defines `evaluation` and sets
    `evaluates`.

    Attributes:
        evaluates: whether there is held-out data.
        unchecked: names of entries of `identity` that no number depends on.

    Example:
        >>> class Twos(Objective):
        ...     def batches(self, stage, start, **hosts):
        ...         return tf.data.Dataset.from_tensors({"x": [[2.0]]}).repeat()
        >>> next(iter(Twos().batches(None, (0, 0, 0))))["x"].numpy().tolist()
        [[2.0]]
    """

    evaluates: bool = False
    unchecked: Collection[str] = ()

    def batches(
        self, stage: Phase | Epochs, start: Start, *, num_hosts: int = 1, host_index: int = 0
    ) -> tf.data.Dataset:
        """Returns batches of a stage from a position on, across the ends of epochs.

        The dataset must be endless or long enough for the stage.

        Args:
            stage: a `Phase` or `Epochs`; `done` is the number of its batches before these.
            start: `position` of the batch before these.
            num_hosts: number of hosts that share a global batch.
            host_index: index of this host, whose rows the dataset yields.

        Returns:
            A dataset of dicts with `position`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `batches`.")

    def evaluation(
        self, task: TrainStep, stage: Phase | Epochs, strategy: Strategy
    ) -> Evaluate | None:
        """Returns a function that evaluates the task on held-out data, always the same data.

        It returns values by name. Every host calls it; the chief's values count.

        Args:
            task: task that is trained.
            stage: stage during which the evaluation is used.
            strategy: devices of the run.
        """
        return None

    def identity(self) -> Mapping[str, Any]:
        """Returns the settings that identify the run, JSON-serialisable; saved in `run.json`."""
        return {}


def batch_evaluation(
    task: TrainStep, batches: tf.data.Dataset, strategy: Strategy, scores: Evaluate | None = None
) -> Evaluate:
    """Returns a function that evaluates a task on held-out batches: name -> value.

    The values are the losses and metrics, and on the chief also those of `scores`.

    Args:
        task: task that is trained.
        batches: held-out batches, the same each time; this host's rows of them.
        strategy: devices of the run.
        scores: function that returns further values {name: number}; the names must differ from
            those of losses and metrics.
    """
    dataset = strategy.distribute(batches)

    def evaluate() -> dict[str, float]:
        with warnings.catch_warnings():
            # Held-out batches end; Keras warns if it could not foresee when.
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            values = task.evaluate(dataset, verbose=0, return_dict=True)
        return {**values, **(scores() if scores is not None and strategy.is_chief else {})}

    return evaluate
