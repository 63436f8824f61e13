"""State of rows: each replica has its own, a checkpoint those of all."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from kbert.training.step.row_state import exchange_rows, read_rows, row_variable, write_rows


def values(rows=4, width=3) -> np.ndarray:
    return np.arange(2.0 * rows * width, dtype="float32").reshape(2, rows, width)


def test_one_device_has_all_rows():
    variable = row_variable((2, 4, 3), "state")
    assert not ops.convert_to_numpy(read_rows(variable, 4)).any()
    assert not variable.trainable
    assert variable.path == "state/state"
    write_rows(variable, values())
    np.testing.assert_array_equal(read_rows(variable, 4), values())
    exchange_rows(variable, total=None)  # there is nobody to exchange with
    np.testing.assert_array_equal(variable.numpy(), values())


def test_what_is_not_finite_is_forgotten():
    variable = row_variable((2, 4, 3), "state")
    state = values()
    state[0, 1, 2], state[1, 3] = np.nan, np.inf
    write_rows(variable, state)
    np.testing.assert_array_equal(read_rows(variable, 4), np.where(np.isfinite(state), state, 0))


def test_other_rows_are_refused():
    variable = row_variable((2, 4, 3), "state")
    with pytest.raises(ValueError, match=r"Received: batch_size=4 of the state, over 1 .* 2 rows"):
        read_rows(variable, 2)


@pytest.mark.tensorflow
def test_a_host_traces_its_own_rows_and_keeps_nothing(mirrored):
    """Names of terms are found out before the first step, with the batch of one host."""
    with mirrored.scope():
        variable = row_variable((2, 4, 3), "state")
        assert read_rows(variable, 2).shape == (2, 2, 3)
        write_rows(variable, np.ones((2, 2, 3), "float32"))
    assert not variable.numpy().any()


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True], ids=["plain", "xla"])
def test_replicas_have_their_rows_until_they_are_exchanged(mirrored, jit_compile):
    with mirrored.scope():
        variable = row_variable((2, 4, 3), "state")
    variable.assign(values())  # as a checkpoint does
    double = tf.function(
        lambda: write_rows(variable, 2 * read_rows(variable, 2)), jit_compile=jit_compile
    )

    def total(x):
        return tf.distribute.get_replica_context().all_reduce("SUM", x)

    @tf.function
    def step(exchange):
        def on_replica():
            double()
            if exchange:
                exchange_rows(variable, total)
            return read_rows(variable, 2)

        return mirrored.run(on_replica)

    for exchange, factor in ((False, 2), (True, 4), (True, 8)):
        shares = mirrored.experimental_local_results(step(exchange))
        np.testing.assert_array_equal(np.concatenate(shares, axis=1), factor * values())
    np.testing.assert_array_equal(variable.numpy(), 8 * values())  # of all, as it is saved
