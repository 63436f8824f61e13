import keras
import numpy as np
import pytest
from keras import ops

from kbert.training.optimizers import AdamW, Lamb, decays
from kbert.training.schedules import WarmupDecay

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


def adamw_in_numpy(w, g, m, v, decay):
    """google-research/bert optimization.py, AdamWeightDecayOptimizer.apply_gradients."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return w - RATE * (m / (np.sqrt(v) + EPSILON) + decay * w), m, v


def lamb_in_numpy(w, g, m, v, decay):
    """google-research/albert lamb_optimizer.py: neither decay nor ratio for bias and LayerNorm."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    update = m / (np.sqrt(v) + EPSILON) + decay * w
    ratio = np.linalg.norm(w) / np.linalg.norm(update) if decay else 1.0
    return w - RATE * ratio * update, m, v


@pytest.mark.parametrize("kind, step", [(AdamW, adamw_in_numpy), (Lamb, lamb_in_numpy)])
def test_steps_equal_numpy(kind, step):
    model = layer()
    optimizer = kind(RATE, weight_decay=DECAY)
    expected = [
        (ops.convert_to_numpy(v.value).astype("float64"), 0.0, 0.0)
        for v in model.trainable_variables
    ]
    roles = [DECAY if v.name == "kernel" else 0.0 for v in model.trainable_variables]
    for n in range(5):
        current = gradients(model, n)
        optimizer.apply([ops.convert_to_tensor(g) for g in current], model.trainable_variables)
        expected = [
            step(w, g, m, v, decay)
            for (w, m, v), g, decay in zip(expected, current, roles, strict=True)
        ]
    for variable, (w, _, _) in zip(model.trainable_variables, expected, strict=True):
        # TensorFlow's kernel takes 1 - 0.999 in float32, 1.3e-5 off: 1e-5 of an update of 0.15.
        assert ops.convert_to_numpy(variable.value) == pytest.approx(w, abs=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", [AdamW, Lamb])
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
    optimizer = kind(WarmupDecay(0.1, 10, 2, "cosine"), weight_decay=0.2, beta_2=0.98)
    config = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(config)
    assert type(again) is kind
    assert again.get_config() == optimizer.get_config()
    assert (again.decay, again.beta_2) == (0.2, 0.98)


def test_a_negative_decay_is_refused():
    with pytest.raises(ValueError, match="`weight_decay` must not be negative. Received: -1"):
        AdamW(weight_decay=-1)
