"""The training step on TensorFlow: one replica per device, sums over replicas by all-reduce."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.core.types import Tensors
from kbert.training.step.state import Replicas, only_features

# Function that Keras' `fit` and `evaluate` call: an iterator over batches -> the logs of a step.
_Function = Callable[[Iterator[Any]], dict[str, Any]]


def after_compile(model: Any) -> None:
    """Hook after `compile`: sets up the gradient function.

    ValueError if model and optimizer were created under different strategies.
    """
    optimizer_strategy = model.optimizer._distribution_strategy
    if optimizer_strategy is not model.distribute_strategy:
        raise ValueError(
            "Model and optimizer must be made under the same strategy: create both inside "
            "`with strategy.scope():`. Received: model under "
            f"{type(model.distribute_strategy).__name__}, optimizer under "
            f"{type(optimizer_strategy).__name__}"
        )
    # kbert's optimizers accept summed gradients; Keras' own would sum over the replicas again.
    model._optimizer_sums = not hasattr(model.optimizer, "gradients_are_summed")
    if not model._optimizer_sums:
        model.optimizer.gradients_are_summed = True
    model._differentiate = functools.partial(_gradients, model)
    if model.jit_compile:
        model._differentiate = graph(model._differentiate, autograph=False, jit_compile=True)


def scope(model: Any) -> contextlib.AbstractContextManager:
    """Returns the context in which variables of the step are created."""
    return model.distribute_strategy.scope()


def spec_of(model: Any, iterator: Any, data_batch: Any) -> Any:
    """Returns a batch with a `tf.TensorSpec` for each tensor, without computing anything.

    Args:
        model: model that is trained, for its distribution strategy.
        iterator: Keras' iterator over the dataset of `fit`; None in `train_on_batch`.
        data_batch: the batch of `train_on_batch`; read if there is no `iterator`.
    """
    # Keras averages the first batch over the replicas, which fails for booleans, for uneven batches
    # and on several hosts.
    if iterator is None:
        batch = only_features(data_batch)
        return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batch)
    dataset = iterator.data_adapter.get_tf_dataset()
    if isinstance(dataset, tf.data.Dataset):
        return only_features(dataset.element_spec)
    # The dataset is already distributed.
    local_results = model.distribute_strategy.experimental_local_results
    batch = tf.nest.map_structure(lambda x: local_results(x)[0], next(iter(dataset)))
    return tf.nest.map_structure(tf.TensorSpec.from_tensor, only_features(batch))


def term_names(model: Any, spec: Mapping[str, tf.TensorSpec]) -> tuple[list[str], list[str]]:
    """Returns the names of losses and metrics, in order; traces `loss_terms` with specs `spec`."""
    names: list[list[str]] = []

    def trace(batch: Tensors) -> None:
        names[:] = [list(terms) for terms in model._all_terms(batch, training=False)]

    graph(trace, autograph=False).get_concrete_function(spec)
    losses, metrics = names
    return losses, metrics


def make_train_function(model: Any, force: bool, usual: Callable) -> _Function:
    """Returns the function that `fit` calls for a step: it runs `train_step` on every replica.

    Args:
        model: model that is trained; it keeps the function.
        force: whether to make the function again.
        usual: Keras' own method, not used on TensorFlow.
    """
    if model.train_function is None or force:
        model.train_function = _on_replicas(model, model.train_step)
    return model.train_function


def make_test_function(model: Any, force: bool, usual: Callable) -> _Function:
    """Like `make_train_function`, for `test_step` and `evaluate`."""
    if model.test_function is None or force:
        model.test_function = _on_replicas(model, model.test_step)
    return model.test_function


def _on_replicas(model: Any, step: Callable[[Any], dict[str, tf.Tensor]]) -> _Function:
    """Returns a function that runs `step` on every replica, and returns the first one's values."""
    strategy = model.distribute_strategy

    def on_batch(batch: Any) -> dict[str, tf.Tensor]:
        values = strategy.run(step, args=(batch,))
        return {k: strategy.experimental_local_results(v)[0] for k, v in values.items()}

    def on_iterator(iterator: tf.data.Iterator) -> dict[str, tf.Tensor]:
        return on_batch(iterator.get_next())

    if not model.run_eagerly:
        on_batch = graph(on_batch, autograph=False)
        on_iterator = graph(on_iterator, autograph=False)

    def function(iterator: Iterator[Any]) -> dict[str, tf.Tensor]:
        if isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            return on_iterator(iterator)
        return on_batch(next(iterator))  # train_on_batch

    return function


def train_step(model: Any, data: Any) -> dict[str, tf.Tensor]:
    """Makes one update with the gradients of all replicas; returns the logs of the step by name.

    `data` is this replica's batch. The losses and metrics in the logs are those of the global
    batch.
    """
    batch = only_features(data)
    # A dataset that has ended fails here, before the step updates sums or seeds.
    with tf.control_dependencies(tf.nest.flatten(batch)):
        return _update(model, batch)


def _update(model: Any, batch: Tensors) -> dict[str, tf.Tensor]:
    """Makes one update with the gradients of all replicas; returns the logs of the step by name.

    `batch` has this replica's rows. The losses and metrics in the logs are those of the global
    batch.
    """
    replica = tf.distribute.get_replica_context()
    has_several_replicas = replica.num_replicas_in_sync > 1
    denominators = None
    if has_several_replicas or model.micro_batches > 1:
        denominators = _sum(replica, model.loss_denominators(batch))
    loss_scale = model._loss_scale()
    batch = model.before_gradients(batch, _Several(replica) if has_several_replicas else Replicas())
    gradients, pairs = model._differentiate(batch, denominators, loss_scale)
    variables = model.trainable_variables
    variables = [v for g, v in zip(gradients, variables, strict=True) if g is not None]
    gradients = [g for g in gradients if g is not None]
    *gradients, global_pairs = _sum(replica, [*gradients, pairs])
    model.between_replicas(functools.partial(_sum, replica))
    norm, scale = model._norm(gradients, loss_scale)
    rate = tf.convert_to_tensor(model.optimizer.learning_rate)
    finite = model._is_finite(norm, global_pairs)
    _apply(model, finite, gradients, scale, variables)
    update = model._after_update(norm, rate, loss_scale, finite)
    model._count(pairs, update)
    model._store_position(batch)
    return model._step_values(global_pairs, update)


