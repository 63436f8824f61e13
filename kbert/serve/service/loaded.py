"""A version of a model in memory: its signatures, their inputs and outputs, and running them.

Shapes: `B` texts or rows, `D` width of embeddings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from absl import logging

from kbert.core.types import PathLike
from kbert.io.paths import Path
from kbert.serve.http.errors import Refused
from kbert.serve.service.errors import is_bad_input, most_said
from kbert.serve.service.stopping import Stop

Arrays = dict[str, np.ndarray]
# The file that shows that a version is complete: for a SavedModel, for an export to a runtime.
SAVED_MODEL, EXPORT = "saved_model.pb", "export.json"
# Names of types in TensorFlow's protocol buffers, where they differ from `Spec.tensorflow`.
_NAMES_OF_TYPES = {"float32": "float", "float64": "double", "float16": "half"}


@dataclass(frozen=True)
class Spec:
    """Type and shape of an input or output.

    Args:
        dtype: NumPy dtype; strings are `object` (bytes).
        shape: size of each axis, None for an axis of any size; None = any shape.
        tensorflow: name of the dtype in TensorFlow.
    """

    dtype: np.dtype
    shape: tuple[int | None, ...] | None
    tensorflow: str

    @property
    def is_string(self) -> bool:
        """Whether the values are strings."""
        return self.dtype == object

    def describe(self) -> str:
        """Returns type and shape in words.

        >>> Spec(np.dtype(object), (None, 3), "string").describe()
        'string of shape (B, 3)'
        """
        if self.shape is None:
            return f"{self.tensorflow} of any shape"
        axes = ["any" if size is None else str(size) for size in self.shape]
        if self.shape and self.shape[0] is None:
            axes[0] = "B"
        return f"{self.tensorflow} of shape ({', '.join(axes)}{',' * (len(axes) == 1)})"


class Entry:
    """A signature of a loaded model.

    Args:
        name: name of the signature.
        inputs: name -> `Spec` of each input.
        outputs: name -> `Spec` of each output.
        compute: function from the input arrays and a `Stop` to the output arrays.

    Attributes:
        inputs, outputs: name -> `Spec` of each input or output.
        is_rows: whether each input has one row per text, so that requests can be counted and split
            by rows.
        has_row_outputs: whether each output has one row per text.
        merges: whether rows of several requests can share a batch. It needs outputs with one row
            per input row, whose size does not depend on the other rows.
        takes_text: whether the only input is texts, (B,).
        vectors: name of the output with an embedding per text, (B, D); None = there is none.
    """

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, Spec],
        outputs: Mapping[str, Spec],
        compute: Callable[[Mapping[str, np.ndarray], Stop], Arrays],
    ) -> None:
        self.name, self._compute = name, compute
        self.inputs, self.outputs = dict(inputs), dict(outputs)
        self.is_rows = bool(self.inputs) and all(map(_has_rows, self.inputs.values()))
        self.has_row_outputs = all(map(_has_rows, self.outputs.values()))
        fixed = all(x.shape and None not in x.shape[1:] for x in self.outputs.values())
        self.merges = self.is_rows and self.has_row_outputs and fixed
        input_types = [(x.dtype, x.shape) for x in self.inputs.values()]
        self.takes_text = input_types == [(np.dtype(object), (None,))]
        vector_outputs = [
            output
            for output, x in self.outputs.items()
            if x.dtype.kind == "f" and x.shape and len(x.shape) == 2
        ]
        self.vectors = vector_outputs[0] if self.takes_text and len(vector_outputs) == 1 else None

    @classmethod
    def of_graph(cls, name: str, function: Any, owner: Any = None) -> Entry:
        """Makes the entry of a TensorFlow function.

        Args:
            name: name of the signature.
            function: concrete function of the signature, from `tf.saved_model.load`.
            owner: loaded object to keep alive with the entry; the function has no reference to it.
        """
        import tensorflow as tf

        inputs = {k: _spec(x) for k, x in function.structured_input_signature[1].items()}
        outputs = {k: _spec(x) for k, x in function.structured_outputs.items()}

        def compute(given: Mapping[str, np.ndarray], stop: Stop, owner: Any = owner) -> Arrays:
            tensors = {k: tf.constant(x, dtype=inputs[k].tensorflow) for k, x in given.items()}
            return {k: x.numpy() for k, x in stop.run(function, tensors).items()}

        return cls(name, inputs, outputs, compute)

    def run(self, inputs: Mapping[str, np.ndarray], stop: Stop | None = None) -> Arrays:
        """Computes the outputs of inputs that passed `check`; errors of the runtime propagate.

        Args:
            inputs: name -> array of each input.
            stop: object that can stop the run while it computes; None = the run is not stopped.
        """
        return self._compute(inputs, stop or Stop())

    def check_names(self, names: Iterable[str]) -> None:
        """Raises `Refused` unless `names` are exactly the names of the inputs."""
        if set(names) != set(self.inputs):
            raise Refused(
                400,
                f"The inputs of the signature {self.name!r} are {_names(self.inputs)}. Received: "
                f"{_names(names)}",
            )

    def check_input(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Raises `Refused` if the type or shape of an input does not fit.

        Args:
            name: name of the input.
            dtype: TensorFlow's name of the type.
            shape: size of each axis.
        """
        spec = self.inputs[name]
        fits = spec.shape is None or (
            len(spec.shape) == len(shape)
            and all(
                expected in (None, size) for expected, size in zip(spec.shape, shape, strict=True)
            )
        )
        if not fits or dtype != spec.tensorflow:
            raise Refused(
                400,
                f"The input {name!r} must be {spec.describe()}. Received: {dtype} of shape "
                f"{tuple(shape[:10])}",
            )

    def check(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Checks the inputs of a request.

        Returns:
            The number of rows, B; 1 if the inputs are not rows.

        Raises:
            Refused: names, types, shapes or numbers of rows do not fit.
        """
        self.check_names(inputs)
        for name, array in inputs.items():
            self.check_input(name, _type_name(array), array.shape)
        if not self.is_rows:
            return 1
        rows = {len(array) for array in inputs.values()}
        if len(rows) != 1:
            raise Refused(
                400, f"All inputs must have the same number of rows. Received: {sorted(rows)[:10]}"
            )
        return rows.pop()


class LoadedModel:
    """A SavedModel in memory, or an export to another runtime.

    Args:
        folder: folder of the version.
        threads: threads that compute one product, for exports and for TensorFlow unless it runs
            already; 0 = the runtime's default.

    Attributes:
        entries: name -> `Entry` of each signature.

    Raises:
        ValueError: the folder has no SavedModel or export that loads, has both, or the model has no
            signature.
    """

    def __init__(self, folder: PathLike, threads: int = 0) -> None:
        self.folder = os.fspath(folder)
        present_files = [name for name in (SAVED_MODEL, EXPORT) if (Path(folder) / name).is_file()]
        if len(present_files) > 1:
            raise ValueError(
                "The folder of a version must have either a SavedModel or an export to a runtime, "
                f"not both: {' and '.join(present_files)}. Received: {self.folder}"
            )
        load = _load_exported if present_files == [EXPORT] else _load_saved_model
        try:
            self._loaded, self.entries = load(self.folder, threads)
        except Exception as error:  # a damaged file can raise any error
            raise ValueError(
                "The folder must have a SavedModel or an export that can be loaded "
                f"({most_said(error)}). Received: {self.folder}"
            ) from error
        if not self.entries:
            raise ValueError(f"The SavedModel must have signatures. Received: {self.folder}")

    def warm_up(self) -> None:
        """Runs each signature of texts once, because the first run takes a second."""
        for entry in self.entries.values():
            if all(x.is_string and x.shape == (None,) for x in entry.inputs.values()):
                try:
                    entry.run({name: np.array([b"a"], object) for name in entry.inputs})
                except Exception as error:
                    if not is_bad_input(error):  # the model may accept other texts
                        raise
                    logging.info("%s, %s: %s", self.folder, entry.name, most_said(error))

    def entry(self, name: str) -> Entry:
        """Returns a signature by name; raises `Refused` for an unknown name."""
        if name not in self.entries:
            raise Refused(
                400,
                f"The signatures of the model are {', '.join(map(repr, sorted(self.entries)))}. "
                f"Received: {name[:100]!r}",
            )
        return self.entries[name]

    def vectors(self) -> Entry | None:
        """Returns the signature that embeds texts; None if there is none."""
        candidates = (self.entries.get(name) for name in ("embed", "features"))
        return next((entry for entry in candidates if entry is not None and entry.vectors), None)

    def fill_mask(self) -> Entry | None:
        """Returns the signature that fills masks; None if there is none."""
        entry = self.entries.get("fill_mask")
        if entry is None or not entry.takes_text:
            return None
        return entry if {"tokens", "probabilities"} <= set(entry.outputs) else None

    def signature_defs(self) -> dict[str, Any]:
        """Returns the signatures in the format of TensorFlow Serving's metadata."""
        return {name: _signature_def(entry) for name, entry in self.entries.items()}


def share_threads(threads: int) -> None:
    """Sets TensorFlow's intra-op threads (0 = unchanged); warns if TensorFlow runs already."""
    import tensorflow as tf

    if threads and tf.config.threading.get_intra_op_parallelism_threads() != threads:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        except RuntimeError:
            logging.warning("TensorFlow has already started: `intra_op_threads` is ignored")


def _load_saved_model(folder: str, threads: int) -> tuple[Any, dict[str, Entry]]:
    """Loads a SavedModel.

    Args:
        folder: folder of the version.
        threads: TensorFlow's intra-op threads; 0 = unchanged.

    Returns:
        The loaded object, and name -> `Entry` of each signature.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  # registers the tokenizer's operations

    share_threads(threads)
    loaded = tf.saved_model.load(folder)
    signatures = getattr(loaded, "signatures", {})
    return loaded, {name: Entry.of_graph(name, x, loaded) for name, x in signatures.items()}


def _load_exported(folder: str, threads: int) -> tuple[Any, dict[str, Entry]]:
    """Loads an export to another runtime than TensorFlow.

    Args:
        folder: folder of the version.
        threads: compute threads of the runtime; 0 = its default.

    Returns:
        The `ExportedTask`, and name -> `Entry` of each signature.
    """
    from kbert.export import load_exported

    exported = load_exported(folder, threads=threads or None)
    if exported.arrays is None:
        share_threads(threads)
        functions = exported.functions()
        return exported, {k: Entry.of_graph(k, x, exported) for k, x in functions.items()}
    answers = exported.arrays
    outputs = {
        name: Spec(np.dtype(object if kind == "string" else kind), shape, kind)
        for name, (kind, shape) in sorted(answers.specs().items())
    }
    text = Spec(np.dtype(object), (None,), "string")
    entries = {
        name: Entry(name, dict.fromkeys(columns, text), outputs, _by_arrays(function, columns))
        for name, (columns, function) in answers.entries().items()
    }
    return exported, {**entries, "serving_default": next(iter(entries.values()))}


def _by_arrays(
    function: Callable[..., Arrays], columns: Sequence[str]
) -> Callable[[Mapping[str, np.ndarray], Stop], Arrays]:
    """Converts an entry point of `ArrayAnswers` to the `compute` function of an `Entry`.

    Args:
        function: function from the arrays of the inputs, in order, and `stopped`.
        columns: names of the inputs, in order.
    """

    def compute(given: Mapping[str, np.ndarray], stop: Stop) -> Arrays:
        return function(*(given[name] for name in columns), stop.check)

    return compute


def check_rows(rows: int, most: int) -> None:
    """Raises `Refused` if a request has too many rows; called before the rows are read."""
    if rows > most:
        raise Refused(413, f"A request must have at most {most} texts. Received: {rows}")


def row_sizes(inputs: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """Returns the size of each row, (B,) int64: bytes of strings, or the number of other values.

    Each of several strings in a row counts one byte more, as in the exports: a row of a million
    empty words is not free.

    Args:
        inputs: name -> array (B, …) of each input.
        rows: number of rows, B.

    >>> row_sizes({"text": np.array([b"rain", b""], object)}, 2).tolist()
    [4, 0]
    >>> row_sizes({"words": np.array([[b"rain", b""]], object)}, 1).tolist()
    [6]
    """
    sizes = np.zeros(rows, np.int64)
    for array in inputs.values():
        if array.dtype != object:
            sizes += array.size // max(rows, 1)
            continue
        lengths = np.fromiter(map(len, array.ravel()), np.int64, array.size)
        sizes += lengths.reshape(rows, -1).sum(1) + (array.size // rows if array.ndim > 1 else 0)
    return sizes


def _has_rows(spec: Spec) -> bool:
    return spec.shape is not None and spec.shape[:1] == (None,)


def _spec(tensor: Any) -> Spec:
    """Returns the `Spec` of a TensorFlow tensor or TensorSpec."""
    dtype = np.dtype(tensor.dtype.as_numpy_dtype)
    shape = None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
    return Spec(dtype, shape, tensor.dtype.name)


def _names(values: Iterable[str]) -> str:
    """Returns at most ten names, each of at most 100 characters, for messages."""
    return ", ".join(repr(str(name)[:100]) for name in list(values)[:10]) or "none"


def _type_name(array: np.ndarray) -> str:
    """Returns TensorFlow's name of an array's type; object arrays are strings."""
    return "string" if array.dtype == object else str(array.dtype)


def _signature_def(entry: Entry) -> dict[str, Any]:
    """Returns a signature in the format of TensorFlow Serving's metadata, as a JSON value."""

    def tensor(name: str, spec: Spec) -> dict[str, Any]:
        shape: dict[str, Any] = {"unknown_rank": spec.shape is None, "dim": []}
        for size in spec.shape or ():
            shape["dim"].append({"size": "-1" if size is None else str(size), "name": ""})
        dtype = _NAMES_OF_TYPES.get(spec.tensorflow, spec.tensorflow).upper()
        return {"dtype": f"DT_{dtype}", "tensor_shape": shape, "name": name}

    return {
        "inputs": {name: tensor(name, spec) for name, spec in entry.inputs.items()},
        "outputs": {name: tensor(name, spec) for name, spec in entry.outputs.items()},
        "method_name": "tensorflow/serving/predict",
    }
