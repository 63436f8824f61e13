"""The recurrence against the cell written out, and its gradient against the backend's own.

Shapes: `T` steps, `B` rows, `W` width of the input, `U` units, `P` width of the projection.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.layers.recurrence import projected_lstm
from tests.harness import assert_close, assert_gradients_close, to_numpy

T, B, W, U, P = 6, 3, 5, 7, 4
RNG = np.random.default_rng(0)
ARGUMENTS = {
    "inputs": (T, B, W),
    "kernel": (W + P, 4 * U),
    "bias": (4 * U,),
    "projection": (U, P),
    "cell": (B, U),
    "hidden": (B, P),
}
ARGUMENTS = {name: RNG.normal(size=shape).astype("float32") for name, shape in ARGUMENTS.items()}
MASK = (np.arange(T)[:, None] < [T, 2, 0])[..., None]
CLIPS = {"cell_clip": 0.8, "projection_clip": 0.7}
FACTORS = [RNG.normal(size=shape).astype("float32") for shape in ((T, B, P), (B, U), (B, P))]
SETTINGS = [
    {},
    CLIPS,
    {"mask": MASK},
    {"mask": MASK, **CLIPS},
    {"mask": MASK[::-1].copy(), **CLIPS},  # words after padding too
]
IDS = ["plain", "clips", "mask", "mask-clips", "any-mask"]


def written_out(
    inputs, kernel, bias, projection, cell, hidden, mask=None, cell_clip=None, projection_clip=None
):
    """One step after the other, gates and formulas as in the paper, in the backend's numbers."""
    states = []
    for t in range(T):
        gates = ops.matmul(ops.concatenate([inputs[t], hidden], axis=1), kernel) + bias
        i, j, f, o = (gates[:, n * U : (n + 1) * U] for n in range(4))
        new_cell = ops.sigmoid(f + 1.0) * cell + ops.sigmoid(i) * ops.tanh(j)
        if cell_clip is not None:
            new_cell = bounded(new_cell, cell_clip)
        new_hidden = ops.matmul(ops.sigmoid(o) * ops.tanh(new_cell), projection)
        if projection_clip is not None:
            new_hidden = bounded(new_hidden, projection_clip)
        keep = ops.convert_to_tensor(np.ones((B, 1), bool) if mask is None else mask[t])
        cell = ops.where(keep, new_cell, cell)
        hidden = ops.where(keep, new_hidden, hidden)
        states.append(hidden)
    return ops.stack(states), cell, hidden


def bounded(x, bound):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.clip_by_value(x, -bound, bound)
    return ops.clip(x, -bound, bound)


def score(function, settings):
    """A number that each entry of each result moves in another way."""
    factors = [ops.convert_to_tensor(x) for x in FACTORS]

    def run(*arguments):
        results = function(*arguments, **settings)
        return sum(ops.sum(x * f) for x, f in zip(results, factors, strict=True))

    return run


def gradients(function, arguments=ARGUMENTS, jit_compile=False) -> dict[str, np.ndarray]:
    """Of all arguments, by the backend's own means."""
    values = tensors(arguments)
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        def run():
            with tf.GradientTape() as tape:
                tape.watch(values)
                result = function(*values)
            return tape.gradient(result, values)

        found = tf.function(run, jit_compile=True)() if jit_compile else run()
    elif backend == "jax":
        import jax

        found = jax.jit(jax.grad(function, tuple(range(len(values)))))(*values)
    else:
        values = [x.detach().clone().requires_grad_() for x in values]
        function(*values).backward()
        found = [x.grad for x in values]
    return {name: to_numpy(x) for name, x in zip(arguments, found, strict=True)}


def tensors(arguments):
    return [ops.convert_to_tensor(x) for x in arguments.values()]


