"""A small model through every runtime that is installed."""

import errno
import importlib.util
import json
import logging
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert.core import late
from kbert.export import export_rows, folder as exported, open_runtime
from kbert.export.litert import MASKS
from kbert.io.paths import Path
from kbert.layers import LayerNorm
from kbert.models import Encoder
from kbert.signatures import RowFunction
from tests.harness import KINDS, files_of_at_most, randomise, tiny_config

pytestmark = pytest.mark.tensorflow
PACKAGES = {
    "onnx": ("tf2onnx", "onnxruntime"),
    "openvino": ("openvino", "nncf"),
    "litert": ("ai_edge_litert",),
}
REPEATED = (("openvino", "bfloat16"), ("openvino", "int8"), ("litert", "int8"))
CELLS = [
    pytest.param(f, p, marks=[pytest.mark.slow] if (f, p) in REPEATED else [])
    for f, runtime in late.load_each("runtime")
    for p in runtime.PRECISIONS
]


@pytest.fixture(scope="module")
def rows():
    """What an encoder is made of: a table, a product, GELU, a normalisation, and masked places."""
    keras.utils.set_random_seed(3)
    random = np.random.default_rng(0)
    table = keras.Variable(random.normal(size=(30, 16)).astype("float32"))
    dense, out, norm = keras.layers.Dense(64), keras.layers.Dense(5), LayerNorm(1e-12)
    dense.build((None, None, 16))
    norm.build((None, None, 64))
    norm.gamma.assign(random.normal(size=64))
    norm.beta.assign(random.normal(size=64))
    out.build((None, None, 64))

    def function(features):
        mask = keras.ops.cast(features["padding_mask"], "float32")[..., None]
        x = keras.ops.take(table, features["token_ids"], axis=0) * mask
        x = norm(keras.ops.gelu(dense(x), approximate=False))  # (B, T, 64)
        tokens = out(x)  # (B, T, 5)
        masked = tf.gather(tokens, features["mask_positions"], batch_dims=1)
        total = keras.ops.sum(tokens * mask, axis=1) / keras.ops.sum(mask, axis=1)
        return {"text": total, "tokens": tokens, "masked": masked}

    length = ("batch", "length")
    inputs = {"token_ids": length, "padding_mask": length, "mask_positions": ("batch", "masks")}
    return RowFunction(function, inputs)


def batch(count, length, masks=2):
    random = np.random.default_rng(count)
    lengths = random.integers(1, length + 1, (count, 1))
    return {
        "token_ids": random.integers(0, 30, (count, length)).astype("int32"),
        "padding_mask": (np.arange(length) < lengths).astype("int32"),
        "mask_positions": random.integers(0, length, (count, masks)).astype("int32"),
    }


def write(folder, rows, format="onnx", precision="float32", **options):
    for package in PACKAGES[format]:  # not imported: nncf takes seconds, and is for 8 bits only
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    if format == "litert":
        options.setdefault("widths", [8, 12])
    return export_rows(
        folder,
        rows,
        format=format,
        precision=precision,
        samples=[batch(1, 5), batch(3, 12)],
        about={"who": "ours"},
        save_beside=lambda place: open(os.path.join(place, "vocab.txt"), "w").close(),
        **options,
    )


@pytest.mark.parametrize(("format", "precision"), CELLS)
def test_a_runtime_computes_what_tensorflow_does(tmp_path, rows, format, precision):
    folder = write(tmp_path / "out", rows, format, precision)
    assert os.listdir(tmp_path) == ["out"]
    made = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (made["format"], made["precision"], made["who"]) == (format, precision, "ours")
    assert made["outputs"]["tokens"] == ["batch", "length", 5]
    assert {"vocab.txt", late.load("runtime", format).FILE} < set(os.listdir(folder))
    run = open_runtime(folder, threads=1)
    bound = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.1}[precision]
    for features in (batch(1, 3), batch(4, 9), batch(2, 11, masks=MASKS + 1)):
        ours, theirs = rows.run(features), run(features)
        assert ours.keys() == theirs.keys()
        for name, x in ours.items():
            np.testing.assert_allclose(theirs[name], x, atol=bound * np.abs(x).max(), err_msg=name)


@pytest.mark.parametrize(
    "format",
    [
        pytest.param(x, marks=[pytest.mark.slow] if x == "openvino" else [])
        for x in exported.RUNTIMES
    ],
)
def test_positions_pass_over_padding_in_every_runtime(tmp_path, format):
    encoder = Encoder(tiny_config(**KINDS["padding by id"], vocabulary_size=30, num_layers=1))
    randomise(encoder)
    pad_id = encoder.config.padding_id
    length = ("batch", "length")
    rows = RowFunction(
        lambda features: {
            "sequence": encoder({x: features[x] for x in ("token_ids", "padding_mask")})["sequence"]
        },
        {"token_ids": length, "padding_mask": length, "mask_positions": ("batch", "masks")},
    )
    run = open_runtime(write(tmp_path / "out", rows, format), threads=1)
    features = batch(4, 9)
    features["padding_mask"] = features["padding_mask"][:, ::-1].copy()  # on the left
    features["token_ids"][features["padding_mask"] == 0] = pad_id
    features["token_ids"][:, 7] = pad_id  # and within
    expected = rows.run(features)["sequence"]
    real = features["padding_mask"] == 1
    np.testing.assert_allclose(run(features)["sequence"][real], expected[real], atol=1e-4)
    moved = rows.run({**features, "token_ids": np.where(real, features["token_ids"], 1)})
    assert np.abs(moved["sequence"] - expected)[real].max() > 0.01


