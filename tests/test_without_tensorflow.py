"""kbert on JAX where TensorFlow is not installed; exports for other runtimes without Keras too."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import kbert
from kbert import tasks
from tests.harness import randomise, tiny_config
from tests.processes import ROOT, run_code

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]
# The writer of SavedModels derives a class from one of TensorFlow's.
ALONE = {"kbert/export/savedmodel/stored.py"}
BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
sys.modules.pop("jax", None)  # which `LIGHT` hides
"""
TENSORFLOW = BLOCKED.format(names=("tensorflow", "tensorflow_text", "tensorflow_datasets"))
KERAS_TOO = BLOCKED.format(names=("tensorflow", "tensorflow_text", "keras", "jax"))
FIT = {"epochs": 3, "batch_size": 4, "learning_rate": 1e-3, "verbose": 0}
# What runs a few times is not worth optimizing.
QUICK = {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
TEXTS = ["the quick fox", "a Dog, they don't!", "", "the king " * 30]


def test_one_module_imports_tensorflow():
    """`from kbert.core.late import tf` is the way; it is imported where it is first used."""
    found = set()
    for path in (ROOT / "kbert").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [x.name for x in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] in ("tensorflow", "tensorflow_text") for name in names):
                found.add(str(path.relative_to(ROOT)))
    assert found == ALONE


def test_every_module_imports():
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "kbert").rglob("*.py"))
        if str(path.relative_to(ROOT)) not in ALONE
    ]
    assert len(names) > 400
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    run_code(f"{TENSORFLOW}{code}", KERAS_BACKEND="jax")


@pytest.fixture(scope="module")
def classifier(tiny_vocabulary):
    sizes = {"vocabulary_size": len(tiny_vocabulary), "max_positions": 32, "num_layers": 1}
    config = tiny_config(**sizes)
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    task = tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["ham", "spam"])
    randomise(task)
    return task


def test_on_jax_a_task_predicts_evaluates_and_trains(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "task")
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    code = f"""
import json, numpy as np, kbert
from kbert import tasks
task = tasks.TextClassifier.from_preset({str(tmp_path / "task")!r})
texts, pairs = {TEXTS!r}, {pairs!r}
found = dict(texts=task.predict(texts), pairs=task.predict(pairs))
found["scores"] = task.evaluate(texts, ["ham", "spam"] * 2, verbose=0)
found["ids"] = task.tokenizer(texts).to_list()
vectors = tasks.TextEmbedder(task.encoder, task.tokenizer)
found["vectors"] = vectors.predict(texts).tolist()
found["fit"] = task.fit(texts, ["ham", "spam"] * 2, **{FIT!r}).history["loss"]
try:
    tasks.TokenClassifier(task.encoder, task.tokenizer, ["a", "b"]).predict([["the", "fox"]])
except ImportError as error:
    found["tags"] = str(error)
batch = dict(token_ids=[[2, 9, 3, 0]], padding_mask=[[1, 1, 1, 0]], segment_ids=[[0] * 4],
             mask_positions=[[1, 0]], mask_ids=[[9, 0]], next_sentence_labels=[1])
batch = dict((name, np.array(x * 4, "int32")) for name, x in batch.items())
batch["mask_weights"] = np.array([[1.0, 0.0]] * 4, "float32")
trained = tasks.Pretraining(task.encoder, task.tokenizer)
trained.compile(kbert.training.AdamW(1e-2))
found["losses"] = trained.fit(batch, epochs=4, verbose=0).history["loss"]
print(json.dumps(found))
"""
    found = json.loads(run_code(TENSORFLOW + code, **QUICK).splitlines()[-1])
    for given, name in ((TEXTS, "texts"), (pairs, "pairs")):
        for wanted, answer in zip(classifier.predict(given), found[name], strict=True):
            assert answer["label"] == wanted["label"]
            assert answer["probability"] == pytest.approx(wanted["probability"], abs=1e-5)
    wanted = classifier.evaluate(TEXTS, ["ham", "spam"] * 2, verbose=0)
    assert found["scores"] == pytest.approx(wanted, abs=1e-5)
    assert found["ids"] == classifier.tokenizer(TEXTS).to_list()
    vectors = tasks.TextEmbedder(classifier.encoder, classifier.tokenizer).predict(TEXTS)
    np.testing.assert_allclose(found["vectors"], vectors, atol=1e-5)
    classifier = tasks.TextClassifier.from_preset(tmp_path / "task")
    fitted = classifier.fit(TEXTS, ["ham", "spam"] * 2, **FIT)
    np.testing.assert_allclose(found["fit"], fitted.history["loss"], atol=1e-4)
    assert "pip install tensorflow" in found["tags"]
    assert found["losses"][-1] < found["losses"][0]


