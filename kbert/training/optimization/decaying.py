"""Base of the optimizers: decoupled weight decay, rates per weight, a moving average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import keras
from keras import ops

from kbert.core.types import Tensor

Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule

# Pruning scores count by their order only, and decay alone must not change a weight's rank.
NOT_DECAYED = ("gamma", "beta", "bias", "scores")


def decays(variable: keras.Variable) -> bool:
    """Whether weight decay applies: not to biases, LayerNorm and scores, by name and rank.

    Example:
        >>> layer = keras.layers.Dense(2)
        >>> layer.build((None, 3))
        >>> [(v.name, decays(v)) for v in layer.variables]
        [('kernel', True), ('bias', False)]
    """
    return len(variable.shape) > 1 and not variable.name.endswith(NOT_DECAYED)


class DecayingOptimizer(keras.optimizers.Optimizer):
    """Base with decoupled weight decay; subclasses define the state and the step.

    Args:
        learning_rate: A float or a schedule.
        weight_decay: Share of a weight that a step with learning rate 1 would subtract; not applied
            to biases, LayerNorm and scores.
        rate_scales: Path of a weight -> factor of its learning rate, a number or a schedule.
        ema: Decay of the moving average of the weights in `averages`; None = none.
        name: Name of the optimizer.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        learning_rate: Rate,
        *,
        weight_decay: float,
        rate_scales: Mapping[str, Any] | None,
        ema: float | None,
        name: str | None,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name)
        if weight_decay < 0:
            raise ValueError(f"`weight_decay` must not be negative. Received: {weight_decay}")
        if ema is not None and not 0 < ema < 1:
            raise ValueError(f"`ema` must be above 0 and less than 1. Received: {ema}")
        # Not Keras' `use_ema`: `fit` would replace the weights by the average after each phase.
        self.ema = ema
        self.averages: list[keras.Variable] = []
        # Not Keras' `weight_decay`: the base class would apply it itself.
        self.decay = weight_decay
        self.rate_scales = {
            path: keras.saving.deserialize_keras_object(scale) if isinstance(scale, dict) else scale
            for path, scale in (rate_scales or {}).items()
        }
        # True if gradients are already summed over all replicas, as in `TrainStep`.
        self.gradients_are_summed = False
        self._gradient_scale: Tensor | None = None

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the state of `variables`; ValueError if `rate_scales` names others."""
        if self.built:
            return
        unknown = sorted(set(self.rate_scales) - {v.path for v in variables})
        if unknown:
            raise ValueError(
                "`rate_scales` must name weights that are trained, by their paths. "
                f"Received: {', '.join(unknown)}"
            )
        super().build(variables)
        self.add_state(variables)
        if self.ema is not None:
            (self.averages,) = self.add_optimizer_variables(variables, ["average"])
        self._decays = [decays(v) for v in variables]
        self._scales = [self.rate_scales.get(v.path, 1.0) for v in variables]

    def add_state(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the variables that the step of a subclass reads and updates."""
        raise NotImplementedError(f"{type(self).__name__} must define `add_state`.")

    def apply(
        self,
        grads: Sequence[Tensor],
        trainable_variables: Sequence[keras.Variable] | None = None,
        *,
        scale: Tensor | None = None,
    ) -> None:
        """Like Keras' `apply`; with `scale`, all gradients are multiplied by it (clipping)."""
        self._gradient_scale = scale
        try:
            super().apply(grads, trainable_variables)
        finally:
            self._gradient_scale = None

    def _backend_update_step(
        self, grads: Sequence[Tensor], trainable_variables: Sequence[Any], learning_rate: Tensor
    ) -> None:
        if self._gradient_scale is not None:
            grads = [g * ops.cast(self._gradient_scale, g.dtype) for g in grads]
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _all_reduce_sum_gradients(
        self, grads_and_vars: list[tuple[Tensor, keras.Variable]]
    ) -> list[tuple[Tensor, keras.Variable]]:
        # Only called on TensorFlow.
        if self.gradients_are_summed:
            return grads_and_vars
        return super()._all_reduce_sum_gradients(grads_and_vars)

    def _scale(self, index: int) -> Any:
        """Returns the factor of the learning rate of variable number `index` in this update."""
        scale = self._scales[index]
        return scale(self.iterations) if callable(scale) else scale

    def _follow(self, variable: Any, index: int) -> None:
        """Updates the moving average of variable number `index`, after an update of the variable.

        The first update sets the average to the variable. Without `ema` this does nothing.
        """
        if not self.averages:
            return
        average = self.averages[index]
        ema = ops.where(self.iterations > 0, ops.cast(self.ema, average.dtype), 0.0)
        self.assign(average, ema * average + (1.0 - ema) * ops.convert_to_tensor(variable))

    def get_config(self) -> dict[str, Any]:
        """Returns the settings; a schedule is serialised with them."""
        config = super().get_config()
        ema = {} if self.ema is None else {"ema": self.ema}
        return ema | {
            "name": config["name"],
            "learning_rate": config["learning_rate"],
            "weight_decay": self.decay,
            "rate_scales": {
                path: keras.saving.serialize_keras_object(scale) if callable(scale) else scale
                for path, scale in self.rate_scales.items()
            },
        }
