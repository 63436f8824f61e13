"""What a training step has besides the weights, and what its two engines share."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import keras

from kbert.core.types import MaybeNone, Tensor, Tensors
from kbert.training.step.loss_scale import LossScale
from kbert.training.step.ratios import DataPosition, Ratios

# Logged in training in addition to the task's own terms; evaluation has neither.
UPDATE_TERMS = ("gradient_norm", "learning_rate")
# Of float16 besides: the factor of the loss, and the share of steps that updated nothing.
SCALE_TERMS = ("loss_scale", "skipped_steps")


# Name -> (name of a term, function of its value).
DerivedMetrics: TypeAlias = Mapping[str, tuple[str, Callable[[Tensor], Tensor]]]


class Replicas:
    """The rows of the global batch and those of this replica; here they are the same.

    On JAX every step computes with the whole batch, and so does TensorFlow on one device.

    Attributes:
        count: how many replicas there are.
    """

    count = 1

    def gather(self, rows: Tensor) -> Tensor:
        """(b, …) of this replica -> (B, …) of all, in their order."""
        return rows

    def own(self, rows: Tensor) -> Tensor:
        """(B, …) of all -> (b, …) of this replica."""
        return rows


def scope_of(model: keras.Model) -> contextlib.AbstractContextManager:
    """Where an optimizer is made and used: under the strategy that the model was made under."""
    strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's engine has one
    return strategy.scope() if strategy else contextlib.nullcontext()


def replicas_of(model: keras.Model) -> int:
    """Devices that share a batch on TensorFlow's engine."""
    strategy = getattr(model, "distribute_strategy", None)
    return strategy.num_replicas_in_sync if strategy else 1


class StepState:
    """The state of a step besides the weights; a plain object, so Keras tracks none of it.

    Attributes:
        ratios: the sums behind the logs; None before the first step.
        position: where the data resumes; None before the first step.
        loss_scale: of a model that computes in float16; None before the first step.
        loss_names: in the order of `loss_terms`.
        num_terms: number of losses and metrics.
        by_default: whether `fit` compiled the model because the user had not.
    """

    def __init__(self) -> None:
        self.by_default = False
        self.ratios: Ratios | MaybeNone = None
        self.position: DataPosition | MaybeNone = None
        self.loss_scale: LossScale | None = None
        self.loss_names: tuple[str, ...] = ()
        self.num_terms = 0

    def saved(self) -> dict[str, keras.Variable]:
        """What a checkpoint holds, by name; in float16 the loss scale too.

        Raises:
            ValueError: neither `fit` nor `prepare` has run.
        """
        if self.position is None:
            raise ValueError("The data position exists once `fit` or `prepare` has run.")
        found = {"data_position": self.position.value}
        if self.loss_scale is not None:
            found["loss_scale/value"] = self.loss_scale.value
            found["loss_scale/good_steps"] = self.loss_scale.good_steps
        return found


def only_features(data: Any) -> Tensors:
    """The batch of a dataset that yields one structure, as `fit` passes it."""
    batch, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
    if labels is not None or weights is not None:
        raise ValueError(
            "A batch must be one structure that holds labels and weights too. "
            "Received: a tuple (x, y, …)"
        )
    return batch
