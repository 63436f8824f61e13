"""Checkpoints and SavedModels of the TensorFlow Model Garden compute what its models computed.

`tests/golden/write_model_garden.py` made them, with tf-models-official 2.20.
"""

import json
import pathlib
import zipfile

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.conversion.heads import load_heads, run_heads
from tests.harness import SIGMA, assert_close, to_numpy

GOLDEN = pathlib.Path(__file__).parents[2] / "golden/model-garden"
CLOSE = 1e-5
# Output there -> head here.
HEADS = {"mlm_logits": "masked_lm", "next_sentence": "sentence", "classifier": "classifier"}


@pytest.fixture
def unpack(tmp_path):
    """Unpacks a golden zip file."""

    def unpacked(name):
        with zipfile.ZipFile(GOLDEN / f"{name}.zip") as archive:
            archive.extractall(tmp_path / name)
        return tmp_path / name

    return unpacked


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("bert", set()),
        ("pretrainer", {"pooler_transform/bias", "pooler_transform/kernel"}),
        ("narrow", {"global_step/.ATTRIBUTES/VARIABLE_VALUE"}),
        ("albert", set()),
        ("classifier", set()),
        ("squad", set()),
        ("hub-bert", {"do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"}),
        ("hub-narrow", {"do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"}),
        ("hub-albert", {"do_lower_case/.ATTRIBUTES/VARIABLE_VALUE"}),
    ],
)
def test_outputs_are_the_librarys(name, left, unpack):
    folder = unpack(name)
    expected = dict(np.load(GOLDEN / f"{name}.npz"))
    encoder = kbert.Encoder.from_preset(folder)
    checkpoint = read_checkpoint(folder)
    mask = expected.pop("input_mask")
    outputs = encoder(
        {
            "token_ids": expected.pop("input_word_ids"),
            "segment_ids": expected.pop("input_type_ids"),
            "padding_mask": mask,
        }
    )
    heads = to_numpy(run_heads(load_heads(encoder, checkpoint.arrays, str(folder)), outputs))
    found = {
        "sequence_output": outputs["sequence"],
        "pooled_output": outputs["pooled"],
        **{there: heads.pop(here) for there, here in HEADS.items() if here in heads},
    }
    if "span_start" in heads:
        found["span"] = np.stack([heads.pop("span_start"), heads.pop("span_end")], -1)
    assert not heads  # every head that was read is compared
    assert expected
    for key, theirs in expected.items():
        real = mask == 1 if theirs.shape[:2] == mask.shape else slice(None)
        assert_close(np.asarray(found[key])[real], theirs[real], CLOSE)
    counters = {"save_counter/.ATTRIBUTES/VARIABLE_VALUE"}
    optimizer = {key for key in checkpoint.left if key.startswith("optimizer/")}
    assert bool(optimizer) == (name == "narrow")
    assert {*checkpoint.left} - counters - optimizer == left


def test_a_zip_of_a_saved_model(monkeypatch, tmp_path):
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path))
    encoder = kbert.Encoder.from_preset(GOLDEN / "hub-albert.zip")
    config = encoder.config
    assert (config.num_layers, config.num_blocks, config.num_heads) == (2, 1, 2)
    assert (config.embedding_size, config.max_positions, config.num_segments) == (4, 10, 2)
    assert config.activation == "gelu_tanh"


@pytest.mark.parametrize("name", ["bert", "hub-bert"])
def test_embeddings_of_the_hidden_width_are_no_narrow_ones(name, unpack):
    """So that other libraries' BERT can be the model."""
    folder = unpack(name)
    assert kbert.Encoder.from_preset(folder).config.embedding_size is None
    (folder / "bert_config.json").write_text(json.dumps({**SIZES, "embedding_size": 8}))
    assert kbert.Encoder.from_preset(folder).config.embedding_size is None


def test_tasks_of_the_heads(unpack):
    tasks = {
        "pretrainer": {"kind": "pretrain", "next_sentence": True},
        "albert": {"kind": "pretrain", "next_sentence": False},
        "classifier": {"kind": "classify"},
        "squad": {"kind": "answer"},
        "hub-bert": {"kind": "pretrain", "next_sentence": False},
        "hub-narrow": None,
    }
    assert {name: read_checkpoint(unpack(name)).task for name in tasks} == tasks
    assert read_checkpoint(unpack("classifier")).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.tensorflow
def test_the_tokenizer_of_a_saved_model(unpack):
    lower, cased = unpack("hub-bert"), unpack("hub-narrow")
    assert kbert.load_tokenizer(lower)(["the Fox"]).to_list() == [[5, 6]]
    assert kbert.load_tokenizer(cased)(["the Fox"]).to_list() == [[5, 7]]
    assert kbert.load_tokenizer(cased, lowercase=True).lowercase
    data = cased / "variables/variables.index"
    data.write_bytes(data.read_bytes()[:40])
    with pytest.raises(
        ValueError, match=r"The variables of the SavedModel are damaged .*cased|var"
    ):
        kbert.load_tokenizer(cased)


# -- by layout: names that the library no longer writes


