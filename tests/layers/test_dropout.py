import math

import keras
import numpy as np
import pytest
from keras import ops

from kbert.layers import (
    Dropout,
)
from tests.harness import to_numpy

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


def test_dropout_acts_in_training_only():
    assert (to_numpy(Dropout(0.5)(X)) == X).all()
    assert (to_numpy(Dropout(0.0)(X, training=True)) == X).all()
    with pytest.raises(ValueError, match=r"`rate` must be at least 0 and less than 1.*: 1"):
        Dropout(1)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_its_share_and_keeps_the_mean(rate):
    keras.utils.set_random_seed(0)
    outputs = to_numpy(Dropout(rate)(np.ones((999, 333), "float32"), training=True))
    assert abs((outputs == 0).mean() - rate) < 4 * math.sqrt(rate * (1 - rate) / outputs.size)
    assert np.abs(outputs[outputs != 0] * (1 - rate) - 1).max() < 1e-4
    # Rows and columns are as random as the whole: no pattern from drawing two at a time.
    for axis in (0, 1):
        share = (outputs == 0).mean(axis)
        sigma = math.sqrt(rate * (1 - rate) / outputs.shape[axis])
        assert abs(share.std() / sigma - 1) < 0.15
    dropped = outputs.ravel() == 0
    for lag in (1, 2, 333):
        together = (dropped[:-lag] & dropped[lag:]).mean()
        assert abs(together - rate**2) < 4 * math.sqrt(rate**2 / outputs.size)


def test_dropout_continues_from_its_state():
    layer = Dropout(0.5)
    state = layer.seed_generator.state
    layer(X, training=True)
    kept = np.array(ops.convert_to_numpy(state.value))  # a copy: PyTorch gives a view
    second = to_numpy(layer(X, training=True))
    third = to_numpy(layer(X, training=True))
    assert (second != third).any()
    state.assign(kept)
    np.testing.assert_array_equal(to_numpy(layer(X, training=True)), second)
    assert layer.variables == [state]
    assert not layer.weights


@pytest.mark.tensorflow
def test_dropout_gradient_is_the_mask():
    import tensorflow as tf

    x = tf.ones((7, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = Dropout(0.3)(x, training=True)
    np.testing.assert_array_equal(tape.gradient(y, x), y)


@pytest.mark.tensorflow
def test_replicas_drop_different_entries(mirrored):
    import tensorflow as tf

    with mirrored.scope():
        layer = Dropout(0.5)
    run = tf.function(lambda: mirrored.run(lambda: layer(tf.ones((64, 64)), training=True)))
    first, second = mirrored.experimental_local_results(run())
    both = tf.reduce_mean(tf.cast((first == 0) & (second == 0), "float32"))
    assert abs(both - 0.25) < 0.03  # independent, not equal
    again, _ = mirrored.experimental_local_results(run())
    assert tf.reduce_any(again != first)
    states = mirrored.experimental_local_results(layer.seed_generator.state.value)
    np.testing.assert_array_equal(states[0], states[1])


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_dropout_in_a_graph_of_any_shape(jit_compile):
    import tensorflow as tf

    layer = Dropout(0.25)
    signature = [tf.TensorSpec([None, None], tf.float32)]
    run = tf.function(lambda x: layer(x, training=True), signature, jit_compile=jit_compile)
    for shape in ((1, 1), (3, 5), (200, 301)):
        assert run(tf.ones(shape)).shape == shape
    share = tf.reduce_mean(tf.cast(run(tf.ones((200, 301))) == 0, "float32"))
    assert abs(share - 0.25) < 0.01


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dropout_keeps_the_dtype(dtype):
    outputs = Dropout(0.5, dtype=dtype)(ops.ones((8, 8), dtype), training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert set(np.unique(to_numpy(outputs))) == {0.0, 2.0}
