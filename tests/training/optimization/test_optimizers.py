import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from kbert.catalog.recipes import recipe
from kbert.core.late import TABLE
from kbert.training.optimization import optimizers
from kbert.training.optimization.adafactor import Adafactor
from kbert.training.optimization.optimizers import (
    AdamW,
    Lamb,
    Muon,
    StableAdamW,
    decays,
    make_optimizer,
    optimizer_class,
)
from kbert.training.optimization.schedules import WarmupDecay

RATE, DECAY, EPSILON = 0.03, 0.1, 1e-6


def layer() -> keras.layers.Layer:
    """A kernel, a bias and a LayerNorm, all with values that a decay would move."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.LayerNormalization()])
    model.build((None, 4))
    for variable in model.variables:
        variable.assign(np.random.default_rng(1).normal(size=variable.shape))
    return model


def gradients(model, step: int) -> list[np.ndarray]:
    rng = np.random.default_rng([2, step])
    return [rng.normal(size=v.shape).astype("float32") for v in model.trainable_variables]


def adamw_in_numpy(w, g, m, v, decay, n):
    """google-research/bert optimization.py, AdamWeightDecayOptimizer.apply_gradients."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return w - RATE * (m / (np.sqrt(v) + EPSILON) + decay * w), m, v


def corrected_adamw_in_numpy(w, g, m, v, decay, n):
    """facebookresearch/fairseq optim/adam.py, with the betas of RoBERTa: ε is not scaled."""
    m = 0.9 * m + 0.1 * g
    v = 0.98 * v + 0.02 * g * g
    rate = RATE * np.sqrt(1 - 0.98 ** (n + 1)) / (1 - 0.9 ** (n + 1))
    return w - RATE * decay * w - rate * m / (np.sqrt(v) + EPSILON), m, v


def adam_in_numpy(w, g, m, v, decay, n):
    """Kingma and Ba 2015, end of section 2, with the Transformer's values: it decays nothing."""
    m = 0.9 * m + 0.1 * g
    v = 0.98 * v + 0.02 * g * g
    rate = RATE * np.sqrt(1 - 0.98 ** (n + 1)) / (1 - 0.9 ** (n + 1))
    return w - rate * m / (np.sqrt(v) + 1e-9), m, v


def stable_adamw_in_numpy(w, g, m, v, decay, n):
    """Wortsman et al. 2023, algorithm 2, with moments that are corrected."""
    m = 0.9 * m + 0.1 * g
    v = 0.98 * v + 0.02 * g * g
    mean, square = m / (1 - 0.9 ** (n + 1)), v / (1 - 0.98 ** (n + 1))
    rms = np.sqrt(np.mean(g * g / np.maximum(square, EPSILON**2)))
    rate = RATE / max(1.0, rms)
    # ε is not scaled, as in AdamW here.
    scaled = EPSILON / np.sqrt(1 - 0.98 ** (n + 1))
    return w - rate * (mean / (np.sqrt(square) + scaled) + decay * w), m, v


