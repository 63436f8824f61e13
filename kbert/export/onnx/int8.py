"""ONNX graphs with products in 8 bits, which give the same numbers on every processor.

x86-64 without VNNI multiplies unsigned by signed 8-bit numbers in pairs of neighbouring rows. The
sum of two such products is stored in 16 bits and saturates if it is larger (`pmaddubsw`). So the
codes of a kernel are chosen such that no sum is larger, whatever the inputs: see `_to_codes`.

Shapes: N vectors of K numbers, a kernel (K, M).
"""

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from kbert.export.onnx.graph import graphs, links, remove_unused
from kbert.io.arrays import to_8_bits

_DOMAIN = "com.microsoft"
# For narrower kernels and tables, such as a head of two classes, 8 bits save nothing.
_NARROWEST = 8
# The largest sum of two neighbouring codes of one sign: 255 times this is 32,640, and the limit of
# 16 bits is 32,767.
_LARGEST_PAIR = 128
# Inputs are smoothed if the largest channel is more than this many times the median one.
_UNEVEN = 3.0
_MIGRATION = 0.65  # share of a channel's size that moves to the kernel (SmoothQuant's α)
# Integer product -> position of the kernel among its inputs.
_KERNEL_INPUT = {
    "MatMulInteger": 1,
    "MatMulIntegerToFloat": 1,
    "DynamicQuantizeMatMul": 1,
    "ConvInteger": 1,
    "QAttention": 1,
    "DynamicQuantizeLSTM": 1,
    "QLinearMatMul": 3,
    "QLinearConv": 3,
    "QGemm": 3,
}
# Elementwise operations, which functions such as GELU consist of.
_ELEMENTWISE = frozenset({
    *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Neg", "Abs", "Exp", "Sqrt"),
    *("Erf", "Tanh", "Sigmoid", "Relu", "Softplus"),
})  # fmt: skip
_SHAPES = ("Reshape", "Identity", "Squeeze", "Unsqueeze")
_GRID = np.linspace(-20, 20, 4001, dtype=np.float32)
_LOWEST = -0.5  # minimum of a function to use its range; GELU has -0.17, SiLU -0.28


def round_products(model: Any, onnx: ModuleType, largest: Mapping[str, np.ndarray]) -> None:
    """Quantises kernels and tables to 8 bits, in place, and the inputs of products at run time.

    Each column of a kernel, each row of a table and each input vector has its own scale. With one
    scale for all vectors the outputs for a text would depend on the other texts of the batch. But
    ONNX Runtime's operation only supports one scale for its input. So each vector is divided by its
    largest value, rounded, and multiplied by that value again after the product.

    Args:
        model: a `ModelProto`, after `kbert.export.onnx.graph.simplify`.
        onnx: the package `onnx`.
        largest: name in `product_inputs` -> largest absolute value of each channel, (K,). Uneven
            channels are made more even by factors that go into the kernels (SmoothQuant, Xiao et
            al. 2022), so that small channels keep more bits.
    """
    rounding = _Rounding(model, onnx)
    factors = rounding.factors(largest)
    for part in reversed(rounding.parts):  # loops first: the graphs around them copy the bodies
        rounding.rewrite(part, factors)
    rounding.finish()


def product_inputs(model: Any, onnx: ModuleType) -> list[str]:
    """Returns the sorted names of values that are multiplied by a kernel outside of loops."""
    rounding = _Rounding(model, onnx)
    return sorted({node.input[0] for node, _ in rounding.products(rounding.parts[0])})


def saturating(model: Any, onnx: ModuleType) -> list[str]:
    """Returns the names of integer products that can give other numbers on another processor.

    The proof needs only the kernels and covers all inputs. A kernel is safe if 255 times the sum of
    two neighbouring rows fits into 16 bits, for the positive and the negative codes separately. It
    is also safe if it is unsigned, which processors multiply in 16 bits. A kernel that is not a
    constant cannot be proven safe.
    """
    parts = graphs(model.graph)
    weights = {x.name: x for part in parts for x in part.initializer}
    names = []
    for node in (node for part in parts for node in part.node):
        if node.op_type in _KERNEL_INPUT:
            kernel = weights.get(node.input[_KERNEL_INPUT[node.op_type]])
            codes = None if kernel is None else onnx.numpy_helper.to_array(kernel)
            if codes is None or (codes.dtype == np.int8 and not _is_safe(node.op_type, codes)):
                names.append(node.name or node.output[0])
    return names