def test_an_object_store_gets_whole_folders(rows):
    folder = write("ram://exports/out", rows)
    names = [path.name for path in Path(folder).iterdir()]
    assert sorted(names) == ["export.json", "model.onnx", "vocab.txt"]
    with pytest.raises(ValueError, match="A runtime requires a local path"):
        open_runtime(folder)


def test_folders_that_stay_the_same_folder(tmp_path, rows, monkeypatch):
    """A link leads to where it led, and the working directory is the one that others see."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "here").mkdir()
    assert write(tmp_path / "link", rows) == str(tmp_path / "link")
    monkeypatch.chdir(tmp_path / "here")
    assert write(".", rows) == "."
    assert (tmp_path / "link").is_symlink()
    for folder in (tmp_path / "real", tmp_path / "here"):
        assert sorted(os.listdir(folder)) == ["export.json", "model.onnx", "vocab.txt"]
        open_runtime(folder)
    assert sorted(os.listdir(tmp_path)) == ["here", "link", "real"]


def test_a_mount_point_gets_the_files_and_the_description_last(tmp_path, rows, monkeypatch):
    folder = tmp_path / "mount"
    folder.mkdir()
    rename, order = os.rename, []

    def refused(source, target, **options):
        if os.fspath(target) == str(folder):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        assert "export.json" not in os.listdir(folder)
        order.append(os.path.basename(target))
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", refused)
    write(folder, rows)
    assert sorted(order) == ["model.onnx", "vocab.txt"]
    assert sorted(os.listdir(folder)) == ["export.json", "model.onnx", "vocab.txt"]
    assert os.listdir(tmp_path) == ["mount"]


def test_int8_is_smaller(tmp_path, rows):
    sizes = [
        exported.read_description(write(tmp_path / precision, rows, "litert", precision))["bytes"]
        for precision in ("float32", "int8")
    ]
    assert sizes[1] < sizes[0]


def test_onnx_has_a_normalisation_as_one_operation_and_names_its_axes(tmp_path, rows):
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(os.path.join(write(tmp_path / "out", rows), "model.onnx")).graph
    operations = [node.op_type for node in graph.node]
    assert operations.count("LayerNormalization") == operations.count("Erf") == 1
    assert "ReduceMean" not in operations
    named = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert named["token_ids"] == ["batch", "length"]
    assert named["tokens"] == ["batch", "length", 5]


def test_the_largest_difference_is_said(tmp_path, rows, caplog):
    with caplog.at_level(logging.INFO, "absl"):
        write(tmp_path / "out", rows)
    assert "onnx, float32: 0.0 MB, largest difference from TensorFlow" in caplog.text


def test_above_the_tolerance_nothing_is_written(tmp_path, rows):
    with pytest.raises(
        ValueError, match=r"in int8 must not differ .* by more than 1e-09.*Received: "
    ):
        write(tmp_path / "out", rows, precision="int8", tolerance=1e-9)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("format", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_full_disk_names_the_folder(tmp_path, rows, format):
    (tmp_path / "disk").mkdir()
    error = rf"Cannot write {tmp_path}/disk/out: (File too large|.*iostream)"
    with files_of_at_most(1000), pytest.raises(OSError, match=error):
        write(tmp_path / "disk" / "out", rows, format)
    assert os.listdir(tmp_path / "disk") == []


def test_an_operation_that_a_runtime_lacks_is_named(tmp_path):
    def function(features):
        return {"y": tf.math.lgamma(tf.cast(features["token_ids"], tf.float32) + 1.5)}

    rows = RowFunction(function, {"token_ids": ("batch", "length")})
    with pytest.raises(
        ValueError, match=r"operations that ONNX does not support\. Received: Lgamma"
    ):
        write(tmp_path / "out", rows)
    assert os.listdir(tmp_path) == []


def test_what_a_runtime_raises_is_one_line_of_ours(tmp_path, rows, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no kernel\nfor it")

    monkeypatch.setattr(late.load("runtime", "onnx"), "load", fail)
    with pytest.raises(ValueError, match=r"onnx cannot convert or run.*Received: no kernel for it"):
        write(tmp_path / "out", rows)
    assert os.listdir(tmp_path) == []


def test_litert_has_rows_of_its_widths_alone(tmp_path, rows):
    run = open_runtime(write(tmp_path / "out", rows, "litert", widths=[12]))
    with pytest.raises(ValueError, match=r"widest of the export: 12\. Received: 13 tokens"):
        run(batch(1, 13))


def test_bad_requests(tmp_path, rows):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"onnx, openvino, litert, safetensors\. Received: 'tflite'"
    ):
        exported.check_format("tflite", "float32")
    with pytest.raises(ValueError, match=r"onnx must be one of float32, int8.*'bfloat16'"):
        exported.check_format("onnx", "bfloat16")
    for folder in (tmp_path, tmp_path / "file"):
        with pytest.raises(ValueError, match=r"new or empty folder\. Received"):
            write(folder, rows)


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must have a file export\.json\. Received"):
        open_runtime(tmp_path)
    (tmp_path / "export.json").write_text('{"format_version": 9, "format": "onnx"}')
    with pytest.raises(ValueError, match=r"exports of version 1.*Received: 9 for 'onnx'"):
        open_runtime(tmp_path)
