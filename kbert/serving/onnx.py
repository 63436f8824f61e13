"""Models for ONNX Runtime: `model.onnx`, rows of any number and length."""

import logging
import os
from collections.abc import Iterator, Mapping
from types import ModuleType
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
    size = sum(x.shape.num_elements() * x.dtype.size for x in rows.concrete.captured_inputs)
    if size > LARGEST:
        raise ValueError(
            'An ONNX file holds at most 2 GB: format="openvino" has no such limit. '
            f"Received: {size:,} bytes of weights"
        )
    # It calls operations missing before those that nothing reads are gone.
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    model, _ = convert.from_function(
        rows.graph,
        input_signature=list(rows.signature().inputs),
        opset=OPSET,
        custom_op_handlers={name: (handler, []) for name, handler in _HANDLERS.items()},
    )
    for node, body, graph in _bodies(model.graph):
        _read_from_outside(node, body, graph)
    _remove_unused(model.graph)
    parts = _parts(model.graph)
    weights = {x.name: onnx.numpy_helper.to_array(x) for part in parts for x in part.initializer}
    for part in parts:
        _join_normalisations(part, weights, onnx)
    _remove_unused(model.graph)
    kinds = {node.op_type for part in parts for node in part.node}
    if used := sorted(kind for kind in kinds if not onnx.defs.has(kind)):
        raise ValueError(f"The model has operations that ONNX has not. Received: {', '.join(used)}")
    name_axes(model.graph.input, rows.inputs)
    name_axes(model.graph.output, rows.outputs)
    path = os.path.join(folder, FILE)
    if precision == "int8":
        quantization = optional("onnxruntime.quantization", EXTRA)
        logging.disable(logging.WARNING)  # its advice to prepare the model, to the root logger
        try:
            quantization.quantize_dynamic(
                model,
                path,
                per_channel=True,
                weight_type=quantization.QuantType.QInt8,
                extra_options={"EnableSubgraph": True},
            )
        finally:
            logging.disable(logging.NOTSET)
    else:
        onnx.save_model(model, path)