def lamb_in_numpy(w, g, m, v, decay, n):
    """google-research/albert lamb_optimizer.py: neither decay nor ratio for bias and LayerNorm."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    update = m / (np.sqrt(v) + EPSILON) + decay * w
    ratio = np.linalg.norm(w) / np.linalg.norm(update) if decay else 1.0
    return w - RATE * ratio * update, m, v


def corrected_lamb_in_numpy(w, g, m, v, decay, n):
    """LAMB as its paper has it (https://arxiv.org/abs/1904.00962, algorithm 2)."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    correction = np.sqrt(1 - 0.999 ** (n + 1)) / (1 - 0.9 ** (n + 1))
    update = correction * m / (np.sqrt(v) + EPSILON) + decay * w
    ratio = np.linalg.norm(w) / np.linalg.norm(update) if decay else 1.0
    return w - RATE * ratio * update, m, v


def adagrad_in_numpy(w, g, m, v, decay, n):
    """TensorFlow 1's `AdagradOptimizer`, its sums of squares beginning with 1: ELMo's."""
    v = v + g * g
    return w - RATE * g / np.sqrt(1.0 + v), m, v


@pytest.mark.parametrize(
    ("optimizer", "step"),
    [
        (AdamW(RATE, weight_decay=DECAY), adamw_in_numpy),
        (
            AdamW(RATE, weight_decay=DECAY, beta_2=0.98, bias_correction=True),
            corrected_adamw_in_numpy,
        ),
        (
            StableAdamW(RATE, weight_decay=DECAY, beta_2=0.98, bias_correction=True),
            stable_adamw_in_numpy,
        ),
        (make_optimizer("adamw", RATE, recipe("transformer")), adam_in_numpy),
        (Lamb(RATE, weight_decay=DECAY), lamb_in_numpy),
        (Lamb(RATE, weight_decay=DECAY, bias_correction=True), corrected_lamb_in_numpy),
        (make_optimizer("adagrad", RATE, recipe("elmo")), adagrad_in_numpy),
    ],
    ids=[
        "adamw",
        "corrected_adamw",
        "stable_adamw",
        "transformer",
        "lamb",
        "corrected_lamb",
        "adagrad",
    ],
)
def test_steps_equal_numpy(optimizer, step):
    model = layer()
    expected = [
        (ops.convert_to_numpy(v.value).astype("float64"), 0.0, 0.0)
        for v in model.trainable_variables
    ]
    roles = [DECAY if v.name == "kernel" else 0.0 for v in model.trainable_variables]
    for n in range(5):
        current = gradients(model, n)
        optimizer.apply([ops.convert_to_tensor(g) for g in current], model.trainable_variables)
        expected = [
            step(w, g, m, v, decay, n)
            for (w, m, v), g, decay in zip(expected, current, roles, strict=True)
        ]
    for variable, (w, _, _) in zip(model.trainable_variables, expected, strict=True):
        # TensorFlow's kernel takes 1 - 0.999 in float32, 1.3e-5 off: 1e-5 of an update of 0.15.
        assert ops.convert_to_numpy(variable.value) == pytest.approx(w, abs=1e-5)


def muon_in_numpy(w, g, m, v, decay, n):
    """Keller Jordan's `muon.py`, with the length of step of arXiv 2502.16982, equation 4."""
    m = 0.95 * m + g
    x = g + 0.95 * m
    wide = x if x.shape[0] <= x.shape[1] else x.T
    wide = wide / np.linalg.norm(wide)
    for _ in range(5):
        gram = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * gram + 2.0315 * gram @ gram) @ wide
    x = wide if x.shape[0] <= x.shape[1] else wide.T
    return w * (1 - RATE * decay) - RATE * 0.2 * np.sqrt(max(x.shape)) * x, m, v


def test_muon_takes_the_matrices_of_layers_and_adam_the_rest():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Embedding(5, 4, name="embeddings"),
            keras.layers.Dense(6, name="layers_0"),
            keras.layers.Dense(2, name="layers_1"),
            keras.layers.LayerNormalization(name="norm"),
            keras.layers.Dense(3, name="pooler"),
        ]
    )
    model.build((None, 7))
    settings = dataclasses.replace(recipe("bert"), weight_decay=DECAY, beta_2=0.98)
    optimizer = make_optimizer("muon", RATE, settings)
    weights = model.trainable_variables
    expected = [(ops.convert_to_numpy(v.value).astype("float64"), 0.0, 0.0) for v in weights]
    matrices = [v.path.split("/")[-2:] for v in weights]
    matrices = [layer.startswith("layers") and name == "kernel" for layer, name in matrices]
    assert matrices.count(True) == 2
    for n in range(4):
        current = gradients(model, n)
        optimizer.apply([ops.convert_to_tensor(g) for g in current], weights)
        for i, (variable, is_matrix) in enumerate(zip(weights, matrices, strict=True)):
            step = muon_in_numpy if is_matrix else corrected_adamw_in_numpy
            decay = DECAY if decays(variable) else 0.0
            expected[i] = step(*expected[i][:1], current[i], *expected[i][1:], decay, n)
    for variable, (w, _, _) in zip(weights, expected, strict=True):
        assert ops.convert_to_numpy(variable.value) == pytest.approx(w, abs=1e-4)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is Muon
    assert again.get_config() == optimizer.get_config()