def _apply(
    model: Any,
    finite: tf.Tensor,
    gradients: list[tf.Tensor],
    scale: tf.Tensor | None,
    variables: list[keras.Variable],
) -> None:
    """Updates weights and optimizer if `finite`, else neither.

    The branch is in the graph, so nothing is copied.

    Args:
        model: model that is trained.
        finite: whether losses and gradients are finite.
        gradients: gradients summed over the replicas.
        scale: factor of all gradients; None = 1.
        variables: weight of each gradient.
    """
    options: dict[str, Any] = {}
    if not model._optimizer_sums and not tf.distribute.has_strategy():
        options["scale"] = scale  # kbert's optimizers apply it as they read the gradients
    else:
        scale = tf.ones(()) if scale is None else scale
        if model._optimizer_sums:
            scale /= tf.distribute.get_replica_context().num_replicas_in_sync
        gradients = [g * tf.cast(scale, g.dtype) for g in gradients]

    def on_replica(gradients: list[tf.Tensor]) -> None:
        model.optimizer.apply(gradients, variables, **options)

    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        tf.cond(finite, lambda: on_replica(gradients), lambda: None)
        return

    # An optimizer merges the replicas, which is not allowed within a branch of a single replica. So
    # one branch is chosen for all of them; they agree, as they have the same sums.
    def across_replicas(strategy: tf.distribute.Strategy, finite: Any, gradients: Any) -> None:
        is_finite = strategy.experimental_local_results(finite)[0]
        tf.cond(
            is_finite,
            lambda: strategy.extended.call_for_each_replica(on_replica, args=(gradients,)),
            lambda: None,
        )

    tf.distribute.get_replica_context().merge_call(across_replicas, args=(finite, gradients))


def sum_of_squares(gradient: tf.Tensor) -> tf.Tensor:
    """Returns the sum of the squares of all elements, in float32."""
    return 2.0 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))  # creates no tensor of the squares


def test_step(model: Any, data: Any) -> dict[str, tf.Tensor]:
    """Returns losses and metrics over the global batch, without dropout or update."""
    pairs = model._pairs(*model._all_terms(only_features(data), training=False))
    model._count(pairs)
    return model._step_values(_sum(tf.distribute.get_replica_context(), pairs))


def _gradients(
    model: Any, batch: Tensors, denominators: tf.Tensor | None, loss_scale: tf.Tensor | None
) -> tuple[list[tf.Tensor | None], tf.Tensor]:
    """Differentiates this replica's part of the loss, micro-batch by micro-batch.

    Args:
        model: model that is trained.
        batch: rows of this replica.
        denominators: denominator of each loss, in order, summed over all replicas; None if these
            rows are the whole global batch.
        loss_scale: factor of the loss; None = 1.

    Returns:
        The dense gradient of each trained weight, None for weights that the loss does not use; the
        (K, 2) sums (numerator, denominator) of the losses and metrics of these rows.
    """
    variables = [v.value for v in model.trainable_variables]

    def differentiate(part: Tensors) -> tuple[list[tf.Tensor | None], tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            losses, metrics = model._training_terms(part)
            loss = model._total_loss(losses, denominators, loss_scale)
        gradients = tape.gradient(loss, variables)
        # An embedding's sparse gradient lists a row once per look-up; a norm needs their sums.
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        return dense, model._pairs(losses, metrics)

    if model.micro_batches == 1:
        return differentiate(batch)
    parts = model._split(batch)
    is_used = [False] * len(variables)

    def body(
        i: tf.Tensor, sums: list[tf.Tensor], pairs: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        gradients, part_pairs = differentiate(tf.nest.map_structure(lambda x: x[:, i], parts))
        is_used[:] = [g is not None for g in gradients]
        sums = [s if g is None else s + g for s, g in zip(sums, gradients, strict=True)]
        return i + 1, sums, pairs + part_pairs

    zeros = [tf.zeros(v.shape, v.dtype) for v in variables]
    pairs = tf.zeros((model._num_terms, 2))
    # A loop, not M copies of the graph, so only one micro-batch's activations are in memory.
    _, sums, pairs = tf.while_loop(
        lambda i, *_: i < model.micro_batches, body, [0, zeros, pairs], parallel_iterations=1
    )
    return [s if u else None for s, u in zip(sums, is_used, strict=True)], pairs


class _Several(Replicas):
    """Several replicas, with the same number of rows each."""

    def __init__(self, replica: tf.distribute.ReplicaContext) -> None:
        self._replica = replica
        self.count = replica.num_replicas_in_sync

    def gather(self, rows: Any) -> Any:
        return self._replica.all_gather(rows, axis=0)

    def own(self, rows: Any) -> Any:
        shares = tf.reshape(rows, tf.concat([[self.count, -1], tf.shape(rows)[1:]], 0))
        return shares[self._replica.replica_id_in_sync_group]


def _sum(replica: tf.distribute.ReplicaContext, tensors: Any) -> Any:
    """Sums tensors, or each tensor of a list, over all replicas."""
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, tensors)
