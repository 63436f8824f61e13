"""Adafactor against transformers' on random gradients, and what Keras' own does otherwise."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.training.optimization.adafactor import Adafactor
from kbert.training.optimization.schedules import WarmupDecay

SHAPES = {"kernel": (4, 6), "table": (5, 3), "heads": (2, 3, 4), "bias": (6,)}


def weights() -> list[keras.Variable]:
    """Weights of several sizes, some of them zero."""
    rng = np.random.default_rng(0)
    found = {name: rng.normal(0, 0.15, shape) for name, shape in SHAPES.items()}
    found["bias"] *= 0
    return [keras.Variable(value.astype("float32"), name=name) for name, value in found.items()]


def gradients(step: int) -> list[np.ndarray]:
    """Gradients whose size changes with the step, so that some updates are clipped."""
    rng = np.random.default_rng([1, step])
    return [rng.normal(0, 10.0 ** (step % 4), s).astype("float32") for s in SHAPES.values()]


def trained(optimizer, steps=range(20), variables=None, scale=None) -> list[np.ndarray]:
    variables = weights() if variables is None else variables
    for step in steps:
        grads = [ops.convert_to_tensor(g) for g in gradients(step)]
        optimizer.apply(grads, variables, **({} if scale is None else {"scale": scale}))
    return [ops.convert_to_numpy(v.value) for v in variables]


@pytest.mark.parametrize(
    ("scale_parameter", "relative_step", "decay"),
    [
        (True, True, 0.0),
        pytest.param(True, False, 0.1, marks=pytest.mark.slow),
        pytest.param(False, True, 0.0, marks=pytest.mark.slow),
        (False, False, 0.1),
    ],
)
def test_twenty_steps_equal_transformers(scale_parameter, relative_step, decay):
    torch = pytest.importorskip("torch")
    optimization = pytest.importorskip("transformers.optimization")
    start = [ops.convert_to_numpy(v.value) for v in weights()]
    theirs = [torch.nn.Parameter(torch.tensor(w.copy())) for w in start]
    groups = [  # they decay every weight
        {"params": [w], "weight_decay": decay if name != "bias" else 0.0}
        for name, w in zip(SHAPES, theirs, strict=True)
    ]
    rate = None if relative_step else 0.05
    reference = optimization.Adafactor(
        groups, lr=rate, scale_parameter=scale_parameter, relative_step=relative_step
    )
    for step in range(20):
        for weight, gradient in zip(theirs, gradients(step), strict=True):
            weight.grad = torch.tensor(gradient)
        reference.step()
    # Their relative step is T5's schedule.
    schedule = WarmupDecay(0.01, 100_000, 10_000, "inverse_sqrt", join="constant")
    optimizer = Adafactor(rate or schedule, weight_decay=decay, scale_parameter=scale_parameter)
    for mine, before, other in zip(trained(optimizer), start, theirs, strict=True):
        np.testing.assert_allclose(mine, other.detach().numpy(), atol=1e-5)
        assert abs(mine - before).max() > 1e-4


def test_the_state_of_a_matrix_is_a_row_and_a_column():
    """The reason for the algorithm: Keras' own also keeps a matrix for each matrix."""

    def count(optimizer):
        optimizer.build(weights())
        state = (v for v in optimizer.variables if v.name not in ("iteration", "learning_rate"))
        return sum(int(np.prod(v.shape)) for v in state)

    matrices = 4 * 6 + 5 * 3 + 2 * 3 * 4
    mine = (4 + 6) + (5 + 3) + 2 * (3 + 4) + 6
    assert count(Adafactor(0.1)) == mine
    assert count(keras.optimizers.Adafactor(0.1)) >= mine + matrices


def test_the_rate_is_that_of_the_schedule():
    """Keras' own takes the smaller of the rate and 1 / sqrt(t), also without `relative_step`."""
    variable = keras.Variable(np.ones((2, 2), "float32"))
    optimizer = Adafactor(1.0, scale_parameter=False)
    gradient = ops.ones((2, 2))
    for _ in range(9):
        optimizer.apply([gradient], [variable])
    assert ops.convert_to_numpy(variable.value) == pytest.approx(1 - 9.0, rel=1e-5)
    theirs = keras.Variable(np.ones((2, 2), "float32"))
    other = keras.optimizers.Adafactor(1.0, relative_step=False)
    for _ in range(9):
        other.apply([gradient], [theirs])
    assert abs(ops.convert_to_numpy(theirs.value) + 8).max() > 1


def test_a_scale_multiplies_all_gradients():
    """Only the first update does not depend on it: no second moments are there yet."""
    optimizer, variables = Adafactor(0.1), weights()
    trained(optimizer, range(2), variables)
    scaled, other = Adafactor(0.1), weights()
    trained(scaled, range(1), other)
    trained(scaled, range(1, 2), other, scale=ops.convert_to_tensor(0.01))
    assert abs(ops.convert_to_numpy(variables[0].value - other[0].value)).max() > 1e-3


def test_state_resumes_exactly():
    whole = trained(Adafactor(0.1, ema=0.9))
    first, variables = Adafactor(0.1, ema=0.9), weights()
    trained(first, range(7), variables)
    second, again = Adafactor(0.1, ema=0.9), weights()
    second.build(again)
    for mine, theirs in zip(
        (*again, *second.variables), (*variables, *first.variables), strict=True
    ):
        mine.assign(theirs.value)
    for mine, theirs in zip(trained(second, range(7, 20), again), whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_mixed_bfloat16_layer_has_float32_moments():
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(3, dtype="mixed_bfloat16")
    layer.build((None, 4))
    optimizer = Adafactor(0.1)
    optimizer.build(layer.trainable_variables)
    before = ops.convert_to_numpy(layer.kernel)
    optimizer.apply([ops.ones((4, 3), "bfloat16"), ops.ones((3,), "bfloat16")])
    assert {v.dtype for v in optimizer.variables[2:]} == {"float32"}
    step = before - ops.convert_to_numpy(layer.kernel)
    assert step == pytest.approx(0.1 * np.sqrt(np.mean(before**2)), rel=1e-3)


def test_config_round_trip():
    optimizer = Adafactor(WarmupDecay(0.1, 10, 2), weight_decay=0.2, rate_scales={"a": 0.5})
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is Adafactor
    assert again.get_config() == optimizer.get_config()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_decay": -1}, "`weight_decay` must not be negative. Received: -1"),
        ({"clip_threshold": 0}, "`clip_threshold` must be above 0. Received: 0"),
        ({"beta_2_decay": -0.8}, "`beta_2_decay` must be above 0. Received: -0.8"),
    ],
    ids=["decay", "threshold", "exponent"],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Adafactor(**settings)