def save(folder, variables, content=None, prefix="bert_model.ckpt"):
    """An object-based checkpoint of variables of these names."""
    folder.mkdir(exist_ok=True, parents=True)
    held = {f"v{i}": tf.Variable(x, name=name) for i, (name, x) in enumerate(variables.items())}
    tf.train.Checkpoint(model=tf.train.Checkpoint(**held)).write(str(folder / prefix))
    if content is not None:
        (folder / "bert_config.json").write_text(json.dumps(content))
    return folder


def first_release():
    """Names of the code of November 2019: BERT_NAME_REPLACEMENTS of the library's converter."""

    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(0, SIGMA, shape).astype("float32")

    names = {
        "word_embeddings/embeddings": normal(12, 8),
        "embedding_postprocessor/type_embeddings": normal(2, 8),
        "embedding_postprocessor/position_embeddings": normal(10, 8),
        "pooler_transform/kernel": normal(8, 8),
        "pooler_transform/bias": normal(8),
    }
    norms = ["embedding_postprocessor/layer_norm"]
    for i in range(2):
        layer = f"encoder/layer_{i}"
        for part in ("query", "key", "value"):
            names[f"{layer}/self_attention/{part}/kernel"] = normal(8, 2, 4)
            names[f"{layer}/self_attention/{part}/bias"] = normal(2, 4)
        names[f"{layer}/self_attention_output/kernel"] = normal(2, 4, 8)
        names[f"{layer}/self_attention_output/bias"] = normal(8)
        names[f"{layer}/intermediate/kernel"] = normal(8, 16)
        names[f"{layer}/intermediate/bias"] = normal(16)
        names[f"{layer}/output/kernel"] = normal(16, 8)
        names[f"{layer}/output/bias"] = normal(8)
        norms += [f"{layer}/self_attention_layer_norm", f"{layer}/output_layer_norm"]
    for norm in norms:
        names[f"{norm}/gamma"], names[f"{norm}/beta"] = 1 + normal(8), normal(8)
    return {f"bert_model/{name}": array for name, array in names.items()}


SIZES = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
}


def test_names_of_the_first_releases(tmp_path):
    variables = first_release()
    folder = save(tmp_path, variables, SIZES)
    arrays = read_checkpoint(folder).arrays
    layer = "bert_model/encoder/layer_1"
    np.testing.assert_array_equal(
        arrays["encoder/layers/1/attention/output/kernel"],
        variables[f"{layer}/self_attention_output/kernel"].reshape(8, 8),
    )
    np.testing.assert_array_equal(
        arrays["encoder/layers/1/attention/qkv/kernel"][:, 8:16],
        variables[f"{layer}/self_attention/key/kernel"].reshape(8, 8),
    )
    np.testing.assert_array_equal(
        arrays["encoder/embeddings/position"],
        variables["bert_model/embedding_postprocessor/position_embeddings"],
    )
    kbert.Encoder.from_preset(folder)  # nothing is missing or unexpected


def test_a_missing_config_is_told_by_the_shapes(tmp_path):
    folder = save(tmp_path, first_release())
    with pytest.raises(
        ValueError, match=r"bert_config.json next .*By the shapes .* is \{"
    ) as error:
        read_checkpoint(folder)
    said = str(error.value).partition("it is ")[2].partition("}")[0] + "}"
    assert json.loads(said) == {**SIZES, "embedding_size": 8}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 4}, r"! shape of encoder/layers/0/attention/qkv/bias: expected"),
        ({"num_hidden_layers": 3}, "- missing encoder/layers/2/attention/qkv/kernel"),
        ({"num_hidden_layers": 1}, r"\+ unexpected encoder/transformer/layer_1/self_attention"),
        ({"vocab_size": 13}, r"! shape of encoder/embeddings/token: expected \(13, 8\)"),
        ({"hidden_act": "mish"}, "`hidden_act` must be one of gelu, relu, tanh"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path, changes, message):
    folder = save(tmp_path, first_release(), {**SIZES, **changes})
    with pytest.raises(ValueError, match=message):
        kbert.Encoder.from_preset(folder)


def test_two_models_in_one_checkpoint_are_refused(tmp_path):
    held = {f"v{i}": tf.Variable(np.ones(2, "float32"), name="kernel") for i in range(2)}
    tf.train.Checkpoint(**held).write(str(tmp_path / "model.ckpt"))
    message = r"must be unique.*Received: v0/.* and v1/.*, both kernel, in .*model.ckpt"
    with pytest.raises(ValueError, match=message):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (b"\xff\xff", "graph of objects in the checkpoint is damaged. Received: .*model.ckpt"),
        (b"", r"must name each of its variables. Received: a/\.ATTR.* without a name in .*model"),
    ],
)
def test_a_damaged_graph_of_objects(tmp_path, graph, message):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "model.ckpt"),
        tensor_names=["_CHECKPOINTABLE_OBJECT_GRAPH", "a/.ATTRIBUTES/VARIABLE_VALUE"],
        shape_and_slices=["", ""],
        tensors=[tf.constant(graph), tf.ones(3)],
    )
    with pytest.raises(ValueError, match=message):
        read_checkpoint(tmp_path)
