"""The training step on TensorFlow: one replica per device, sums over replicas by all-reduce."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from kbert.core.types import Tensors
from kbert.graphs import graph
from kbert.training.step.base import Replicas, StepBase, only_features

# What Keras' `fit` and `evaluate` call: an iterator over batches -> the logs of a step.
_Function = Callable[[Iterator[Any]], dict[str, tf.Tensor]]


class TensorFlowStep(StepBase):
    """`TrainStep` where Keras runs on TensorFlow."""

    train_function: _Function | None
    test_function: _Function | None

    def compile(
        self,
        optimizer: keras.optimizers.Optimizer | str | dict[str, Any] | None = None,
        *positional: Any,
        **settings: Any,
    ) -> None:
        super().compile(optimizer, *positional, **settings)
        made_under = self.optimizer._distribution_strategy
        if made_under is not self.distribute_strategy:
            raise ValueError(
                "Model and optimizer must be made under the same strategy: create both inside "
                "`with strategy.scope():`. Received: model under "
                f"{type(self.distribute_strategy).__name__}, optimizer under "
                f"{type(made_under).__name__}"
            )
        # Ours take sums as they are; Keras' own would sum them over the replicas once more.
        self._optimizer_sums = not hasattr(self.optimizer, "gradients_are_summed")
        if not self._optimizer_sums:
            self.optimizer.gradients_are_summed = True
        self._differentiate = self._gradients
        if self.jit_compile:
            self._differentiate = graph(self._gradients, autograph=False, jit_compile=True)

    def prepare(self, spec: Mapping[str, tf.TensorSpec]) -> None:
        with self.distribute_strategy.scope():
            super().prepare(spec)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Keras' own averages the first batch over the replicas; that fails for bools, for uneven
        # batches and on several hosts.
        if iterator is None:
            batch = only_features(data_batch)
            spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batch)
        else:
            dataset = iterator.data_adapter.get_tf_dataset()
            if isinstance(dataset, tf.data.Dataset):
                spec = only_features(dataset.element_spec)
            else:  # distributed already
                local = self.distribute_strategy.experimental_local_results
                batch = tf.nest.map_structure(lambda x: local(x)[0], next(iter(dataset)))
                spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, only_features(batch))
        self.prepare(spec)

    def _term_names(self, spec: Mapping[str, tf.TensorSpec]) -> tuple[list[str], list[str]]:
        names: list[list[str]] = []

        def trace(batch: Tensors) -> None:
            names[:] = [list(terms) for terms in self._all_terms(batch, training=False)]

        graph(trace, autograph=False).get_concrete_function(spec)
        losses, metrics = names
        return losses, metrics

    def make_train_function(self, force: bool = False) -> _Function:
        """Runs `train_step` on every replica. All return the same values: one set is the answer."""
        if self.train_function is None or force:
            self.train_function = self._on_replicas(self.train_step)
        return self.train_function

    def make_test_function(self, force: bool = False) -> _Function:
        """Runs `test_step` on every replica."""
        if self.test_function is None or force:
            self.test_function = self._on_replicas(self.test_step)
        return self.test_function

    def _on_replicas(self, step: Callable[[Any], dict[str, tf.Tensor]]) -> _Function:
        strategy = self.distribute_strategy

        def on_batch(batch: Any) -> dict[str, tf.Tensor]:
            values = strategy.run(step, args=(batch,))
            return {k: strategy.experimental_local_results(v)[0] for k, v in values.items()}

        def on_iterator(iterator: tf.data.Iterator) -> dict[str, tf.Tensor]:
            return on_batch(iterator.get_next())

        if not self.run_eagerly:
            on_batch = graph(on_batch, autograph=False)
            on_iterator = graph(on_iterator, autograph=False)

        def function(iterator: Iterator[Any]) -> dict[str, tf.Tensor]:
            if isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
                return on_iterator(iterator)
            return on_batch(next(iterator))  # train_on_batch

        return function

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One update; returns the values of this step over the global batch."""
        batch = only_features(data)
        # A dataset that has ended fails here, before the step has updated sums or seeds.
        with tf.control_dependencies(tf.nest.flatten(batch)):
            return self._update(batch)

    def _update(self, batch: Tensors) -> dict[str, tf.Tensor]:
        replica = tf.distribute.get_replica_context()
        denominators = _sum(replica, self.loss_denominators(batch))
        loss_scale = self._loss_scale()
        divisors = denominators if loss_scale is None else denominators / loss_scale
        several = replica.num_replicas_in_sync > 1
        batch = self.before_gradients(batch, _Several(replica) if several else Replicas())
        gradients, pairs = self._differentiate(batch, divisors)
        variables = self.trainable_variables
        variables = [v for g, v in zip(gradients, variables, strict=True) if g is not None]
        gradients = [g for g in gradients if g is not None]
        *gradients, global_pairs = _sum(replica, [*gradients, pairs])
        self.between_replicas(functools.partial(_sum, replica))
        norm, scale = self._norm(gradients, loss_scale)
        rate = tf.convert_to_tensor(self.optimizer.learning_rate)
        finite = self._is_finite(norm, global_pairs)
        self._apply(finite, gradients, scale, variables)
        update = self._after_update(norm, rate, loss_scale, finite)
        self._count(pairs, update)
        self._store_position(batch)
        return self._step_values(global_pairs, update)

    def _apply(
        self,
        finite: tf.Tensor,
        gradients: list[tf.Tensor],
        scale: tf.Tensor | None,
        variables: list[keras.Variable],
    ) -> None:
        """Updates weights and optimizer, or neither: decided in the graph, so nothing is copied."""
        options: dict[str, Any] = {}
        if not self._optimizer_sums and not tf.distribute.has_strategy():
            options["scale"] = scale  # ours multiply where they read the gradients anyway
        else:
            scale = tf.ones(()) if scale is None else scale
            if self._optimizer_sums:
                scale /= tf.distribute.get_replica_context().num_replicas_in_sync
            gradients = [g * tf.cast(scale, g.dtype) for g in gradients]

        def on_replica(gradients: list[tf.Tensor]) -> None:
            self.optimizer.apply(gradients, variables, **options)

        if tf.__internal__.distribute.strategy_supports_no_merge_call():
            tf.cond(finite, lambda: on_replica(gradients), lambda: None)
            return

        # An optimizer merges the replicas, which is not allowed within a branch of one of them: so
        # the branch is chosen for all together. They agree, for they have the same sums.
        def across_replicas(strategy: tf.distribute.Strategy, finite: Any, gradients: Any) -> None:
            first = strategy.experimental_local_results(finite)[0]
            tf.cond(
                first,
                lambda: strategy.extended.call_for_each_replica(on_replica, args=(gradients,)),
                lambda: None,
            )

        tf.distribute.get_replica_context().merge_call(across_replicas, args=(finite, gradients))

    @staticmethod
    def _sum_of_squares(gradient: tf.Tensor) -> tf.Tensor:
        return 2.0 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))  # no tensor of the squares

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Losses and metrics of one batch, without dropout or update."""
        pairs = self._pairs(*self._all_terms(only_features(data), training=False))
        self._count(pairs)
        return self._step_values(_sum(tf.distribute.get_replica_context(), pairs))

    def _gradients(
        self, batch: Tensors, denominators: tf.Tensor
    ) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        """Gradients of this replica's part of the loss, dense, and its (K, 2) pairs."""
        variables = [v.value for v in self.trainable_variables]

        def differentiate(part: Tensors) -> tuple[list[tf.Tensor | None], tf.Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                losses, metrics = self._training_terms(part)
                loss = self._total_loss(losses, denominators)
            gradients = tape.gradient(loss, variables)
            # An embedding's gradient lists a row as often as it was looked up; a norm needs sums.
            dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
            return dense, self._pairs(losses, metrics)

        if self.micro_batches == 1:
            return differentiate(batch)
        parts = self._split(batch)
        used = [False] * len(variables)

        def body(
            i: tf.Tensor, sums: list[tf.Tensor], pairs: tf.Tensor
        ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
            gradients, more = differentiate(tf.nest.map_structure(lambda x: x[:, i], parts))
            used[:] = [g is not None for g in gradients]
            sums = [s if g is None else s + g for s, g in zip(sums, gradients, strict=True)]
            return i + 1, sums, pairs + more

        zeros = [tf.zeros(v.shape, v.dtype) for v in variables]
        pairs = tf.zeros((self._num_terms, 2))
        # A loop, not M copies of the graph: activations of one micro-batch live at a time.
        _, sums, pairs = tf.while_loop(
            lambda i, *_: i < self.micro_batches, body, [0, zeros, pairs], parallel_iterations=1
        )
        return [s if u else None for s, u in zip(sums, used, strict=True)], pairs


class _Several(Replicas):
    """More than one, of the same number of rows each."""

    def __init__(self, replica: tf.distribute.ReplicaContext) -> None:
        self._replica = replica
        self.count = replica.num_replicas_in_sync

    def gather(self, rows: Any) -> Any:
        return self._replica.all_gather(rows, axis=0)

    def own(self, rows: Any) -> Any:
        shares = tf.reshape(rows, tf.concat([[self.count, -1], tf.shape(rows)[1:]], 0))
        return shares[self._replica.replica_id_in_sync_group]


def _sum(replica: tf.distribute.ReplicaContext, tensors: Any) -> Any:
    """Sums over all replicas."""
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, tensors)
