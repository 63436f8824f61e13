"""Files that transformers 4 wrote by its TensorFlow and Flax classes compute what those computed.

`tests/golden/write_transformers4.py` made them.
"""

import pathlib
import shutil

import h5py
import numpy as np
import pytest

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.conversion.heads import load_heads, run_heads
from kbert.models.generators.decoder import Decoder
from tests.harness import assert_close, to_numpy

GOLDEN = pathlib.Path(__file__).parents[2] / "golden/transformers-4"
# Output here -> there.
OUTPUTS = {
    "bert": {"masked_lm": "prediction_logits", "sentence": "seq_relationship_logits"},
    "albert": {"masked_lm": "logits"},
    "roberta": {"classifier": "logits"},
    "electra": {"masked_lm": "logits"},
}


def copy(tmp_path, library, name):
    return pathlib.Path(shutil.copytree(GOLDEN / library / name, tmp_path / name))


def installed(library):
    if library == "flax":
        pytest.importorskip("msgpack")


@pytest.mark.parametrize("library", ["tensorflow", "flax"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_encoder_and_its_heads(library, name):
    installed(library)
    folder = GOLDEN / library / name
    expected = np.load(folder / "expected.npz")
    encoder = kbert.Encoder.from_preset(folder)
    checkpoint = read_checkpoint(folder)
    outputs = encoder(expected["ids"].astype("int32"))
    logits = to_numpy(run_heads(load_heads(encoder, checkpoint.arrays, str(folder)), outputs))
    assert logits.keys() == OUTPUTS[name].keys()
    for here, there in OUTPUTS[name].items():
        assert_close(logits[here], expected[there], 1e-5)
    assert checkpoint.left == ()


@pytest.mark.parametrize("library", ["tensorflow", "flax"])
def test_a_decoder(library):
    installed(library)
    expected = np.load(GOLDEN / library / "gpt2/expected.npz")
    decoder = Decoder.from_preset(GOLDEN / library / "gpt2")
    sequence = decoder(expected["ids"].astype("int32"))["sequence"]
    assert_close(np.asarray(decoder.logits(sequence)), expected["logits"], 1e-5)


def test_labels_come_with_the_config():
    folder = GOLDEN / "tensorflow/roberta"
    assert read_checkpoint(folder).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_copies_that_differ_are_refused(tmp_path):
    folder = copy(tmp_path, "tensorflow", "bert")
    with h5py.File(folder / "tf_model.h5", "r+") as file:
        names = []
        file.visit(names.append)
        (name,) = [n for n in names if n.startswith("mlm") and "word_embeddings/w" in n]
        file[name][0, 0] += 1
    message = r"must be equal.*two of bert.embeddings.word_embeddings.weight in .*tf_model.h5"
    with pytest.raises(ValueError, match=message):
        read_checkpoint(folder)


def test_an_array_outside_of_any_layer_is_refused(tmp_path):
    folder = copy(tmp_path, "tensorflow", "bert")
    with h5py.File(folder / "tf_model.h5", "r+") as file:
        file["x"] = np.ones(3)
    with pytest.raises(ValueError, match=r"be in a layer of a model. Received: x in .*tf_model"):
        read_checkpoint(folder)


@pytest.mark.parametrize("library", ["tensorflow", "flax"])
def test_files_cut_short_or_changed(tmp_path, library):
    """Refused with the file's name, or what was there but for a number."""
    installed(library)
    folder = copy(tmp_path, library, "albert")
    (path,) = [p for p in folder.iterdir() if p.suffix in (".h5", ".msgpack")]
    whole = path.read_bytes()
    shapes = {name: x.shape for name, x in read_checkpoint(folder).arrays.items()}
    for keep in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=rf"damaged, truncated.*Received: .*{path.name}"):
            read_checkpoint(folder)
    rng = np.random.default_rng(0)
    kept = 0
    for _ in range(200):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            found = {name: x.shape for name, x in read_checkpoint(folder).arrays.items()}
        except ValueError as error:
            message = str(error)
        else:
            kept += sorted(found.values()) == sorted(shapes.values())
            continue
        assert "Received: " in message
        assert str(folder) in message
    assert kept > 20


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "the whole is a list"),
        ({"a": {"b": 3}}, "a/b is a int"),
        ({"a": b"x"}, "a is a bytes"),
        ({"a": ("ext", 2, b"x")}, "an extension 2 that is not for arrays"),
        ({"a": ("array", (2,), "complex64", bytes(16))}, "an array of 'complex64'"),
        ({"a": ("array", (3,), "float32", bytes(8))}, "cannot reshape"),
        ({"a": ("array", (-1, 1 << 40), "float32", bytes(8))}, "cannot reshape"),
    ],
)
def test_messagepack_of_something_else(tmp_path, value, message):
    msgpack = pytest.importorskip("msgpack")
    folder = copy(tmp_path, "flax", "bert")

    def packed(item):
        match item:
            case ("ext", code, content):
                return msgpack.ExtType(code, content)
            case ("array", *told):
                return msgpack.ExtType(1, msgpack.packb(told))
            case dict():
                return {key: packed(x) for key, x in item.items()}
        return item

    (folder / "flax_model.msgpack").write_bytes(msgpack.packb(packed(value)))
    with pytest.raises(ValueError, match=rf"{message}.*Received: .*flax_model.msgpack"):
        read_checkpoint(folder)


def test_an_array_in_chunks_and_in_half_precision(tmp_path):
    """As flax writes those of more than a gigabyte."""
    msgpack = pytest.importorskip("msgpack")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from kbert.checkpoints.huggingface.foreign import read_flax

    def array(x):
        return msgpack.ExtType(1, msgpack.packb((x.shape, x.dtype.name, x.tobytes())))

    numbers = np.arange(6, dtype="float32")
    chunks = {"0": array(numbers[:4]), "1": array(numbers[4:])}
    table = {"__msgpack_chunked_array__": True, "shape": {"0": 2, "1": 3}, "chunks": chunks}
    bias = array(np.ones(2, ml_dtypes.bfloat16))
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(msgpack.packb({"dense": {"kernel": table, "bias": bias}}))
    arrays = read_flax(path)
    np.testing.assert_array_equal(arrays["dense.weight"], numbers.reshape(2, 3).T)
    assert arrays["dense.bias"].dtype == np.float32
    assert arrays["dense.bias"].tolist() == [1, 1]


def test_without_msgpack_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "msgpack", None)
    with pytest.raises(ImportError, match=r"flax_model.msgpack needs .*kbert\[msgpack\]'"):
        read_checkpoint(GOLDEN / "flax/bert")