@pytest.mark.jax_slow
@pytest.mark.parametrize("settings", SETTINGS, ids=IDS)
def test_equals_the_cell_written_out(settings):
    results = [to_numpy(x) for x in projected_lstm(*tensors(ARGUMENTS), **settings)]
    expected = [to_numpy(x) for x in written_out(*tensors(ARGUMENTS), **settings)]
    for actual, other in zip(results, expected, strict=True):
        assert_close(actual, other, 1e-5)
    if "cell_clip" in settings:
        # float32 has no 0.7: at the bound, not beyond it.
        assert 0.1 < (np.abs(results[0]) > 0.7 - 1e-6).mean() < 0.9
        assert 0.1 < (np.abs(results[1]) > 0.8 - 1e-6).mean() < 0.9


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(x, id=name, marks=() if name == "any-mask" else pytest.mark.jax_slow)
        for x, name in zip(SETTINGS, IDS, strict=True)
    ],
)
def test_gradients_equal_the_written_out_ones(settings):
    expected = gradients(score(written_out, settings))
    assert_gradients_close(gradients(score(projected_lstm, settings)), expected)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SETTINGS[0], id="plain", marks=pytest.mark.slow),
        pytest.param(SETTINGS[3], id="mask-clips"),
    ],
)
def test_gradients_under_xla(settings):
    expected = gradients(score(written_out, settings))
    found = gradients(score(projected_lstm, settings), jit_compile=True)
    assert_gradients_close(found, expected)


def test_at_a_bound_itself_the_gradient_passes():
    """Saturated gates carry a clipped cell on: it is at its bound, not beyond."""
    one = {
        "inputs": np.zeros((1, 1, 1)),
        "kernel": np.zeros((2, 4)),
        "bias": np.array([-200.0, 0.0, 200.0, 200.0]),  # keep all, add nothing
        "projection": np.ones((1, 1)),
        "cell": np.array([[0.5]]),
        "hidden": np.zeros((1, 1)),
    }
    one = {name: x.astype("float32") for name, x in one.items()}

    def run(*arguments):  # of all results, so that no argument goes without a gradient
        return sum(ops.sum(x) for x in projected_lstm(*arguments, cell_clip=0.5))

    squashed = np.tanh(0.5)
    expected = 1.0 + 2 * (1 - squashed**2)  # the cell itself; the state and the last hidden
    assert abs(gradients(run, one)["cell"].item() - expected) < 1e-5


@pytest.mark.tensorflow
def test_any_length_in_one_graph():
    import tensorflow as tf

    names = list(ARGUMENTS)[1:]
    rest = [tf.constant(ARGUMENTS[name]) for name in names]

    @tf.function(input_signature=[tf.TensorSpec([None, None, W])])
    def run(inputs):
        with tf.GradientTape() as tape:
            tape.watch([inputs, *rest])
            states, *_ = projected_lstm(inputs, *rest)
            result = tf.reduce_sum(states)
        return states, tape.gradient(result, [inputs, *rest])

    whole, _ = run(ARGUMENTS["inputs"])
    for steps in (1, 4):
        states, found = run(ARGUMENTS["inputs"][:steps])
        assert_close(states, whole[:steps], 1e-6)
        assert found[0].shape == (steps, B, W)
    states, found = run(ARGUMENTS["inputs"][:0])
    assert states.shape == (0, B, P)
    assert not any(map(np.any, found))


def test_a_lower_precision_keeps_the_state_wide():
    inputs, kernel, bias, projection = (
        ops.cast(ARGUMENTS[name], "bfloat16") for name in ("inputs", "kernel", "bias", "projection")
    )
    state = tensors(ARGUMENTS)[4:]
    results = projected_lstm(inputs, kernel, bias, projection, *state, **CLIPS)
    assert {keras.backend.standardize_dtype(x.dtype) for x in results} == {"float32"}
    expected = written_out(*tensors(ARGUMENTS), **CLIPS)
    for actual, other in zip(results, expected, strict=True):
        assert_close(to_numpy(actual), to_numpy(other), 0.1)
