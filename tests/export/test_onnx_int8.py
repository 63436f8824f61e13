"""Products in 8 bits: the same numbers where a processor holds sums of two products in 16 bits."""

import json
import os

import keras
import numpy as np
import pytest

import kbert
from kbert.export import export_rows, open_runtime
from kbert.export.onnx.int8 import (
    _Rounding,
    _to_codes,
    product_inputs,
    round_products,
    saturating,
)
from kbert.export.onnx.runtime import write
from kbert.io.arrays import to_8_bits
from kbert.signatures import RowFunction
from tests.export.test_onnx_graph import KINDS, SIZES, batch, encoder_rows, open_model

pytestmark = pytest.mark.tensorflow
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tf2onnx")
LARGEST = 2**15 - 1


def pair_products(codes, kernel):
    """(N, K / 2, M): what `pmaddubsw` adds up of two neighbouring numbers, before it is cut."""
    rows = [x.astype(np.int32) for x in (codes, kernel)]
    if rows[0].shape[1] % 2:
        rows = [np.pad(rows[0], ((0, 0), (0, 1))), np.pad(rows[1], ((0, 1), (0, 0)))]
    (a, b), (v, w) = ((x[:, ::2], x[:, 1::2]) for x in (rows[0], rows[1].T))
    return a[:, :, None] * v.T[None] + b[:, :, None] * w.T[None]


def cut(codes, kernel):
    """How many of these sums do not fit into 16 bits."""
    found = pair_products(codes, kernel)
    return int(np.sum((found > LARGEST) | (found < -LARGEST - 1)))


def kernels():
    random = np.random.default_rng(0)
    normal = random.normal(size=(96, 24))
    outlier = normal.copy()
    outlier[40] *= 30
    return {
        "normal": normal,
        "odd": normal[:95],
        "all of one sign": np.abs(normal),
        "largest beside largest": np.full((8, 24), -3.0),
        "one row": outlier,
        "zeros": np.zeros((6, 8)),
        "one number": np.eye(16),
    }


@pytest.mark.parametrize("kind", kernels())
def test_no_sum_of_two_products_is_cut(kind):
    kernel = kernels()[kind].astype("float32")
    codes, scale = _to_codes(kernel)
    # The inputs for which the sums are largest: 255 beside the numbers of one sign, else 0.
    for sign in (1, -1):
        for column in (sign * codes > 0).T:
            assert cut(255 * column[None], codes) == 0
    assert np.abs(codes * scale - kernel).max() <= 0.501 * scale.max()
    # Half of the range for each of two would be safe as well, and less exact.
    assert (scale < np.abs(kernel).max(axis=0) / 63 + 1e-9).all() or kernel.max() == 0


def test_kernels_that_fill_their_range_are_cut():
    codes, _ = to_8_bits(kernels()["normal"], axis=0)
    assert cut(np.where(codes[:, :1] > 0, 255, 0).T, codes) > 0


def integer_products(path, features):
    """(codes, kernel) of all in a file, for rows that it is run on."""
    model = onnx.load(path)
    weights = {x.name: onnx.numpy_helper.to_array(x) for x in model.graph.initializer}
    nodes = [x for x in model.graph.node if x.op_type == "MatMulIntegerToFloat"]
    names = sorted({node.input[0] for node in nodes})
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    given = {x.name: features[x.name] for x in session.get_inputs()}
    found = dict(zip(names, session.run(names, given), strict=True))
    return [
        (found[x.input[0]].reshape(-1, found[x.input[0]].shape[-1]), weights[x.input[1]])
        for x in nodes
    ]


@pytest.mark.parametrize(
    "kind", [pytest.param("bert", marks=pytest.mark.slow), "modern", "one layer for all"]
)
def test_a_written_model_answers_alike_everywhere(tmp_path, kind):
    rows = encoder_rows(**KINDS[kind], num_layers=2)
    features = batch(rows, 4, 9)
    write(str(tmp_path), rows, "int8", samples=[features])
    path = str(tmp_path / "model.onnx")
    assert saturating(onnx.load(path), onnx) == []
    products = integer_products(path, features)
    assert len(products) > 9
    assert [cut(*x) for x in products] == [0] * len(products)
    assert any(np.abs(kernel.astype(int)).max() > 64 for _, kernel in products)


def product(kind, kernel, *, constant=True, operands=("a", "kernel"), domain=""):
    node = onnx.helper.make_node(kind, list(operands), ["c"], name="the product", domain=domain)
    values = [onnx.helper.make_tensor_value_info(x, onnx.TensorProto.UINT8, None) for x in "ac"]
    weights = [onnx.numpy_helper.from_array(kernel, "kernel")] if constant else []
    return onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", values[:1], values[1:], weights)
    )


