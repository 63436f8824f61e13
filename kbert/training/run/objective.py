"""What a run trains on: its batches, their evaluation, and what both are."""

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
    """Gives a `Run` batches from any position on, their evaluation and an identity.

    A subclass defines `batches`; with held-out data `evaluation`, and sets `evaluates`.

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
        """Batches of a stage from a position on; endless or long enough, over the ends of epochs.

        Args:
            stage: a `Phase`, whose `done` says how many of its batches were before, or `Epochs`.
            start: the `position` that the batch before this had.
            num_hosts: hosts that share a global batch.
            host_index: which of them this is: it gives its own rows.

        Returns:
            A dataset of dicts, which hold `position`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `batches`.")

    def evaluation(
        self, task: TrainStep, stage: Phase | Epochs, strategy: Strategy
    ) -> Evaluate | None:
        """What measures the task on held-out data, by name; the same data each time.

        Every host calls what is returned; the chief's values count.

        Args:
            task: what is trained.
            stage: what is trained on meanwhile.
            strategy: devices.
        """
        return None

    def identity(self) -> Mapping[str, Any]:
        """What the run is, as JSON can hold it: `run.json`, by which it is known again."""
        return {}


def batch_evaluation(
    task: TrainStep, batches: tf.data.Dataset, strategy: Strategy, scores: Evaluate | None = None
) -> Evaluate:
    """The losses and metrics of held-out batches, and further scores of the chief.

    Args:
        task: what is trained.
        batches: the same each time, this host's rows of them.
        strategy: devices.
        scores: measures the task by more: name -> number, none of them a loss's or a metric's.
    """
    dataset = strategy.distribute(batches)

    def evaluate() -> dict[str, float]:
        with warnings.catch_warnings():
            # Held-out batches do end; Keras warns where it could not foresee when.
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            values = task.evaluate(dataset, verbose=0, return_dict=True)
        return {**values, **(scores() if scores is not None and strategy.is_chief else {})}

    return evaluate
