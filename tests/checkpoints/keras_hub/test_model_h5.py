"""Files of old versions of KerasNLP compute what those versions computed.

`tests/golden/write_keras_nlp.py` made them.
"""

import json
import pathlib
import shutil

import h5py
import numpy as np
import pytest

import kbert
from kbert.checkpoints import read_checkpoint
from tests.harness import assert_close

GOLDEN = pathlib.Path(__file__).parents[2] / "golden/keras-nlp"
OLD = GOLDEN / "0.4.1-keras-2.15.0"
ALBERT = {
    "vocabulary_size": 12,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "dropout": 0.0,
    "max_sequence_length": 10,
    "num_segments": 2,
    "embedding_dim": 4,
    "num_groups": 1,
}


def assert_same_outputs(encoder, folder):
    expected = np.load(folder / "expected.npz")
    inputs = {key: expected[key] for key in ("token_ids", "padding_mask")}
    if encoder.config.num_segments:
        inputs["segment_ids"] = expected["segment_ids"]
    outputs = encoder(inputs)
    real = inputs["padding_mask"] == 1
    sequence = np.asarray(outputs["sequence"])
    assert_close(sequence[real], expected["sequence_output"][real], 1e-5)
    assert ("pooled" in outputs) == ("pooled_output" in expected)
    if "pooled" in outputs:
        assert_close(np.asarray(outputs["pooled"]), expected["pooled_output"], 1e-5)


@pytest.mark.parametrize("name", ["BertBackbone", "DistilBertBackbone", "RobertaBackbone"])
def test_a_file_of_weights_alone(name):
    encoder = kbert.Encoder.from_preset(OLD / name)
    assert (encoder.config.num_layers, encoder.config.num_heads) == (2, 2)
    assert_same_outputs(encoder, OLD / name)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("BertBackbone", "0.8.2-keras-2.15.0"),
        pytest.param("BertBackbone", "0.8.2-keras-3.0.5", marks=pytest.mark.slow),
        pytest.param("RobertaBackbone", "0.8.2-keras-2.15.0", marks=pytest.mark.slow),
        ("RobertaBackbone", "0.8.2-keras-3.0.5"),
    ],
)
def test_a_preset_of_an_old_version(version, name):
    pytest.importorskip("keras_hub")
    folder = GOLDEN / version / name
    assert_same_outputs(kbert.Encoder.from_preset(folder), folder)


@pytest.fixture
def folder(tmp_path):
    """Copies one of the folders."""

    def copied(name):
        return pathlib.Path(shutil.copytree(OLD / name, tmp_path / name))

    return copied


def test_the_layers_of_an_albert_are_in_a_config_beside_it(folder):
    folder = folder("AlbertBackbone")
    message = r"how many layers share the weights of an ALBERT: write config.json"
    with pytest.raises(ValueError, match=message) as error:
        read_checkpoint(folder)
    said = str(error.value).partition("added to ")[2].partition(". Received")[0]
    assert json.loads(said) == {"class_name": "AlbertBackbone", "config": ALBERT}
    content = {"class_name": "AlbertBackbone", "config": {**ALBERT, "num_layers": 2}}
    (folder / "config.json").write_text(json.dumps(content))
    encoder = kbert.Encoder.from_preset(folder)
    assert (encoder.config.num_layers, encoder.config.num_layer_groups) == (2, 1)
    assert_same_outputs(encoder, folder)


def change(path, name, array):
    """Replaces a dataset, adds it or (with None) takes it away."""
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        if array is not None:
            file[name] = np.asarray(array, "float32")


BLOCK = "transformer_layer_1/transformer_layer_1"


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (f"{BLOCK}/dense_1/bias:0", None, "- missing encoder/layers/1/feed_forward/output/bias"),
        (f"{BLOCK}/dense/bias:0", np.ones(3), "! shape of encoder/layers/1/feed_forward/inter"),
        ("more/more/kernel:0", np.ones(3), r"\+ unexpected encoder/more/kernel \(3,\)"),
        (f"{BLOCK}/dense_7/bias:0", np.ones(8), r"\+ unexpected encoder/transformer_layer_1/de"),
        (
            "token_embedding/token_embedding/embeddings:0",
            None,
            r"model.h5 of KerasNLP must be one of BertBackbone, .* Received: .*model.h5 with ",
        ),
        (
            "position_embedding/position_embedding/embeddings:0",
            np.ones(3),
            r"model.h5, where position_embedding/embeddings is missing or of another rank",
        ),
        (
            "other/token_embedding/embeddings:0",
            np.ones((12, 8)),
            r"have unique names. Received: .*model.h5, with 1 duplicate names",
        ),
    ],
)
def test_another_model_is_refused(folder, name, array, message):
    folder = folder("BertBackbone")
    change(folder / "model.h5", name, array)
    with pytest.raises(ValueError, match=message):
        kbert.Encoder.from_preset(folder)


def test_a_damaged_file_is_named(folder):
    path = folder("BertBackbone") / "model.h5"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"damaged, truncated.* Received: .*model.h5"):
        read_checkpoint(path.parent)
