"""Models for ONNX Runtime: `model.onnx`, rows of any number and length."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.serving.rows import RowFunction, Run, optional

EXTRA = "onnx"
PRECISIONS = ("float32", "int8")
FILE = "model.onnx"
OPSET = 18  # the newest that tf2onnx writes
LARGEST = 2**31 - 2**20  # bytes that a protocol buffer holds


def write(folder: str, rows: RowFunction, precision: str) -> None:
    """Writes a model.

    With "int8" the kernels and tables are stored in 8 bits, each column of a kernel with a scale of
    its own, and the runtime rounds what they are multiplied with, by the largest value that it
    meets: no calibration.

    Args:
        folder: where.
        rows: the model.
        precision: of `PRECISIONS`.

    Raises:
        ImportError: the extra is not installed.
        ValueError: the model does not fit into one file, or has an operation that ONNX has not.
    """
    convert, onnx = optional("tf2onnx.convert", EXTRA), optional("onnx", EXTRA)
    weights = sum(x.shape.num_elements() * x.dtype.size for x in rows.concrete.captured_inputs)
    if weights > LARGEST:
        raise ValueError(
            'An ONNX file holds at most 2 GB: format="openvino" has no such limit. '
            f"Received: {weights:,} bytes of weights"
        )
    model, _ = convert.from_function(
        rows.graph, input_signature=list(rows.signature().inputs), opset=OPSET
    )
    own = {op.domain for op in model.opset_import} - {"", "ai.onnx.ml"}
    used = sorted({node.op_type for node in model.graph.node if node.domain in own})
    if used:
        raise ValueError(f"The model has operations that ONNX has not. Received: {', '.join(used)}")
    _name_axes(model.graph.input, rows.inputs)
    _name_axes(model.graph.output, rows.outputs)
    path = os.path.join(folder, FILE)
    if precision == "int8":
        quantization = optional("onnxruntime.quantization", EXTRA)
        quantization.quantize_dynamic(
            model, path, per_channel=True, weight_type=quantization.QuantType.QInt8
        )
    else:
        onnx.save_model(model, path)


def _name_axes(values: Any, axes: Mapping[str, tuple[str | int, ...]]) -> None:
    """Says what the axes of inputs or outputs are, which other programs show."""
    for value in values:
        dims = value.type.tensor_type.shape.dim
        for dim, axis in zip(dims, axes[value.name], strict=True):
            dim.Clear()
            setattr(dim, "dim_param" if isinstance(axis, str) else "dim_value", axis)


def load(folder: str, description: Mapping[str, Any], threads: int | None) -> Run:
    """What runs the model of a folder.

    Args:
        folder: where.
        description: `export.json`.
        threads: how many; None = as many as there are cores.

    Raises:
        ImportError: the extra is not installed.
    """
    onnxruntime = optional("onnxruntime", EXTRA)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(
        os.path.join(folder, FILE), options, providers=["CPUExecutionProvider"]
    )
    inputs, outputs = description["inputs"], list(description["outputs"])

    def run(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {name: np.asarray(features[name], np.int32) for name in inputs}
        return dict(zip(outputs, session.run(outputs, given), strict=True))

    return run
