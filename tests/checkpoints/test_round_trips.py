"""Folders that transformers wrote, read and written again: transformers loads them, bit by bit.

`tests/models/test_reference_family.py` shows that what is read computes the same.
"""

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.huggingface.huggingface import write_folder
from kbert.models import Encoder
from kbert.models.weights import get_arrays
from tests.harness import KINDS, randomise, tiny_config
from tests.models.references import CLASSES, make_reference

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


# The same one on the states of every encoder, by the same names.
ON_STATES = ("ForTokenClassification", "ForQuestionAnswering")
# BERT and RoBERTa by other names.
LIKE_OTHERS = ("ernie", "xlm-roberta", "camembert")
# Nothing else here writes their poolers.
ALONE = ("bert", "deberta", "squeezebert")


def marks(model_type, ending):
    is_repeated = ending in ON_STATES and model_type != "bert"
    # Below the encoder alone goes there and back.
    is_repeated |= ending == "Model" and model_type not in ALONE
    is_repeated |= model_type in LIKE_OTHERS and ending != "ForMaskedLM"
    return [pytest.mark.slow] if is_repeated else []


@pytest.mark.parametrize(
    ("model_type", "ending"),
    [
        pytest.param(name, ending, marks=marks(name, ending))
        for name, endings in CLASSES.items()
        for ending in endings
    ],
)
def test_there_and_back_is_bit_equal(model_type, ending, tmp_path):
    model = make_reference(model_type, ending)
    if model_type in ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet"):
        clear_unused_rows(model)
    model.save_pretrained(tmp_path / "theirs")
    first = read_checkpoint(tmp_path / "theirs")
    write_folder(
        tmp_path / "ours", first.config, first.arrays, architecture=model_type, labels=first.labels
    )
    second = read_checkpoint(tmp_path / "ours")
    assert (second.config, second.labels) == (first.config, first.labels)
    assert second.arrays.keys() == first.arrays.keys()
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(second.arrays[name], array, err_msg=name)
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    assert not report["unexpected_keys"]
    theirs = again.state_dict()
    for name, weight in model.state_dict().items():
        np.testing.assert_array_equal(theirs[name].numpy(), weight.numpy(), err_msg=name)
    assert type(transformers.AutoConfig.from_pretrained(tmp_path / "ours")) is type(model.config)


# What transformers' class does whatever its config says.
_HEAD = {"head_activation": "gelu"}
_ROBERTA = {**_HEAD, "padding_id": 1, "num_segments": 0}


def clear_unused_rows(model):
    """Zeros, as in RoBERTa's released weights: what kbert does not keep."""
    import torch

    with torch.no_grad():
        embeddings = model.base_model.embeddings
        if hasattr(embeddings, "token_type_embeddings"):
            embeddings.token_type_embeddings.weight.zero_()
        embeddings.position_embeddings.weight[: model.config.pad_token_id] = 0


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("bert", {"activation": "gelu"}),
        ("bert", {"pooler_activation": None, "num_segments": 3}),
        ("roberta", {**_ROBERTA, "layer_norm_epsilon": 1e-5}),
        ("xlm-roberta", {**_ROBERTA, "padding_id": 0, "pooler_activation": None}),
        pytest.param("camembert", _ROBERTA, marks=pytest.mark.slow),
        ("albert", {"num_layer_groups": 1, "embedding_size": 8}),
        ("albert", {"num_layer_groups": 2, "embedding_size": 16, "pooler_activation": None}),
        ("distilbert", {"num_segments": 0, "pooler_activation": "relu"}),
        ("electra", {"embedding_size": 8, "pooler_activation": "gelu", **_HEAD}),
        ("deberta-v2", {**KINDS["disentangled"], "pooler_activation": None}),
        ("deberta-v2", {**KINDS["disentangled"], "positions": "learned", "num_segments": 3}),
        (
            "eurobert",
            {
                **KINDS["grouped"],
                "rotary_base": 500.0,
                "dropout": 0.0,
                "activation": "silu",
                "pooler_activation": None,
            },
        ),
        (
            "roformer",
            {"positions": "rotary", "embedding_size": 8, "pooler_activation": None},
        ),
        ("ernie", {"part": {"name": "task_embeddings", "num_tasks": 2}}),
        ("ernie", {"activation": "relu", "num_segments": 4}),
        (
            "nomic_bert",
            {
                "positions": "rotary",
                "rotary_base": 500.0,
                "feed_forward": "gated",
                "activation": "silu",
                "use_bias": False,
                "bias_exceptions": ("heads",),
            },
        ),
        ("mpnet", {**KINDS["relative bias"], **_ROBERTA}),
        ("convbert", KINDS["convolution"]),
        ("longformer", {**KINDS["global tokens"], **_ROBERTA}),
        (
            "longformer",
            {**KINDS["global tokens"], **_ROBERTA, "attention_pattern": (6,), "num_segments": 2},
        ),
        (
            "modernbert",
            {
                **KINDS["modern"],
                "use_bias": True,
                "bias_exceptions": ("attention", "heads"),
                "head_activation": "silu",
                "pooler_activation": None,
            },
        ),
        ("xlnet", {"kind": "xlnet", "max_positions": 512, "pooler_activation": None}),
        (
            "xlnet",
            {
                **{"kind": "xlnet", "max_positions": 512, "attention": "causal"},
                **{"same_length": True, "clamp_length": 4, "reuse_length": 8},
            },
        ),
        ("mobilebert", KINDS["bottleneck"]),
    ],
)
def test_an_encoder_of_kbert_s_comes_back_as_it_was(model_type, changes, tmp_path):
    encoder = Encoder(tiny_config(**changes))
    randomise(encoder)
    encoder.save_to_preset(tmp_path, format="huggingface", architecture=model_type)
    again = Encoder.from_preset(tmp_path)
    assert again.config == encoder.config
    arrays = get_arrays(again, "encoder")
    for name, array in get_arrays(encoder, "encoder").items():
        np.testing.assert_array_equal(arrays[name], array)
    model = transformers.AutoModel.from_pretrained(tmp_path)
    assert model.config.model_type == model_type
