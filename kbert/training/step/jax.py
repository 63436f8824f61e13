"""The training step on JAX: a batch is one array over all devices; the compiler sums over them.

Weights that the devices store in parts (`kbert.training.layout.FullySharded`) are gathered for the
forward pass, and again for the backward pass, so that none is kept whole in between. The sum of a
weight's gradient over the devices is stored in parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import keras
from jax import numpy as jnp
from jax.extend.core.primitives import sharding_constraint_p
from keras import ops

from kbert.core.late import has_tensorflow, tf
from kbert.core.types import Tensor, Tensors
from kbert.training.layout import FullySharded, whole
from kbert.training.step.state import Replicas, only_features

# Values of the weights, of other variables, of the optimizer (in training) and of the metrics.
_State = tuple[list[Tensor], ...]
# Sums of the gradients and of the (K, 2) pairs, and the values of the other variables.
_Carry = tuple[list[Tensor], Tensor, list[Tensor]]


def after_compile(model: Any) -> None:
    """Hook after `compile`; does nothing on JAX."""


def scope(model: Any) -> contextlib.AbstractContextManager:
    """Returns the context in which variables of the step are created."""
    return contextlib.nullcontext()


def spec_of(model: Any, iterator: Any, data_batch: Any) -> Any:
    """Returns the specs of the tensors of a batch of `fit`; without TensorFlow a batch itself.

    Args:
        model: model that is trained.
        iterator: Keras' iterator over the dataset; None if there is only `data_batch`.
        data_batch: batch of `train_on_batch`.
    """
    if iterator is None:
        return only_features(data_batch)
    adapter = iterator.data_adapter
    if not has_tensorflow():  # as in Keras, which restarts the iterator afterwards
        return only_features(next(iter(adapter.get_jax_iterator())))
    return only_features(adapter.get_tf_dataset().element_spec)


def make_train_function(model: Any, force: bool, usual: Callable) -> Any:
    """Returns Keras' own function of a step: `usual(force)`; also used for test steps."""
    return usual(force)


make_test_function = make_train_function


def sum_of_squares(gradient: Tensor) -> Tensor:
    """Returns the sum of the squares of all elements, in float32."""
    return ops.sum(ops.square(ops.cast(gradient, "float32")))


def term_names(model: Any, spec: Mapping[str, tf.TensorSpec]) -> tuple[list[str], list[str]]:
    """Returns the names of losses and metrics, in order; traces `loss_terms` with shapes `spec`."""
    names: list[list[str]] = []

    def trace(batch: Tensors) -> None:
        with keras.StatelessScope():
            names[:] = [list(terms) for terms in model._all_terms(batch, training=False)]

    def abstract(x: tf.TensorSpec) -> jax.ShapeDtypeStruct:
        shape = tuple(1 if size is None else size for size in x.shape)
        return jax.ShapeDtypeStruct(shape, keras.backend.standardize_dtype(x.dtype))

    jax.eval_shape(trace, keras.tree.map_structure(abstract, spec))
    losses, metrics = names
    return losses, metrics


def train_step(model: Any, state: _State, data: Any) -> tuple[dict[str, Tensor], _State]:
    """Makes one update from one batch of `fit`.

    Args:
        model: model that is trained.
        state: values of the trained weights, of the other variables, of the optimizer and of the
            metrics.
        data: global batch.

    Returns:
        The values of this step by name, and the new state.
    """
    trainable, frozen, slots, sums = state
    batch = only_features(data)
    denominators = None
    with keras.StatelessScope(_mapping(model, trainable, frozen)):
        if model.micro_batches > 1:
            denominators = model.loss_denominators(batch)
        batch = model.before_gradients(batch, Replicas())
    with keras.StatelessScope(zip(model.metrics_variables, sums, strict=True)):
        loss_scale = model._loss_scale()
    gradients, pairs, frozen = _gradients(
        model, trainable, frozen, batch, denominators, loss_scale, slots
    )
    norm, scale = model._norm(gradients, loss_scale)
    if scale is not None:
        gradients = [g * scale.astype(g.dtype) for g in gradients]
    with keras.StatelessScope(zip(model.optimizer.variables, slots, strict=True)):
        rate = jnp.asarray(model.optimizer.learning_rate)
    finite = model._is_finite(norm, pairs)
    updated = model.optimizer.stateless_apply(slots, gradients, trainable)
    trainable, slots = (
        [jnp.where(finite, new, old) for new, old in zip(new_values, old_values, strict=True)]
        for new_values, old_values in zip(updated, (trainable, slots), strict=True)
    )
    with keras.StatelessScope(zip(model.metrics_variables, sums, strict=True)) as scope:
        update = model._after_update(norm, rate, loss_scale, finite)
        model._count(pairs, update)
        model._store_position(batch)
        values = model._step_values(pairs, update)
    sums = [scope.get_current_value(v) for v in model.metrics_variables]
    return values, (trainable, frozen, slots, sums)


