"""Encoders as ONNX Runtime gets them: few operations, the numbers of TensorFlow's."""

import functools
import subprocess
import sys
from collections import Counter

import keras
import numpy as np
import pytest

import kbert
from kbert.export.onnx.runtime import load, write
from kbert.signatures import RowFunction
from tests import harness

pytestmark = pytest.mark.tensorflow
onnx = pytest.importorskip("onnx")
pytest.importorskip("tf2onnx")
pytest.importorskip("onnxruntime")
LAYERS = 3
SIZES = {
    "vocabulary_size": 50,
    "num_layers": LAYERS,
    "hidden_size": 32,
    "num_heads": 4,
    "intermediate_size": 64,
    "max_positions": 24,
    "initializer_range": 0.15,
}
KINDS = {
    "bert": {"activation": "gelu"},
    "one layer for all": {"num_layer_groups": 1, "embedding_size": 8, "activation": "gelu"},
    "modern": harness.MODERN,
    # What tf2onnx by itself writes down wrongly, or not at all.
    "bottleneck": {**harness.KINDS["bottleneck"], "num_layers": 2},
    "alibi": {**harness.KINDS["alibi"], "num_layers": 2},
}
MORE = ("global tokens", "disentangled", "convolution", "relative bias", "grouped", "sines")
KINDS |= {name: harness.KINDS[name] for name in MORE}
FIRST = ("bert", "bottleneck", "alibi")


def encoder_rows(**changes):
    keras.utils.set_random_seed(4)
    config = kbert.EncoderConfig(**{**SIZES, **changes})
    encoder = kbert.Encoder(config)
    names = ["token_ids", "padding_mask", *(["segment_ids"] if config.num_segments else [])]
    return RowFunction(
        lambda features: {"sequence": encoder(features)["sequence"]},
        dict.fromkeys(names, ("batch", "length")),
    )


def batch(rows, count, length):
    random = np.random.default_rng(length)
    given = {name: random.integers(0, 2, (count, length)) for name in rows.inputs}
    given["padding_mask"] = np.arange(length) < random.integers(1, length + 1, (count, 1))
    given["token_ids"] = random.integers(0, 50, (count, length))
    return {name: x.astype("int32") for name, x in given.items()}


def open_model(folder, rows):
    description = {"inputs": list(rows.inputs), "outputs": list(rows.outputs)}
    return load(str(folder), description, threads=1)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A kind -> its function of rows, and the folder of its file, which nobody changes."""

    @functools.cache
    def once(kind):
        rows, folder = encoder_rows(**KINDS[kind]), tmp_path_factory.mktemp("written")
        write(str(folder), rows, "float32")
        return rows, folder

    return once


@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=[] if x in FIRST else [pytest.mark.slow]) for x in KINDS]
)
def test_rows_of_any_number_and_length(written, kind):
    rows, folder = written(kind)
    onnx.checker.check_model(str(folder / "model.onnx"))
    run = open_model(folder, rows)
    for count, length in ((1, 1), (1, 24), (5, 7), (2, 23)):
        features = batch(rows, count, length)
        real = features["padding_mask"].astype(bool)
        ours, theirs = rows.run(features)["sequence"], run(features)["sequence"]
        np.testing.assert_allclose(theirs[real], ours[real], atol=2e-5)


def test_sizes_are_asked_for_once_and_products_not_cut(written):
    _, folder = written("bert")
    graph = onnx.load(str(folder / "model.onnx")).graph
    kinds = Counter(node.op_type for node in graph.node)
    # In a layer queries, keys, values, what they become, two of the feed-forward layer; scores
    # and sums. Besides one of the segments.
    assert kinds["MatMul"] == (6 + 2) * LAYERS + 1
    assert "Split" not in kinds
    # Heads, three times, and what they become; besides the segments and the output.
    assert kinds["Reshape"] <= 4 * LAYERS + 4
    # Of batch, length, positions and segments, however many layers there are.
    assert kinds["Shape"] <= 4
    assert "Squeeze" not in kinds
    assert kinds["Slice"] <= 2


def test_in_8_bits_a_row_is_the_same_among_others(tmp_path):
    rows = encoder_rows(**KINDS["bert"], num_layers=2)
    write(str(tmp_path), rows, "int8")
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    run = open_model(tmp_path, rows)
    features = batch(rows, 8, 12)
    features["padding_mask"][:] = 1
    exact = rows.run(features)["sequence"]
    together = run(features)["sequence"]
    alone = [run({k: x[i : i + 1] for k, x in features.items()})["sequence"] for i in range(8)]
    # By the largest number of all rows they differ as much as from the exact ones.
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)
    error = np.sqrt(np.mean((together - exact) ** 2))
    assert 1e-4 < error < 0.02 * np.sqrt(np.mean(exact**2))


def test_shared_kernels_are_stored_once(written):
    _, folder = written("one layer for all")
    graph = onnx.load(str(folder / "model.onnx")).graph
    kernels = [x for x in graph.initializer if len(x.dims) == 2 and x.dims[0] == 32]
    assert sum(np.prod(x.dims) for x in kernels) == 4 * 32 * 32 + 32 * 64


def test_more_tokens_than_positions_fail(written):
    rows, folder = written("bert")
    with pytest.raises(Exception, match="24"):
        open_model(folder, rows)(batch(rows, 1, 25))


def test_a_cut_of_other_products_stays(tmp_path):
    """Three parts of which one is read twice, or that stand otherwise."""
    keras.utils.set_random_seed(1)
    kernel = keras.Variable(np.random.default_rng(0).normal(size=(1, 24)).astype("float32"))

    def function(features):
        x = keras.ops.cast(features["token_ids"], "float32")[..., None]
        batch, length = keras.ops.shape(x)[:2]
        total = keras.ops.reshape(keras.ops.matmul(x, kernel), (batch, length, 3, 2, 4))
        parts = keras.ops.unstack(keras.ops.transpose(total, (2, 0, 3, 1, 4)), axis=0)
        other = keras.ops.unstack(keras.ops.transpose(total, (2, 0, 1, 3, 4)), axis=0)
        return {
            "sum": keras.ops.sum(parts[0] * parts[1] + parts[2], axis=(1, 3)),
            "one": other[0][:, :, 1] - keras.ops.sum(parts[1], axis=1),
        }

    rows = RowFunction(function, {"token_ids": ("batch", "length")})
    write(str(tmp_path), rows, "float32")
    run = open_model(tmp_path, rows)
    for features in ({"token_ids": np.arange(6).reshape(2, 3)}, {"token_ids": np.ones((4, 1))}):
        ours, theirs = rows.run(features), run(features)
        for name, x in ours.items():
            np.testing.assert_allclose(theirs[name], x, atol=1e-5 * np.abs(x).max(), err_msg=name)


_PEAK = """
import resource, sys, tempfile
import numpy as np
import keras
from kbert.signatures import RowFunction
from kbert.export.onnx.runtime import write

