"""Encoders, tasks and tokenizers by a model's name, and processes that fetch the same at once."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kbert
from kbert.models import Encoder
from kbert.tasks import Pretraining
from kbert.tokenizers import WordPieceTokenizer
from tests.harness import randomise, tiny_config, tiny_inputs, to_numpy

ROOT = Path(kbert.__path__[0]).parent


@pytest.fixture
def task(tiny_vocabulary):
    tokenizer = WordPieceTokenizer(tiny_vocabulary)
    task = Pretraining(Encoder(tiny_config(vocabulary_size=len(tiny_vocabulary))), tokenizer)
    randomise(task)
    return task


@pytest.fixture(params=["kbert", "huggingface"])
def published(request, hub, task, tmp_path):
    """A pretrained BERT on the hub; its name."""
    task.save_to_preset(tmp_path / "made", format=request.param)
    files = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    hub.add("google-bert/bert-base-uncased", files)
    return "bert-base-uncased"


def test_everything_loads_by_name(published, task):
    inputs = tiny_inputs(task.encoder.config)
    expected = to_numpy(task.encoder(inputs))
    for encoder in (Encoder.from_preset(published), Pretraining.from_preset(published).encoder):
        found = to_numpy(encoder(inputs))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
    assert kbert.load_tokenizer(published).checksum == task.tokenizer.checksum


def test_a_tokenizer_by_name_fetches_no_weights(hub, published):
    kbert.load_tokenizer(published)
    assert "model.safetensors" not in hub.files_requested()


def test_a_google_zip_s_tokenizer(tmp_path, task):
    import zipfile

    task.tokenizer.save(tmp_path)
    with zipfile.ZipFile(tmp_path / "release.zip", "w") as file:
        file.write(tmp_path / "vocab.txt", "release/vocab.txt")
    found = kbert.load_tokenizer(str(tmp_path / "release.zip"))
    assert found.vocabulary == task.tokenizer.vocabulary


@pytest.mark.slow
def test_two_processes_at_once_under_the_hub_s_own_variables(hub, tmp_path):
    weights = os.urandom(20_000_000)
    hub.add("someone/model", {"config.json": b"{}", "model.safetensors": weights})
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    code = "from kbert.hub import locate; print(locate('hf:someone/model'))"

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    processes = [start(), start()]
    folders = set()
    for process in processes:
        said, complaints = process.communicate(timeout=120)
        assert process.returncode == 0, complaints
        folders.add(said.strip())
    (folder,) = folders
    assert folder.startswith(str(tmp_path / "home/hub"))
    assert Path(folder, "model.safetensors").read_bytes() == weights
