"""Adafactor, which T5 and PEGASUS were pretrained with.

Keras' Adafactor keeps a matrix of second moments for each weight, so it saves no memory; its rate
never exceeds the inverse root of the step, whatever the schedule says; and it always scales the
rate by the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor
from kbert.training.optimization.optimizers import DecayingOptimizer, Rate


@keras.saving.register_keras_serializable("kbert")
class Adafactor(DecayingOptimizer):
    """Adafactor: second moments of a matrix from the means of its rows and of its columns.

    A matrix of n rows and m columns has a state of n + m numbers instead of Adam's 2nm. There is no
    first moment. In update t a gradient G changes a weight X as follows (Shazeer and Stern 2018,
    algorithms 4 to 6, https://arxiv.org/abs/1804.04235):

    - β = 1 - t ** -`beta_2_decay`; R and C become β R + (1 - β) mean(G² + `epsilon_1`) over columns
      and over rows; V = R Cᵀ / mean(R). Vectors have V itself as their state.
    - U = G / √V, divided by RMS(U) / `clip_threshold` if that exceeds 1.
    - X becomes X - α U, with the learning rate α times max(`epsilon_2`, RMS(X)).

    The paper's relative step is a schedule: T5 takes 1 / √max(t, 10,000), which is
    `WarmupDecay(0.01, steps, 10_000, "inverse_sqrt", join="constant")`.

    Args:
        learning_rate: A float or a schedule. With `scale_parameter` it is the relative change of a
            weight, about a hundred times the rate of Adam.
        weight_decay: Share of a weight that a step with α = 1 subtracts.
        scale_parameter: Whether the rate is scaled by the root mean square of the weight.
        beta_2_decay: Exponent of the decay of the second moments.
        clip_threshold: Largest root mean square of U.
        epsilon_1: Added to squared gradients.
        epsilon_2: Lower bound of the scale of a weight.
        rate_scales: Path of a weight -> factor of its learning rate, see `AdamW`.
        ema: Decay of a moving average of the weights, see `AdamW`.
        name: Name of the optimizer.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> w = keras.Variable([[3.0, 4.0], [3.0, 4.0]])
        >>> optimizer = Adafactor(0.01)
        >>> optimizer.apply([ops.convert_to_tensor([[1.0, -1.0], [1.0, -1.0]])], [w])
        >>> print(w.numpy().round(4))  # a step of 0.01 * RMS(w) = 0.0354
        [[2.9646 4.0354]
         [2.9646 4.0354]]
    """

    def __init__(
        self,
        learning_rate: Rate = 1e-2,
        *,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        beta_2_decay: float = 0.8,
        clip_threshold: float = 1.0,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        rate_scales: Mapping[str, Any] | None = None,
        ema: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate, weight_decay=weight_decay, rate_scales=rate_scales, ema=ema, name=name
        )
        positive = {"beta_2_decay": beta_2_decay, "clip_threshold": clip_threshold}
        positive |= {"epsilon_1": epsilon_1, "epsilon_2": epsilon_2}
        for key, value in positive.items():
            if value <= 0:
                raise ValueError(f"`{key}` must be above 0. Received: {value}")
        self.scale_parameter = scale_parameter
        self.beta_2_decay = beta_2_decay
        self.clip_threshold = clip_threshold
        self.epsilon_1 = epsilon_1
        self.epsilon_2 = epsilon_2

    def add_state(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the means of rows and columns of matrices, the second moments of vectors."""
        self._squares = [self._add_squares(variable) for variable in variables]

    def _add_squares(self, variable: keras.Variable) -> tuple[keras.Variable, ...]:
        """Returns the state of a variable: means over columns and over rows, or all moments."""
        if len(variable.shape) < 2:
            return (self.add_variable_from_reference(variable, "v"),)
        shape, path = tuple(variable.shape), variable.path.replace("/", "_")
        shapes = {"rows": shape[:-1], "columns": (*shape[:-2], shape[-1])}
        return tuple(
            self.add_variable(size, dtype=variable.dtype, name=f"{path}_{name}")
            for name, size in shapes.items()
        )

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Updates one variable, its second moments and its moving average by its gradient."""
        index = self._get_variable_index(variable)
        gradient = ops.cast(gradient, variable.dtype)
        direction = gradient * self._inverse_roots(gradient, index)
        direction = direction / ops.maximum(_rms(direction) / self.clip_threshold, 1.0)
        rate = ops.cast(learning_rate, variable.dtype) * self._scale(index)
        weight = ops.convert_to_tensor(variable)
        if self.scale_parameter:
            rate = rate * ops.maximum(_rms(weight), self.epsilon_2)
        if self._decays[index]:
            direction = direction + self.decay * weight
        self.assign(variable, weight - rate * direction)
        self._follow(variable, index)

    def _inverse_roots(self, gradient: Tensor, index: int) -> Tensor:
        """Updates the second moments of variable number `index`; returns 1 / √V, or its factors."""
        update = ops.cast(self.iterations + 1, gradient.dtype)
        beta = 1.0 - ops.power(update, -self.beta_2_decay)
        square = ops.square(gradient) + self.epsilon_1
        state = self._squares[index]
        means = [square] if len(state) == 1 else [ops.mean(square, -1), ops.mean(square, -2)]
        new = [beta * old + (1.0 - beta) * mean for old, mean in zip(state, means, strict=True)]
        for variable, value in zip(state, new, strict=True):
            self.assign(variable, value)
        if len(new) == 1:
            return ops.rsqrt(new[0])
        rows, columns = new
        rows = rows / ops.mean(rows, -1, keepdims=True)
        return ops.rsqrt(rows)[..., None] * ops.rsqrt(columns)[..., None, :]

    def get_config(self) -> dict[str, Any]:
        names = ("scale_parameter", "beta_2_decay", "clip_threshold", "epsilon_1", "epsilon_2")
        return super().get_config() | {name: getattr(self, name) for name in names}


def _rms(values: Tensor) -> Tensor:
    """Returns the root mean square."""
    return ops.sqrt(ops.mean(ops.square(values)))