@pytest.mark.parametrize(
    ("model", "safe"),
    [
        (lambda k: product("MatMulInteger", k), False),
        (lambda k: product("MatMulInteger", k // 2), True),
        (lambda k: product("MatMulInteger", k * [[1], [-1]] * np.int8(1)), True),
        (lambda k: product("MatMulInteger", k.astype(np.uint8)), True),
        (lambda k: product("MatMulInteger", k // 2, constant=False), False),
        (lambda k: product("ConvInteger", k.T[:, :, None]), False),
        (lambda k: product("ConvInteger", k.T[:, :, None] // 2), True),
        (lambda k: product("QLinearMatMul", k, operands=("a", "s", "z", "kernel")), False),
        (lambda k: product("MatMul", k), True),
    ],
)
def test_a_file_that_can_answer_otherwise_is_named(model, safe):
    found = saturating(model(np.full((2, 3), 127, np.int8)), onnx)
    assert found == ([] if safe else ["the product"])


def test_files_of_before_are_told_when_loaded(tmp_path, caplog):
    model = product("MatMulInteger", np.full((2, 3), 127, np.int8))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    model.opset_import[0].version, model.ir_version = 18, 9
    onnx.save_model(model, str(tmp_path / "model.onnx"))
    about = {"format_version": 1, "format": "onnx", "precision": "int8"}
    about |= {"inputs": {}, "outputs": {}}
    for proven, told in ((False, True), (True, False)):
        caplog.clear()
        facts = {"alike_on_all_processors": True} if proven else {}
        (tmp_path / "export.json").write_text(json.dumps({**about, **facts}))
        open_runtime(tmp_path)
        assert ("may overflow" in caplog.text and "Received: the product" in caplog.text) is told


def test_an_export_says_what_was_proven(tmp_path):
    rows = encoder_rows(**KINDS["bert"], num_layers=1)
    for precision in ("int8", "float32"):
        folder = export_rows(
            tmp_path / precision,
            rows,
            format="onnx",
            precision=precision,
            samples=[batch(rows, 2, 5)],
            about={},
            save_beside=lambda place: None,
        )
        with open(os.path.join(folder, "export.json")) as file:
            assert json.load(file).get("alike_on_all_processors", False) is (precision == "int8")


def test_large_channels_do_not_cost_the_others_their_bits(tmp_path):
    keras.utils.set_random_seed(2)
    encoder = kbert.Encoder(
        kbert.EncoderConfig(**{**SIZES, "num_layers": 2, "num_segments": 0, "activation": "gelu"})
    )
    for layer in encoder._flatten_layers():
        if "norm" in layer.name and hasattr(layer, "gamma"):
            gamma = np.ones(layer.gamma.shape, "float32")
            gamma[[3, 17]] = 25
            layer.gamma.assign(gamma)
    rows = RowFunction(
        lambda features: {"sequence": encoder(features)["sequence"]},
        {"token_ids": ("batch", "length")},
    )
    features = {"token_ids": np.random.default_rng(0).integers(0, 50, (6, 10)).astype("int32")}
    other = {"token_ids": np.random.default_rng(1).integers(0, 50, (2, 7)).astype("int32")}
    exact = rows.run(features)["sequence"]
    errors = []
    for name, samples in (("plain", ()), ("smoothed", [other])):
        os.mkdir(tmp_path / name)
        write(str(tmp_path / name), rows, "int8", samples=samples)
        found = open_model(tmp_path / name, rows)(features)["sequence"]
        small = np.delete(found - exact, [3, 17], axis=-1)
        errors.append(np.sqrt(np.mean(small**2)))
    assert errors[1] < 0.8 * errors[0]


FUNCTIONS = {
    "gelu": (lambda x: keras.ops.gelu(x, approximate=False), -0.17),
    "gelu_tanh": (lambda x: keras.ops.gelu(x, approximate=True), -0.17),
    "silu": (keras.ops.silu, -0.2785),
    "relu": (keras.ops.relu, 0.0),
    "tanh": (keras.ops.tanh, None),
    "gated": (lambda x: keras.ops.silu(x) * x[..., ::-1], None),
    "none": (lambda x: x, None),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_what_a_function_cannot_fall_below_is_found(tmp_path, kind):
    function, least = FUNCTIONS[kind]
    keras.utils.set_random_seed(1)
    first, second = keras.layers.Dense(32), keras.layers.Dense(16)
    first.build((None, 8))
    first.bias.assign(np.linspace(-1, 1, 32))
    second.build((None, 32))

    def compute(features):
        x = keras.ops.cast(features["token_ids"], "float32")[..., None] / 50
        return {"y": second(function(first(x * np.linspace(1, 2, 8, dtype="float32"))))}

    rows = RowFunction(compute, {"token_ids": ("batch", "length")})
    write(str(tmp_path), rows, "float32")
    model = onnx.load(str(tmp_path / "model.onnx"))
    inputs = product_inputs(model, onnx)
    found = [_Rounding(model, onnx)._least(name) for name in inputs]
    assert len(found) == 2
    known = [x for x in found if x is not None]
    assert known == ([] if least is None else [pytest.approx(least, rel=0.03)])
    features = {"token_ids": np.arange(-100, 100, 7, dtype="int32").reshape(1, -1)}
    exact = rows.run(features)["y"]
    round_products(model, onnx, {})
    onnx.save_model(model, str(tmp_path / "model.onnx"))
    given = open_model(tmp_path, rows)(features)["y"]
    np.testing.assert_allclose(given, exact, atol=0.03 * np.abs(exact).max())


def test_each_row_of_a_table_has_a_scale(tmp_path):
    table = np.random.default_rng(0).normal(size=(20, 12)).astype("float32")
    table[7] *= 1e4
    variable = keras.Variable(table)
    rows = RowFunction(
        lambda features: {"x": keras.ops.take(variable, features["token_ids"], axis=0)},
        {"token_ids": ("batch", "length")},
    )
    write(str(tmp_path), rows, "int8")
    found = open_model(tmp_path, rows)({"token_ids": np.arange(20, dtype="int32")[None]})["x"][0]
    bound = 0.501 / 127 * np.abs(table).max(axis=1, keepdims=True)
    assert (np.abs(found - table) <= bound).all()
