"""The optimizers that the BERT family was pretrained with.

Keras' own AdamW and LAMB differ from those that trained the released weights. The originals do not
decay LayerNorm or biases, and those of BERT, ALBERT and ELECTRA have no bias correction. Keras'
Adagrad is the same as ELMo's. `Muon` is Keras' Muon with another rule for what counts as a matrix.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import keras
from keras import ops

from kbert.catalog.recipe import OPTIMIZER_SETTINGS
from kbert.core import late
from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.core.types import Tensor

Rate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule

# Pruning scores count by their order only, and decay alone must not change a weight's rank.
NOT_DECAYED = ("gamma", "beta", "bias", "scores")

# Number of weights from which a step's update is compiled as a whole; that takes a second or more.
MIN_FUSED = 1_000_000
# Number of values up to which a weight is updated as a part of one long vector. Compilation takes
# 25 ms per weight, and most weights of a model are biases and norms, which are cheap to copy.
MAX_JOINED = 1 << 15


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
        if self.averages:
            average = self.averages[index]
            self.assign(average, self._averaged(average, ops.convert_to_tensor(variable)))

    def _averaged(self, average: Tensor, weight: Tensor) -> Tensor:
        """Returns the moving average after an update that made `weight`."""
        ema = ops.where(self.iterations > 0, ops.cast(self.ema, average.dtype), 0.0)
        return ema * average + (1.0 - ema) * weight

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


class _Moments(DecayingOptimizer):
    """Base with the moments of Adam; subclasses define the step."""

    def __init__(
        self,
        learning_rate: Rate = 1e-4,
        *,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = False,
        rate_scales: Mapping[str, Any] | None = None,
        ema: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate, weight_decay=weight_decay, rate_scales=rate_scales, ema=ema, name=name
        )
        for key, beta in (("beta_1", beta_1), ("beta_2", beta_2)):
            if not 0 <= beta < 1:
                raise ValueError(f"`{key}` must be at least 0 and less than 1. Received: {beta}")
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction

    def add_state(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the moments of `variables`."""
        self._moments, self._squares = self.add_optimizer_variables(variables, ["m", "v"])

    def _beta_powers(self, dtype: str) -> tuple[Tensor, Tensor]:
        """Returns β₁ᵗ and β₂ᵗ of the current update t ≥ 1; 0 and 0 without bias correction."""
        if not self.bias_correction:
            return ops.zeros((), dtype), ops.zeros((), dtype)
        update = ops.cast(self.iterations + 1, dtype)
        return tuple(
            ops.power(ops.cast(beta, dtype), update) for beta in (self.beta_1, self.beta_2)
        )

    def _direction(self, gradient: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the direction of a gradient, and the moments `m` and `v` after it.

        The direction is m / (√v + ε), with bias correction if it is enabled.
        """
        m = self.beta_1 * m + (1 - self.beta_1) * gradient
        v = self.beta_2 * v + (1 - self.beta_2) * ops.square(gradient)
        direction = m
        if self.bias_correction:
            power_1, power_2 = self._beta_powers(m.dtype)
            direction = ops.sqrt(1 - power_2) / (1 - power_1) * m
        return direction / (ops.sqrt(v) + self.epsilon), m, v

    def get_config(self) -> dict[str, Any]:
        names = ("beta_1", "beta_2", "epsilon", "bias_correction")
        return super().get_config() | {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable("kbert")
class AdamW(_Moments):
    """Adam with decoupled weight decay, as in google-research/bert `optimization.py`.

    The decay is scaled by the learning rate and skips biases and LayerNorm. On TensorFlow one
    XLA-compiled function updates all weights and moments: large ones in place, small ones joined to
    one vector. With several replicas or few weights, one kernel per tensor is used instead. BERT
    and ELECTRA have no bias correction; RoBERTa and SpanBERT were trained with it (`optim/adam.py`
    of facebookresearch/fairseq).

    Args:
        learning_rate: A float or a schedule.
        weight_decay: Share of a weight that a step with learning rate 1 would subtract.
        beta_1: Decay of the mean of the gradients.
        beta_2: Decay of the mean of their squares.
        epsilon: Added to the root of the second moment.
        bias_correction: Whether early moments are scaled up, by √(1 - β₂ᵗ) / (1 - β₁ᵗ) in update t.
        rate_scales: Path of a weight -> factor of its learning rate, and so of its decay: a number
            or a schedule; 1 for weights that are not named. See `kbert.training.layer_scales`.
        ema: Decay of an exponential moving average of the weights, updated in `averages` at every
            step; None = none. See `kbert.training.use_moving_average`.
        name: Name of the optimizer.

    Example:
        >>> w = keras.Variable([[1.0, 2.0]])
        >>> optimizer = AdamW(0.1, weight_decay=0.0)
        >>> optimizer.apply([ops.convert_to_tensor([[1.0, -1.0]])], [w])
        >>> print(w.numpy().round(3))  # 0.1 * 0.1 / sqrt(0.001) = 0.316: no bias correction
        [[0.684 2.316]]
    """

    is_elementwise = True  # whether a value's update depends on no other value of its weight

    def build(self, variables: Sequence[keras.Variable]) -> None:
        is_new = not self.built
        super().build(variables)
        if is_new and keras.backend.backend() == "tensorflow":
            self._fused_update = graph(self._update_all, autograph=False, jit_compile=True)

    def _backend_update_step(
        self, grads: Sequence[Tensor], trainable_variables: Sequence[Any], learning_rate: Tensor
    ) -> None:
        if not self._fuses(trainable_variables):
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        scale = 1.0 if self._gradient_scale is None else self._gradient_scale
        gradients = [tf.convert_to_tensor(g) for g in grads]
        indices = [self._get_variable_index(v) for v in trainable_variables]
        alone, groups = self._groups(trainable_variables, indices)
        states = [self._state(v, n) for v, n in zip(trainable_variables, indices, strict=True)]
        joined = [
            [
                _joined([x.value for x in part])
                for part in zip(*(states[n] for n in group), strict=True)
            ]
            for group in groups
        ]
        results = self._fused_update(
            [trainable_variables[n].value for n in alone],
            [gradients[n] for n in alone],
            joined,
            [_joined([gradients[n] for n in group]) for group in groups],
            tf.cast(scale, tf.float32),
            tf.cast(learning_rate, tf.float32),
            indices=tuple(indices[n] for n in alone),
            group_indices=tuple(indices[group[0]] for group in groups),
        )
        for group, values in zip(groups, results, strict=True):
            sizes = [math.prod(trainable_variables[n].shape) for n in group]
            for number, value in enumerate(values):
                for n, part in zip(group, tf.split(value, sizes), strict=True):
                    variable = states[n][number]
                    is_vector = len(variable.shape) == 1
                    self.assign(variable, part if is_vector else tf.reshape(part, variable.shape))

    def _groups(
        self, variables: Sequence[Any], indices: Sequence[int]
    ) -> tuple[list[int], list[list[int]]]:
        """Returns positions of the variables to update alone, and of groups to update together.

        A group has small variables with the same decay and factor of the learning rate.
        """
        alone, groups = [], defaultdict(list)
        for n, (variable, index) in enumerate(zip(variables, indices, strict=True)):
            scale = self._scales[index]
            if not self.is_elementwise or math.prod(variable.shape) > MAX_JOINED:
                alone.append(n)
            else:
                groups[self._decays[index], id(scale) if callable(scale) else scale].append(n)
        return alone, list(groups.values())

    def _fuses(self, variables: Sequence[Any]) -> bool:
        """Whether one XLA function updates all variables: TensorFlow, one device, many weights."""
        return (
            keras.backend.backend() == "tensorflow"
            and not tf.distribute.has_strategy()
            and sum(math.prod(v.shape) for v in variables) >= MIN_FUSED
            and all(v.dtype == "float32" for v in variables)
        )

    def _update_all(
        self,
        variables: list[tf.Variable],
        gradients: list[tf.Tensor],
        joined: list[list[tf.Tensor]],
        joined_gradients: list[tf.Tensor],
        scale: tf.Tensor,
        learning_rate: tf.Tensor,
        indices: tuple[int, ...],
        group_indices: tuple[int, ...],
    ) -> list[list[tf.Tensor]]:
        """Updates variables in place; XLA reads and writes each only once.

        Args:
            variables: weights to update.
            gradients: gradient of each weight.
            joined: values of each group of small weights: weights, moments and averages.
            joined_gradients: gradients of each group.
            scale: factor of all gradients (clipping).
            learning_rate: rate of this update.
            indices: number of each weight among the optimizer's variables.
            group_indices: number of one weight of each group.

        Returns:
            The values of each group after the update.
        """
        for variable, gradient, index in zip(variables, gradients, indices, strict=True):
            self._update(variable, tf.cast(gradient, tf.float32) * scale, index, learning_rate)
        return [
            self._next(values, tf.cast(gradient, tf.float32) * scale, index, learning_rate)
            for values, gradient, index in zip(joined, joined_gradients, group_indices, strict=True)
        ]

    def _update(self, variable: Any, gradient: Tensor, index: int, learning_rate: Tensor) -> None:
        """Updates variable number `index`, its moments and its average with keras.ops."""
        state = self._state(variable, index)
        values = [ops.convert_to_tensor(x) for x in state]
        for x, value in zip(state, self._next(values, gradient, index, learning_rate), strict=True):
            self.assign(x, value)

    def _state(self, variable: Any, index: int) -> list[Any]:
        """Returns what an update of variable number `index` changes: itself, moments, average."""
        averages = self.averages[index : index + 1]
        return [variable, self._moments[index], self._squares[index], *averages]

    def _next(
        self, values: Sequence[Tensor], gradient: Tensor, index: int, learning_rate: Tensor
    ) -> list[Tensor]:
        """Returns the values of `_state` after an update by `gradient`."""
        weight, m, v, *averages = values
        direction, m, v = self._direction(gradient, m, v)
        if self._decays[index]:
            direction = direction + self.decay * weight
        weight = weight - self._rate(gradient, v, index, learning_rate) * direction
        return [weight, m, v, *(self._averaged(average, weight) for average in averages)]

    def _rate(self, gradient: Tensor, v: Tensor, index: int, learning_rate: Tensor) -> Tensor:
        """Returns the rate of variable number `index`; `v` is its second moment after the update.

        A subclass may derive it from `gradient` and `v`.
        """
        return learning_rate * self._scale(index)

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Updates one variable, its moments and its moving average by its gradient."""
        index = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        if keras.backend.backend() != "tensorflow":
            self._update(variable, gradient, index, rate)
            return
        rate *= self._scale(index)
        decay = self.decay if self._decays[index] else 0.0
        if decay:
            # Wait for the gradient: TensorFlow would compute these products, a copy of all weights,
            # at the start of the step and keep them to its end.
            with tf.control_dependencies([gradient]):
                variable.assign_sub(rate * decay * variable)
        power_1, power_2 = self._beta_powers(variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._moments[index].value.handle,
            v=self._squares[index].value.handle,
            beta1_power=power_1,  # 0 switches the kernel's bias correction off
            beta2_power=power_2,
            lr=rate,
            beta1=tf.constant(self.beta_1, variable.dtype),
            beta2=tf.constant(self.beta_2, variable.dtype),
            epsilon=tf.constant(self.epsilon, variable.dtype),
            grad=gradient,
        )
        self._follow(variable, index)


def _joined(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the values of all tensors as one vector."""
    return tf.concat([x if len(x.shape) == 1 else tf.reshape(x, [-1]) for x in tensors], 0)


@keras.saving.register_keras_serializable("kbert")
class StableAdamW(AdamW):
    """AdamW with update clipping for second moments that lag behind their gradients.

    The rate of a variable is divided by the root mean square of gradient / √v if that is above 1.
    So no gradient clipping is needed (Wortsman et al. 2023, section 3.4,
    https://arxiv.org/abs/2304.13013). ModernBERT was trained with it.

    The arguments are those of `AdamW`.

    Example:
        >>> w = keras.Variable([[1.0, 2.0]])
        >>> optimizer = StableAdamW(0.1, weight_decay=0.0, beta_2=0.99, bias_correction=True)
        >>> optimizer.apply([ops.convert_to_tensor([[1.0, -1.0]])], [w])
        >>> before = w.numpy()
        >>> optimizer.apply([ops.convert_to_tensor([[100.0, -100.0]])], [w])
        >>> print((before - w.numpy()).round(3))  # AdamW's step of 0.075, divided by 1.4
        [[ 0.053 -0.053]]
    """

    is_elementwise = False

    def _rate(self, gradient: Tensor, v: Tensor, index: int, learning_rate: Tensor) -> Tensor:
        """Returns the rate, divided by the RMS of gradient / √v if that exceeds 1."""
        power_2 = self._beta_powers(v.dtype)[1]
        square = v / (1 - power_2)
        floor = ops.cast(self.epsilon**2, square.dtype)
        excess = ops.sqrt(ops.mean(ops.square(gradient) / ops.maximum(square, floor)))
        return super()._rate(gradient, v, index, learning_rate) / ops.maximum(excess, 1.0)

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        self._update(variable, gradient, self._get_variable_index(variable), rate)


@keras.saving.register_keras_serializable("kbert")
class Lamb(_Moments):
    """LAMB, as in google-research/albert `lamb_optimizer.py`.

    A step is Adam's direction plus the decayed weight, scaled for each variable by
    ‖weight‖ / ‖direction‖. Biases and LayerNorm are neither decayed nor rescaled. ALBERT has no
    bias correction.

    The arguments are those of `AdamW`.

    Example:
        >>> w = keras.Variable([[3.0, 4.0]])
        >>> optimizer = Lamb(0.1, weight_decay=0.0)
        >>> optimizer.apply([ops.convert_to_tensor([[1.0, 1.0]])], [w])
        >>> print(w.numpy().round(3))  # a step of length 0.1 * ‖w‖ = 0.5
        [[2.646 3.646]]
    """

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Updates one variable, its moments and its moving average by its gradient."""
        index = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype) * self._scale(index)
        state = self._moments[index], self._squares[index]
        gradient, (m, v) = ops.cast(gradient, variable.dtype), map(ops.convert_to_tensor, state)
        direction, *moments = self._direction(gradient, m, v)
        for x, value in zip(state, moments, strict=True):
            self.assign(x, value)
        if self._decays[index]:
            direction = direction + self.decay * variable
            weight, step = ops.norm(ops.convert_to_tensor(variable)), ops.norm(direction)
            usable = ops.logical_and(weight > 0, step > 0)
            rate = rate * ops.where(usable, weight / ops.where(usable, step, 1.0), 1.0)
        self.assign(variable, variable - rate * direction)
        self._follow(variable, index)


@keras.saving.register_keras_serializable("kbert")
class Muon(keras.optimizers.Muon):
    """Keras' Muon for the matrices of a model's layers, AdamW for all other weights.

    The mean of a matrix's gradients is made nearly orthogonal by five Newton-Schulz iterations, and
    scaled so that a step is as long as one of AdamW's (Jordan 2024,
    https://kellerjordan.github.io/posts/muon; Liu et al. 2025, section 2.2,
    https://arxiv.org/abs/2502.16982). Token and position tables, poolers, heads, biases and norms
    are trained by Adam with bias correction. A block's kernel of queries, keys and values counts as
    one matrix.

    Args:
        learning_rate: A float or a schedule.
        weight_decay: Share of a weight that a step with learning rate 1 would subtract; not applied
            to biases and norms.
        beta_1: Decay of the mean of the gradients, for Adam.
        beta_2: Decay of the mean of their squares, for Adam.
        epsilon: Added to the root of the second moment, for Adam.
        momentum: Decay of the mean of a matrix's gradients.
        name: Name of the optimizer.

    Example:
        >>> layer = keras.layers.Dense(2, use_bias=False, name="layers_0")
        >>> layer.build((None, 2))
        >>> before = ops.convert_to_numpy(layer.kernel)
        >>> optimizer = Muon(0.1, weight_decay=0.0)
        >>> optimizer.apply([ops.convert_to_tensor([[9.0, 0.0], [0.0, 1.0]])], layer.weights)
        >>> step = before - ops.convert_to_numpy(layer.kernel)
        >>> bool(0.5 < step[0, 0] / step[1, 1] < 2)  # nearly alike, of gradients that are 9 to 1
        True
    """

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        *,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        momentum: float = 0.95,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_weight_decay=weight_decay,
            adam_beta_1=beta_1,
            adam_beta_2=beta_2,
            epsilon=epsilon,
            momentum=momentum,
            exclude_layers=[r"^(?!.*layers_\d+/.*kernel$)"],
            name=name,
        )

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the moments of `variables`; excludes biases and norms from weight decay."""
        if not self.built:
            self.exclude_from_weight_decay(var_list=[v for v in variables if not decays(v)])
            super().build(variables)

    def get_config(self) -> dict[str, Any]:
        """Returns the settings; a schedule is serialised with them."""
        config = super().get_config()
        keys = ("name", "learning_rate", "weight_decay", "epsilon", "momentum")
        betas = {"beta_1": self.adam_beta_1, "beta_2": self.adam_beta_2}
        return {key: config[key] for key in keys} | betas


def optimizer_class(name: str) -> type[keras.optimizers.Optimizer]:
    """Returns the class of an optimizer by its name in `kbert.core.late.TABLE["optimizer"]`."""
    return late.load("optimizer", name)


def make_optimizer(
    name: str, learning_rate: Rate, settings: Any, rate_scales: Mapping[str, Any] | None = None
) -> keras.optimizers.Optimizer:
    """Makes an optimizer by its name, with those of the settings that it uses.

    Args:
        name: Name of the optimizer, see `optimizer_class`.
        learning_rate: A float or a schedule.
        settings: Object with the settings of `OPTIMIZER_SETTINGS` as attributes, such as parsed
            flags or a `kbert.catalog.recipe.Recipe`.
        rate_scales: Path of a weight -> factor of its learning rate, see `AdamW`.

    Returns:
        The optimizer.

    Raises:
        ValueError: `rate_scales` or `ema` is set, and the optimizer does not support it.

    Example:
        >>> import types
        >>> settings = types.SimpleNamespace(initial_accumulator_value=1.0)
        >>> make_optimizer("adagrad", 0.2, settings).initial_accumulator_value
        1.0
    """
    arguments = {setting: getattr(settings, setting) for setting in OPTIMIZER_SETTINGS[name]}
    options = {"ema": getattr(settings, "ema", None), "rate_scales": rate_scales or None}
    options = {option: value for option, value in options.items() if value is not None}
    kind = optimizer_class(name)
    if options and not issubclass(kind, DecayingOptimizer):
        classes = {key: optimizer_class(key) for key in late.TABLE["optimizer"]}
        able = (key for key, kind in classes.items() if issubclass(kind, DecayingOptimizer))
        what = "learning rates per layer" if rate_scales else "`ema`"
        raise ValueError(
            f"{what} are supported by the optimizers {', '.join(able)} only. Received: {name!r}"
        )
    return kind(learning_rate, **arguments, **options)
