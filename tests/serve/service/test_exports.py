"""What tasks export, served: the service gives what the SavedModels give."""

import gc
import json
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.export import export_features
from kbert.export.folder import DESCRIPTION_FILE, read_description
from kbert.serve import Client
from kbert.serve.service.loaded import EXPORT, LoadedModel
from tests.harness import randomise, tiny_config
from tests.serve.harness import running, signature

PACKAGES = {"onnx": "tf2onnx", "openvino": "openvino", "litert": "ai_edge_litert"}
TEXTS = ["the red fox", "", "a quick brown dog jumps over the lazy cat and two men", "sun"]


@pytest.mark.slow
def test_vectors_masks_and_tags(tmp_path, tiny_vocabulary):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    encoder = kbert.Encoder(config)
    pretraining = kbert.tasks.Pretraining(encoder, tokenizer)
    tagger = kbert.tasks.TokenClassifier(encoder, tokenizer, ["A", "B"], max_length=64)
    for task in (pretraining, tagger):
        randomise(task)
    paths = {
        "vectors": export_features(tmp_path / "vectors", encoder, tokenizer),
        "masks": pretraining.export(tmp_path / "masks"),
        "tags": tagger.export(tmp_path / "tags"),
    }
    with running(model=[f"{name}={path}" for name, path in paths.items()]) as service:
        client = Client(service.address)
        wanted = signature(paths["vectors"], "features")(text=tf.constant(TEXTS))["vectors"]
        np.testing.assert_allclose(client.embed(TEXTS), wanted, atol=1e-5)

        texts = ["the [MASK] fox", "no mask", "[MASK] and [MASK]"]
        wanted = signature(paths["masks"], "fill_mask")(text=tf.constant(texts))
        found = client.fill_mask(texts)
        assert [len(masks) for masks in found] == [1, 0, 2]
        for row, masks in enumerate(found):
            for place, best in enumerate(masks):
                tokens = wanted["tokens"][row, place].numpy().tolist()
                assert [each["token"].encode() for each in best] == tokens
                values = [each["probability"] for each in best]
                np.testing.assert_allclose(values, wanted["probabilities"][row, place], atol=1e-5)

        wanted = signature(paths["tags"], "tag")(text=tf.constant(TEXTS))
        rows = client.predict("tags", TEXTS)
        for name, column in wanted.items():
            given = np.array([row[name] for row in rows])
            if column.dtype == tf.string:
                given = np.char.encode(given, "utf-8").astype(object)
                assert given.tolist() == column.numpy().tolist(), name
            else:
                np.testing.assert_allclose(given, column, atol=1e-5)


def classifier(tiny_vocabulary, **options):
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"], **options)
    randomise(task)
    return task


@pytest.mark.slow
def test_an_export_to_onnx_runtime(tmp_path, tiny_vocabulary):
    pytest.importorskip("tf2onnx")
    assert EXPORT == DESCRIPTION_FILE
    task = classifier(tiny_vocabulary, max_length=64)
    path = task.export(tmp_path / "1", format="onnx")
    with running(model=[f"m={tmp_path}"], batch_threads=2) as service:
        client = Client(service.address)
        wanted = [[row["probabilities"][x] for x in task.labels] for row in task.predict(TEXTS)]
        found = client.predict("m", TEXTS)
        np.testing.assert_allclose([row["scores"] for row in found], wanted, atol=1e-4)
        assert [row["label"] for row in found] == [row["label"] for row in task.predict(TEXTS)]
        pairs = {"first": TEXTS, "second": TEXTS[::-1]}
        found = client.predict("m", pairs, signature="classify_pairs")
        wanted = [row["probability"] for row in task.predict(pairs)]
        np.testing.assert_allclose([row["score"] for row in found], wanted, atol=1e-4)
        metadata = service.get("/v1/models/m/metadata")[1]["metadata"]["signature_def"]
        assert set(metadata["signature_def"]) == {"classify", "classify_pairs", "serving_default"}
        status, answer = service.post("/v1/models/m:predict", {"instances": ["a" * 20_000]})
        assert status == 413, answer
    loaded = LoadedModel(path)
    loaded.warm_up()
    session = weakref.ref(loaded._loaded.run)
    del loaded  # as of a retired version: TensorFlow keeps the graphs
    gc.collect()
    assert session() is None
    description = read_description(path)
    (tmp_path / "1" / DESCRIPTION_FILE).write_text(json.dumps({**description, "format": "x"}))
    with pytest.raises(ValueError, match="that can be loaded"):
        LoadedModel(path)


