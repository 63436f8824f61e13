"""Rounding to 8 bits in training: the numbers, the gradients, the ranges."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.core.contexts import recomputation, without_rounding
from kbert.edit.rounding import (
    DECAY,
    FakeQuantization,
    fake_quantize,
)
from kbert.layers import Dense
from kbert.layers.recompute import run_layer
from tests.harness import assert_close, layer_gradients, randomise, to_numpy

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(5, 8)).astype("float32")
KERNEL = RNG.normal(size=(8, 6)).astype("float32")


def rounding(**options):
    """A dense layer with 8 columns in, 6 out, that rounds what it multiplies."""
    dense = Dense(6, **options)
    dense.build((None, 8))
    dense.add_edit(
        FakeQuantization(dtype=dense.dtype_policy, name="fake_quantization"), dense.kernel.shape
    )
    return dense


def in_8_bits(x, largest):
    scale = np.where(largest > 0, largest, 1.0) / 127
    return np.clip(np.round(x / scale), -127, 127) * scale


@pytest.mark.parametrize("axis", [0, -1])
def test_weights_are_multiples_of_a_scale_for_each_column_or_row(axis):
    found = to_numpy(fake_quantize(ops.array(KERNEL), axis))
    largest = np.abs(KERNEL).max(axis, keepdims=True)
    assert_close(found, in_8_bits(KERNEL, largest), 1e-6)
    assert np.abs(found - KERNEL).max() <= largest.max() / 254 + 1e-6
    assert all(len(np.unique(x)) > 2 for x in found)
    with without_rounding():
        assert_close(to_numpy(fake_quantize(ops.array(KERNEL), axis)), KERNEL, 0)


def test_what_is_zero_stays_zero_and_nothing_is_divided_by_it():
    assert to_numpy(fake_quantize(ops.zeros((3, 2)), 0)).tolist() == [[0, 0]] * 3


def test_ranges_move_in_training_alone():
    layer = FakeQuantization()
    layer.build()
    rows, kernel = layer(ops.array(ROWS), ops.array(KERNEL))
    assert_close(to_numpy(rows), ROWS, 0)  # no range is known yet
    assert_close(to_numpy(kernel), in_8_bits(KERNEL, np.abs(KERNEL).max(0)), 1e-6)
    kept = None
    for factor in (1.0, 3.0, 0.5):
        rows, _ = layer(ops.array(factor * ROWS), ops.array(KERNEL), training=True)
        largest = np.abs(factor * ROWS).max()
        kept = largest if kept is None else DECAY * kept + (1 - DECAY) * largest
        assert_close(float(layer.range), kept, 1e-6)
        assert_close(to_numpy(rows), in_8_bits(factor * ROWS, kept), 1e-5)
    before = float(layer.range)
    rows, _ = layer(ops.array(9 * ROWS), ops.array(KERNEL))
    assert float(layer.range) == before
    assert_close(np.abs(to_numpy(rows)).max(), before, 1e-5)  # beyond the range is cut off


@pytest.mark.tensorflow
def test_gradients_are_those_of_the_identity_within_the_range():
    import tensorflow as tf

    layer = FakeQuantization()
    layer.build()
    layer.range.assign(1.0)
    rows, kernel, upstream = (tf.constant(x) for x in (ROWS, KERNEL, ROWS @ KERNEL))
    with tf.GradientTape() as tape:
        tape.watch([rows, kernel])
        read, rounded = layer(rows, kernel)
        outputs = tf.reduce_sum(read @ rounded * upstream)
    of_rows, of_kernel = tape.gradient(outputs, [rows, kernel])
    within = np.abs(ROWS) <= 1.0
    assert_close(of_rows, np.where(within, upstream @ tf.transpose(rounded), 0), 1e-4)
    assert_close(of_kernel, tf.transpose(read) @ upstream, 1e-4)


def test_a_dense_layer_multiplies_rounded_numbers():
    dense = rounding(activation="relu")
    randomise(dense)
    dense.fake_quantization.range.assign(1.5)
    kernel, bias = (to_numpy(x.value) for x in (dense.kernel, dense.bias))
    read = in_8_bits(np.clip(ROWS, -1.5, 1.5), 1.5)
    wanted = np.maximum(read @ in_8_bits(kernel, np.abs(kernel).max(0)) + bias, 0)
    assert_close(to_numpy(dense(ROWS)), wanted, 1e-5)
    with without_rounding():
        assert_close(to_numpy(dense(ROWS)), np.maximum(ROWS @ kernel + bias, 0), 1e-5)
    assert [w.path.split("/")[-1] for w in dense.trainable_weights] == ["kernel", "bias"]


@pytest.mark.tensorflow
@pytest.mark.graphs
def test_layers_that_are_computed_again_have_the_same_ranges():
    gradients, ranges = [], []
    for again in (False, True):
        dense = rounding(name="dense")
        randomise(dense)
        dense.fake_quantization.range.assign(2.5)

        def loss(dense=dense, again=again):
            with recomputation(again):
                return ops.sum(ops.square(run_layer(dense, ops.array(ROWS), training=True)))

        gradients.append(layer_gradients(dense, loss))
        ranges.append(float(dense.fake_quantization.range))
    assert ranges[0] == ranges[1] != 2.5
    for name, expected in gradients[0].items():
        assert_close(gradients[1][name], expected, 1e-5, name)


def test_half_precision_rounds_in_float32():
    dense = rounding(dtype=keras.DTypePolicy("mixed_bfloat16"))
    randomise(dense)
    exact = rounding()
    exact.set_weights(dense.get_weights())
    for layer in (dense, exact):
        layer(ROWS, training=True)
    assert_close(float(dense.fake_quantization.range), np.abs(ROWS).max(), 0.02)
    assert_close(to_numpy(ops.cast(dense(ROWS), "float32")), to_numpy(exact(ROWS)), 0.05)
