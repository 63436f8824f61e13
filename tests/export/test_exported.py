"""Tasks through the runtimes: `predict` answers what the task's own does."""

import dataclasses
import json
import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert import tasks
from kbert.export import load_exported
from tests.harness import MODERN
from tests.processes import ROOT, run_code

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]
TEXTS = [
    "the red fox",
    "a big dog jumps over the lazy cat in the house by the river",
    "quick",
    "you are not the king of the moon " * 6,  # more than a row
]
PAIRS = [("the king", text) for text in TEXTS]
MASKED = ["the red [MASK]", "[MASK] big [MASK]", "no mask"]
MAKE = {
    "classes": (lambda *x: tasks.TextClassifier(*x, ["a", "b", "c"]), TEXTS),
    "pairs in windows": (
        lambda *x: tasks.TextClassifier(*x, 2, max_length=16, doc_stride=4, pooling="max"),
        PAIRS,
    ),
    "any number of classes": (lambda *x: tasks.TextClassifier(*x, 3, multi_label=True), TEXTS),
    "numbers": (lambda *x: tasks.TextRegressor(*x), TEXTS),
    "tags": (lambda *x: tasks.TokenClassifier(*x, ["O", "B-x", "I-x"]), TEXTS),
    "answers": (lambda *x: tasks.QuestionAnswerer(*x), PAIRS),
    "masks": (lambda *x: tasks.Pretraining(*x), MASKED),
}


def make(name, config, tokenizer):
    keras.utils.set_random_seed(1)
    return MAKE[name][0](kbert.Encoder(config), tokenizer)


def assert_alike(ours, theirs, atol):
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert_alike(value, theirs[key], atol)
    elif isinstance(ours, str):
        assert ours == theirs
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other, atol)
    else:
        np.testing.assert_allclose(theirs, ours, atol=atol)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, config, tokenizer):
    """An export that nobody changes."""
    pytest.importorskip("tf2onnx")
    task = make("classes", config, tokenizer)
    path = tmp_path_factory.mktemp("exported") / "out"
    found = task.export(path, format="onnx", texts=["the fox", "a big red dog"])
    assert found == str(path)
    return found


@pytest.mark.parametrize(
    "name",
    [n if n == "classes" else pytest.param(n, marks=pytest.mark.slow) for n in MAKE],
)
def test_onnx_runtime_answers_as_the_task(tmp_path, config, tokenizer, name, request):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    task = make(name, config, tokenizer)
    if name == "classes":
        path = request.getfixturevalue("folder")
    else:
        path = task.export(tmp_path / "out", format="onnx")
        assert path == str(tmp_path / "out")
    loaded, texts = load_exported(path, threads=1), MAKE[name][1]
    assert_alike(list(task.predict(texts)), list(loaded.predict(texts)), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["openvino", "litert"])