@pytest.mark.slow
@pytest.mark.parametrize("format", PACKAGES)
def test_several_threads_ask_at_a_time(tmp_path, tiny_vocabulary, format):
    pytest.importorskip(PACKAGES[format])
    task = classifier(tiny_vocabulary, max_length=64)
    randomise(task)
    loaded = LoadedModel(task.export(tmp_path / "out", format=format))
    entry, wrong = loaded.entries["classify"], []
    wanted = {}
    for text, row in zip(TEXTS, task.predict(TEXTS), strict=True):
        wanted[text] = [row["probabilities"][x] for x in task.labels]

    def ask(seed):
        random = np.random.default_rng(seed)
        for _ in range(30):
            texts = random.choice(TEXTS, random.integers(1, 5)).tolist()
            found = entry.run({"text": np.array([x.encode() for x in texts], object)})["scores"]
            if not np.allclose(found, [wanted[text] for text in texts], atol=1e-4):
                wrong.append(texts)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(8)))
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "format"),
    [(kind, "onnx") for kind in ("windows", "several", "number", "vectors", "tags")]
    + [("vectors", "openvino"), ("tags", "openvino"), ("vectors", "litert"), ("tags", "litert")],
)
def test_signatures_of_an_export_are_those_of_the_savedmodel(
    tmp_path, tiny_vocabulary, kind, format
):
    pytest.importorskip(PACKAGES[format])
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    encoder, tokenizer = kbert.Encoder(config), kbert.WordPieceTokenizer(tiny_vocabulary)
    task = {
        "windows": lambda: classifier(tiny_vocabulary, max_length=16, doc_stride=4),
        "several": lambda: classifier(tiny_vocabulary, max_length=32, multi_label=True),
        "number": lambda: kbert.tasks.TextRegressor(encoder, tokenizer),
        "vectors": lambda: kbert.tasks.TextEmbedder(encoder, tokenizer, query_prompt="two "),
        "tags": lambda: kbert.tasks.TokenClassifier(encoder, tokenizer, ["A", "B"]),
    }[kind]()
    randomise(task)
    ours = LoadedModel(task.export(tmp_path / "ours", format=format)).entries
    theirs = LoadedModel(task.export(tmp_path / "savedmodel")).entries
    assert set(ours) == set(theirs)
    for name, entry in theirs.items():
        assert (ours[name].inputs, ours[name].outputs) == (entry.inputs, entry.outputs), name
        if not all(spec.shape == (None,) for spec in entry.inputs.values()):
            continue  # rows of words
        given = {key: np.array([x.encode() for x in TEXTS], object) for key in entry.inputs}
        found = ours[name].run(given)
        for key, wanted in entry.run(given).items():
            if wanted.dtype.kind == "f":
                np.testing.assert_allclose(found[key], wanted, atol=1e-4)
            else:
                assert found[key].tolist() == wanted.tolist()


def test_a_folder_of_both_kinds_is_refused(tmp_path):
    for name in (EXPORT, "saved_model.pb"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"not both: saved_model\.pb and export\.json"):
        LoadedModel(tmp_path)


@pytest.mark.slow
def test_an_export_of_answers_is_refused(tmp_path, tiny_vocabulary):
    pytest.importorskip("tf2onnx")
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    task = kbert.tasks.QuestionAnswerer(kbert.Encoder(config), tokenizer, max_length=32)
    path = task.export(tmp_path / "answers", format="onnx")
    with pytest.raises(ValueError, match=r"classifiers, .* Received: an export to onnx of a Quest"):
        LoadedModel(path)
