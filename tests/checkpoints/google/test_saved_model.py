"""SavedModels of TF Hub in TensorFlow 1 format, written here by their layout; and damaged ones.

Those in TensorFlow 2 format are in `test_model_garden.py`.
"""

import json
import zipfile

import pytest
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

import kbert
from kbert.checkpoints import read_checkpoint
from tests.checkpoints.google.test_google import (
    ALBERT,
    BERT,
    ELECTRA,
    assert_same_outputs,
    google_tensors,
    random_model,
    write_release,
)
from tests.checkpoints.google.test_model_garden import GOLDEN

# Heads of width 64, which is what a module without a config is taken for.
WIDE = {"hidden_size": 128, "num_attention_heads": 2}
KINDS = {
    "bert": ("BertForPreTraining", "gelu_new", {**BERT, **WIDE}),
    "albert": ("AlbertForPreTraining", "gelu_new", {**ALBERT, **WIDE}),
    "electra": ("ElectraForPreTraining", "gelu", {**ELECTRA, **WIDE}),
}


def write_module(folder, tensors, nodes):
    """A SavedModel of the variables, with a program of nodes of these names and operations."""
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    write_release(folder / "variables", tensors, prefix="variables")
    saved = SavedModel()
    graph = saved.meta_graphs.add().graph_def
    for name, operation in nodes.items():
        graph.node.add(name=name, op=operation)
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    return folder


def program(kind, content):
    """Names of nodes -> operations, as far as they are read."""
    scope = "bert/encoder/transformer/group_0{}/layer_{}/inner_group_0/attention_1/Softmax"
    layers = range(content["num_hidden_layers"]) if kind == "albert" else ()
    nodes = {scope.format(f"_{i}" if i else "", i): "Softmax" for i in layers}
    return {**nodes, "activation": "Erf" if kind == "electra" else "Tanh"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_of_tensorflow_1(kind, tmp_path):
    name, activation, content = KINDS[kind]
    model = random_model(name, activation, content)
    folder = write_module(tmp_path, google_tensors(model), program(kind, content))
    encoder = kbert.Encoder.from_preset(folder)
    assert encoder.config.num_heads == 2
    assert encoder.config.num_layers == content["num_hidden_layers"]
    assert encoder.config.num_layer_groups == content.get("num_hidden_groups")
    assert_same_outputs(encoder, getattr(model, kind))


def test_a_config_beside_the_module_says_the_number_of_heads(tmp_path):
    model = random_model("BertForPreTraining", "gelu_new", BERT)  # 4 heads of width 8
    folder = write_module(tmp_path, google_tensors(model), {})
    message = r"width / 64 heads, unless .* bert_config.json.* Received: 32 in "
    with pytest.raises(ValueError, match=message):
        read_checkpoint(folder)
    (folder / "bert_config.json").write_text(json.dumps(BERT))
    encoder = kbert.Encoder.from_preset(folder)
    assert encoder.config.num_heads == 4
    assert_same_outputs(encoder, model.bert)


def test_the_number_of_layers_that_share_weights_must_show(tmp_path):
    name, activation, content = KINDS["albert"]
    tensors = google_tensors(random_model(name, activation, content))
    folder = write_module(tmp_path, tensors, {"activation": "Tanh"})
    message = r"how many layers share .* write it to albert_config.json.* the rest is \{.vocab_size"
    with pytest.raises(ValueError, match=message):
        read_checkpoint(folder)


def test_a_form_of_activation_by_the_operations(tmp_path):
    name, _, content = KINDS["bert"]
    tensors = google_tensors(random_model(name, "gelu_new", content))
    for operation, expected in {"Erf": "gelu", "Relu": "relu", "Tanh": "gelu_tanh"}.items():
        folder = write_module(tmp_path / operation, tensors, {"a": operation, "b": "Tanh"})
        assert read_checkpoint(folder).config.activation == expected


@pytest.fixture
def saved(tmp_path):
    """A SavedModel of the Model Garden's."""
    with zipfile.ZipFile(GOLDEN / "hub-albert.zip") as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "size", "message"),
    [
        ("saved_model.pb", 100, r"The SavedModel is damaged \(.*Received: .*saved_model.pb"),
        ("saved_model.pb", 0, r"The SavedModel is damaged \(.*Received: .*saved_model.pb"),
        ("variables/variables.index", 50, r"checkpoint is damaged .*Received: .*variables/var"),
        ("variables/variables.data-00000-of-00001", 50, r"checkpoint is damaged .*Received: "),
    ],
)
def test_damaged_files_are_named(saved, file, size, message):
    path = saved / file
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=message):
        read_checkpoint(saved)


def test_functions_that_call_themselves_have_no_layers(saved):
    model = SavedModel.FromString((saved / "saved_model.pb").read_bytes())
    library = model.meta_graphs[0].graph_def.library
    del library.function[:]
    for i in range(2):
        function = library.function.add()
        function.signature.name = f"f{i}"
        function.node_def.add(op="Call").attr["f"].func.name = f"f{1 - i}"
    (saved / "saved_model.pb").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="how many layers share the weights"):
        read_checkpoint(saved)
    for i in range(5_000):  # longer than Python's stack
        function = library.function.add()
        function.signature.name = f"g{i}"
        function.node_def.add(op="Call").attr["f"].func.name = f"g{i + 1}"
    (saved / "saved_model.pb").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="how many layers share the weights"):
        read_checkpoint(saved)


def test_another_saved_model_is_refused(saved, tmp_path):
    for path in (saved / "variables").iterdir():
        path.unlink()
    write_release(saved / "variables", {"dense/kernel": [1.0]}, prefix="variables")
    with pytest.raises(ValueError, match=r"variables below .*Received: .*with dense/kernel"):
        read_checkpoint(saved)