def _error_function(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """erfc, which ONNX has not, as 1 - erf; GELU in the form that ONNX Runtime makes one of.

    That is x / 2 (1 + erf(x / √2)), where TensorFlow has x / 2 erfc(-x / √2).
    """
    (scaled,) = node.inputs
    negated, factor = scaled.inputs if scaled.type == "Mul" else (scaled, scaled)
    inputs, outputs = node.input, node.output
    graph.remove_node(name)
    one = graph.make_const(f"{name}_one", np.float32(1)).output[0]
    known = negated.type == "Neg" and factor.is_const()
    if known and np.isclose(factor.get_tensor_value(), np.sqrt(0.5)):
        root = graph.make_const(f"{name}_root", np.float32(np.sqrt(2))).output[0]
        divided = graph.make_node("Div", [negated.input[0], root]).output[0]
        erf = graph.make_node("Erf", [divided]).output[0]
        graph.make_node("Add", [erf, one], outputs=outputs, name=name)
    else:
        erf = graph.make_node("Erf", inputs).output[0]
        graph.make_node("Sub", [one, erf], outputs=outputs, name=name)


def _square(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """As a power: so ONNX Runtime recognises the variance of a normalisation."""
    inputs, outputs = node.input, node.output
    graph.remove_node(name)
    two = graph.make_const(f"{name}_two", np.float32(2)).output[0]
    graph.make_node("Pow", [inputs[0], two], outputs=outputs, name=name)


def _product(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """A product with 1 / √x, as in a normalisation, as a quotient by √x; others as they are."""
    _, factor = node.inputs
    if factor.type == "Reciprocal" and factor.inputs[0].type == "Sqrt":
        inputs, outputs = [node.input[0], factor.input[0]], node.output
        graph.remove_node(name)
        graph.make_node("Div", inputs, outputs=outputs, name=name)


def _choice(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """As one operation; tf2onnx multiplies by 0 and 1 and adds, which infinity does not survive."""
    inputs, outputs = node.input, node.output
    graph.remove_node(name)
    graph.make_node("Where", inputs, outputs=outputs, name=name)


def _largest(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """The first of the largest numbers, without what Keras does before: it makes -0 less than 0.

    For that it looks at a number's bits, which ONNX cannot.
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
    found = graph.make_node("ArgMax", [source], attr={"axis": axis, "keepdims": 0}).output[0]
    graph.make_node("Cast", [found], outputs=outputs, name=name, attr={"to": dtype})


def _bodies(graph: Any) -> Iterator[Any]:
    """The loops of a graph and those in them: the operation, its body, the graph that it is in."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield node, attribute.g, graph
                yield from _bodies(attribute.g)


def _parts(graph: Any) -> list[Any]:
    """A graph and the bodies of its loops."""
    return [graph, *(body for _, body, _ in _bodies(graph))]


def _read_from_outside(node: Any, body: Any, graph: Any) -> None:
    """Has the body of a loop read what it does not change from outside, where it was handed on.

    As weights are constants then, ONNX Runtime arranges them once for its products, and they can be
    stored in 8 bits.
    """
    if node.op_type != "Loop":
        return
    same = {x.output[0]: x.input[0] for x in body.node if x.op_type == "Identity"}
    # A loop has a count and a condition before the values that it carries, its body's outputs the
    # condition alone.
    renamed, kept = {}, []
    for place in range(2, len(node.input)):
        taken, given = body.input[place].name, body.output[place - 1].name
        if taken in (given, same.get(given)):
            renamed[taken] = node.input[place]
        else:
            kept.append(place)
    outside = {
        node.output[place - 2]: node.input[place]
        for place in range(2, len(node.input))
        if place not in kept
    }
    scans = list(range(len(node.input) - 1, len(body.output)))
    for values, places in (
        (node.input, [0, 1, *kept]),
        (body.input, [0, 1, *kept]),
        (body.output, [0, *(place - 1 for place in kept), *scans]),
        (node.output, [*(place - 2 for place in kept), *(place - 1 for place in scans)]),
    ):
        chosen = [values[place] for place in places]
        del values[:]
        values.extend(chosen)
    _rename(body, renamed)
    _rename(graph, outside)


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Has all operations, also of the loops within, read other values."""
    for part in _parts(graph):
        for node in part.node:
            for place, name in enumerate(node.input):
                node.input[place] = names.get(name, name)
    for value in graph.output:
        if value.name in names:
            graph.node.add(op_type="Identity", input=[names[value.name]], output=[value.name])


def _join_normalisations(graph: Any, weights: Mapping[str, Any], onnx: ModuleType) -> None:
    """Writes each layer normalisation as ONNX's operation for it.

    It stands there as (x - mean) / √(mean((x - mean)²) + ε) · γ + β, eight operations, of which
    ONNX Runtime makes one only where it knows all sizes.
    """
    made_by = {output: node for node in graph.node for output in node.output}
    used_by: dict[str, list[Any]] = {}
    none = np.zeros(0)
    for node in graph.node:
        for name in node.input:
            used_by.setdefault(name, []).append(node)

    def maker(name: str, kind: str) -> Any:
        """The operation of that kind that gives a value, or one without inputs."""
        node = made_by.get(name)
        return node if node is not None and node.op_type == kind else onnx.NodeProto()

    def first(node: Any) -> str:
        return node.input[0] if node.input else ""

    def only_use(node: Any, kind: str) -> Any:
        uses = used_by.get(node.output[0], []) if node.output else []
        return uses[0] if len(uses) == 1 and uses[0].op_type == kind else onnx.NodeProto()

    def vector(node: Any) -> str | None:
        return next((x for x in node.input if x in weights and weights[x].ndim == 1), None)

    for node in [x for x in graph.node if x.op_type == "Div"]:
        product = only_use(node, "Mul")
        # γ is divided by the root, or else the quotient is multiplied with γ.
        numbers = [x for x in (*node.input, *product.input) if maker(x, "Sub").input]
        gamma = vector(node) or vector(product)
        if len(numbers) != 1 or gamma is None:
            continue
        centred = maker(numbers[0], "Sub")
        shifted = maker(first(maker(node.input[1], "Sqrt")), "Add")
        variance = maker(first(shifted), "ReduceMean")
        mean = maker(centred.input[1], "ReduceMean")
        if (
            first(maker(first(variance), "Pow")) != numbers[0]
            or first(mean) != centred.input[0]
            or [weights.get(x.input[1], none).tolist() for x in (mean, variance)] != [[-1], [-1]]
        ):
            continue
        total = only_use(product, "Add")
        beta = vector(total)
        last = product if beta is None else total
        joined = onnx.helper.make_node(
            "LayerNormalization",
            [centred.input[0], gamma, *([beta] if beta else [])],
            last.output,
            name=last.name,
            axis=-1,
            epsilon=float(weights[shifted.input[1]]),
        )
        last.CopyFrom(joined)


def _remove_unused(graph: Any) -> set[str]:
    """Removes operations whose outputs nobody reads, and weights; gives the names that are read."""
    read = {value.name for value in graph.output}
    for node in reversed(list(graph.node)):  # from the outputs to the inputs
        if read.isdisjoint(node.output):
            graph.node.remove(node)
            continue
        read.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                read |= _remove_unused(attribute.g)
    for weight in list(graph.initializer):
        if weight.name not in read:
            graph.initializer.remove(weight)
    return read


# Operations of TensorFlow's that are written otherwise than tf2onnx does.
_HANDLERS = {
    "Erfc": _error_function,
    "Square": _square,
    "Mul": _product,
    "SelectV2": _choice,
    "ArgMax": _largest,
}


def name_axes(values: Any, axes: Mapping[str, tuple[str | int, ...]]) -> None:
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
