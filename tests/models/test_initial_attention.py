"""Initial weights with which heads attend to neighbouring tokens."""

import types

import numpy as np
import pytest

import kbert
from kbert.models import attend_to_neighbours

CONFIG = kbert.EncoderConfig(
    vocabulary_size=300,
    hidden_size=128,
    num_layers=3,
    num_heads=4,
    intermediate_size=256,
    max_positions=96,
    padding_id=None,
)


def probabilities(encoder):
    """Attention of each layer for 64 random tokens, (B, N, T, T)."""
    tokens = np.random.default_rng(0).integers(1, 300, (4, 64))
    out = encoder({"token_ids": tokens}, return_attention=True)
    return [np.asarray(layer) for layer in out["attention"]]


@pytest.mark.parametrize(
    "changes", [{}, {"block": "pre_norm"}, {"padding_id": 0}, {"num_heads": 2}], ids=str
)
def test_heads_attend_to_tokens_at_their_distance(changes):
    encoder = kbert.Encoder(CONFIG.replace(**changes))
    before = encoder.count_params()
    attend_to_neighbours(encoder)
    assert encoder.count_params() == before
    first, second, _ = probabilities(encoder)
    assert first.shape[1] == encoder.config.num_heads
    inside = np.arange(3, 61)
    for found, distances, least in ((first, (-1, 1, -2, 2), 0.4), (second, (-2, 2, -3, 3), 0.3)):
        for head, distance in zip(range(found.shape[1]), distances, strict=False):
            assert (found[:, head].argmax(-1)[:, inside] == inside + distance).mean() > 0.97
            assert found[:, head, inside, inside + distance].mean() > least


def test_the_third_layer_attends_to_no_place_more_than_to_others():
    encoder = kbert.Encoder(CONFIG)
    attend_to_neighbours(encoder)
    assert probabilities(encoder)[2].max() < 0.1


def test_values_and_outputs_are_scaled_by_the_width():
    encoder = kbert.Encoder(CONFIG)
    wide = kbert.Encoder(CONFIG.replace(initializer_range=0.2))
    before = [np.asarray(block.attention.output_dense.kernel) for block in wide.blocks]
    for model in (encoder, wide):
        attend_to_neighbours(model)
    for block, other, kernel in zip(encoder.blocks, wide.blocks, before, strict=True):
        values = np.asarray(block.attention.qkv.kernel)[:, 2 * 128 :]
        outputs = np.asarray(block.attention.output_dense.kernel)
        assert values.std() == pytest.approx(0.68 / 128**0.5, rel=1e-3)
        assert outputs.std() == pytest.approx(0.68 / 128**0.5, rel=1e-3)
        np.testing.assert_array_equal(other.attention.output_dense.kernel, kernel)


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"positions": "rotary"}, "positions='rotary'"),
        ({"embedding_size": 64}, "embedding_size=64"),
        ({"num_heads": 128}, "num_heads=128"),
        ({"embedding_norm": False}, "embedding_norm=False"),
        ({"num_key_value_heads": 2}, "num_key_value_heads=2"),
        ({"positions": "alibi", "embedding_size": 64}, "positions='alibi', embedding_size=64"),
    ],
    ids=str,
)
def test_other_encoders_are_refused_unchanged(changes, received):
    encoder = kbert.Encoder(CONFIG.replace(**changes))
    before = [np.asarray(weight) for weight in encoder.weights]
    with pytest.raises(ValueError, match=f"Received: {received}$"):
        attend_to_neighbours(encoder)
    for weight, value in zip(encoder.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)


def test_embeddings_of_a_generator_are_refused():
    """As of ELECTRA's discriminator, which learns differences to them."""
    embeddings = types.SimpleNamespace(base_tables=lambda: {"token": None})
    encoder = types.SimpleNamespace(config=CONFIG, embeddings=embeddings)
    with pytest.raises(ValueError, match="Received: one whose embeddings are differences"):
        attend_to_neighbours(encoder)


@pytest.mark.parametrize(
    ("config", "received"),
    [(kbert.family("xlnet-base-cased"), "XlnetConfig"), (kbert.ElmoConfig(), "ElmoConfig")],
    ids=["xlnet", "elmo"],
)
def test_another_kind_of_encoder_is_refused(config, received):
    encoder = types.SimpleNamespace(config=config)  # refused before anything else is read
    with pytest.raises(ValueError, match=f"Received: {received}"):
        attend_to_neighbours(encoder)
