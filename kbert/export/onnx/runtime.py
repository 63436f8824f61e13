"""Models for ONNX Runtime: `model.onnx`, rows of any number and length."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from kbert.core.late import optional, tf
from kbert.export.onnx.graph import graphs, simplify
from kbert.export.onnx.int8 import product_inputs, round_products, saturating
from kbert.signatures.rows import RowFunction, Run

EXTRA = "onnx"
PRECISIONS = ("float32", "int8")
CALIBRATES = True
FILE = "model.onnx"
OPSET = 18  # the newest that tf2onnx writes
LARGEST = 2**31 - 2**20  # most bytes of weights in one file (protocol buffers end at 2 GiB)
_SATURATING = (
    "On x86-64 without VNNI, sums of two 8-bit products are stored in 16 bits and may overflow: "
    "the model's answers differ on such processors."
)
_LARGE = 1 << 14  # least bytes of a weight; smaller constants may be sizes, axes, and so on
_ALIKE = "alike_on_all_processors"  # key of `export.json`: `saturating` found no unsafe product


def write(
    folder: str,
    rows: RowFunction,
    precision: str,
    *,
    samples: Sequence[Mapping[str, np.ndarray]] = (),
) -> dict[str, Any]:
    """Writes the model, `model.onnx`.

    With "int8" the kernels and tables are stored in 8 bits, each column of a kernel with its own
    scale. The runtime rounds the inputs of products, each vector with a scale from its largest
    value; see `kbert.export.onnx.int8`.

    Args:
        folder: folder to write to.
        rows: the model: a function of rows of ids.
        precision: "float32" or "int8".
        samples: batches that show, with "int8", which channels of the vectors are large. Nothing
            else in the model depends on them.

    Returns:
        Further entries of `export.json`.

    Raises:
        ImportError: the extra is not installed.
        ValueError: the model does not fit into one file, or has an operation that ONNX does not
            have.
    """
    onnx = optional("onnx", EXTRA)
    size = sum(x.shape.num_elements() * x.dtype.size for x in rows.concrete.captured_inputs)
    if size > LARGEST:
        raise ValueError(
            'The weights of an ONNX file must not exceed 2 GB; use format="openvino", which has '
            f"no such limit. Received: {size:,} bytes of weights"
        )
    model = _convert(rows, onnx)
    name_axes(model.graph.input, rows.inputs)
    simplify(model, onnx)
    parts = graphs(model.graph)
    kinds = {node.op_type for part in parts for node in part.node}
    if used := sorted(kind for kind in kinds if not onnx.defs.has(kind)):
        raise ValueError(
            "The model must not have operations that ONNX does not support. Received: "
            f"{', '.join(used)}"
        )
    name_axes(model.graph.output, rows.outputs)
    path = os.path.join(folder, FILE)
    if precision == "int8":
        round_products(model, onnx, _largest_values(model, onnx, samples, path))
        if unsafe_products := saturating(model, onnx):
            raise ValueError(f"{_SATURATING} Received: {', '.join(unsafe_products)}")
    onnx.save_model(model, path)
    return {_ALIKE: True} if precision == "int8" else {}


def _convert(rows: RowFunction, onnx: ModuleType) -> Any:
    """Converts a model to ONNX with tf2onnx; returns the `ModelProto`.

    tf2onnx would copy the weights in each of its rewriting steps. So they are inputs during the
    conversion, and become constants afterwards.

    Args:
        rows: the model: a function of rows of ids.
        onnx: the package `onnx`.
    """
    convert, loader = optional("tf2onnx.convert", EXTRA), optional("tf2onnx.tf_loader", EXTRA)
    concrete = rows.concrete
    # tf2onnx reports operations as missing that are removed later because nothing reads them.
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    frozen = loader.convert_variables_to_constants_large_model(concrete)
    weights = _take_weights(frozen)
    input_names = [x.name for x in concrete.inputs if x.dtype != tf.resource]
    outputs = {x.name: name for name, x in concrete.structured_outputs.items()}
    with _left_sizes(rows):
        model, _ = convert.from_graph_def(
            loader.fix_freezing_errors_part2(frozen),
            input_names=[*input_names, *weights],
            output_names=[x.name for x in concrete.outputs],
            tensors_to_rename={**dict(zip(input_names, rows.inputs, strict=True)), **outputs},
            opset=OPSET,
            custom_op_handlers={name: (handler, []) for name, handler in _HANDLERS.items()},
        )
    del frozen
    inputs = [x for x in model.graph.input if x.name not in weights]
    read = {name for part in graphs(model.graph) for node in part.node for name in node.input}
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    for name in list(weights):
        array = weights.pop(name)
        if name in read:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def _take_weights(frozen: Any) -> dict[str, np.ndarray]:
    """Turns the large constant matrices of a TensorFlow graph into inputs, in place.

    Args:
        frozen: a `GraphDef` whose weights are constants.

    Returns:
        Name of the new input -> its array.
    """
    weights = {}
    for node in frozen.node:
        tensor = node.attr["value"].tensor if node.op == "Const" else None
        if (
            tensor is None
            or len(tensor.tensor_content) < _LARGE
            or len(tensor.tensor_shape.dim) < 2
        ):
            continue
        name, shape, dtype = node.name, tf.TensorShape(tensor.tensor_shape), tensor.dtype
        weights[f"{name}:0"] = tf.make_ndarray(tensor)
        node.Clear()
        node.name, node.op = name, "Placeholder"
        node.attr["dtype"].type = dtype
        node.attr["shape"].shape.CopyFrom(shape.as_proto())
    return weights


@contextlib.contextmanager
def _left_sizes(rows: RowFunction) -> Iterator[None]:
    """Makes tf2onnx skip its optimisation of sizes in a `with` block, for models without loops.

    tf2onnx writes 0 in a Reshape, which means the size of the input. It then merges two Reshapes,
    although the other value has another size there. `simplify` optimises the sizes instead.

    Args:
        rows: the model: a function of rows of ids.
    """
    optimizer = optional("tf2onnx.optimizer", EXTRA)
    steps = optimizer._optimizers
    if not any("While" in operation.type for operation in rows.concrete.graph.get_operations()):
        steps = {name: step for name, step in steps.items() if name != "reshape_optimizer"}
    with mock.patch.object(optimizer, "_optimizers", steps):
        yield


def _error_function(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Handler of tf2onnx that writes erfc, which ONNX does not have, as 1 - erf.

    GELU is written in the form that ONNX Runtime fuses, x / 2 (1 + erf(x / √2)), instead of
    TensorFlow's x / 2 erfc(-x / √2).
    """
    (scaled,) = node.inputs
    negated, factor = scaled.inputs if scaled.type == "Mul" else (scaled, scaled)
    inputs, outputs = node.input, node.output
    graph.remove_node(name)
    one = graph.make_const(f"{name}_one", np.float32(1)).output[0]
    is_gelu = negated.type == "Neg" and factor.is_const()
    if is_gelu and np.isclose(factor.get_tensor_value(), np.sqrt(0.5)):
        root = graph.make_const(f"{name}_root", np.float32(np.sqrt(2))).output[0]
        divided = graph.make_node("Div", [negated.input[0], root]).output[0]
        erf = graph.make_node("Erf", [divided]).output[0]
        graph.make_node("Add", [erf, one], outputs=outputs, name=name)
    else:
        erf = graph.make_node("Erf", inputs).output[0]
        graph.make_node("Sub", [one, erf], outputs=outputs, name=name)


