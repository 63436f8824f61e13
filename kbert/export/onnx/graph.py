"""Simplifies ONNX graphs for ONNX Runtime: fewer operations, the same numbers.

tf2onnx writes every operation of TensorFlow. In a MiniLM-L6, 300 of 507 operations read, slice and
join sizes. They take a tenth of the time of a short text in 8 bits.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

# Each size is a number, the name of an input's axis, or an invented name for an unknown size.
Sizes = tuple[int | str, ...]
# Prefix of the names of values that contain sizes.
_MARK = "size"
# Weights with more numbers than this cannot be sizes.
_SMALL = 64
# A slice with this end or more reads to the end of the axis.
_ALL = 10**9
# Operations on each number or vector separately: the shape of the list of vectors is irrelevant.
_BY_ROWS = frozenset({
    *("Add", "Sub", "Mul", "Div", "Pow", "Erf", "Tanh", "Sigmoid", "Relu", "LayerNormalization")
})  # fmt: skip


def simplify(model: Any, onnx: ModuleType) -> None:
    """Rewrites a model of tf2onnx in place: fewer operations, the same numbers.

    Args:
        model: a `ModelProto` with its operations in the order of computation; the axes of its
            inputs must have names.
        onnx: the package `onnx`.
    """
    graph = model.graph
    for node, body, outer in _bodies(graph):
        _read_from_outside(node, body, outer)
    remove_unused(graph)
    parts = graphs(graph)
    _fold_weights(model, onnx)
    weights = {
        x.name: onnx.numpy_helper.to_array(x)
        for part in parts
        for x in part.initializer
        if len(x.dims) < 2 or np.prod(x.dims) <= _SMALL
    }
    for part in parts:
        _join_normalisations(part, weights, onnx)
        _leave_out_whole_slices(part, weights)
    remove_unused(graph)
    if len(parts) == 1:  # in loops few sizes are known
        for rewrite in (_cut_kernels, _flatten, _know_sizes):
            rewrite(_Sized(model, onnx))


def graphs(graph: Any) -> list[Any]:
    """Returns a graph and the bodies of its loops."""
    return [graph, *(body for _, body, _ in _bodies(graph))]


def links(nodes: Iterable[Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Returns the links between the operations of a graph.

    Returns:
        Value name -> operation that computes it, and value name -> operations that read it.
    """
    made_by: dict[str, Any] = {}
    used_by: dict[str, list[Any]] = {}
    for node in nodes:
        made_by.update(dict.fromkeys(node.output, node))
        for name in node.input:
            used_by.setdefault(name, []).append(node)
    return made_by, used_by


def _bodies(graph: Any) -> Iterator[Any]:
    """Yields (operation, body, enclosing graph) of each loop of a graph, also of nested loops."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield node, attribute.g, graph
                yield from _bodies(attribute.g)


def _read_from_outside(node: Any, body: Any, graph: Any) -> None:
    """Makes a loop's body read unchanged values directly from the enclosing graph.

    Before, each iteration passes these values on to the next. Afterwards weights are constants in
    the body: ONNX Runtime packs them once for its products, and they can be stored in 8 bits.

    Args:
        node: the loop; other operations with a body are left unchanged.
        body: graph of one iteration.
        graph: graph that contains the loop.
    """
    if node.op_type != "Loop":
        return
    same = {x.output[0]: x.input[0] for x in body.node if x.op_type == "Identity"}
    # A loop has a count and a condition before the values that it carries; the outputs of its body
    # only have the condition before them.
    renamed, kept_positions = {}, []
    for position in range(2, len(node.input)):
        body_input, body_output = body.input[position].name, body.output[position - 1].name
        if body_input in (body_output, same.get(body_output)):
            renamed[body_input] = node.input[position]
        else:
            kept_positions.append(position)
    outside = {
        node.output[position - 2]: node.input[position]
        for position in range(2, len(node.input))
        if position not in kept_positions
    }
    scans = list(range(len(node.input) - 1, len(body.output)))
    for values, positions in (
        (node.input, [0, 1, *kept_positions]),
        (body.input, [0, 1, *kept_positions]),
        (body.output, [0, *(position - 1 for position in kept_positions), *scans]),
        (
            node.output,
            [*(position - 2 for position in kept_positions), *(position - 1 for position in scans)],
        ),
    ):
        chosen = [values[position] for position in positions]
        del values[:]
        values.extend(chosen)
    _rename(body, renamed)
    _rename(graph, outside)


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Makes all operations of a graph, also those in loops, read values under other names.

    Args:
        graph: the graph. Its outputs keep their names.
        names: old name -> new name.
    """
    for part in graphs(graph):
        for node in part.node:
            for position, name in enumerate(node.input):
                node.input[position] = names.get(name, name)
    for value in graph.output:
        if value.name in names:
            graph.node.add(op_type="Identity", input=[names[value.name]], output=[value.name])