def test_step(model: Any, state: _State, data: Any) -> tuple[dict[str, Tensor], _State]:
    """Computes the losses and metrics of one batch, without dropout or update.

    Args:
        model: model that is evaluated.
        state: values of the trained weights, of the other variables and of the metrics.
        data: global batch.

    Returns:
        The values of this batch by name, and the new state.
    """
    trainable, frozen, sums = state
    mapping = _mapping(model, trainable, frozen)
    mapping += zip(model.metrics_variables, sums, strict=True)
    with keras.StatelessScope(mapping) as scope:
        pairs = model._pairs(*model._all_terms(only_features(data), training=False))
        model._count(pairs)
        values = model._step_values(pairs)
    sums = [scope.get_current_value(v) for v in model.metrics_variables]
    return values, (trainable, frozen, sums)


def _mapping(
    model: Any, trainable: Sequence[Tensor], frozen: Sequence[Tensor]
) -> list[tuple[keras.Variable, Tensor]]:
    """Pairs the model's trained and other variables with values, for a `StatelessScope`.

    Values that the devices store in parts are gathered.
    """
    trained, others = model.trainable_variables, model.non_trainable_variables
    return [
        *zip(trained, _gathered(trained, trainable, _gather), strict=True),
        *zip(others, _gathered(others, frozen, _whole), strict=True),
    ]


def _gathered(
    variables: Sequence[keras.Variable], values: Sequence[Tensor], gather: Callable
) -> Sequence[Tensor]:
    """Returns the values of variables; `gather` gathers those that the devices store in parts."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, FullySharded):
        return values
    layouts = map(distribution.stored, variables)
    return [
        x if layout is None else gather(x, layout)
        for x, layout in zip(values, layouts, strict=True)
    ]


def _whole(parts: Tensor, stored: jax.sharding.NamedSharding) -> Tensor:
    """Returns the whole array of parts in the layout `stored`."""
    return jax.lax.with_sharding_constraint(parts, whole(stored))


# Like `_whole`. Without a rule of its own the gradient would be summed whole on every device.
_gather = jax.custom_vjp(_whole, nondiff_argnums=(1,))
_gather.defvjp(
    lambda parts, stored: (_whole(parts, stored), None),
    lambda stored, _, gradient: (jax.lax.with_sharding_constraint(gradient, stored),),
)


def _is_saved(primitive: Any, *_: Any, **__: Any) -> bool:
    """Whether the backward pass may read an operation's result again: not a gathered weight."""
    return primitive is not sharding_constraint_p


def _gradients(
    model: Any,
    trainable: list[Tensor],
    frozen: list[Tensor],
    batch: Tensors,
    denominators: Tensor | None,
    loss_scale: Tensor | None,
    slots: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Differentiates the loss of a batch, micro-batch by micro-batch.

    Args:
        model: model that is trained.
        trainable: values of the trained weights.
        frozen: values of the other variables, such as the seeds of dropout.
        batch: global batch.
        denominators: denominator of each loss, in order; None with one micro-batch.
        loss_scale: factor of the loss; None = 1.
        slots: values of the optimizer's variables.

    Returns:
        The gradient of each trained weight; the (K, 2) sums (numerator, denominator) of the losses
        and metrics; the new values of `frozen`.
    """
    # A loss may depend on the number of the update.
    optimizer_mapping = list(zip(model.optimizer.variables, slots, strict=True))

    def loss(
        trainable: list[Tensor], frozen: list[Tensor], part: Tensors
    ) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
        mapping = _mapping(model, trainable, frozen)
        with keras.StatelessScope(mapping + optimizer_mapping) as scope:
            losses, metrics = model._training_terms(part)
            total = model._total_loss(losses, denominators, loss_scale)
        before = [value for _, value in mapping[len(trainable) :]]
        after = [scope.get_current_value(v) for v in model.non_trainable_variables]
        frozen = [  # the parts of a weight that was only read
            value if new is old else new
            for value, old, new in zip(frozen, before, after, strict=True)
        ]
        return total, (model._pairs(losses, metrics), frozen)

    if isinstance(keras.distribution.distribution(), FullySharded):
        loss = jax.checkpoint(loss, policy=_is_saved)
    differentiate = jax.grad(loss, has_aux=True)
    if model.micro_batches == 1:
        gradients, (pairs, frozen) = differentiate(trainable, frozen, batch)
        return gradients, pairs, frozen

    def body(carry: _Carry, part: Tensors) -> tuple[_Carry, None]:
        sums, pairs, frozen = carry
        gradients, (part_pairs, frozen) = differentiate(trainable, frozen, part)
        sums = [s + g for s, g in zip(sums, gradients, strict=True)]
        return (sums, pairs + part_pairs, frozen), None

    parts = keras.tree.map_structure(lambda x: jnp.moveaxis(x, 1, 0), model._split(batch))
    pairs = jnp.zeros((model._num_terms, 2))
    carry = ([jnp.zeros_like(v) for v in trainable], pairs, list(frozen))
    (gradients, pairs, frozen), _ = jax.lax.scan(body, carry, parts)
    return gradients, pairs, frozen
