"""The training step on JAX: the batch is one array over all devices, the compiler sums."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
import tensorflow as tf
from jax import numpy as jnp

from kbert.core.types import Tensor, Tensors
from kbert.training.step.base import Replicas, StepBase, only_features

# Values of the weights, the other variables, the optimizer's (in training) and the metrics'.
_State = tuple[list[Tensor], ...]
# Sums of the gradients and of the (K, 2) pairs, and the other variables.
_Carry = tuple[list[Tensor], Tensor, list[Tensor]]


class JaxStep(StepBase):
    """`TrainStep` where Keras runs on JAX."""

    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is None:
            spec = only_features(data_batch)
        else:
            spec = only_features(iterator.data_adapter.get_tf_dataset().element_spec)
        self.prepare(spec)

    def _term_names(self, spec: Mapping[str, tf.TensorSpec]) -> tuple[list[str], list[str]]:
        names: list[list[str]] = []

        def trace(batch: Tensors) -> None:
            with keras.StatelessScope():
                names[:] = [list(terms) for terms in self._all_terms(batch, training=False)]

        def abstract(x: tf.TensorSpec) -> jax.ShapeDtypeStruct:
            shape = tuple(1 if size is None else size for size in x.shape)
            return jax.ShapeDtypeStruct(shape, keras.backend.standardize_dtype(x.dtype))

        jax.eval_shape(trace, keras.tree.map_structure(abstract, spec))
        losses, metrics = names
        return losses, metrics

    def train_step(self, state: _State, data: Any) -> tuple[dict[str, Tensor], _State]:
        """One update; returns the values of this step and the new state."""
        trainable, frozen, slots, sums = state
        batch = only_features(data)
        with keras.StatelessScope(self._mapping(trainable, frozen)):
            denominators = self.loss_denominators(batch)
            batch = self.before_gradients(batch, Replicas())
        with keras.StatelessScope(zip(self.metrics_variables, sums, strict=True)):
            loss_scale = self._loss_scale()
        divisors = denominators if loss_scale is None else denominators / loss_scale
        gradients, pairs, frozen = self._gradients(trainable, frozen, batch, divisors, slots)
        norm, scale = self._norm(gradients, loss_scale)
        if scale is not None:
            gradients = [g * scale.astype(g.dtype) for g in gradients]
        with keras.StatelessScope(zip(self.optimizer.variables, slots, strict=True)):
            rate = jnp.asarray(self.optimizer.learning_rate)
        finite = self._is_finite(norm, pairs)
        moved = self.optimizer.stateless_apply(slots, gradients, trainable)
        trainable, slots = (
            [jnp.where(finite, new, old) for new, old in zip(after, before, strict=True)]
            for after, before in zip(moved, (trainable, slots), strict=True)
        )
        with keras.StatelessScope(zip(self.metrics_variables, sums, strict=True)) as scope:
            update = self._after_update(norm, rate, loss_scale, finite)
            self._count(pairs, update)
            self._store_position(batch)
            values = self._step_values(pairs, update)
        sums = [scope.get_current_value(v) for v in self.metrics_variables]
        return values, (trainable, frozen, slots, sums)

    def test_step(self, state: _State, data: Any) -> tuple[dict[str, Tensor], _State]:
        """Losses and metrics of one batch, without dropout or update."""
        trainable, frozen, sums = state
        mapping = self._mapping(trainable, frozen)
        mapping += zip(self.metrics_variables, sums, strict=True)
        with keras.StatelessScope(mapping) as scope:
            pairs = self._pairs(*self._all_terms(only_features(data), training=False))
            self._count(pairs)
            values = self._step_values(pairs)
        sums = [scope.get_current_value(v) for v in self.metrics_variables]
        return values, (trainable, frozen, sums)

    def _mapping(
        self, trainable: Sequence[Tensor], frozen: Sequence[Tensor]
    ) -> list[tuple[keras.Variable, Tensor]]:
        return [
            *zip(self.trainable_variables, trainable, strict=True),
            *zip(self.non_trainable_variables, frozen, strict=True),
        ]

    def _gradients(
        self,
        trainable: list[Tensor],
        frozen: list[Tensor],
        batch: Tensors,
        denominators: Tensor,
        slots: Sequence[Tensor],
    ) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        """Gradients of the loss, the (K, 2) pairs, and the frozen state after dropout's draws."""
        # A loss may go by the number of the update.
        of_optimizer = list(zip(self.optimizer.variables, slots, strict=True))

        def loss(
            trainable: list[Tensor], frozen: list[Tensor], part: Tensors
        ) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
            mapping = self._mapping(trainable, frozen) + of_optimizer
            with keras.StatelessScope(mapping) as scope:
                losses, metrics = self._training_terms(part)
                total = self._total_loss(losses, denominators)
            frozen = [scope.get_current_value(v) for v in self.non_trainable_variables]
            return total, (self._pairs(losses, metrics), frozen)

        differentiate = jax.grad(loss, has_aux=True)
        if self.micro_batches == 1:
            gradients, (pairs, frozen) = differentiate(trainable, frozen, batch)
            return gradients, pairs, frozen

        def body(carry: _Carry, part: Tensors) -> tuple[_Carry, None]:
            sums, pairs, frozen = carry
            gradients, (more, frozen) = differentiate(trainable, frozen, part)
            sums = [s + g for s, g in zip(sums, gradients, strict=True)]
            return (sums, pairs + more, frozen), None

        parts = keras.tree.map_structure(lambda x: jnp.moveaxis(x, 1, 0), self._split(batch))
        pairs = jnp.zeros((self._num_terms, 2))
        carry = ([jnp.zeros_like(v) for v in trainable], pairs, list(frozen))
        (gradients, pairs, frozen), _ = jax.lax.scan(body, carry, parts)
        return gradients, pairs, frozen
