"""State of a training step besides the weights, and helpers that its two engines share."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import keras
import numpy as np

from kbert.core.types import MaybeNone, Tensor, Tensors
from kbert.training.step.loss_scale import LossScale
from kbert.training.step.ratios import DataPosition, Ratios

# Logged in training in addition to the task's own terms; evaluation has neither.
UPDATE_TERMS = ("gradient_norm", "learning_rate")
# Also logged for float16: the loss scale, and the share of steps that updated nothing.
SCALE_TERMS = ("loss_scale", "skipped_steps")


# Name -> (name of a term, function of its value).
DerivedMetrics: TypeAlias = Mapping[str, tuple[str, Callable[[Tensor], Tensor]]]


class Replicas:
    """Converts between the rows of the global batch and of this replica; here they are the same.

    On JAX, and with TensorFlow on one device, every step computes with the whole batch.

    Shapes: B rows of the global batch, b rows of a replica.

    Attributes:
        count: number of replicas.
    """

    count = 1

    def gather(self, rows: Tensor) -> Tensor:
        """Gathers the rows (b, …) of each replica to (B, …), in the order of the replicas."""
        return rows

    def own(self, rows: Tensor) -> Tensor:
        """Selects this replica's rows (b, …) from those of all replicas (B, …)."""
        return rows


def scope_of(model: keras.Model) -> contextlib.AbstractContextManager:
    """Returns the scope to create and use the model's optimizer in; on JAX it has no effect."""
    strategy = getattr(model, "distribute_strategy", None)  # only on TensorFlow
    return strategy.scope() if strategy else contextlib.nullcontext()


def replicas_of(model: keras.Model) -> int:
    """Returns the number of devices that share a batch on TensorFlow; 1 on JAX."""
    strategy = getattr(model, "distribute_strategy", None)
    return strategy.num_replicas_in_sync if strategy else 1


def seed_dropout(task: keras.Model, seed: int) -> None:
    """Seeds a task's random generators, those of dropout, whatever the process drew before."""
    variables = task.non_trainable_variables
    states = [v for v in variables if v.name == "seed_generator_state"]
    for number, state in enumerate(states):
        state.assign(np.random.SeedSequence([seed, number]).generate_state(2))


class StepState:
    """State of a step besides the weights; a plain object, so Keras does not track it.

    Attributes:
        ratios: sums behind the logs; None before the first step.
        position: position where the data resumes; None before the first step.
        loss_scale: loss scale of a model that computes in float16; None before the first step, and
            for other models.
        loss_names: names of the losses, in the order of `loss_terms`.
        num_terms: number of losses and metrics.
        by_default: whether `fit` compiled the model because the user had not.
        fused: whether layers may run functions that are compiled for each shape of a batch.
        traced: step -> active edits and trained weights that its function was made for.
    """

    def __init__(self) -> None:
        self.by_default = False
        self.fused = True
        self.ratios: Ratios | MaybeNone = None
        self.position: DataPosition | MaybeNone = None
        self.loss_scale: LossScale | None = None
        self.loss_names: tuple[str, ...] = ()
        self.num_terms = 0
        self.traced: dict[str, tuple[list[Any], list[keras.Variable]]] = {}

    def is_new(self, step: str, edits: list[Any], weights: list[keras.Variable]) -> bool:
        """Whether the function of a step was made for other edits or weights; keeps the new ones.

        Args:
            step: "train" or "test".
            edits: keys of the active edits of the layers.
            weights: trained weights; compared by identity.
        """
        before = self.traced.get(step)
        self.traced[step] = edits, weights
        return before is not None and (
            before[0] != edits or list(map(id, before[1])) != list(map(id, weights))
        )

    def saved(self) -> dict[str, keras.Variable]:
        """Returns name -> variable for a checkpoint: the data position, in float16 the loss scale.

        Raises:
            ValueError: neither `fit` nor `prepare` has run.
        """
        if self.position is None:
            raise ValueError("`fit` or `prepare` must run first: they create the data position.")
        variables = {"data_position": self.position.value}
        if self.loss_scale is not None:
            variables["loss_scale/value"] = self.loss_scale.value
            variables["loss_scale/good_steps"] = self.loss_scale.good_steps
        return variables


def only_features(data: Any) -> Tensors:
    """Returns the batch in the data that Keras passes to a step: a batch, or a tuple of one.

    Separate labels or weights, (x, y) or (x, y, weights), raise ValueError.
    """
    batch, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
    if labels is not None or weights is not None:
        raise ValueError(
            "A batch must be one structure that includes labels and weights. "
            "Received: a tuple (x, y, …)"
        )
    return batch