def _square(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Handler of tf2onnx that writes a square as Pow, by which normalisations are recognised."""
    inputs, outputs = node.input, node.output
    graph.remove_node(name)
    two = graph.make_const(f"{name}_two", np.float32(2)).output[0]
    graph.make_node("Pow", [inputs[0], two], outputs=outputs, name=name)


def _product(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Handler of tf2onnx that writes a product with 1 / √x as a division by √x; keeps others."""
    _, factor = node.inputs
    if factor.type == "Reciprocal" and factor.inputs[0].type == "Sqrt":
        inputs, outputs = [node.input[0], factor.input[0]], node.output
        graph.remove_node(name)
        graph.make_node("Div", inputs, outputs=outputs, name=name)


def _choice(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Handler of tf2onnx that writes SelectV2 as Where.

    tf2onnx itself multiplies by 0 and 1, which fails for infinity.
    """
    inputs, outputs = node.input, node.output
    graph.remove_node(name)
    graph.make_node("Where", inputs, outputs=outputs, name=name)


def _largest(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Handler of tf2onnx that writes ArgMax without the step that Keras adds before it.

    That step makes -0 less than 0. It reads the bits of a number, which ONNX cannot do.
    """
    numbers, axis = node.inputs
    guarded = numbers.type == "Where" and numbers.inputs[1].is_const()
    least = -np.finfo(np.float32).tiny
    if guarded and np.all(numbers.inputs[1].get_tensor_value() == least):
        source = numbers.input[2]
    else:
        source = node.input[0]
    axis, outputs, dtype = (
        int(axis.get_tensor_value()),
        node.output,
        node.get_attr_int("output_type"),
    )
    graph.remove_node(name)
    index = graph.make_node("ArgMax", [source], attr={"axis": axis, "keepdims": 0}).output[0]
    graph.make_node("Cast", [index], outputs=outputs, name=name, attr={"to": dtype})


def _largest_values(
    model: Any, onnx: ModuleType, samples: Sequence[Mapping[str, np.ndarray]], path: str
) -> dict[str, np.ndarray]:
    """Returns the largest absolute value in each channel of the inputs of products.

    Args:
        model: the model; it is the same afterwards.
        onnx: the package `onnx`.
        samples: batches to run the model on.
        path: path of a file that the model is written to for this.

    Returns:
        Name in `product_inputs` -> values (K,); {} without samples.
    """
    onnxruntime = optional("onnxruntime", EXTRA)
    names = product_inputs(model, onnx) if samples else []
    if not names:
        return {}
    outputs, num_outputs = model.graph.output, len(model.graph.output)
    outputs.extend(onnx.ValueInfoProto(name=name) for name in names)
    onnx.save_model(model, path)
    del outputs[num_outputs:]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = [value.name for value in session.get_inputs()]
    largest: dict[str, np.ndarray] = {}
    for features in samples:
        ids = {name: np.asarray(features[name], np.int32) for name in inputs}
        for name, x in zip(names, session.run(names, ids), strict=True):
            most = np.abs(x).reshape(-1, x.shape[-1]).max(axis=0)
            largest[name] = np.maximum(largest.get(name, most), most)
    return largest


# Operations of TensorFlow that are converted in another way than by tf2onnx.
_HANDLERS = {
    "Erfc": _error_function,
    "Square": _square,
    "Mul": _product,
    "SelectV2": _choice,
    "ArgMax": _largest,
}


def name_axes(values: Any, axes: Mapping[str, tuple[str | int, ...]]) -> None:
    """Names the axes of a model's inputs or outputs, which other programs show.

    Args:
        values: inputs or outputs, each a `ValueInfoProto`; changed in place.
        axes: name of an input or output -> names of its axes, or sizes of fixed ones.
    """
    for value in values:
        dims = value.type.tensor_type.shape.dim
        for dim, axis in zip(dims, axes[value.name], strict=True):
            dim.Clear()
            setattr(dim, "dim_param" if isinstance(axis, str) else "dim_value", axis)


def load(folder: str, description: Mapping[str, Any], threads: int | None) -> Run:
    """Loads the model of a folder; returns its function from input arrays to output arrays.

    Warns if an 8-bit model can compute other numbers on other processors.

    Args:
        folder: folder of the export.
        description: content of `export.json`.
        threads: number of compute threads; None = one per core.

    Raises:
        ImportError: the extra is not installed.
    """
    onnxruntime = optional("onnxruntime", EXTRA)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3  # errors alone
    path = os.path.join(folder, FILE)
    if description.get("precision") == "int8" and not description.get(_ALIKE):
        onnx = optional("onnx", EXTRA)
        if unsafe_products := saturating(onnx.load_model(path), onnx):
            logging.getLogger("absl").warning(
                "%s Export the model again with this version to avoid this. Received: %s in %s",
                *(_SATURATING, ", ".join(unsafe_products), path),
            )
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs, outputs = description["inputs"], list(description["outputs"])

    def run(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        arrays = {name: np.asarray(features[name], np.int32) for name in inputs}
        return dict(zip(outputs, session.run(outputs, arrays), strict=True))

    return run