def test_on_jax_predictions_import_tensorflow_only_where_they_need_it(classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "task")
    code = f"""
import json, sys
from kbert import tasks
task = tasks.TextClassifier.from_preset({str(tmp_path / "task")!r})
found, imported = [], []
def note(answer):
    found.append(answer)
    imported.append("tensorflow" in sys.modules)
note(task.predict({TEXTS!r}, verbose=0))
note(task.evaluate({TEXTS!r}, ["ham", "spam"] * 2, verbose=0))
tagger = tasks.TokenClassifier(task.encoder, task.tokenizer, ["a", "b"])
note(tagger.predict([["the", "fox"]], verbose=0)[0]["words"])
note(task.predict({TEXTS!r}, verbose=0))
print(json.dumps([found, imported]))
"""
    # `LIGHT` hides JAX.
    code = "sys.modules.pop('jax')\n" + code
    found, imported = json.loads(run_code(code, **QUICK).splitlines()[-1])
    assert imported == [False, False, True, True]
    without, scores, words, with_tensorflow = found
    assert words == ["the", "fox"]
    assert scores == pytest.approx(
        classifier.evaluate(TEXTS, ["ham", "spam"] * 2, verbose=0), abs=1e-5
    )
    for answers in (without, with_tensorflow):
        for wanted, answer in zip(classifier.predict(TEXTS), answers, strict=True):
            assert answer["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-5)


def test_an_export_answers_without_keras(classifier, tmp_path):
    pytest.importorskip("tf2onnx")
    path = classifier.export(tmp_path / "out", format="onnx")
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    code = f"""
import json, pathlib
from kbert.export import load_exported
from kbert.serve.service.loaded import LoadedModel
import numpy as np
task = load_exported({path!r}, threads=1)
model = LoadedModel({path!r})
model.warm_up()
texts = np.array([x.encode() for x in {TEXTS!r}], object)
served = model.entries["classify"].run(dict(text=texts))["scores"]
answers = task.predict({TEXTS!r}, verbose=0)
of_file = task.predict(pathlib.Path({str(file)!r}), verbose=0)
print(json.dumps([answers, of_file, served.tolist()]))
"""
    answers, of_file, served = json.loads(run_code(KERAS_TOO + code).splitlines()[-1])
    assert of_file == answers
    for wanted, answer, scores in zip(classifier.predict(TEXTS), answers, served, strict=True):
        assert answer["label"] == wanted["label"]
        assert answer["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-5)
        assert scores == pytest.approx(list(wanted["probabilities"].values()), abs=1e-5)


def test_kbert_serve_needs_no_tensorflow_for_an_export(tmp_path):
    Path(tmp_path, "1").mkdir()
    Path(tmp_path, "1", "export.json").write_text("{}")
    code = """
from kbert.serve import ServiceOptions, needs_tensorflow
print([needs_tensorflow(ServiceOptions(model=["m=FOLDER"], **x)) for x in ({}, {"grpc_port": 0})])
"""
    code = code.replace("FOLDER", str(tmp_path))
    assert run_code(KERAS_TOO + code).strip() == "[False, True]"
    Path(tmp_path, "2").mkdir()
    Path(tmp_path, "2", "saved_model.pb").touch()
    assert run_code(KERAS_TOO + code).strip() == "[True, True]"
