"""Encoders of short rows as ones of long rows: the same where rows are short, and more beyond."""

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.preset import write_folder as write_preset
from kbert.conversion import check, convert, lengthen
from kbert.models import Encoder
from kbert.models.weights import get_arrays, set_arrays
from tests.harness import KINDS, assert_close, randomise, tiny_config, tiny_inputs, to_numpy
from tests.models.references import make_reference


def made(config, arrays):
    encoder = Encoder(config)
    set_arrays(encoder, "encoder", arrays, "here")
    return encoder


@pytest.fixture(scope="module", params=[{}, {"num_layer_groups": 1}, {"use_bias": False}])
def before(request):
    encoder = Encoder(tiny_config(num_segments=0, **request.param))
    randomise(encoder)
    return encoder


def test_short_rows_are_read_as_before(before):
    config, arrays = lengthen(
        before.config, get_arrays(before, "encoder"), window=12, max_positions=60
    )
    after, inputs = made(config, arrays), tiny_inputs(before.config, length=7)
    want, found = (to_numpy(encoder(inputs)) for encoder in (before, after))
    for name in want:
        assert_close(found[name], want[name], 1e-6)
    # Also with global tokens: their projections are those of all.
    everywhere = {**inputs, "global_positions": np.tile(np.arange(7), (3, 1))}
    real = inputs["padding_mask"] == 1
    assert_close(to_numpy(after(everywhere)["sequence"])[real], want["sequence"][real], 1e-5)


def test_where_all_are_global_windows_keep_nobody_apart(before):
    """A row longer than the window, but not than the positions of before."""
    config, arrays = lengthen(before.config, get_arrays(before, "encoder"), window=4)
    assert config.max_positions == 24
    after, inputs = made(config, arrays), tiny_inputs(before.config, length=23)
    want = to_numpy(before(inputs)["sequence"])
    everywhere = {**inputs, "global_positions": np.tile(np.arange(23), (3, 1))}
    real = inputs["padding_mask"] == 1
    assert_close(to_numpy(after(everywhere)["sequence"])[real], want[real], 1e-5)
    assert np.abs(to_numpy(after(inputs)["sequence"])[real] - want[real]).max() > 1e-2


def test_positions_are_repeated(before):
    arrays = get_arrays(before, "encoder")
    _, longer = lengthen(before.config, arrays, window=4, max_positions=60)
    table = arrays["encoder/embeddings/position"]
    np.testing.assert_array_equal(
        longer["encoder/embeddings/position"], np.concatenate([table, table, table[:12]])
    )


def test_once_more_copies_what_was_trained_since():
    encoder = Encoder(tiny_config(**KINDS["global tokens"]))
    randomise(encoder)
    arrays = get_arrays(encoder, "encoder")
    config, again = lengthen(encoder.config, arrays, window=8)
    assert config == encoder.config.replace(attention_pattern=(8,))
    changed = {name for name in arrays if not np.array_equal(arrays[name], again[name])}
    assert changed == {name for name in arrays if "/global_" in name}
    qkv = again["encoder/layers/1/attention/qkv/bias"]
    parts = (again[f"encoder/layers/1/attention/global_{x}/bias"] for x in ("query", "key_value"))
    np.testing.assert_array_equal(np.concatenate(list(parts)), qkv)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"max_positions": 20}, "at least 24, the positions .* Received: max_positions=20"),
        ({}, {"window": 50}, "at most 48, as no sequence is longer than max_positions=24"),
        ({}, {"window": 5}, "must be an even number of tokens"),
        (KINDS["disentangled"], {"window": 4}, "Global tokens require .* Received: part='disentan"),
        ({"positions": "rotary"}, {"window": 4}, "do not support distances"),
        (
            {"num_key_value_heads": 2},
            {"window": 4},
            "`num_key_value_heads` must be None.* Received: num_key_value_heads=2",
        ),
    ],
)
def test_what_cannot_become_longer(changes, options, message):
    with pytest.raises(ValueError, match=message):
        lengthen(tiny_config(**changes), {}, **options)


def test_positions_without_a_window_are_refused(tmp_path):
    encoder = Encoder(tiny_config())
    encoder.save_to_preset(tmp_path / "here")
    with pytest.raises(ValueError, match=r"requires `window`: .*: max_positions=30, window"):
        convert(tmp_path / "here", tmp_path / "there", max_positions=30)
    assert not (tmp_path / "there").exists()


@pytest.mark.tensorflow
def test_a_roberta_becomes_a_longformer_of_transformers(tmp_path):
    """With its head; the check runs RoBERTa there on the one, Longformer there on the other."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    make_reference("roberta", "ForMaskedLM").save_pretrained(tmp_path / "roberta")
    done = convert(
        *(tmp_path / "roberta", tmp_path / "long"),
        format="huggingface",
        window=64,
        max_positions=80,
    )
    checks = check(done.source, done.target)
    assert [(x.passed, sorted(x.differences)) for x in checks] == [
        (True, ["masked_lm", "sequence"])
    ] * 2
    config = transformers.AutoConfig.from_pretrained(tmp_path / "long")
    assert config.model_type == "longformer"
    assert (config.attention_window, config.max_position_embeddings) == ([64] * 4, 82)


def test_what_goes_with_the_model_stays(tmp_path):
    """Its heads and its task."""
    encoder = Encoder(tiny_config())
    arrays = {**get_arrays(encoder, "encoder"), "span/dense/kernel": np.ones((16, 2), "float32")}
    arrays["span/dense/bias"] = np.zeros(2, "float32")
    write_preset(tmp_path / "here", encoder.config, arrays, {"kind": "answer", "max_length": 20})
    convert(tmp_path / "here", tmp_path / "there", window=6, max_positions=48)
    found = read_checkpoint(tmp_path / "there")
    assert found.task == {"kind": "answer", "max_length": 20}
    np.testing.assert_array_equal(found.arrays["span/dense/kernel"], np.ones((16, 2)))
