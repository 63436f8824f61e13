"""Tied weights: a file may have any of the copies alone, and all of them must be equal."""

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.huggingface.architectures import architectures
from kbert.checkpoints.renames import read_arrays
from tests.checkpoints.huggingface.test_unread_keys import config_of

SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}
GPT = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
CLASSES = {
    "BertForPreTraining": SIZES,
    "RobertaForMaskedLM": SIZES,
    "AlbertForMaskedLM": SIZES,
    "ElectraForMaskedLM": {**SIZES, "embedding_size": 4},
    "NomicBertForMaskedLM": SIZES,
    "GPT2LMHeadModel": GPT,
}


@pytest.mark.parametrize("model_type", architectures())
def test_each_copy_is_enough(model_type):
    config = config_of(model_type)
    for rule in architectures()[model_type].rules(config, None):
        copies = (rule.sources[0], *rule.aliases) if rule.aliases else ()
        arrays = {name: np.full((3, 3), i) for i, name in enumerate(rule.sources)}
        for name in copies:
            alone = {name: arrays[copies[0]]} | {n: arrays[n] for n in rule.sources[1:]}
            here, rest = read_arrays([rule], alone)
            np.testing.assert_array_equal(here[rule.name], rule.read(arrays))
            assert not rest


@pytest.mark.parametrize("name", CLASSES)
def test_files_of_transformers_models(name, tmp_path):
    """`save_model` leaves one of each copy, and so may whoever writes a pytorch_model.bin."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    save_model = pytest.importorskip("safetensors.torch").save_model
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**CLASSES[name]))
    model.save_pretrained(tmp_path)
    expected = read_checkpoint(tmp_path)
    save_model(model, str(tmp_path / "model.safetensors"))
    _assert_equal(read_checkpoint(tmp_path), expected)
    (tmp_path / "model.safetensors").unlink()
    places: dict = {}
    for key, tensor in model.state_dict().items():
        places.setdefault((tensor.data_ptr(), tensor.shape), []).append(key)
    tied = [keys for keys in places.values() if len(keys) > 1]
    assert tied
    for keys in tied:
        for kept in keys:
            left = {k: v for k, v in model.state_dict().items() if k == kept or k not in keys}
            torch.save(left, tmp_path / "pytorch_model.bin")
            _assert_equal(read_checkpoint(tmp_path), expected)


def _assert_equal(found, expected):
    assert (found.task, found.arrays.keys()) == (expected.task, expected.arrays.keys())
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