table = keras.Variable(np.ones((6000, 640), "float32"))
kernels = [keras.Variable(np.full((640, 640), i, "float32")) for i in range(27)]

def function(features):
    x = keras.ops.take(table, features["token_ids"], axis=0)
    for kernel in kernels:
        x = keras.ops.relu(keras.ops.matmul(x, kernel))
    return {"y": x}

rows = RowFunction(function, {"token_ids": ("batch", "length")})
small = RowFunction(lambda f: {"y": keras.ops.cast(f["token_ids"], "float32") + 1}, rows.inputs)
with tempfile.TemporaryDirectory() as folder:
    write(folder, small, sys.argv[1])  # what it imports is not counted
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with tempfile.TemporaryDirectory() as folder:
    write(folder, rows, sys.argv[1])
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_writing_takes_a_few_times_the_weights_memory(precision):
    """tf2onnx alone takes fifty times as much: it copies its graph for each rewriting."""
    weights = 4 * (6000 * 640 + 27 * 640**2)
    command = [sys.executable, "-c", _PEAK, precision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) < 8 * weights


def test_weights_are_stored_as_they_are_multiplied(tmp_path):
    """Transposed and cut ones too: nothing is computed from weights alone."""
    random = np.random.default_rng(0)
    kernel, table = (
        keras.Variable(random.normal(size=size).astype("float32")) for size in ((96, 64), (80, 96))
    )

    def function(features):
        x = keras.ops.take(table, features["token_ids"], axis=0)
        y = keras.ops.matmul(keras.ops.matmul(x, kernel), keras.ops.transpose(kernel))
        return {"y": keras.ops.matmul(y, keras.ops.transpose(table)[:, :70])}

    rows = RowFunction(function, {"token_ids": ("batch", "length")})
    write(str(tmp_path), rows, "float32")
    graph = onnx.load(str(tmp_path / "model.onnx")).graph
    stored = {x.name for x in graph.initializer}
    assert [x.name for x in graph.input] == ["token_ids"]
    assert not [x.name for x in graph.node if set(x.input) <= stored]
    features = {"token_ids": np.arange(80).reshape(4, 20)}
    ours, theirs = rows.run(features)["y"], open_model(tmp_path, rows)(features)["y"]
    np.testing.assert_allclose(theirs, ours, atol=1e-5 * np.abs(ours).max())