@pytest.mark.parametrize("kind", [AdamW, StableAdamW, Lamb, Adafactor])
def test_a_scaled_rate_is_another_rate(kind):
    """What is scaled moves and decays as under that rate, the rest as ever."""

    def trained(rate, scale=None):
        model = layer()
        scales = {model.weights[0].path: scale} if scale else None
        optimizer = kind(rate, weight_decay=DECAY, rate_scales=scales)
        optimizer.apply([ops.convert_to_tensor(g) for g in gradients(model, 0)], model.weights)
        return [ops.convert_to_numpy(v.value) for v in model.weights]

    full, half, mixed = trained(RATE), trained(RATE / 2), trained(RATE, scale=0.5)
    np.testing.assert_allclose(mixed[0], half[0], rtol=1e-6)
    assert abs(half[0] - full[0]).max() > 1e-3
    for expected, found in zip(full[1:], mixed[1:], strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("bias_correction", "kind"),
    [
        (False, AdamW),
        (True, StableAdamW),
        pytest.param(False, StableAdamW, marks=pytest.mark.slow),
        pytest.param(True, AdamW, marks=pytest.mark.slow),
    ],
)
def test_one_function_for_all_weights_updates_as_the_kernels_do(monkeypatch, kind, bias_correction):
    """Decay by role, scaled rates, clipped gradients; and where some weights are frozen."""

    def trained(fused):
        monkeypatch.setattr(optimizers, "MIN_FUSED", 1 if fused else 10**9)
        model = layer()
        optimizer = kind(
            RATE,
            weight_decay=DECAY,
            bias_correction=bias_correction,
            rate_scales={model.weights[0].path: 0.5},
        )
        optimizer.build(model.trainable_variables)
        for n in range(4):
            chosen = slice(None) if n < 3 else slice(1)
            optimizer.apply(
                [ops.convert_to_tensor(g) for g in gradients(model, n)[chosen]],
                model.trainable_variables[chosen],
                scale=None if n == 1 else ops.convert_to_tensor(0.25),
            )
        return [ops.convert_to_numpy(v.value) for v in (*model.weights, *optimizer.variables)]

    plain, fast = trained(False), trained(True)
    for ours, theirs in zip(fast, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("bias_correction", [False, True])
def test_small_weights_in_one_vector_are_updated_bit_for_bit_as_alone(monkeypatch, bias_correction):
    """Several groups by decay and rate, weights of two axes, averages; the large table is alone."""
    rng = np.random.default_rng(5)
    shapes = {"table": (40, 30), "kernel": (6, 7), "qkv/bias": (3, 5), "gamma": (7,), "beta": (11,)}
    start = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    steps = [
        [rng.normal(size=shape).astype("float32") for shape in shapes.values()] for _ in range(3)
    ]

    def trained(joined):
        monkeypatch.setattr(optimizers, "MIN_FUSED", 1)
        monkeypatch.setattr(optimizers, "MAX_JOINED", joined)
        variables = [keras.Variable(x, name=name.split("/")[-1]) for name, x in start.items()]
        optimizer = AdamW(
            RATE,
            weight_decay=DECAY,
            bias_correction=bias_correction,
            rate_scales={variables[4].path: 0.5},
            ema=0.9,
        )
        optimizer.build(variables)
        for step in steps:
            optimizer.apply(
                [ops.convert_to_tensor(g) for g in step],
                variables,
                scale=ops.convert_to_tensor(0.25),
            )
        indices = range(len(variables))
        _, groups = optimizer._groups(variables, indices)
        return groups, [ops.convert_to_numpy(x) for x in (*variables, *optimizer.variables)]

    none, alone = trained(joined=0)
    groups, joined = trained(joined=1000)
    assert none == []
    assert groups == [[1], [2, 3], [4]]
    for ours, theirs in zip(joined, alone, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_scale_of_no_weight_is_refused():
    optimizer = AdamW(RATE, rate_scales={"dense/kernell": 0.5})
    with pytest.raises(ValueError, match=r"must name weights that are trained.*: dense/kernell"):
        optimizer.build(layer().trainable_variables)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", [AdamW, Lamb, Adafactor])
def test_gradients_that_are_no_sums_are_summed(mirrored, kind):
    """Outside `TrainStep` the optimizer does what Keras' own do."""
    import tensorflow as tf

    with mirrored.scope():
        variable = keras.Variable(np.ones((2, 2), "float32"))
        optimizer = kind(RATE, weight_decay=0.0)
        optimizer.build([variable])

    def step():
        share = tf.distribute.get_replica_context().replica_id_in_sync_group
        optimizer.apply([tf.fill((2, 2), tf.cast(1 + 2 * share, tf.float32))])  # 1 and 3

    tf.function(mirrored.run)(step)
    alone = keras.Variable(np.ones((2, 2), "float32"))
    kind(RATE, weight_decay=0.0).apply([np.full((2, 2), 4.0, "float32")], [alone])
    assert variable.numpy() == pytest.approx(alone.numpy(), rel=1e-6)


@pytest.mark.parametrize("name", TABLE["optimizer"])
def test_an_optimizer_takes_the_settings_that_it_has(name):
    settings = dataclasses.replace(
        recipe("elmo"), epsilon=1e-8, weight_decay=0.5, initial_accumulator_value=0.25
    )
    made = make_optimizer(name, RATE, settings)
    assert isinstance(made, optimizer_class(name))
    if name == "adagrad":
        assert made.initial_accumulator_value == 0.25
    elif name == "muon":
        assert (made.weight_decay, made.epsilon, made.adam_beta_1) == (0.5, 1e-8, 0.9)
    elif name == "adafactor":
        assert (made.decay, made.epsilon_1, made.scale_parameter) == (0.5, 1e-30, True)
    else:
        assert (made.decay, made.epsilon, made.beta_1) == (0.5, 1e-8, 0.9)


def test_who_decays():
    kernel, bias, gamma, beta = (v.path.split("/")[-1] for v in layer().variables)
    assert [kernel, bias, gamma, beta] == ["kernel", "bias", "gamma", "beta"]
    assert [decays(v) for v in layer().variables] == [True, False, False, False]
    attention = keras.layers.MultiHeadAttention(2, 4)
    attention.build((None, 3, 4), (None, 3, 4))
    # A bias of two axes is still a bias.
    assert {v.name: decays(v) for v in attention.variables} == {"kernel": True, "bias": False}


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_config_round_trip(kind):
    schedule = WarmupDecay(0.1, 10, 2, "cosine")
    settings = {"weight_decay": 0.2, "bias_correction": True, "rate_scales": {"a/kernel": 0.5}}
    optimizer = kind(schedule, **settings)
    config = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(config)
    assert type(again) is kind
    assert again.get_config() == optimizer.get_config()
    found = {"weight_decay": again.decay, "bias_correction": again.bias_correction}
    assert {**found, "rate_scales": again.rate_scales} == settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_decay": -1}, "`weight_decay` must not be negative. Received: -1"),
        ({"beta_1": 1.0}, "`beta_1` must be at least 0 and less than 1. Received: 1.0"),
        ({"beta_2": -0.1}, "`beta_2` must be at least 0 and less than 1. Received: -0.1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AdamW(**settings)
