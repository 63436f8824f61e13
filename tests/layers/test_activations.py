import math

import keras
import numpy as np
import pytest
from keras import ops

from kbert.configs.base import ACTIVATIONS
from kbert.layers import (
    get_activation,
)
from tests.harness import assert_close, to_numpy


def test_the_two_forms_of_gelu_are_told_apart():
    x = np.linspace(-4, 4, 9).astype("float32")
    erf = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])
    tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    assert np.abs(erf - tanh).max() > 1e-4
    assert_close(to_numpy(get_activation("gelu")(x)), erf, 2e-6)
    assert_close(to_numpy(get_activation("gelu_tanh")(x)), tanh, 2e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_training_in_bfloat16_computes_the_same_gelu(name):
    x = np.linspace(-6, 6, 201).astype("float32")
    narrow = ops.cast(x, "bfloat16")
    exact = to_numpy(get_activation(name)(ops.cast(narrow, "float32")))
    found = get_activation(name)(narrow, training=True)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    # Half a unit in the last place of 8 bits; float32's own error where the answer is near 0.
    error = np.abs(to_numpy(ops.cast(found, "float32")) - exact)
    assert (error <= 2**-8 * np.abs(exact) + 1e-6).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_a_config_may_name_exists(name):
    assert to_numpy(get_activation(name)(ops.zeros((1,)))) == 0


def test_unknown_activation():
    with pytest.raises(ValueError, match=r"must be one of gelu, gelu_tanh.*'gelu_new'"):
        get_activation("gelu_new")
