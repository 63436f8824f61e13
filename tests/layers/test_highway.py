"""The highway layer against NumPy, its gradients by differences."""

import numpy as np
from keras import ops

from kbert.layers import Highway
from tests.harness import (
    assert_close,
    assert_gradients_close,
    compiled,
    dtype_of,
    get_values,
    layer_gradients,
    numeric_gradients,
    randomise,
    run_layer_test,
    to_numpy,
)

X = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
WEIGHTS = {
    "highway/carry_kernel": (4, 4),
    "highway/carry_bias": (4,),
    "highway/transform_kernel": (4, 4),
    "highway/transform_bias": (4,),
}


def highway(sigma=0.7, **settings):
    layer = Highway(name="highway", **settings)
    layer.build(X.shape)
    randomise(layer, sigma)
    return layer


def reference(weights, x):
    w = {path.removeprefix("highway/"): value for path, value in weights.items()}
    carry = 1 / (1 + np.exp(-(x @ w["carry_kernel"] + w["carry_bias"])))
    transformed = np.maximum(x @ w["transform_kernel"] + w["transform_bias"], 0)
    return carry * transformed + (1 - carry) * x


def test_what_every_layer_must_do():
    run_layer_test(Highway(name="highway"), (X,), WEIGHTS, (2, 5, 4))


def test_equals_numpy_plain_and_by_xla():
    layer = highway()
    expected = reference(get_values(layer), X)
    assert_close(to_numpy(layer(X)), expected, 1e-5)
    assert_close(to_numpy(compiled(layer)(X)), expected, 1e-5)


def test_it_begins_nearly_as_the_identity():
    layer = Highway()
    layer.build(X.shape)
    assert_close(to_numpy(layer.carry_bias.value), np.full(4, -2.0), 0)
    assert_close(to_numpy(layer.transform_bias.value), np.zeros(4), 0)


def test_gradients():
    layer = highway()
    x = X.astype("float64")
    expected = numeric_gradients(lambda w: np.sum(reference(w, x) ** 2), get_values(layer))
    found = layer_gradients(layer, lambda: ops.sum(ops.square(layer(X))))
    assert_gradients_close(found, expected)


def test_mixed_bfloat16():
    layer = highway(dtype="mixed_bfloat16")
    out = layer(ops.cast(X, "bfloat16"))
    assert dtype_of(out) == "bfloat16"
    assert_close(to_numpy(out), reference(get_values(layer), X), 0.05)
