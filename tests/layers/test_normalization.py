import keras
import numpy as np
import pytest
from keras import ops

from kbert.layers import (
    LayerNorm,
)
from tests.harness import assert_close, get_values, numpy_norm, randomise, run_layer_test, to_numpy

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


@pytest.mark.parametrize("epsilon", [1e-12, 1e-2])
def test_layer_norm(epsilon):
    layer = LayerNorm(epsilon, name="norm")
    run_layer_test(layer, (X,), {"norm/gamma": (8,), "norm/beta": (8,)}, (2, 5, 8))
    randomise(layer)
    w = get_values(layer)
    expected = numpy_norm(X.astype("float64"), epsilon) * w["norm/gamma"] + w["norm/beta"]
    assert_close(to_numpy(layer(X)), expected, 2e-6)


def test_layer_norm_of_equal_entries_is_finite():
    assert_close(to_numpy(LayerNorm(1e-12)(np.full((1, 4), 7.0, "float32"))), np.zeros((1, 4)), 0)


def test_layer_norm_takes_its_statistics_in_float32_under_bfloat16():
    x = (1000 + np.random.default_rng(0).normal(size=(4, 256))).astype("float32")
    x = to_numpy(ops.cast(x, "bfloat16"))  # what the layer is given
    layer = LayerNorm(1e-12, dtype="mixed_bfloat16")
    outputs = layer(ops.cast(x, "bfloat16"))
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    expected = numpy_norm(x, 1e-12)
    two_roundings = 2 * 2**-8 * np.abs(expected).max()
    assert_close(to_numpy(outputs), expected, two_roundings)
