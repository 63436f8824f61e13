"""Pictures of position tables."""

import numpy as np
import pytest

import kbert
from kbert.layers.positions import LearnedPositions, SinusoidalPositions, sinusoids
from kbert.models.generators.decoder import Decoder
from kbert.models.generators.seq2seq import Seq2Seq
from kbert.visualization import positions
from tests.harness import tiny_config

SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 4, "intermediate_size": 32}


def table_of(figure):
    return np.asarray(figure.axes[0].images[0].get_array())


def test_the_table_and_the_cosines_of_its_rows(drawn):
    table = np.random.default_rng(0).normal(size=(5, 3))
    figure = positions(table, title="Five positions")
    np.testing.assert_allclose(table_of(figure), table)
    cosines = np.asarray(figure.axes[1].images[0].get_array())
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines, unit @ unit.T)
    low, high = figure.axes[0].images[0].get_clim()
    assert low == -high  # white is 0
    assert {"Five positions", "position", "dimension", "cosine"} <= set(drawn(figure))


def test_cosines_of_sines_depend_on_the_distance_alone():
    cosines = np.asarray(positions(sinusoids(40, 32)).axes[1].images[0].get_array())
    for distance in (1, 7, 20):
        np.testing.assert_allclose(np.ptp(np.diag(cosines, distance)), 0, atol=1e-5)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_whose_table_it_is(kind):
    config = kbert.Seq2SeqConfig(vocabulary_size=9, max_positions=7, positions=kind, **SIZES)
    model = Seq2Seq(config)
    expected = sinusoids(7, 16)
    if kind == "learned":
        expected = np.asarray(model.encoder_positions.position)
        decoders = positions(model.decoder_positions)
        np.testing.assert_array_equal(table_of(decoders), model.decoder_positions.position)
    np.testing.assert_allclose(table_of(positions(model)), expected)


def test_tables_of_encoders_decoders_tasks_and_layers(tiny_vocabulary):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    encoder = kbert.Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size))
    expected = np.asarray(encoder.embeddings.position)
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
    for owner in (encoder, task, encoder.embeddings):
        np.testing.assert_array_equal(table_of(positions(owner)), expected)
    decoder = Decoder(kbert.DecoderConfig(vocabulary_size=9, max_positions=5, **SIZES))
    np.testing.assert_array_equal(table_of(positions(decoder)), decoder.positions.position)
    np.testing.assert_array_equal(table_of(positions(encoder.embeddings.position)), expected)
    learned = LearnedPositions(4, 6)
    learned.build()
    assert table_of(positions(learned)).shape == (4, 6)
    assert table_of(positions(SinusoidalPositions(4, 6))).shape == (4, 6)


def test_the_first_positions_alone():
    assert table_of(positions(sinusoids(40, 8), 12)).shape == (12, 8)


@pytest.mark.parametrize("count", [0, -1, 41])
def test_more_positions_than_there_are(count):
    with pytest.raises(ValueError, match=f"from 1 to the table's 40 .* Received: {count}"):
        positions(sinusoids(40, 8), count)


@pytest.mark.parametrize("table", [np.ones(3), np.ones((0, 3)), np.full((2, 2), np.nan)])
def test_what_is_no_table(table):
    with pytest.raises(ValueError, match=r"must be a matrix .* of finite numbers"):
        positions(table)


def test_what_has_no_table():
    encoder = kbert.Encoder(tiny_config())
    with pytest.raises(TypeError, match=r"that has one. Received: a Block"):
        positions(encoder.blocks[0])
    rotary = tiny_config(positions="rotary", num_segments=0, num_layers=1)
    with pytest.raises(TypeError, match=r"that has one. Received: a \w*Embeddings"):
        positions(kbert.Encoder(rotary))


def test_512_columns_of_sines_then_cosines():
    """The picture of tensor2tensor: the left half has the sines, the right half the cosines."""
    table = table_of(positions(sinusoids(50, 512, halves=True)))
    assert table.shape == (50, 512)
    np.testing.assert_allclose(table[0], np.repeat([0, 1], 256), atol=1e-7)
    angles = np.arange(50)[:, None] / 10_000 ** (np.arange(256) / 256)
    np.testing.assert_allclose(
        table, np.concatenate([np.sin(angles), np.cos(angles)], 1), atol=1e-5
    )