def _fold_weights(model: Any, onnx: ModuleType) -> None:
    """Computes values that depend only on weights, such as transposed kernels, and stores them."""
    parts = graphs(model.graph)
    stored = {x.name: x for part in parts for x in part.initializer}
    from onnx.reference import ReferenceEvaluator

    for part in parts:
        for node in list(part.node):
            input_names = {name for name in node.input if name}
            has_body = any(x.HasField("g") for x in node.attribute)
            if not input_names or has_body or not input_names <= stored.keys():
                continue
            arrays = {name: onnx.numpy_helper.to_array(stored[name]) for name in input_names}
            opset = {x.domain: x.version for x in model.opset_import}
            outputs = ReferenceEvaluator(node, opsets=opset).run(None, arrays)
            for name, array in zip(node.output, outputs, strict=True):
                stored[name] = onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
                part.initializer.append(stored[name])
            part.node.remove(node)
    remove_unused(model.graph)


def _join_normalisations(graph: Any, weights: Mapping[str, Any], onnx: ModuleType) -> None:
    """Replaces each layer normalisation in a graph by ONNX's operation for it.

    The graph has (x - mean) / √(mean((x - mean)²) + ε) · γ + β in eight operations. ONNX Runtime
    fuses them only if it knows all sizes.

    Args:
        graph: graph that is changed in place.
        weights: name -> array of all vectors and small weights.
        onnx: the package `onnx`.
    """
    made_by, used_by = links(graph.node)
    none = np.zeros(0)

    def maker(name: str, kind: str) -> Any:
        """Returns the operation of a kind that computes a value; an empty one if there is none."""
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
        # Either γ is divided by the root, or the quotient is multiplied by γ.
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


def _leave_out_whole_slices(graph: Any, weights: Mapping[str, Any]) -> None:
    """Removes slices that return all of a value, such as TensorFlow makes for `x[:, None]`.

    Args:
        graph: graph that is changed in place.
        weights: name -> array of all vectors and small weights, which include the slices' bounds.
    """
    for node in [x for x in graph.node if x.op_type == "Slice" and len(x.input) > 3]:
        starts, ends, _, *steps = (weights.get(name) for name in node.input[1:])
        if (
            starts is not None
            and ends is not None
            and not starts.any()
            and (ends >= _ALL).all()
            and all(x is not None and (x == 1).all() for x in steps)
        ):
            node.op_type = "Identity"
            del node.input[1:]
    _remove_identities(graph)


def remove_unused(graph: Any) -> set[str]:
    """Removes operations and weights that nothing reads; returns the names that are read."""
    read = {value.name for value in graph.output}
    for node in reversed(list(graph.node)):  # from the outputs to the inputs
        if read.isdisjoint(node.output):
            graph.node.remove(node)
            continue
        read.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                read |= remove_unused(attribute.g)
    for weight in list(graph.initializer):
        if weight.name not in read:
            graph.initializer.remove(weight)
    return read


def _cut_kernels(graph: "_Sized") -> None:
    """Makes separate products for queries, keys and values out of one product that is split later.

    A split reads and writes all of them twice; here the kernel is split once, before inference.
    """
    splits = [node for node in graph.nodes if node.op_type == "Split"]
    cuts = {node.output[0]: _cut_product(graph, node) for node in splits}
    nodes = []
    for node in graph.nodes:
        nodes += cuts.get(node.output[0]) or [node]
    graph.set_nodes(nodes)