def test_other_runtimes_answer_as_the_task(tmp_path, config, tokenizer, format):
    pytest.importorskip({"openvino": "openvino", "litert": "ai_edge_litert"}[format])
    task = make("classes", config, tokenizer)
    loaded = load_exported(task.export(tmp_path / "out", format=format))
    assert_alike(task.predict(TEXTS), loaded.predict(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_an_evaluation_is_the_tasks(folder, config, tokenizer):
    data = {"text": TEXTS, "label": ["a", "b", "c", "a"]}
    ours = make("classes", config, tokenizer).evaluate(data)
    assert load_exported(folder).evaluate(data) == pytest.approx(ours, abs=1e-5)


def test_the_folder_describes_itself(folder, config):
    loaded = load_exported(folder)
    made = loaded.description
    assert list(made["inputs"]) == ["token_ids", "segment_ids", "padding_mask"]
    assert made["outputs"] == {"classifier": ["batch", 3], "probabilities": ["batch", 3]}
    assert (made["labels"], made["max_length"]) == (["a", "b", "c"], config.max_positions)
    assert made["tokenizer"]["beside"] == ["tokenizer_config.json", "vocab.txt"]
    ids = np.array([[2, 9, 3]])
    found = loaded.run({"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1})
    assert found["probabilities"].shape == (1, 3)


def test_it_has_no_weights_in_keras(folder):
    task = load_exported(folder).task
    assert sum(np.prod(v.shape) for v in task.encoder.variables) == 0
    with pytest.raises(NotImplementedError, match="An export has no layers"):
        task.encoder({"token_ids": np.ones((1, 3))})


@pytest.mark.slow
def test_an_encoder_without_segments_takes_none(tmp_path, config, tokenizer):
    pytest.importorskip("tf2onnx")
    task = make("numbers", config.replace(num_segments=0), tokenizer)
    loaded = load_exported(task.export(tmp_path / "out", format="onnx"))
    assert list(loaded.description["inputs"]) == ["token_ids", "padding_mask"]
    assert_alike(task.predict(TEXTS), loaded.predict(TEXTS), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "package"),
    [
        ("onnx", "onnxruntime_extensions"),
        pytest.param("openvino", "openvino_tokenizers", marks=pytest.mark.slow),
    ],
)
def test_texts_without_kbert(tmp_path, config, tokenizer, format, package):
    """As docs/serving.md says it, in a process that has neither kbert nor TensorFlow."""
    pytest.importorskip(package)
    task = make("classes", config, tokenizer)
    path = task.export(tmp_path / "out", format=format)
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if f"import {package}" in block)
    texts = ["a visually stunning rumination on love", "what a bore"]
    for before, after in (
        (f"reviews-{format}", path),
        (repr(texts).replace("'", '"'), repr(TEXTS)),
    ):
        assert before in code
        code = code.replace(before, after)
    code += "\nimport sys, json\nassert not {'kbert', 'tensorflow'} & set(sys.modules)\n"
    found = json.loads(run_code(code + "print(json.dumps(probabilities.tolist()))"))
    expected = [list(answer["probabilities"].values()) for answer in task.predict(TEXTS)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "why"),
    [("pairs in windows", "in windows, doc_stride=4"), ("tags", "words, spans or new texts")],
)
def test_where_a_tokenizer_inside_would_not_do(tmp_path, config, tokenizer, name, why):
    pytest.importorskip("tf2onnx")
    path = make(name, config, tokenizer).export(tmp_path / "out", format="onnx")
    said = load_exported(path).description["tokenizer"]
    assert said.keys() == {"beside", "why"}
    assert why in said["why"]


@pytest.mark.slow
def test_windows_of_attention_and_rotary_positions(tmp_path, config, tokenizer):
    pytest.importorskip("tf2onnx")
    task = make("numbers", config.replace(**MODERN), tokenizer)
    loaded = load_exported(task.export(tmp_path / "out", format="onnx"))
    assert_alike(task.predict(TEXTS), loaded.predict(TEXTS), atol=1e-5)


def test_tasks_without_such_an_export_say_so(tmp_path, config, tokenizer):
    choice = tasks.MultipleChoice(kbert.Encoder(config), tokenizer)
    with pytest.raises(ValueError, match="A MultipleChoice can be exported as a SavedModel only"):
        choice.export(tmp_path / "out", format="onnx")
    half = tasks.TextRegressor(kbert.Encoder(config, dtype="mixed_bfloat16"), tokenizer)
    with pytest.raises(ValueError, match=r"must be in float32.*Received: dtype='mixed_bfloat16'"):
        half.export(tmp_path / "out", format="onnx")
    assert not (tmp_path / "out").exists()


def test_a_saved_model_can_compute_in_bfloat16(tmp_path, config, tokenizer):
    task = make("numbers", config, tokenizer)
    path = task.export(tmp_path / "served", precision="bfloat16")
    score = tf.saved_model.load(path).signatures["score"]
    found, exact = score(text=tf.constant(TEXTS))["score"].numpy(), task.predict(TEXTS)
    assert 1e-5 < np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.slow
def test_a_saved_model_far_from_float32_is_none(tmp_path, config, tokenizer, precision):
    wide = dataclasses.replace(config, hidden_size=64, intermediate_size=64)  # stored in 8 bits
    task = make("numbers", wide, tokenizer)
    pattern = (
        rf"SavedModel in {precision} must not differ from float32 by more than 1e-06, "
        r".*'score.*/score'"
    )
    with pytest.raises(ValueError, match=pattern):
        task.export(tmp_path / "served", precision=precision, tolerance=1e-6)
    assert not list((tmp_path / "served").iterdir())
    task.export(tmp_path / "served", precision=precision, texts=TEXTS, tolerance=0.5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_for_other_libraries(tmp_path, config, tokenizer, precision):
    transformers = pytest.importorskip("transformers")
    task = make("classes", config, tokenizer)
    path = task.export(tmp_path / "out", format="safetensors", precision=precision)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path)
    assert str(model.dtype) == f"torch.{precision}"
    again = tasks.TextClassifier.from_preset(path)
    for ours, theirs in zip(task.weights, again.weights, strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        error = 0 if precision == "float32" else 2.0**-8 * np.abs(ours)  # half a unit, rounded up
        assert (np.abs(ours - theirs) <= error).all()
    with pytest.raises(ValueError, match=r"new or empty folder\. Received"):
        task.export(path, format="safetensors")
    with pytest.raises(ValueError, match=r"be float32 or bfloat16. .*weight_dtype='int8'"):
        task.export(tmp_path / "other", format="safetensors", precision="int8")
    assert not (tmp_path / "other").exists()


def test_bad_options(tmp_path, config, tokenizer):
    task = make("numbers", config, tokenizer)
    for options, message in (
        ({"format": "tflite"}, "`format` must be one of savedmodel, onnx.*'tflite'"),
        (
            {"precision": "int4"},
            r"SavedModel must be one of float32, bfloat16, int8.*Received: 'int4'",
        ),
        ({"format": "onnx", "texts": ["one"]}, r"at least two strings.*Received: 1"),
        (
            {"format": "onnx", "widths": [8]},
            r"`widths` is supported by LiteRT only.*Received: widths=\[8\]",
        ),
        ({"max_bytes": 0}, r"`max_bytes` must be at least 1\. Received: max_bytes=0"),
        (
            {"format": "onnx", "max_bytes": 9},
            r"`max_bytes` is supported by.*Received: max_bytes=9 with format='onnx'",
        ),
        ({"format": "litert", "widths": [8, 99]}, r"between 4 and 40.*Received: widths=\[8, 99\]"),
    ):
        with pytest.raises(ValueError, match=message):
            task.export(tmp_path / "out", **options)


def test_a_task_of_an_unknown_class_is_refused(folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "changed")
    path = f"{folder}/export.json"
    with open(path) as file:
        content = json.load(file)
    content["task"] |= {"kind": "wonder", "module": "my.tasks"}
    with open(path, "w") as file:
        json.dump(content, file)
    with pytest.raises(
        ValueError, match=r"must be registered: .*, my\.tasks\. Received: a wonder in"
    ):
        load_exported(folder)
