"""What docs/migration.md says of kbert runs as it stands, on tiny models."""

import re
import shutil

import numpy as np
import pytest

import kbert
from tests.checkpoints import folders
from tests.processes import ROOT
from tests.serve.harness import running

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("eagerly")]
PAGE = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
SMALLER = {"num_layers=4, hidden_size=256, num_heads=4": "num_layers=1, hidden_size=8, num_heads=2"}
TEXTS = ["the fox", "foxes", "the the", "fox the fox"]


def blocks(section: str) -> list[str]:
    """The code of kbert in a section."""
    found = re.findall(r"^```python\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    return [code for code in found if "kbert." in code]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A section's code, in a folder where its presets are; the names that it made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(folders, "CONFIG", folders.CONFIG.replace(num_layers=4, max_positions=128))

    def run(section, code=None, **names):
        names = {"kbert": kbert, "texts": TEXTS, "labels": [0, 1, 1, 0], **names}
        for block in blocks(section) if code is None else code:
            for text, smaller in {**SMALLER, **PRESETS}.items():
                block = block.replace(text, smaller)
            exec(block, names)
        return names

    return run


# Names of the page -> folders that lie there.
PRESETS = {
    '"bert-base-uncased"': '"base"',
    '"sentence-transformers/all-MiniLM-L6-v2"': '"sentences"',
}


def write(name, folder):
    folders.WRITERS[name](folder)
    return kbert.Encoder.from_preset(folder), kbert.load_tokenizer(folder)


def test_transformers(run, tmp_path):
    write("huggingface", tmp_path / "base")
    names = run("transformers (TensorFlow)")
    assert names["answers"][0]["label"] in ("LABEL_0", "LABEL_1")
    assert names["vectors"].shape == (4, 8)
    assert len(names["tokens"]) == 4
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.slow  # KerasHub's import
def test_keras_hub(run, tmp_path):
    encoder, tokenizer = write("kbert", tmp_path / "first")
    encoder.save_to_preset(tmp_path / "hub", format="keras_hub")
    tokenizer.save(tmp_path / "hub")
    assert len(run("KerasHub")["answers"]) == 1
    assert (tmp_path / "hub-again" / "model.weights.h5").exists()


def archive(tmp_path):
    write("google", tmp_path / "release")
    shutil.make_archive(tmp_path / "uncased_L-12_H-768_A-12", "zip", tmp_path / "release")


def test_google(run, tmp_path):
    archive(tmp_path)
    assert [vector.shape[-1] for vector in run("google-research/bert")["vectors"]] == [32] * 4


def test_model_garden(run):
    tokenizer = kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fox"])
    names = run("TensorFlow Model Garden", tokenizer=tokenizer)
    assert names["task"].labels == ["LABEL_0", "LABEL_1"]


@pytest.mark.slow
def test_bert_serving(run, tmp_path):
    archive(tmp_path)
    export, ask = blocks("bert-serving (bert-as-service)")
    run("bert-serving (bert-as-service)", [export])
    with running(model=["vectors=serving/vectors"]) as service:
        names = run(
            "bert-serving (bert-as-service)",
            [ask.replace("http://127.0.0.1:8501", service.address)],
        )
    assert names["vectors"].shape == (2, 8)


@pytest.mark.slow
def test_sentence_transformers(run, tmp_path):
    encoder, tokenizer = write("kbert", tmp_path / "first")
    kbert.tasks.TextEmbedder(encoder, tokenizer).save_to_preset(
        tmp_path / "sentences", "huggingface"
    )
    names = run("sentence-transformers", pairs=[("the fox", "foxes"), ("the", "fox the")])
    assert names["hits"].ids.shape == (1, 3)
    assert np.isfinite(names["vectors"]).all()
    assert (tmp_path / "out" / "modules.json").exists()


def test_fastai(run, tmp_path):
    write("huggingface", tmp_path / "base")
    table = {"text": TEXTS * 2, "label": ["ham", "spam"] * 4}
    assert run("fastai", df=table)["answer"]["label"] in ("ham", "spam")
    assert kbert.Task.from_preset(tmp_path / "model").labels == ["ham", "spam"]


def test_ktrain(run, tmp_path):
    write("huggingface", tmp_path / "base")
    names = run("ktrain", labels=["ham", "spam", "ham", "spam"])
    assert names["answers"][0]["label"] in ("ham", "spam")


def test_bert4keras(run, tmp_path):
    archive(tmp_path)
    assert len(run("bert4keras")["answers"]) == 1


def test_every_section_is_run():
    assert {section: len(blocks(section)) for section in SECTIONS} == {
        "transformers (TensorFlow)": 2,
        "KerasHub": 1,
        "google-research/bert": 1,
        "TensorFlow Model Garden": 1,
        "bert-serving (bert-as-service)": 2,
        "sentence-transformers": 1,
        "fastai": 1,
        "ktrain": 1,
        "bert4keras": 1,
    }
