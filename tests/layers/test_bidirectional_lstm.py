"""The stack of LSTMs against NumPy, its state handed on, its places of dropout.

Shapes: `D` = 2 directions, `B` rows, `T` words, `P` projection, `U` units, `L` layers.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.layers import BidirectionalLSTM
from tests.harness import assert_close, get_values, randomise, run_layer_test, to_numpy

D, B, T, P, U, L = 2, 3, 7, 4, 6, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(D, B, T, P)).astype("float32")
STATE = RNG.uniform(-0.5, 0.5, (L, D, B, U + P)).astype("float32")
MASK = np.broadcast_to(np.arange(T) < np.array([[T], [3], [0]]), (D, B, T)).astype("int32")
NO_CLIPS = {"cell_clip": None, "projection_clip": None}
CLIPS = {"cell_clip": 0.6, "projection_clip": 0.5}


def make(**changes) -> BidirectionalLSTM:
    """Random weights, large enough that the gates open and close."""
    settings = {"units": U, "projection_size": P, "num_layers": L, "name": "lstm"}
    layer = BidirectionalLSTM(**{**settings, **changes})
    layer.build(X.shape)
    randomise(layer, sigma=1.0)
    return layer


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def expected(layer, x=X, mask=None, state=None):
    """One row and one word after the other, in float64."""
    w = get_values(layer)
    mask = np.ones(x.shape[:3]) if mask is None else mask
    state = np.zeros((L, D, x.shape[1], U + P)) if state is None else state.astype("float64")
    state = state.copy()
    x = x.astype("float64")
    outputs = []
    for i in range(L):
        out = np.zeros_like(x)
        for d, b in np.ndindex(D, x.shape[1]):
            kernel, bias, projection = (
                w[f"lstm/{('forward', 'backward')[d]}_{i}/{name}"]
                for name in ("kernel", "bias", "projection")
            )
            c, h = np.split(state[i, d, b], [U])
            for t in np.flatnonzero(mask[d, b]):
                gates = np.concatenate([x[d, b, t], h]) @ kernel + bias
                gate_in, candidate, forget, gate_out = np.split(gates, 4)
                c = c * sigmoid(forget + 1) + sigmoid(gate_in) * np.tanh(candidate)
                c = np.clip(c, -(layer.cell_clip or np.inf), layer.cell_clip or np.inf)
                h = (sigmoid(gate_out) * np.tanh(c)) @ projection
                h = np.clip(h, -(layer.projection_clip or np.inf), layer.projection_clip or np.inf)
                out[d, b, t] = h + (x[d, b, t] if layer.skip_connections and i else 0)
            state[i, d, b] = np.concatenate([c, h])
        outputs.append(out)
        x = out
    return outputs, state


def check(layer, *arguments):
    outputs, state = layer(*arguments)
    others, other_state = expected(layer, *arguments)
    for actual, other in zip(outputs, others, strict=True):
        assert_close(to_numpy(actual), other, 1e-5)
    assert_close(to_numpy(state), other_state, 1e-5)
    return outputs, state


@pytest.mark.jax_slow
def test_what_every_layer_must_do():
    weights = {
        f"lstm/{way}_{i}/{name}": shape
        for i in range(L)
        for way in ("forward", "backward")
        for name, shape in (("kernel", (2 * P, 4 * U)), ("bias", (4 * U,)), ("projection", (U, P)))
    }
    shapes = ([(D, B, T, P)] * L, (L, D, B, U + P))
    settings = {"units": U, "projection_size": P, "num_layers": L, "name": "lstm"}
    for policy in ("float32", "mixed_bfloat16"):
        run_layer_test(BidirectionalLSTM(**settings, dtype=policy), (X,), weights, shapes)


@pytest.mark.jax_slow
@pytest.mark.parametrize("skip_connections", [False, True])
@pytest.mark.parametrize("clips", [NO_CLIPS, CLIPS], ids=["free", "clipped"])
@pytest.mark.parametrize(
    "mask",
    [pytest.param(None, id="whole", marks=pytest.mark.jax_slow), pytest.param(MASK, id="padded")],
)
def test_equals_numpy(skip_connections, clips, mask):
    layer = make(skip_connections=skip_connections, **clips)
    outputs, state = check(layer, X, mask, STATE)
    if clips is CLIPS:
        at_bound = np.abs(to_numpy(state)[:, :, 0]) > [0.6 - 1e-6] * U + [0.5 - 1e-6] * P
        assert 0.1 < at_bound.mean() < 0.9
    if mask is not None:
        for x in outputs:
            assert not to_numpy(x)[mask == 0].any()
        np.testing.assert_array_equal(to_numpy(state)[:, :, 2], STATE[:, :, 2])


def test_no_state_is_zeros_and_the_bounds_of_elmo_are_the_default():
    layer = make()
    assert layer.cell_clip == layer.projection_clip == 3.0
    check(layer, X, MASK)


@pytest.mark.jax_slow
def test_two_halves_with_the_state_handed_on_equal_the_whole():
    layer = make(**CLIPS)
    whole, last = layer(X, state=STATE)
    first, state = layer(X[:, :, :3], state=STATE)
    second, state = layer(X[:, :, 3:], state=state)
    for i in range(L):
        halves = np.concatenate([to_numpy(first[i]), to_numpy(second[i])], axis=2)
        assert_close(halves, to_numpy(whole[i]), 1e-6)
    assert_close(to_numpy(state), to_numpy(last), 1e-6)


@pytest.mark.jax_slow
def test_the_directions_never_meet():
    layer = make()
    changed = X.copy()
    changed[1] += 1.0
    outputs, state = layer(X)
    others, other_state = layer(changed)
    for x, other in zip([*outputs, *state], [*others, *other_state], strict=True):
        np.testing.assert_array_equal(to_numpy(x)[0], to_numpy(other)[0])
        assert (to_numpy(x)[1] != to_numpy(other)[1]).any()


@pytest.mark.jax_slow
def test_dropout_is_on_the_input_of_each_layer_and_in_what_a_skip_connection_adds():
    layer = make(dropout=0.5)
    for way in range(D):
        layer.cell(1, way).projection.assign(np.zeros((U, P)))
    (first, second), _ = layer(X, training=True)
    (first, second), (plain, _) = (to_numpy(first), to_numpy(second)), layer(X)[0]
    assert np.abs(first - to_numpy(plain)).max() > 0.1  # the words, too, were dropped
    # The second layer itself gives nothing: left is its input after dropout.
    kept = second != 0
    assert_close(second, 2 * first * kept, 1e-4)
    assert 0.3 < kept.mean() < 0.7
    assert (kept[:, :, 1:] != kept[:, :, :1]).any()  # drawn anew for every word,
    assert (kept[0] != kept[1]).any()  # and in each direction


def test_it_starts_as_the_original_does():
    layer = BidirectionalLSTM(units=64, projection_size=16, num_layers=1)
    layer.build((D, None, None, 16))
    cell = layer.cell(0, 0)
    assert not to_numpy(cell.bias.value).any()
    for weight in (cell.kernel, cell.projection):
        values, bound = to_numpy(weight.value), (6 / sum(weight.shape)) ** 0.5
        assert 0.95 * bound < np.abs(values).max() <= bound * 1.000001


@pytest.mark.tensorflow
def test_gradients_reach_everything():
    import tensorflow as tf

    layer = make(**CLIPS)
    x, state = tf.constant(X), tf.constant(STATE)
    with tf.GradientTape() as tape:
        tape.watch([x, state])
        outputs, last = layer(x, MASK, state)
        result = tf.add_n([tf.reduce_sum(tf.square(y)) for y in (*outputs, last)])
    found = tape.gradient(result, [x, state, *(w.value for w in layer.trainable_variables)])
    for gradient in found:
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 1e-3
    assert not found[0].numpy()[MASK == 0].any()


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("policy", "atol"),
    [("float32", 1e-5), pytest.param("mixed_bfloat16", 0.1, marks=pytest.mark.slow)],
)
def test_xla(policy, atol):
    import tensorflow as tf

    layer = make(dtype=policy, **CLIPS)
    variables = [w.value for w in layer.trainable_variables]

    def run(x, mask, state):
        with tf.GradientTape() as tape:
            outputs, last = layer(x, mask, state)
            result = tf.reduce_sum(last) + tf.reduce_sum(tf.cast(outputs[1], tf.float32))
        return outputs, last, tape.gradient(result, variables)

    assert last_dtype(layer) == "float32"
    plain = run(X, MASK, STATE)
    compiled = tf.function(run, jit_compile=True)(X, MASK, STATE)
    for a, b in zip(tf.nest.flatten(plain), tf.nest.flatten(compiled), strict=True):
        a, b = to_numpy(a), to_numpy(b)
        assert_close(b, a, atol * max(1.0, np.abs(a).max()))


def last_dtype(layer):
    outputs, state = layer(X, state=STATE)
    assert {keras.backend.standardize_dtype(x.dtype) for x in outputs} == {layer.compute_dtype}
    return keras.backend.standardize_dtype(state.dtype)


@pytest.mark.jax_slow
def test_bfloat16_rounds_products_but_not_the_state():
    layer = make(dtype="mixed_bfloat16", **CLIPS)
    randomise(layer)  # so that no step makes the error of the one before larger
    assert last_dtype(layer) == "float32"
    outputs, state = layer(X, np.zeros_like(MASK), STATE)
    np.testing.assert_array_equal(to_numpy(state), STATE)  # not through bfloat16 and back
    outputs, state = layer(X, MASK, STATE)
    others, other_state = expected(layer, X, MASK, STATE)
    roundings = 2**-8 * L * T  # one for each layer and word
    assert_close(to_numpy(outputs[1]), others[1], roundings)
    assert_close(to_numpy(state), other_state, roundings)
    assert np.abs(to_numpy(state) - other_state).max() > 2**-12  # float32 has errors of 2**-24


@pytest.mark.jax_slow
def test_saved_and_loaded_in_a_model(tmp_path):
    x = keras.Input((B, T, P), batch_size=D)
    outputs, state = make(skip_connections=False, dropout=0.25, **CLIPS)(x)
    model = keras.Model(x, [*outputs, state])
    model.save(tmp_path / "lstm.keras")
    loaded = keras.models.load_model(tmp_path / "lstm.keras")
    for a, b in zip(model(X), loaded(X), strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    config = model.get_layer("lstm").get_config()
    assert loaded.get_layer("lstm").get_config() == config
    assert config["dropout"] == 0.25
    assert not config["skip_connections"]


@pytest.mark.jax_slow
def test_a_model_of_any_number_of_rows_and_words():
    x = keras.Input((None, None, P), batch_size=D)
    layer = make()
    outputs, state = layer(x)
    assert tuple(outputs[1].shape) == (D, None, None, P)
    assert tuple(state.shape) == (L, D, None, U + P)
    model = keras.Model(x, [*outputs, state])
    for rows, words in ((1, 1), (3, 5)):
        part = X[:, :rows, :words]
        assert_close(to_numpy(model(part)[1]), expected(layer, part)[0][1], 1e-5)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"units": 0}, "`units` must be at least 1. Received: 0"),
        ({"projection_size": 0}, "`projection_size` must be at least 1. Received: 0"),
        ({"num_layers": -1}, "`num_layers` must be at least 1. Received: -1"),
        ({"cell_clip": 0.0}, "`cell_clip` must be positive, or None for no bound. Received: 0.0"),
        ({"projection_clip": -3}, "`projection_clip` must be positive.* Received: -3"),
        ({"dropout": 1.0}, "`rate` must be at least 0 and less than 1. Received: 1.0"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_sizes_and_bounds_that_cannot_be(changes, match):
    with pytest.raises(ValueError, match=match):
        make(**changes)


@pytest.mark.parametrize("shape", [(B, T, P), (3, B, T, P), (D, B, T, P + 1)], ids=str)
def test_an_input_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"shape \(2, rows, words, 4\). Received: shape \("):
        BidirectionalLSTM(U, P, L)(ops.ones(shape))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"state": STATE[:1]}, r"`state` must have the shape \(2, 2, rows, 10\). Received: "),
        ({"state": STATE[..., 1:]}, r"`state` must have .* Received: shape \(2, 2, 3, 9\)"),
        ({"padding_mask": MASK[0]}, r"`padding_mask` must have the shape .* \(3, 7\)"),
    ],
    ids=["layers", "width", "mask"],
)
def test_a_state_or_mask_of_another_shape(arguments, match):
    with pytest.raises(ValueError, match=match):
        make()(X, **arguments)