def _is_safe(kind: str, codes: np.ndarray) -> bool:
    """Returns whether no pair of neighbouring codes of a kernel can overflow 16 bits.

    Args:
        kind: ONNX's name of the operation that reads the kernel.
        codes: int8 kernel (…, M), or filters (M, C, …) of a convolution.
    """
    if "Conv" in kind:  # (M, C, …): a pair is within one filter
        codes = codes.reshape(len(codes), -1).T
    return int(_pair_sums(codes.reshape(-1, codes.shape[-1]).astype(np.int32)).max(initial=0)) <= (
        _LARGEST_PAIR
    )


def _pair_sums(kernel: np.ndarray) -> np.ndarray:
    """Returns the largest absolute sum of two neighbouring rows in each column, (M,).

    Positive and negative numbers are summed separately.

    Args:
        kernel: numbers (K, M).
    """
    rows = np.pad(kernel, ((0, len(kernel) % 2), (0, 0)))
    pairs = np.stack([rows, -rows]).clip(0).reshape(2, -1, 2, kernel.shape[1])
    return pairs.sum(axis=2).max(axis=(0, 1), initial=0)


def _to_codes(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantises a kernel (K, M) to int8 so that no sum of two neighbouring rows overflows.

    The scale makes the largest pair add up to 127; rounding adds one at most. This scale is nearly
    as fine as one for the full 8 bits. It is only larger if a large number has a neighbour of the
    same sign (by a tenth in MiniLM). Half the range for each number would double it.

    Returns:
        Codes (K, M), and a scale per column (M,); their product is the rounded kernel.
    """
    largest = np.maximum(_pair_sums(kernel), np.abs(kernel).max(axis=0))
    scale = (np.where(largest > 0, largest, 1) / 127).astype(np.float32)
    return np.round(kernel / scale).astype(np.int8), scale


class _Rounding:
    """A model whose products are being quantised.

    Kernels are identified by the name of the weight and whether the product reads it transposed.

    Args:
        model: a `ModelProto`; `rewrite` and `finish` change it.
        onnx: the package `onnx`.

    Attributes:
        parts: graph of the model and the bodies of its loops.
    """

    def __init__(self, model: Any, onnx: ModuleType) -> None:
        self._model, self._onnx = model, onnx
        self.parts = graphs(model.graph)
        self._stored = {x.name: x for part in self.parts for x in part.initializer}
        self._made_by, _ = links(node for part in self.parts for node in part.node)
        self._new: dict[str, Any] = {}
        self._limits: dict[str, float | None] = {}

    def products(self, part: Any) -> list[tuple[Any, tuple[str, bool]]]:
        """Returns the MatMul operations of a graph that have a kernel, each with its kernel."""
        candidates = [(x, self._kernel(x)) for x in part.node if x.op_type == "MatMul"]
        return [(node, kernel) for node, kernel in candidates if kernel is not None]

    def _kernel(self, product: Any) -> tuple[str, bool] | None:
        """Returns the kernel of a product, or None if it has no stored one.

        Returns:
            Name of the weight, and whether it is transposed before the product (as a tied table
            is).
        """
        name, turned = product.input[1], False
        node = self._made_by.get(name)
        if node is not None and node.op_type == "Transpose" and node.input[0] in self._stored:
            name, turned = node.input[0], True
        return (name, turned) if self._is_wide(name) else None

    def _is_wide(self, name: str) -> bool:
        """Returns whether a weight is a float32 matrix of at least 8 rows and columns."""
        stored = self._stored.get(name)
        return (
            stored is not None
            and stored.data_type == self._onnx.TensorProto.FLOAT
            and len(stored.dims) == 2
            and min(stored.dims) >= _NARROWEST
        )

    def _array(self, kernel: tuple[str, bool]) -> np.ndarray:
        """Returns the numbers of a kernel, (K, M)."""
        array = self._onnx.numpy_helper.to_array(self._stored[kernel[0]])
        return array.T if kernel[1] else array

    def factors(self, largest: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the factors (K,) that the channels of uneven inputs are multiplied by.

        Inputs of the same kernel, and kernels of the same input, share their factors. The rows of
        the kernels are divided by them.

        Args:
            largest: input name -> largest absolute value of each channel, (K,).

        Returns:
            Input name -> factors; inputs that are even enough have none.
        """
        groups: list[tuple[set[str], set[tuple[str, bool]]]] = []
        for product, kernel in (x for part in self.parts for x in self.products(part)):
            inputs, kernels = {product.input[0]}, {kernel}
            for group in [x for x in groups if x[0] & inputs or x[1] & kernels]:
                groups.remove(group)
                inputs, kernels = inputs | group[0], kernels | group[1]
            groups.append((inputs, kernels))
        factors_by_input: dict[str, np.ndarray] = {}
        for inputs, kernels in groups:
            if inputs <= largest.keys() and all(self._least(x) is None for x in inputs):
                sizes = np.max([largest[name] for name in inputs], axis=0)
                if sizes.max() > _UNEVEN * np.median(sizes) > 0:
                    sizes = sizes.clip(1e-3 * np.median(sizes))
                    rows = np.max([np.abs(self._array(x)).max(axis=1) for x in kernels], axis=0)
                    rows = rows.clip(1e-3 * np.median(rows) or 1.0)
                    factor = rows ** (1 - _MIGRATION) / sizes**_MIGRATION
                    factor = factor / np.exp(np.log(factor).mean())
                    factors_by_input.update(dict.fromkeys(inputs, factor.astype(np.float32)))
        return factors_by_input

    def rewrite(self, part: Any, factors: Mapping[str, np.ndarray]) -> None:
        """Replaces the products and table lookups of one graph by operations on 8-bit codes.

        Args:
            part: one of `parts`.
            factors: result of `factors`.
        """
        # Output -> operations that replace the one that makes it.
        replacements: dict[str, list[Any]] = {}
        rounded: set[str] = set()
        for node, kernel in self.products(part):
            name, output = node.input[0], node.output[0]
            zero, step, _ = self._range(name)
            codes, scale = self._coded(kernel, factors.get(name))
            rounding_nodes = [] if name in rounded else self._round(name, factors.get(name))
            rounded.add(name)
            inputs = [f"{name}_codes", codes, step, scale, zero]
            replacements[output] = [
                *rounding_nodes,
                self._make("MatMulIntegerToFloat", inputs, f"{output}_sum", domain=_DOMAIN),
                self._make("Mul", [f"{output}_sum", f"{name}_size"], output),
            ]
        for node in part.node:
            if node.op_type == "Gather" and self._is_wide(node.input[0]) and not _axis(node):
                replacements[node.output[0]] = self._read_table(node)
        nodes = [x for node in part.node for x in replacements.get(node.output[0], [node])]
        del part.node[:]
        part.node.extend(nodes)

    def _round(self, name: str, factor: np.ndarray | None) -> list[Any]:
        """Returns the operations that quantise the vectors of a value.

        They compute `NAME_codes`, and `NAME_size`, the factor (…, 1) by which each vector was
        divided.

        Args:
            name: name of the value, (…, K).
            factor: smoothing factors (K,); None = no smoothing.
        """
        zero, step, least = self._range(name)
        axis = self._store("round_axis", np.array([-1], np.int64))
        values, nodes = name, []
        if factor is not None:
            values = f"{name}_even"
            factors = self._store(f"{name}_factors", factor)
            nodes.append(self._make("Mul", [name, factors], values))
        absolute = values
        if self._least(name) is None:
            absolute = f"{name}_abs"
            nodes.append(self._make("Abs", [values], absolute))
        return [
            *nodes,
            self._make("ReduceMax", [absolute, axis], f"{name}_largest", keepdims=1),
            self._make("Max", [f"{name}_largest", least], f"{name}_size"),
            self._make("Div", [values, f"{name}_size"], f"{name}_units"),
            self._make("QuantizeLinear", [f"{name}_units", step, zero], f"{name}_codes"),
        ]

    def _range(self, name: str) -> tuple[str, str, str]:
        """Returns names of constants: the code of 0, the step between codes, the least vector size.

        A value that cannot fall far below 0, such as after GELU, gets most codes above 0. With code
        32 for 0, the 32 steps below reach the lowest possible value if the vector's size counts as
        at least `size`.

        Args:
            name: name of the value that is quantised.
        """
        lowest = self._least(name)
        zero, size = 128, 1e-12
        if lowest is not None:
            zero = 32 if lowest < 0 else 0
            size = max(size, -lowest * (255 - zero) / max(zero, 1))
        steps = 127 if zero == 128 else 255 - zero
        return (
            self._store(f"round_zero_{zero}", np.array(zero, np.uint8)),
            self._store(f"round_step_{steps}", np.array(1 / steps, np.float32)),
            self._store(f"round_least_{size:.4g}", np.array(size, np.float32)),
        )

    def _least(self, name: str) -> float | None:
        """Returns a lower bound, at most 0, of a value after a function such as GELU, or None."""
        if name not in self._limits:
            self._limits[name] = self._find_least(name)
        return self._limits[name]

    def _find_least(self, name: str) -> float | None:
        """Computes `_least`: evaluates the elementwise operations that make the value.

        None if they have several inputs, are more than 20, or have a minimum below `_LOWEST`.
        """
        name = self._unshaped(name)
        nodes: dict[str, Any] = {}
        sources: set[str] = set()
        waiting = [name]
        while waiting and len(sources) < 2 and len(nodes) < 20:
            value = self._unshaped(waiting.pop())
            node = self._made_by.get(value)
            if self._is_number(value) or value in nodes:
                continue
            stored = [x for x in node.input if x in self._stored] if node is not None else []
            if (
                node is None
                or node.op_type not in _ELEMENTWISE
                or not all(map(self._is_number, stored))
            ):
                sources.add(value)
            else:
                nodes[value] = node
                waiting.extend(node.input)
        if waiting or len(sources) != 1 or not nodes:
            return None
        least = float(self._evaluate(nodes, sources.pop(), name).min())
        # A little below the minimum on the grid.
        return min(1.01 * least, 0.0) if least >= _LOWEST else None

    def _unshaped(self, name: str) -> str:
        """Returns the name of the value that a value is reshaped from, in any number of steps."""
        while (node := self._made_by.get(name)) is not None and node.op_type in _SHAPES:
            name = node.input[0]
        return name

    def _is_number(self, name: str) -> bool:
        return name in self._stored and np.prod(self._stored[name].dims) == 1

    def _evaluate(self, made: Mapping[str, Any], source: str, output: str) -> np.ndarray:
        """Returns the values of `output` for values of `source` from -20 to 20.

        Args:
            made: output name -> elementwise operation, of all operations between both.
            source: name of the input value.
            output: name of the output value.
        """
        from onnx.reference import ReferenceEvaluator

        opsets = {x.domain: x.version for x in self._model.opset_import}
        values: dict[str, Any] = {source: _GRID}

        def value(name: str) -> np.ndarray:
            name = self._unshaped(name)
            if name not in values and name in self._stored:
                values[name] = self._onnx.numpy_helper.to_array(self._stored[name]).reshape(())
            elif name not in values:
                inputs = {x: value(x) for x in made[name].input}
                (values[name],) = ReferenceEvaluator(made[name], opsets=opsets).run(None, inputs)
            return values[name]

        with np.errstate(all="ignore"):
            return np.nan_to_num(value(output), nan=-np.inf)

    def _coded(self, kernel: tuple[str, bool], factor: np.ndarray | None) -> tuple[str, str]:
        """Stores a kernel in 8 bits, once; returns the names of its codes and scales.

        Args:
            kernel: name of the weight, and whether it is transposed.
            factor: smoothing factors (K,) of the input, by which the kernel is divided; None =
                none.
        """
        name = f"{kernel[0]}_turned" if kernel[1] else kernel[0]
        codes, scale = f"{name}_codes", f"{name}_scale"
        if codes not in self._new:
            array = self._array(kernel)
            quantised = _to_codes(array if factor is None else array / factor[:, None])
            self._store(codes, quantised[0])
            self._store(scale, quantised[1])
        return codes, scale

    def _read_table(self, node: Any) -> list[Any]:
        """Returns the operations that look up rows in a table of codes, to replace a Gather."""
        (table, ids), output = node.input, node.output[0]
        codes, scale = f"{table}_rows", f"{table}_row_scale"
        if codes not in self._new:
            quantised = to_8_bits(self._array((table, False)), axis=-1)
            self._store(codes, quantised[0])
            self._store(scale, quantised[1])
        number = self._onnx.TensorProto.FLOAT
        return [
            self._make("Gather", [codes, ids], f"{output}_codes", axis=0),
            self._make("Cast", [f"{output}_codes"], f"{output}_numbers", to=number),
            self._make("Gather", [scale, ids], f"{output}_scale", axis=0),
            self._make("Mul", [f"{output}_numbers", f"{output}_scale"], output),
        ]

    def _make(self, kind: str, inputs: Iterable[str], output: str, **options: Any) -> Any:
        return self._onnx.helper.make_node(kind, list(inputs), [output], name=output, **options)

    def _store(self, name: str, array: np.ndarray) -> str:
        """Stores a constant, unless the name exists; returns the name."""
        if name not in self._new:
            stored = self._onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
            self._new[name] = stored
        return name

    def finish(self) -> None:
        """Adds the constants of the new operations to the model, and removes unread weights."""
        self._model.graph.initializer.extend(self._new.values())
        remove_unused(self._model.graph)
        if all(x.domain != _DOMAIN for x in self._model.opset_import):
            self._model.opset_import.append(self._onnx.helper.make_opsetid(_DOMAIN, 1))


def _axis(node: Any) -> int:
    return next((x.i for x in node.attribute if x.name == "axis"), 0)
