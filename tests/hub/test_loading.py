"""Encoders, tasks and tokenizers by a model's name, and processes that fetch the same at once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.checkpoints.google.names import bert_rules
from kbert.checkpoints.renames import write_arrays
from kbert.conversion import check, convert
from kbert.models import Encoder
from kbert.models.weights import get_arrays
from kbert.tasks import Pretraining
from kbert.tokenizers import WordPieceTokenizer
from tests.harness import randomise, tiny_config, tiny_inputs, to_numpy
from tests.waiting import PATIENCE

ROOT = Path(kbert.__path__[0]).parent


@pytest.fixture
def task(tiny_vocabulary):
    tokenizer = WordPieceTokenizer(tiny_vocabulary)
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), activation="gelu_tanh")
    task = Pretraining(Encoder(config), tokenizer)
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


@pytest.fixture
def release(tmp_path, task):
    """The task's model in a zip file, as Google released BERT, optimizer slots included."""
    config = task.encoder.config
    arrays = get_arrays(task.encoder, "encoder") | get_arrays(task.masked_lm, "masked_lm")
    tensors = write_arrays(bert_rules(config), arrays)
    slots = {f"{name}/adam_{slot}": array for slot in "mv" for name, array in tensors.items()}
    folder = tmp_path / "uncased_L-2_H-16_A-4"
    folder.mkdir()
    tensors = {**tensors, **slots, "global_step": np.array(9)}
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(array) for array in tensors.values()],
    )
    sizes = {
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.num_segments,
    }
    (folder / "bert_config.json").write_text(json.dumps(sizes))
    (folder / "vocab.txt").write_text("\n".join(task.tokenizer.vocabulary) + "\n")
    return shutil.make_archive(str(folder), "zip", tmp_path, folder.name)


def test_a_google_zip_is_a_model(release, task, tmp_path):
    inputs = tiny_inputs(task.encoder.config)
    encoder = Encoder.from_preset(release)
    expected = to_numpy(task.encoder(inputs))["sequence"]
    np.testing.assert_array_equal(to_numpy(encoder(inputs))["sequence"], expected)
    assert kbert.load_tokenizer(release).vocabulary == task.tokenizer.vocabulary
    done = convert(release, tmp_path / "there", format="huggingface")
    assert "global_step" in done.left
    assert "cls/predictions/output_bias/adam_m" in done.left
    assert f"  */adam_m (× {len(done.left) // 2})\n" in str(done)
    assert all(result.passed for result in check(done.source, done.target))


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
        said, complaints = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, complaints
        folders.add(said.strip())
    (folder,) = folders
    assert folder.startswith(str(tmp_path / "home/hub"))
    assert Path(folder, "model.safetensors").read_bytes() == weights
