"""State that is carried from batch to batch, with an entry for each row of the global batch.

A recurrent model reads one long text in every row of its batches, so its state belongs to the row.
The variable has the rows of all replicas, and every replica has its own copy. In a copy only the
replica's own rows are right until the copies are exchanged. That is done once per step, so that the
process that writes checkpoints has all rows. State that is never saved needs no exchange.

Shapes: N replicas, B rows of the global batch, b = B / N of a replica, W entries of a row.
"""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from kbert.core.late import tf
from kbert.core.types import Tensor


def row_variable(shape: Sequence[int], name: str) -> keras.Variable:
    """Creates a variable for the state, initialised to zeros; call it in the strategy's scope.

    Args:
        shape: (…, B, W) shape of the state.
        name: name of the variable and of its name scope.

    Returns:
        A float32 variable that is not trained.

    Example:
        >>> variable = row_variable((2, 1), "state")
        >>> write_rows(variable, ops.ones((2, 1)))
        >>> float(ops.sum(read_rows(variable, 2)))
        2.0
    """
    with keras.name_scope(name):
        # "on_read" lets every replica assign to its copy without a barrier.
        return keras.Variable(
            initializer="zeros",
            shape=tuple(shape),
            dtype="float32",
            trainable=False,
            aggregation="only_first_replica",
            synchronization="on_read",
            name=name,
        )


def read_rows(variable: keras.Variable, rows: int | None) -> Tensor:
    """Returns this replica's rows of the state, (…, b, W); XLA can compile it.

    Args:
        variable: variable of `row_variable`.
        rows: b, the number of rows of this replica's batch; None if it is unknown, as with several
            hosts.

    Raises:
        ValueError: `rows` is not a replica's share of the rows of the state.
    """
    replicas, replica = _replicas()
    *axes, all_rows, width = variable.shape
    rows = all_rows // replicas if rows is None else rows
    if replica is not None and rows != all_rows / replicas:
        raise ValueError(
            "A batch must have as many rows as the state. Received: "
            f"batch_size={all_rows} of the state, over {replicas} device(s), and {rows} rows in a "
            "device's batch"
        )
    value = ops.convert_to_tensor(variable)
    if rows == all_rows:
        return value
    shares = ops.reshape(value, (*axes, -1, rows, width))
    return ops.take(shares, 0 if replica is None else replica, axis=-3)


def write_rows(variable: keras.Variable, rows: Tensor) -> None:
    """Stores this replica's rows, (…, b, W), in its own copy; XLA can compile it.

    Values that are not finite are stored as 0, the initial state. A step may be traced with the
    rows of one host, only for the names of its results; nothing is stored then.
    """
    replicas, replica = _replicas()
    *axes, all_rows, width = variable.shape
    rows = ops.where(ops.isfinite(rows), rows, 0.0)  # else they would stay in the state forever
    if replica is None and rows.shape[-2] != all_rows:
        return
    if replicas > 1:
        is_own = ops.reshape(ops.arange(replicas) == replica, (-1, 1, 1))
        rows = ops.reshape(rows, (*axes, 1, all_rows // replicas, width))
        rows = ops.where(is_own, rows, 0.0)  # (…, N, b, W)
    variable.assign(ops.reshape(rows, variable.shape))


def exchange_rows(variable: keras.Variable, total: Callable[[Tensor], Tensor]) -> None:
    """Copies the rows of all replicas to every replica, after `write_rows`.

    Args:
        variable: variable of `row_variable`.
        total: function that sums a tensor over the replicas.
    """
    if _replicas()[0] > 1:
        # A copy is on the replica's device; the variable's value has no device.
        variable.assign(total(ops.copy(ops.convert_to_tensor(variable))))


def _replicas() -> tuple[int, Tensor | None]:
    """Returns the number of replicas, and the index of this one.

    Returns 1 and None where a step may be traced with one host's rows, only for the names of its
    results: outside of a replica, and on JAX with several hosts.
    """
    if keras.backend.backend() == "jax":  # whole batches: the compiler shards them
        import jax

        return 1, 0 if jax.process_count() == 1 else None
    context = tf.distribute.get_replica_context()
    if context is None:
        return 1, None
    return context.num_replicas_in_sync, context.replica_id_in_sync_group
