"""The files of ELMo's releases: read whole or refused, and written as they are read."""

import json
import logging

import h5py
import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint, write_checkpoint
from kbert.checkpoints.bilm.options import read_options, write_options
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from tests.models.elmo.elmo_reference import OPTIONS, make_options, make_weights, write_folder

# As the original release has it.
PUBLISHED = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 512,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 4096,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "embedding": {"dim": 16},
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}
TRAINING = {
    "bidirectional": True,
    "dropout": 0.2,
    "all_clip_norm_val": 10.0,
    "n_epochs": 10,
    "n_train_tokens": 768648884,
    "batch_size": 128,
    "n_tokens_vocab": 793471,
    "unroll_steps": 20,
    "n_negative_samples_batch": 8192,
}
WEIGHTS = make_weights(OPTIONS)


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path, OPTIONS, WEIGHTS)
    return tmp_path


def test_published_options_are_the_originals_config():
    assert read_options(PUBLISHED, "memory") == ElmoConfig()
    assert write_options(ElmoConfig()) == {**PUBLISHED_AS_WRITTEN, "dropout": 0.1}


# JSON has one kind of number; in Python 3 is 3.0.
PUBLISHED_AS_WRITTEN = {
    "lstm": PUBLISHED["lstm"],
    "char_cnn": {
        **PUBLISHED["char_cnn"],
        "filters": tuple(map(tuple, PUBLISHED["char_cnn"]["filters"])),
    },
}


def test_options_of_a_training_run():
    characters = {**PUBLISHED["char_cnn"], "n_characters": 261}
    config = read_options({**PUBLISHED, **TRAINING, "char_cnn": characters}, "memory")
    assert config == ElmoConfig(dropout=0.2)


def test_what_is_absent_is_what_the_original_takes():
    lstm = {"dim": 8, "projection_dim": 4}
    characters = {k: v for k, v in PUBLISHED["char_cnn"].items() if k != "n_highway"}
    config = read_options({"lstm": lstm, "char_cnn": characters}, "memory")
    assert (config.num_layers, config.num_highway, config.skip_connections) == (1, 0, False)
    assert (config.cell_clip, config.projection_clip) == (None, None)
    assert read_options(json.loads(json.dumps(write_options(config))), "memory") == config


@pytest.mark.parametrize("prefix", ["", "elmo_2x4096_512_2048cnn_2xhighway_", "lm_"])
def test_reads_what_is_written_under_any_prefix(prefix, tmp_path):
    write_folder(tmp_path, OPTIONS, WEIGHTS, prefix)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.config.skip_connections
    assert checkpoint.config.lstm_size == 10
    assert len(checkpoint.arrays) == len(WEIGHTS)
    assert not checkpoint.labels
    table = checkpoint.arrays["elmo/character_cnn/table"]
    np.testing.assert_array_equal(table, WEIGHTS["char_embed"])
    assert checkpoint.arrays["elmo/character_cnn/kernel_2"].shape == (3, 4, 8)
    cell = WEIGHTS["RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0"]
    np.testing.assert_array_equal(checkpoint.arrays["elmo/lstm/backward_0/projection"], cell)


def test_writes_what_it_reads(folder, tmp_path):
    checkpoint = read_checkpoint(folder)
    target = tmp_path / "written"
    write_checkpoint(target, checkpoint.config, checkpoint.arrays, "bilm")
    assert sorted(path.name for path in target.iterdir()) == ["lm_weights.hdf5", "options.json"]
    assert json.loads((target / "options.json").read_text()) == {**OPTIONS, "dropout": 0.1}
    with h5py.File(target / "lm_weights.hdf5") as file:
        found = {}
        file.visititems(lambda name, item: found.update({name: item}))
        for name, array in WEIGHTS.items():
            np.testing.assert_array_equal(found[name][()], array)
            assert found.pop(name).dtype == "float32"
        assert all(isinstance(group, h5py.Group) for group in found.values())


def test_a_softmax_has_no_place_there(folder, tmp_path, caplog):
    checkpoint = read_checkpoint(folder)
    arrays = {**checkpoint.arrays, "elmo/softmax/kernel": np.zeros((9, 6))}
    config = checkpoint.config.replace(vocabulary_size=9)
    with caplog.at_level(logging.WARNING):
        write_checkpoint(tmp_path / "written", config, arrays, "bilm")
    assert "without the softmax" in caplog.text
    assert read_checkpoint(tmp_path / "written").config == checkpoint.config


def test_every_difference_of_the_weights_is_listed(folder):
    weights = dict(WEIGHTS)
    del weights["CNN/b_cnn_1"]
    weights["CNN_proj/b_proj"] = np.zeros(7)
    weights["RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/B"] = np.zeros(40)
    weights["char_embed"] = np.full((261, 4), np.nan)
    write_folder(folder, OPTIONS, weights)
    with pytest.raises(ValueError, match=r"Received: .*weights\.hdf5") as error:
        read_checkpoint(folder)
    for line in (
        "- missing CNN/b_cnn_1 (8,)",
        "+ unexpected RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/B (40,)",
        "! shape of CNN_proj/b_proj: expected (6,), is (7,)",
        "! char_embed holds NaN or infinity",
    ):
        assert line in str(error.value)


def test_no_projection_where_the_filters_are_as_many(tmp_path):
    options = make_options(filters=[[1, 2], [3, 4]])
    write_folder(tmp_path, options, make_weights(options))
    assert "elmo/character_cnn/projection_kernel" not in read_checkpoint(tmp_path).arrays


