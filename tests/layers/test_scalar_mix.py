"""The mix against NumPy, as list and as stack, trained, saved and loaded."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.layers import ScalarMix
from tests.harness import assert_close, randomise, run_layer_test, to_numpy

RNG = np.random.default_rng(0)
STATES = RNG.normal(1.0, 2.0, (3, 2, 5, 4)).astype("float32")  # (S, B, T, H)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])


def expected(mix, states, mask=None):
    weights = np.exp(to_numpy(mix.scalars.value))
    weights /= weights.sum()
    states = states.astype("float64")
    if mix.layer_norm:
        real = np.ones(states.shape[1:]) if mask is None else mask[:, :, None] * np.ones(4)
        counted = [state[real > 0] for state in states]
        states = np.array(
            [
                (x - c.mean()) / np.sqrt(c.var() + 1e-12)
                for x, c in zip(states, counted, strict=True)
            ]
        )
    return to_numpy(mix.gamma.value) * np.tensordot(weights, states, 1)


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("mask", [None, MASK])
def test_equals_numpy_as_a_list_and_as_a_stack(layer_norm, mask):
    mix = ScalarMix(layer_norm=layer_norm)
    mix.build(STATES.shape)
    randomise(mix, sigma=1.0)
    for states in (STATES, list(STATES)):
        assert_close(to_numpy(mix(states, mask)), expected(mix, STATES, mask), 1e-5)


def test_what_every_layer_must_do():
    run_layer_test(
        ScalarMix(name="mix"), (STATES,), {"mix/weights": (3,), "mix/gamma": ()}, (2, 5, 4)
    )
    run_layer_test(
        ScalarMix(name="mix", dtype="mixed_bfloat16"),
        (STATES,),
        {"mix/weights": (3,), "mix/gamma": ()},
        (2, 5, 4),
    )


def test_it_begins_as_the_mean_and_takes_pooled_states():
    assert_close(to_numpy(ScalarMix()(list(STATES[:, :, 0]))), STATES[:, :, 0].mean(0), 1e-6)


@pytest.mark.slow
def test_training_finds_the_layer_that_knows():
    states = [RNG.normal(size=(64, 6)).astype("float32") for _ in range(3)]
    inputs = [keras.Input((6,)) for _ in range(3)]
    model = keras.Model(inputs, ScalarMix(name="mix")(inputs))
    model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(states, 2 * states[1], epochs=60, verbose=0)
    mix = model.get_layer("mix")
    assert to_numpy(ops.softmax(mix.scalars))[1] > 0.9
    assert abs(float(to_numpy(mix.gamma.value)) - 2) < 0.2


def test_saved_in_a_model_and_loaded(tmp_path):
    inputs = [keras.Input((5, 4)) for _ in range(3)]
    model = keras.Model(inputs, ScalarMix(layer_norm=True, epsilon=1e-6)(inputs))
    randomise(model, sigma=1.0)
    model.save(tmp_path / "mix.keras")
    loaded = keras.models.load_model(tmp_path / "mix.keras")
    assert loaded.layers[-1].layer_norm
    assert loaded.layers[-1].epsilon == 1e-6
    np.testing.assert_array_equal(to_numpy(loaded(list(STATES))), to_numpy(model(list(STATES))))


def test_a_number_of_states_that_is_not_known():
    with pytest.raises(ValueError, match="A mix requires a list"):
        ScalarMix()(keras.KerasTensor((None, 2, 5, 4)))
