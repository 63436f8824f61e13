"""What a folder says twice, otherwise or not at all: it is obeyed, named or refused."""

import json

import numpy as np
import pytest

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.huggingface.architectures import identify
from kbert.checkpoints.huggingface.config import read_labels
from kbert.checkpoints.huggingface.huggingface import import_model
from tests.harness import tiny_config

SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 18,
    "initializer_range": 0.3,
}


@pytest.mark.parametrize("name", ["RobertaModel", "RobertaForMaskedLM"])
def test_a_roberta_of_2019_has_no_model_type(name, tmp_path):
    """Its positions begin at 2: read as BERT's, all outputs would be others."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**SIZES, type_vocab_size=1)).eval()
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    for key in ("model_type", "pad_token_id", "position_embedding_type"):
        content.pop(key, None)
    path.write_text(json.dumps(content))
    ids = np.arange(4, 12)[None]
    with torch.no_grad():
        expected = model.base_model(torch.tensor(ids)).last_hidden_state.numpy()
    encoder = kbert.Encoder.from_preset(tmp_path)
    inputs = {"token_ids": ids.astype("int32"), "padding_mask": np.ones(ids.shape, bool)}
    np.testing.assert_allclose(np.asarray(encoder(inputs)["sequence"]), expected, atol=2e-5)
    if name == "RobertaModel":  # bare names
        path.write_text(json.dumps({k: x for k, x in content.items() if k != "architectures"}))
        with pytest.raises(ValueError, match=r"as BERT and RoBERTa count .*add `model_type`"):
            read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "names", "title"),
    [
        ({}, [], "BERT"),
        ({"type_vocab_size": 2}, ["encoder.layer.0.x"], "BERT"),
        ({"architectures": None}, ["roberta.encoder.layer.0.x"], "RoBERTa"),
        ({}, ["albert.pooler.weight", "predictions.bias"], "ALBERT"),
        ({}, ["distilbert.transformer.layer.0.x"], "DistilBERT"),
        ({}, ["model.layers.0.x", "transformer.h.0.x"], "BERT"),  # of several families
        ({"architectures": ["TFElectraForPreTraining"]}, [], "ELECTRA"),
        ({"architectures": ["XLMRobertaModel"]}, [], "XLM-RoBERTa"),
        ({"architectures": ["BertForFeelings"]}, [], "BERT"),
        ({"architectures": ["OurRobertaThing"]}, ["bert.pooler.x"], "BERT"),
    ],
)
def test_without_a_model_type(content, names, title):
    assert identify(content, "there", names).title == title


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (("embedding_size", "num_hidden_groups", "net_structure_type"), "albert"),
        (
            ("dim", "n_layers", "n_heads", "hidden_dim", "dropout", "attention_dropout"),
            "distilbert",
        ),
    ],
)
def test_keys_of_another_architecture_are_hinted_at(keys, name):
    content = dict.fromkeys(keys, 1)
    with pytest.raises(ValueError, match=f'perhaps add "model_type": "{name}" to it'):
        identify(content, "there")
    assert identify({**content, "model_type": name}, "there").model_type == name


def test_paddle_s_keys_of_ernie():
    keys = {"pool_act": "tanh", "task_id": 0, "fuse": False, "enable_recompute": False}
    content = {"model_type": "ernie", **SIZES, **keys, "use_task_id": True}
    found = import_model(
        {**content, "paddlenlp_version": "2.6", "init_class": "ErnieModel"}, {}, ""
    )
    assert found.config.part == {"name": "task_embeddings", "num_tasks": 3}
    for key, value in (("pool_act", "relu"), ("task_id", 2)):
        with pytest.raises(ValueError, match=f"`{key}` must be "):
            import_model({**content, key: value}, {}, "")


def test_classes_of_another_architecture_are_named(caplog):
    content = {"model_type": "bert", "architectures": ["RobertaForMaskedLM"]}
    assert identify(content, "there").title == "BERT"
    assert (
        "there: `architectures` has RobertaForMaskedLM, but `model_type` is 'bert'" in caplog.text
    )
    caplog.clear()
    for name in ("BertForMaskedLM", "MyOwnModel"):
        identify({"model_type": "bert", "architectures": [name]}, "there")
    assert not caplog.records


@pytest.mark.parametrize(
    ("content", "labels", "told"),
    [
        ({"id2label": {"0": "n", "1": "p"}, "label2id": {"n": 0, "p": 1}}, ("n", "p"), False),
        ({"id2label": {"0": "n", "1": "p"}, "label2id": {"n": "0", "p": "1"}}, ("n", "p"), False),
        ({"id2label": {"0": "n", "1": "p"}, "label2id": {"n": 0, "p": 1, "x": 1}}, "np", False),
        ({"id2label": {"0": "n", "1": "p"}, "label2id": {"n": 1, "p": 0}}, ("n", "p"), True),
        ({"id2label": {"0": "n", "1": "p"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}, "np", True),
        ({"id2label": {"0": "n", "1": "p"}, "label2id": {"n": 0, "x": 1}}, ("n", "p"), True),
        ({"id2label": {"0": "n", "1": "p"}, "label2id": {"n": 0}}, ("n", "p"), False),
        ({"label2id": {"n": 1, "p": 0}}, ("p", "n"), False),
        ({"label2id": {"n": 1, "p": 0, "q": 0}}, ("LABEL_0", "LABEL_1"), True),
    ],
)
def test_names_of_classes_in_both_directions(content, labels, told, caplog):
    assert read_labels(content, 2, "there") == tuple(labels)
    assert ("`label2id` contradicts it" in caplog.text) is told


def test_an_adapter_beside_a_model_is_told(tmp_path, caplog):
    """transformers applies it; kbert reads the model alone."""
    kbert.Encoder(tiny_config()).save_to_preset(tmp_path, "huggingface")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    kbert.Encoder.from_preset(tmp_path)
    assert "an adapter of adapter_config.json is not applied" in caplog.text


@pytest.mark.parametrize(
    ("file", "way"),
    [("adapter_config.json", "read_peft"), ("modules.json", "SentenceTransformer")],
)
def test_a_folder_whose_model_lies_elsewhere_says_the_way(tmp_path, file, way):
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (tmp_path / file).write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=rf"{file} (contains|has) .*{way}"):
        kbert.Encoder.from_preset(tmp_path)
