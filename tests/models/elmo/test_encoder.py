"""The encoder that tasks see of ELMo: what is trained, what is frozen, what it gives."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.layers import MeanMaxPooling, ScalarMix
from kbert.models import ElmoEncoder
from tests.harness import assert_close, randomise, to_numpy

pytestmark = pytest.mark.jax_slow  # an Elmo and a mix: each has tests of its own

CONFIG = kbert.ElmoConfig(
    character_size=4,
    filters=((1, 8), (2, 8)),
    num_highway=1,
    max_characters=10,
    lstm_size=16,
    projection_size=6,
    num_layers=2,
    dropout=0.5,
)


@pytest.fixture
def encoder():
    elmo = kbert.Elmo(CONFIG)
    randomise(elmo, 0.5)
    return ElmoEncoder(elmo)


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    mask = np.array([[1] * 5, [1] * 3 + [0] * 2, [1, 0, 0, 0, 0]], "int32")
    return {
        "token_ids": rng.integers(1, 262, (3, 5, 10)).astype("int32") * mask[:, :, None],
        "padding_mask": mask,
    }


def test_it_gives_the_mix_of_the_layers_and_its_mean_and_maximum(encoder, inputs):
    encoder.mix.scalars.assign([0.3, -1.0, 2.0])
    encoder.mix.gamma.assign(1.5)
    out = to_numpy(encoder(inputs, return_hidden_states=True))
    given = {"character_ids": inputs["token_ids"], "padding_mask": inputs["padding_mask"]}
    layers = to_numpy(encoder.elmo(given)["layers"])
    assert_close(np.stack(out["hidden_states"]), np.stack(layers), 1e-6)
    weights = np.exp([0.3, -1.0, 2.0]) / np.exp([0.3, -1.0, 2.0]).sum()
    mixed = 1.5 * np.einsum("s,sbth->bth", weights, np.stack(layers))
    assert_close(out["sequence"], mixed, 1e-5)
    rows = [row[: mask.sum()] for row, mask in zip(mixed, inputs["padding_mask"], strict=True)]
    pooled = [np.concatenate([row.mean(0), row.max(0)]) for row in rows]
    assert_close(out["pooled"], pooled, 1e-5)
    assert encoder.pooler.units == out["pooled"].shape[1]


def test_a_row_without_words_is_pooled_to_zeros():
    pooled = MeanMaxPooling(4)(ops.ones((1, 3, 4)), ops.zeros((1, 3), "int32"))
    assert_close(to_numpy(pooled), np.zeros((1, 8)), 0)


def test_the_bilm_is_frozen_and_has_no_dropout_until_it_is_asked_for(encoder, inputs):
    def trained():
        return {weight.path for weight in encoder.trainable_weights}

    def differs():
        first, second = (to_numpy(encoder(inputs, training=True)["sequence"]) for _ in range(2))
        return np.abs(first - second).max() > 0

    assert trained() == {"encoder/mix/weights", "encoder/mix/gamma"}
    assert not differs()
    encoder.elmo.trainable = True
    assert trained() == {weight.path for weight in encoder.weights}
    assert differs()


def test_bfloat16(inputs):
    encoder = ElmoEncoder(kbert.Elmo(CONFIG, dtype="mixed_bfloat16"))
    out = encoder(inputs)
    assert {keras.backend.standardize_dtype(x.dtype) for x in out.values()} == {"bfloat16"}
    assert np.isfinite(to_numpy(out["pooled"])).all()


def test_an_elmo_with_a_mix_of_its_own_is_refused():
    with pytest.raises(ValueError, match=r"trains its own layer mix.*Received: an Elmo with mix="):
        ElmoEncoder(kbert.Elmo(CONFIG, mix=ScalarMix()))
