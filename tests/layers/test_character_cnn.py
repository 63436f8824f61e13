"""The character CNN against NumPy: values, ids, gradients, XLA, half precision."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.layers import CharacterCNN
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

# (B, T, C): words of several lengths with a filler (11) behind, and a word of padding.
IDS = np.array(
    [
        [[9, 1, 2, 10, 11, 11], [9, 3, 3, 3, 3, 10], [9, 10, 11, 11, 11, 11]],
        [[9, 5, 4, 2, 10, 11], [9, 12, 6, 7, 8, 10], [0, 0, 0, 0, 0, 0]],
    ],
    "int32",
)
WEIGHTS = {
    "cnn/table": (12, 3),
    "cnn/kernel_0": (1, 3, 2),
    "cnn/bias_0": (2,),
    "cnn/kernel_1": (2, 3, 3),
    "cnn/bias_1": (3,),
    "cnn/kernel_2": (4, 3, 4),
    "cnn/bias_2": (4,),
    "cnn/projection_kernel": (9, 5),
    "cnn/projection_bias": (5,),
    **{
        f"cnn/highway_{i}/{part}_{what}": shape
        for i in range(2)
        for part in ("carry", "transform")
        for what, shape in (("kernel", (9, 9)), ("bias", (9,)))
    },
}


def make(**changes):
    settings = {
        "character_size": 3,
        "filters": ((1, 2), (2, 3), (4, 4)),
        "num_highway": 2,
        "projection_size": 5,
        "num_characters": 12,
        "name": "cnn",
    }
    return CharacterCNN(**{**settings, **changes})


def built(**changes):
    layer = make(**changes)
    layer.build(IDS.shape)
    randomise(layer, sigma=0.5)
    return layer


def reference(weights, ids, activation=lambda x: np.maximum(x, 0)):
    """Every window by itself, in float64."""
    w = {path.removeprefix("cnn/"): value for path, value in weights.items()}
    x = np.concatenate([np.zeros((1, w["table"].shape[1])), w["table"]])[ids]  # (..., C, E)
    answers = []
    for i in range(3):
        kernel = w[f"kernel_{i}"]
        starts = range(x.shape[-2] - len(kernel) + 1)
        windows = np.stack([x[..., start : start + len(kernel), :] for start in starts])
        answers.append(np.tensordot(windows, kernel, 2).max(0) + w[f"bias_{i}"])
    x = activation(np.concatenate(answers, -1))
    for i in range(2):
        carry, transform = (
            x @ w[f"highway_{i}/{part}_kernel"] + w[f"highway_{i}/{part}_bias"]
            for part in ("carry", "transform")
        )
        carry = 1 / (1 + np.exp(-carry))
        x = carry * np.maximum(transform, 0) + (1 - carry) * x
    if "projection_kernel" in w:
        x = x @ w["projection_kernel"] + w["projection_bias"]
    return x


@pytest.mark.jax_slow
def test_what_every_layer_must_do():
    run_layer_test(make(), (IDS,), WEIGHTS, (2, 3, 5))


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    ("name", "activation"),
    [("relu", lambda x: np.maximum(x, 0)), ("tanh", np.tanh)],
    ids=["relu", "tanh"],
)
@pytest.mark.parametrize("training", [False, True])
def test_equals_numpy(name, activation, training):
    layer = built(activation=name)
    expected = reference(get_values(layer), IDS, activation)
    assert_close(to_numpy(layer(IDS, training=training)), expected, 1e-5)
    # Any leading axes.
    assert_close(to_numpy(layer(IDS[0], training=training)), expected[0], 1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_the_same_by_xla(training):
    layer = built()
    found = compiled(lambda ids: layer(ids, training=training))(IDS)
    assert_close(to_numpy(found), reference(get_values(layer), IDS), 1e-5)


def test_an_id_has_the_row_before_it_and_padding_has_none():
    layer = built()
    before = to_numpy(layer(IDS))
    table = np.array(to_numpy(layer.table.value))
    table[4] += 10.0
    layer.table.assign(table)
    changed = np.abs(to_numpy(layer(IDS)) - before).max(-1) > 0
    np.testing.assert_array_equal(changed, (IDS == 5).any(-1))
    layer.table.assign(table + 1.0)  # every row: padding alone stays
    changed = np.abs(to_numpy(layer(IDS)) - before).max(-1) > 0
    np.testing.assert_array_equal(changed, (IDS > 0).any(-1))


def test_where_the_filters_are_as_many_there_is_no_projection():
    layer = built(projection_size=9)
    assert not any("projection" in weight.path for weight in layer.weights)
    assert_close(to_numpy(layer(IDS)), reference(get_values(layer), IDS), 1e-5)


def test_gradients():
    layer = built()
    expected = numeric_gradients(lambda w: np.sum(reference(w, IDS) ** 2), get_values(layer))
    found = layer_gradients(layer, lambda: ops.sum(ops.square(layer(IDS, training=True))))
    assert_gradients_close(found, expected)


def test_saved_and_loaded(tmp_path):
    models = []
    for seed in (0, 1):
        layer = make()
        inputs = keras.Input((3, 6), dtype="int32")
        models.append(keras.Model(inputs, layer(inputs)))
        randomise(layer, seed=seed)
    models[0].save_weights(tmp_path / "cnn.weights.h5")
    models[1].load_weights(tmp_path / "cnn.weights.h5")
    np.testing.assert_array_equal(to_numpy(models[0](IDS)), to_numpy(models[1](IDS)))


@pytest.mark.jax_slow
def test_mixed_bfloat16():
    layer = built(dtype="mixed_bfloat16")
    out = layer(IDS, training=True)
    assert dtype_of(out) == "bfloat16"
    assert_close(to_numpy(out), reference(get_values(layer), IDS), 0.1)


def test_a_new_layer_starts_as_the_original():
    layer = CharacterCNN(16, ((1, 40), (3, 40)), 1, 8)
    layer.build((None, None, 50))
    values = {weight.path.split("/", 1)[1]: to_numpy(weight.value) for weight in layer.weights}
    assert values["table"].shape == (261, 16)
    for name, bound in (("table", 1.0), ("kernel_1", 0.05)):
        assert 0.95 * bound < np.abs(values[name]).max() <= bound
    assert values["highway_0/transform_kernel"].std() == pytest.approx(80**-0.5, rel=0.05)
    assert values["projection_kernel"].std() == pytest.approx(80**-0.5, rel=0.1)
    assert not any(values[name].any() for name in ("bias_0", "bias_1", "projection_bias"))


def test_words_narrower_than_a_filter_are_refused():
    with pytest.raises(ValueError, match=r"as the widest filter, 4. Received: 3 characters"):
        make()(IDS[:, :, :3])


@pytest.mark.parametrize("filters", [(), ((0, 4),), ((2, -1),)])
def test_filters_that_are_none(filters):
    with pytest.raises(ValueError, match=r"`filters` must be pairs .* Received: "):
        make(filters=filters)