def _cut_product(graph: "_Sized", cut: Any) -> list[Any]:
    """Returns the operations that compute the parts of a split product separately.

    The product is (B, T, P · H · D). It must be reshaped to (B, T, P, H, D), transposed to (P, B,
    H, T, D) and split into its P parts, such as queries, keys and values. H is the number of heads.

    Args:
        graph: graph of the split; it gets the parts of the kernel and bias as weights.
        cut: the Split operation.

    Returns:
        The operations that replace the split; [] if it has another form.
    """
    turn = graph.only("Transpose", cut.input[0])
    fold = graph.only("Reshape", turn.input[0]) if turn else None
    total = graph.only("Add", fold.input[0]) if fold else None
    product = graph.only("MatMul", (total or fold).input[0]) if fold else None
    if (
        fold is None
        or product is None
        or graph.helper.get_node_attr_value(turn, "perm") != [2, 0, 3, 1, 4]
    ):
        return []
    sizes = graph.sizes.get(fold.output[0], ())
    shape, counts = (*sizes[:2], *sizes[3:]), [x for x in sizes[2:] if isinstance(x, int)]
    factors = [product.input[1], *(total.input[1:] if total else ())]
    arrays = [graph.array(name) for name in factors]
    uses = [graph.used_by.get(output, []) for output in cut.output]
    if (
        len(counts) != 3
        or any(x is None or x.shape[-1:] != (np.prod(counts),) for x in arrays)
        or any(len(x) != 1 or x[0].op_type != "Squeeze" for x in uses)
        or not graph.can_reshape(shape)
    ):
        return []
    nodes = []
    for index, (squeeze,) in enumerate(uses):
        parts = [
            graph.add_weight(f"{name}_{index}", np.split(array, counts[0], axis=-1)[index])
            for name, array in zip(factors, arrays, strict=True)
        ]
        value = product.input[0]
        for kind, part in zip(("MatMul", "Add"), parts, strict=False):
            nodes.append(graph.make(kind, [value, part], f"{squeeze.name}_{kind}"))
            value = nodes[-1].output[0]
        nodes.append(graph.make("Reshape", [value, graph.shape(shape)], f"{squeeze.name}_heads"))
        perm = [0, 2, 1, 3]
        nodes.append(graph.make("Transpose", nodes[-1].output, f"{squeeze.name}_turned", perm=perm))
        squeeze.CopyFrom(graph.make("Identity", nodes[-1].output, squeeze.output[0]))
    return nodes


def _flatten(graph: "_Sized") -> None:
    """Keeps the vectors of B rows of T tokens as one list of vectors from product to product.

    TensorFlow reshapes them to a list for each product, and back to rows afterwards.
    """
    lists: dict[str, str] = {}  # value with rows -> the same value as a list
    reshaped: dict[str, str] = {}  # value -> the value that it is a reshape of
    nodes: list[Any] = []

    def as_list(name: str, size: int) -> str:
        """Returns the name of a value as a list of vectors; adds its Reshape on first use."""
        if name not in lists:
            shape = graph.shape((-1, size))
            source = reshaped.get(name, name)
            nodes.append(graph.make("Reshape", [source, shape], f"{name}_list"))
            lists[name] = f"{name}_list"
        return lists[name]

    for node in graph.nodes:
        output_sizes = graph.sizes.get(node.output[0], ())
        size = output_sizes[-1] if output_sizes else None
        if not isinstance(size, int):
            pass
        elif node.op_type == "Reshape":
            input_sizes = graph.sizes.get(node.input[0], ())
            same_width = input_sizes[-1:] == output_sizes[-1:]
            reshaped[node.output[0]] = node.input[0]
            if same_width and len(input_sizes) == 2 < len(output_sizes):
                lists[node.output[0]] = node.input[0]
            elif same_width and len(input_sizes) > 2 == len(output_sizes):
                node = graph.make("Identity", [as_list(node.input[0], size)], node.output[0])
        elif node.op_type in _BY_ROWS and len(output_sizes) > 2 and graph.can_reshape(output_sizes):
            has_rows = [graph.sizes.get(name) == output_sizes for name in node.input]
            is_vector = [len(graph.sizes.get(name, output_sizes)) <= 1 for name in node.input]
            has_list = not lists.keys().isdisjoint(node.input)
            if has_list and all(x or y for x, y in zip(has_rows, is_vector, strict=True)):
                output = node.output[0]
                for position, name in enumerate(node.input):
                    if has_rows[position]:
                        node.input[position] = as_list(name, size)
                node.output[0] = lists[output] = f"{output}_list"
                nodes.append(node)
                node = graph.make("Reshape", [lists[output], graph.shape(output_sizes)], output)
        nodes.append(node)
    graph.set_nodes(nodes)