def _changed(part=None, **changes):
    if part is None:
        return {**OPTIONS, **changes}
    return {**OPTIONS, part: {**OPTIONS[part], **changes}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (_changed(n_lstm=2), "unknown n_lstm in .*options.json"),
        (_changed("lstm", peepholes=True), "unknown peepholes in .*options.json"),
        (_changed("char_cnn", padding=1), "unknown padding in .*options.json"),
        (_changed("char_cnn", n_characters=300), "`n_characters` must be 262 .*: 300 in"),
        (_changed("char_cnn", activation="gelu"), "`activation` must be 'relu' .*: 'gelu' in"),
        (_changed("char_cnn", embedding={"dim": 4, "norm": 1}), "unknown norm in"),
        (_changed("char_cnn", embedding=4), "`embedding` must be a JSON object. Received: 4 in"),
        (_changed("char_cnn", filters=3), "`filters` must be pairs .*: 3 in .*options.json"),
        (_changed(bidirectional=False), "`bidirectional` must be True .*: False in"),
        (_changed("lstm", dim="10"), "`lstm_size` must be an integer .*: '10' in .*options"),
        (_changed("lstm", dim=6), "smaller than its state.*projection_dim=6, dim=6 in .*options"),
        ({"lstm": OPTIONS["lstm"]}, "must have char_cnn. Received: .*options.json"),
        ({**OPTIONS, "lstm": {"dim": 4}}, "must have projection_dim. Received: "),
        (_changed("lstm", n_layers=400_000_000), "probably damaged"),
    ],
)
def test_options_that_are_not_understood(options, message, folder):
    (folder / "options.json").write_text(json.dumps(options))
    with pytest.raises(ValueError, match=message):
        read_checkpoint(folder)


def test_files_that_are_damaged_missing_or_too_many(folder):
    whole = (folder / "weights.hdf5").read_bytes()
    for content in (b"", b"no such thing", whole[: len(whole) // 2]):
        (folder / "weights.hdf5").write_bytes(content)
        with pytest.raises(ValueError, match=r"damaged, .*Received: .*weights.hdf5"):
            read_checkpoint(folder)
    (folder / "options.json").write_text("{")
    with pytest.raises(ValueError, match=r"not JSON .*Received: .*options.json"):
        read_checkpoint(folder)
    (folder / "weights.hdf5").unlink()
    with pytest.raises(ValueError, match=r"one \*weights.hdf5. Received: no \*weights.hdf5 in"):
        read_checkpoint(folder)
    write_folder(folder, OPTIONS, WEIGHTS, "other_")
    with pytest.raises(ValueError, match=r"Received: options.json, other_options.json in"):
        read_checkpoint(folder)


def test_words_are_no_weights(folder):
    write_folder(folder, OPTIONS, {**WEIGHTS, "char_embed": np.array([b"a", b"b"])})
    with pytest.raises(ValueError, match=r"Weights must be numbers. Received: char_embed \(|S1"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "gelu"}, "relu and tanh. Received: activation='gelu'"),
        ({"lstm_size": 6}, "must be smaller than its state"),
        ({"filters": ((1, 2),)}, "Received: 2 filters, projection_size=6"),
    ],
)
def test_models_that_the_original_cannot_be(changes, message, folder, tmp_path):
    checkpoint = read_checkpoint(folder)
    config = checkpoint.config.replace(**changes)
    with pytest.raises(ValueError, match=message):
        write_checkpoint(tmp_path / "written", config, checkpoint.arrays, "bilm")


def test_a_folder_of_another_model_is_left_alone(folder, tmp_path):
    checkpoint = read_checkpoint(folder)

    def write(**more):
        write_checkpoint(folder, checkpoint.config, checkpoint.arrays, "bilm", **more)

    with pytest.raises(ValueError, match="contains another"):  # weights.hdf5, not lm_weights.hdf5
        write()
    (folder / "kbert.json").touch()
    with pytest.raises(ValueError, match="contains a kbert preset"):
        write()
    with pytest.raises(ValueError, match=r"contain a language model.*Received: a TokenClassif"):
        write(task={"kind": "TokenClassifier"})
    with pytest.raises(ValueError, match=r"one of kbert, bilm. Received: 'huggingface'"):
        write_checkpoint(tmp_path, checkpoint.config, checkpoint.arrays, "huggingface")


def test_a_preset_of_kbert_s_own_says_which_model_it_is(folder, tmp_path):
    checkpoint = read_checkpoint(folder)
    target = tmp_path / "preset"
    write_checkpoint(target, checkpoint.config, checkpoint.arrays, task={"kind": "X"})
    content = json.loads((target / "kbert.json").read_text())
    assert list(content) == ["format_version", "elmo", "task"]
    again = read_checkpoint(target)
    assert again.config == checkpoint.config
    assert again.task == {"kind": "X"}
    for name, array in checkpoint.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    with pytest.raises(ValueError, match=r"must contain an encoder .*Received: a language model"):
        again.expect(EncoderConfig)
    for bad in ({**content, "encoder": {}}, {"format_version": 1}):
        (target / "kbert.json").write_text(json.dumps(bad))
        with pytest.raises(ValueError, match=r"keys format_version and .*encoder or"):
            read_checkpoint(target)
