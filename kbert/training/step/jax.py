"""The training step on JAX: the batch is one array over all devices, the compiler sums."""

import jax
import keras
from jax import numpy as jnp

from kbert.training.step.base import StepBase, only_features


class JaxStep(StepBase):
    """`TrainStep` where Keras runs on JAX."""

    def _symbolic_build(self, iterator=None, data_batch=None) -> None:
        if iterator is None:
            spec = only_features(data_batch)
        else:
            spec = only_features(iterator.data_adapter.get_tf_dataset().element_spec)
        self.prepare(spec)

    def _term_names(self, spec) -> tuple[list[str], list[str]]:
        names = []

        def trace(batch) -> None:
            with keras.StatelessScope():
                names[:] = [list(terms) for terms in self.loss_terms(batch, training=False)]

        def abstract(x):
            shape = tuple(1 if size is None else size for size in x.shape)
            return jax.ShapeDtypeStruct(shape, keras.backend.standardize_dtype(x.dtype))

        jax.eval_shape(trace, keras.tree.map_structure(abstract, spec))
        return tuple(names)

    def train_step(self, state, data) -> tuple:
        """One update; returns the values of this step and the new state."""
        trainable, frozen, slots, sums = state
        batch = only_features(data)
        with keras.StatelessScope(self._mapping(trainable, frozen)):
            denominators = self.loss_denominators(batch)
        gradients, pairs, frozen = self._gradients(trainable, frozen, batch, denominators)
        gradients, norm = self._clip(gradients)
        with keras.StatelessScope(zip(self.optimizer.variables, slots, strict=True)):
            update = (norm, jnp.asarray(self.optimizer.learning_rate))
        finite = self._is_finite(norm, pairs)
        moved = self.optimizer.stateless_apply(slots, gradients, trainable)
        trainable, slots = (
            [jnp.where(finite, new, old) for new, old in zip(after, before, strict=True)]
            for after, before in zip(moved, (trainable, slots), strict=True)
        )
        with keras.StatelessScope(zip(self.metrics_variables, sums, strict=True)) as scope:
            self._count(pairs, update)
            self._file_position(batch)
            values = self._step_values(pairs, update)
        sums = [scope.get_current_value(v) for v in self.metrics_variables]
        return values, (trainable, frozen, slots, sums)

    def test_step(self, state, data) -> tuple:
        """Losses and metrics of one batch, without dropout or update."""
        trainable, frozen, sums = state
        mapping = self._mapping(trainable, frozen)
        mapping += zip(self.metrics_variables, sums, strict=True)
        with keras.StatelessScope(mapping) as scope:
            pairs = self._pairs(*self.loss_terms(only_features(data), training=False))
            self._count(pairs)
            values = self._step_values(pairs)
        sums = [scope.get_current_value(v) for v in self.metrics_variables]
        return values, (trainable, frozen, sums)

    def _mapping(self, trainable, frozen) -> list:
        return [
            *zip(self.trainable_variables, trainable, strict=True),
            *zip(self.non_trainable_variables, frozen, strict=True),
        ]

    def _gradients(self, trainable, frozen, batch, denominators):
        """Gradients of the loss, the (K, 2) pairs, and the frozen state after dropout's draws."""

        def loss(trainable, frozen, part):
            with keras.StatelessScope(self._mapping(trainable, frozen)) as scope:
                losses, metrics = self.loss_terms(part, training=True)
                total = self._total_loss(losses, denominators)
            frozen = [scope.get_current_value(v) for v in self.non_trainable_variables]
            return total, (self._pairs(losses, metrics), frozen)

        differentiate = jax.grad(loss, has_aux=True)
        if self.micro_batches == 1:
            gradients, (pairs, frozen) = differentiate(trainable, frozen, batch)
            return gradients, pairs, frozen

        def body(carry, part):
            sums, pairs, frozen = carry
            gradients, (more, frozen) = differentiate(trainable, frozen, part)
            sums = [s + g for s, g in zip(sums, gradients, strict=True)]
            return (sums, pairs + more, frozen), None

        parts = keras.tree.map_structure(lambda x: jnp.moveaxis(x, 1, 0), self._split(batch))
        pairs = jnp.zeros((self._num_terms, 2))
        carry = ([jnp.zeros_like(v) for v in trainable], pairs, list(frozen))
        (gradients, pairs, frozen), _ = jax.lax.scan(body, carry, parts)
        return gradients, pairs, frozen
