import numpy as np

from kbert.layers import (
    Dense,
)
from tests.harness import assert_close, get_values, randomise, run_layer_test, to_numpy

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


def test_dense():
    layer = Dense(3, activation="relu", name="dense")
    run_layer_test(layer, (X,), {"dense/kernel": (8, 3), "dense/bias": (3,)}, (2, 5, 3))
    randomise(layer)
    w = get_values(layer)
    expected = np.maximum(X @ w["dense/kernel"] + w["dense/bias"], 0)
    assert_close(to_numpy(layer(X)), expected, 1e-5)