def _know_sizes(graph: "_Sized") -> None:
    """Computes the shape of each Reshape once from the inputs' sizes; removes needless Reshapes."""
    nodes = []
    for node in graph.nodes:
        if node.op_type == "Reshape":
            input_sizes, output_sizes = (
                graph.sizes.get(x) for x in (node.input[0], node.output[0])
            )
            if input_sizes and input_sizes == output_sizes:
                node = graph.make("Identity", node.input[:1], node.output[0])
            elif (
                output_sizes
                and graph.array(node.input[1]) is None
                and graph.can_reshape(output_sizes)
            ):
                node.input[1] = graph.shape(output_sizes)
        nodes.append(node)
    graph.set_nodes(nodes)


class _Sized:
    """A graph without loops, and the sizes of its values as far as ONNX infers them.

    Args:
        model: model with the graph.
        onnx: the package `onnx`.

    Attributes:
        helper: the module `onnx.helper`.
        nodes: operations of the graph.
        used_by: name of a value -> operations that read it.
        sizes: name of a value -> its sizes, for values of known rank.
    """

    def __init__(self, model: Any, onnx: ModuleType) -> None:
        self._graph, self._onnx = model.graph, onnx
        self.helper = onnx.helper
        self.nodes = list(self._graph.node)
        self._weights = {x.name: x for x in self._graph.initializer}
        self._made_by, self.used_by = links(self.nodes)
        self._inputs = {x.name: _sizes_of(x) for x in self._graph.input}
        # Name of an axis -> an input that has it, and its position there.
        self._axes = {
            size: (name, position)
            for name, sizes in self._inputs.items()
            for position, size in enumerate(sizes)
        }
        self._first: list[Any] = []
        self.sizes = self._infer(model)

    def array(self, name: str) -> Any:
        """Returns the numbers of the weight with this name; None if it is a computed value."""
        weight = self._weights.get(name)
        return None if weight is None else self._onnx.numpy_helper.to_array(weight)

    def only(self, kind: str, name: str) -> Any:
        """Returns the operation of this kind that computes a value with one reader, or None."""
        node = self._made_by.get(name)
        is_match = node is not None and node.op_type == kind and len(self.used_by[name]) == 1
        return node if is_match else None

    def make(self, kind: str, inputs: Any, output: str, **options: Any) -> Any:
        """Returns a new operation with one output; `options` are its attributes."""
        return self.helper.make_node(kind, list(inputs), [output], name=output, **options)

    def add_weight(self, name: str, array: np.ndarray) -> str:
        """Stores an array as a weight, unless the name exists; returns the name."""
        if name not in self._weights:
            stored = self._onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
            self._graph.initializer.append(stored)
            self._weights[name] = stored
        return name

    def can_reshape(self, sizes: Sizes) -> bool:
        """Returns whether `shape` supports the sizes.

        At most one may be neither a number nor an axis of an input; there must be one at least.
        """
        unknown = [x for x in sizes if not isinstance(x, int) and x not in self._axes]
        return bool(sizes) and len(unknown) <= 1

    def shape(self, sizes: Sizes) -> str:
        """Returns the name of an int64 vector with these sizes; all Reshapes to them share it."""
        name = f"{_MARK}s_" + "_".join(map(str, sizes))
        numbers = [x if isinstance(x, int) else -1 for x in sizes]
        if numbers.count(-1) <= 1:
            return self.add_weight(name, np.array(numbers, np.int64))
        parts = []
        for size, number in zip(sizes, numbers, strict=True):
            parts.append(f"{_MARK}_{size}")
            if size in self._axes:
                source, axis = self._axes[size]
                self._begin_with("Shape", [source], parts[-1], start=axis, end=axis + 1)
            else:
                self.add_weight(parts[-1], np.array([number], np.int64))
        self._begin_with("Concat", parts, name, axis=0)
        return name

    def set_nodes(self, nodes: list[Any]) -> None:
        """Replaces all operations of the graph, and adds those that `shape` needs before them."""
        # Operations for sizes from earlier rewriting also come first, those that join sizes last.
        first = [x for x in (*nodes, *self._first) if x.name.startswith(_MARK)]
        first.sort(key=lambda node: node.op_type != "Shape")
        ordered = self._onnx.GraphProto()
        ordered.node.extend([*first, *(x for x in nodes if not x.name.startswith(_MARK))])
        del self._graph.node[:]
        self._graph.node.extend(ordered.node)
        _remove_identities(self._graph)
        remove_unused(self._graph)

    def _begin_with(self, kind: str, inputs: list[str], output: str, **options: int) -> None:
        """Adds an operation at the beginning of the graph, unless its output exists."""
        if output not in self._made_by:
            self._first.append(self.make(kind, inputs, output, **options))
            self._made_by[output] = self._first[-1]

    def _infer(self, model: Any) -> dict[str, Sizes]:
        """Returns the sizes of each value by name, without values whose sizes ONNX cannot infer.

        ONNX would copy large weights, so they are left out. It does not infer that rows 0 to T of a
        table of positions are as many as the T tokens, so that size is given. With more tokens than
        rows the sum of both fails, like in TensorFlow.
        """
        sketch = self._onnx.ModelProto(ir_version=model.ir_version)
        sketch.opset_import.extend(model.opset_import)
        sketch.graph.name = "sizes"
        sketch.graph.input.extend(self._graph.input)
        sketch.graph.output.extend(self._graph.output)
        extra_inputs = {}
        for node in self.nodes:
            if (size := self._rows_read(node)) is None:
                sketch.graph.node.append(node)
            else:
                table = self._weights[node.input[0]]
                extra_inputs[node.output[0]] = (table.data_type, [size, *table.dims[1:]])
        for name, weight in self._weights.items():
            if np.prod(weight.dims) <= _SMALL:
                sketch.graph.initializer.append(weight)
            else:
                extra_inputs[name] = (weight.data_type, weight.dims)
        values = [self.helper.make_tensor_value_info(k, *v) for k, v in extra_inputs.items()]
        sketch.graph.input.extend(values)
        inferred = self._onnx.shape_inference.infer_shapes(sketch, data_prop=True).graph
        sizes_by_name = {
            x.name: _sizes_of(x)
            for x in (*inferred.value_info, *inferred.input, *inferred.output)
            if x.type.tensor_type.HasField("shape")
        }
        sizes_by_name.update((name, tuple(x.dims)) for name, x in self._weights.items())
        return {name: sizes for name, sizes in sizes_by_name.items() if "" not in sizes}

    def _rows_read(self, node: Any) -> str | int | None:
        """Returns the number of rows that a slice reads from the top of a table.

        Returns:
            An axis of an input if the slice reads that many first rows, else None.
        """
        if node.op_type != "Slice" or len(node.input) < 4 or node.input[0] not in self._weights:
            return None
        start, axis, *step = (self.array(x) for x in (node.input[1], *node.input[3:]))
        end = self._made_by.get(node.input[2])
        if [x.tolist() for x in (start, axis, *step) if x is not None] != [[0], [0], [1]]:
            return None
        if end is None or end.op_type != "Slice":
            return None
        bounds = [self.array(x) for x in end.input[1:3]]
        source = self._made_by.get(end.input[0])
        while source is not None and source.op_type == "Cast":
            source = self._made_by.get(source.input[0])
        if source is None or source.op_type != "Shape" or any(x is None for x in bounds):
            return None
        (first,), (last,) = bounds
        sizes = self._inputs.get(source.input[0], ())
        return sizes[first] if last == first + 1 and 0 <= first < len(sizes) else None


def _sizes_of(value: Any) -> Sizes:
    dims = value.type.tensor_type.shape.dim
    return tuple(x.dim_value if x.HasField("dim_value") else x.dim_param for x in dims)


def _remove_identities(graph: Any) -> None:
    """Makes the readers of an Identity read its input; an Identity that is an output remains."""
    names: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    for node in graph.node:  # in the order of computation, so that each name is final
        for position, name in enumerate(node.input):
            node.input[position] = names.get(name, name)
        if node.op_type == "Identity" and node.output[0] not in outputs:
            names[node.output[0]] = node.input[0]
