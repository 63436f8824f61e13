"""Folders of model2vec and of sentence-transformers' StaticEmbedding: read, written, refused."""

import functools
import json

import keras
import numpy as np
import pytest

import kbert
from kbert.configs import StaticConfig
from kbert.io.arrays import read_safetensors, write_safetensors
from kbert.tasks import TextEmbedder

pytestmark = pytest.mark.usefixtures("eagerly")
PIECES = ["[PAD]", "[UNK]", "a", "fox", "##es", "dog", "é", "中"]
TEXTS = ["a fox", "Foxes 中中 dog", "a ☃ dog", "É", "", "[MASK] a"]
IDS = [[2, 3], [3, 4, 7, 7, 5], [2, 1, 5], [1], [], [1, 1, 1, 2]]
TABLE = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")


def tokenizer_file(folder, pieces=PIECES):
    """As model2vec writes it: two special tokens, and nothing around texts."""
    tokenizer = kbert.WordPieceTokenizer([*pieces, "[CLS]", "[SEP]", "[MASK]"])
    content = json.loads(tokenizer.tokenizer_json())
    content["model"]["vocab"] = {piece: i for i, piece in enumerate(pieces)}
    content["padding"] = {"strategy": {"Fixed": 0}, "pad_id": 0, "pad_token": "[PAD]"}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def model2vec(folder, arrays=None, modules=True, **config):
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", arrays or {"embeddings": TABLE})
    content = {"model_type": "model2vec", "hidden_dim": 5, "normalize": True, **config}
    (folder / "config.json").write_text(json.dumps(content))
    tokenizer_file(folder)
    if modules:
        listed = [{"path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
        (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def means(ids, table=TABLE):
    return np.stack([table[row].mean(0) if row else np.zeros(table.shape[1]) for row in ids])


def known(ids):
    return [[x for x in row if x != 1] for row in ids]


@pytest.mark.parametrize("modules", [True, False])
def test_model2vec_leaves_unknown_tokens_out(tmp_path, modules):
    task = TextEmbedder.from_preset(model2vec(tmp_path, modules=modules, normalize=False))
    np.testing.assert_allclose(task.predict(TEXTS), means(known(IDS)), atol=1e-6)
    assert task.row_length == 512
    task = TextEmbedder.from_preset(model2vec(tmp_path, max_length=7))
    assert task.row_length == 7
    lengths = np.linalg.norm(task.predict(TEXTS), axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 1, 0, 0, 1], atol=1e-6)


def test_weights_and_a_mapping_are_folded_in(tmp_path):
    mapping = np.array([0, 0, 1, 2, 1, 2, 0, 1])
    weights = np.linspace(0.5, 2, 8)
    arrays = {"embeddings": TABLE[:3], "mapping": mapping, "weights": weights}
    task = TextEmbedder.from_preset(model2vec(tmp_path, arrays, normalize=False))
    table = TABLE[mapping] * weights[:, None]
    np.testing.assert_allclose(task.predict(TEXTS), means(known(IDS), table), atol=1e-6)


@pytest.mark.parametrize(
    ("normalize", "place"),
    [
        (True, ""),
        pytest.param(True, "0_StaticEmbedding", marks=pytest.mark.slow),
        pytest.param(False, "", marks=pytest.mark.slow),
        (False, "0_StaticEmbedding"),
    ],
)
def test_sentence_transformers_counts_unknown_tokens(tmp_path, place, normalize):
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", {"embedding.weight": TABLE})
    tokenizer_file(folder)
    kinds = [(place, "StaticEmbedding"), *([("1_Normalize", "Normalize")] if normalize else [])]
    listed = [{"path": path, "type": f"sentence_transformers.models.{x}"} for path, x in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    prompts = {"prompts": {"query": "a "}, "default_prompt_name": None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    task = TextEmbedder.from_preset(tmp_path)
    assert (task.normalize, task.query_prompt) == (normalize, "a ")
    wanted = means(IDS)
    if normalize:
        wanted /= np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(task.predict(TEXTS), wanted, atol=1e-6)


def test_sentence_transformers_has_no_longest_row(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", {"embedding.weight": TABLE})
    tokenizer_file(tmp_path)
    listed = [{"path": "", "type": "sentence_transformers.models.StaticEmbedding"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 4}')
    for lengths in (None, "{}", '{"max_seq_length": 3}'):
        if lengths is not None:
            (tmp_path / "sentence_bert_config.json").write_text(lengths)
        task = TextEmbedder.from_preset(tmp_path)
        assert task.max_length is None
        wanted = means([[2] * 9])
        np.testing.assert_allclose(task.predict(["a " * 9]), wanted, atol=1e-6)
        ends = task.predict(["a " * 9 + "dog"])  # the last token counts
        np.testing.assert_allclose(ends, means([[2] * 9 + [5]]), atol=1e-6)


@functools.cache
def one_tokenizer():
    return kbert.WordPieceTokenizer([*PIECES, "[CLS]", "[SEP]", "[MASK]"])


def make(**settings):
    keras.utils.set_random_seed(2)
    config = StaticConfig(vocabulary_size=11, hidden_size=5, uncounted_ids=(1,), max_positions=20)
    encoder = kbert.Encoder(config)
    encoder.token_embedding.assign(
        np.concatenate([TABLE, np.zeros((3, 5))]) * (np.arange(11) != 1)[:, None]
    )
    return TextEmbedder(encoder, one_tokenizer(), **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"normalize": False, "document_prompt": "a ", "max_length": 6}]
)
def test_what_is_written_is_read(tmp_path, settings):
    task = make(**settings)
    task.save_to_preset(tmp_path, "huggingface")
    again = TextEmbedder.from_preset(tmp_path)
    assert (again.normalize, again.document_prompt) == (task.normalize, task.document_prompt)
    assert again.row_length == task.row_length
    np.testing.assert_allclose(again.predict(TEXTS), task.predict(TEXTS), atol=1e-6)
    kinds = [
        x["type"].rpartition(".")[2] for x in json.loads((tmp_path / "modules.json").read_text())
    ]
    assert kinds == ["StaticEmbedding", *(["Normalize"] if task.normalize else [])]
    assert [*read_safetensors(tmp_path / "model.safetensors")] == ["embeddings"]


@pytest.mark.slow
def test_sentence_transformers_reads_what_is_written(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    task = make()
    task.save_to_preset(tmp_path, "huggingface")
    model = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    # Of [UNK] alone the mean there is a vector of zeros too.
    np.testing.assert_allclose(model.encode(TEXTS), task.predict(TEXTS), atol=1e-6)
    model.save(str(tmp_path / "again"))
    again = TextEmbedder.from_preset(tmp_path / "again")
    np.testing.assert_allclose(again.predict(TEXTS), task.predict(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"embeddings": TABLE[:, 0]}, r"contain `embeddings` \(R, D\).*: embeddings \(8,\)"),
        ({"vectors": TABLE}, r"Received: vectors \(8, 5\) in .*model.safetensors"),
        ({"embeddings": TABLE[:5]}, r"a row for each of the 11 tokens. Received: 5 rows"),
        ({"embeddings": TABLE, "weights": np.ones(3)}, r"a number for each of 8.*shape \(3,\)"),
        ({"embeddings": TABLE, "mapping": np.arange(8) + 1}, r"index of the 8 rows"),
        ({"embeddings": TABLE, "mapping": np.zeros(8)}, r"Received: float64 of shape \(8,\)"),
    ],
)
def test_arrays_that_are_no_table(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        TextEmbedder.from_preset(model2vec(tmp_path, arrays))


def test_other_modules_are_refused(tmp_path):
    model2vec(tmp_path)
    types = [f"sentence_transformers.models.{x}" for x in ("StaticEmbedding", "Dense")]
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "", "type": x} for x in types]))
    with pytest.raises(ValueError, match=r"no other module than Normalize. Received: Dense in"):
        TextEmbedder.from_preset(tmp_path)
    model2vec(tmp_path, normalize="yes")
    with pytest.raises(ValueError, match=r"`normalize` must be true or false. Received: 'yes'"):
        TextEmbedder.from_preset(tmp_path)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"projection": 3}, {}, r"one table.*token_pooling='mean', projection=3"),
        ({"token_pooling": "max"}, {}, r"one table.*token_pooling='max'"),
        ({}, {"max_shard_size": 9}, r"one file of float32.*Received: max_shard_size=9"),
        ({}, {"architecture": "bert"}, r"Received: architecture='bert'"),
        ({}, {"weight_dtype": "bfloat16"}, r"Received: weight_dtype='bfloat16'"),
    ],
)
def test_what_has_no_place_there(tmp_path, settings, options, message):
    model2vec(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message):
        make(**settings).save_to_preset(tmp_path, "huggingface", **options)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_encoder_alone_has_no_tokenizer_to_write(tmp_path):
    with pytest.raises(ValueError, match=r"requires a tokenizer.json.*Received: no tokenizer"):
        make().encoder.save_to_preset(tmp_path, "huggingface")
