"""Models for LiteRT (TensorFlow Lite): `model.tflite`, one row at a time, in a few fixed widths."""

import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from kbert.core.late import optional, tf
from kbert.export.savedmodel.write import export_saved_model
from kbert.signatures.rows import RowFunction, Run

EXTRA = "litert"
PRECISIONS = ("float32", "int8")
CALIBRATES = False
FILE = "model.tflite"
MASKS = 4  # masks of a row
WIDTHS = (32, 128)  # default widths, if the task's longest row is longer
_NAME = "rows_"  # prefix of the entry points' names; the width follows


def write(folder: str, rows: RowFunction, precision: str, *, widths: Sequence[int]) -> None:
    """Writes a model with an entry point for each width; they share the weights.

    With "int8" the kernels are stored in 8 bits. The runtime rounds the inputs of products, with a
    scale from their largest value (LiteRT's dynamic range quantization).

    Args:
        folder: folder to write to.
        rows: the model: a function of rows of ids.
        precision: "float32" or "int8".
        widths: lengths of rows in tokens, in ascending order.
    """
    signatures = {
        f"{_NAME}{width}": rows.signature({"batch": 1, "length": width, "masks": MASKS})
        for width in widths
    }
    with tempfile.TemporaryDirectory() as temporary_dir:
        path = export_saved_model(temporary_dir, signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(path, signature_keys=list(signatures))
        if precision == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        content = converter.convert()
    with open(os.path.join(folder, FILE), "wb") as file:
        file.write(content)


def settle_widths(widths: Sequence[int] | None, longest: int) -> list[int]:
    """Returns the widths of an export's rows, in ascending order.

    Args:
        widths: widths in tokens; None = 32, 128 and the longest row.
        longest: tokens of the task's longest row.

    Raises:
        ValueError: a width is below 4 or above the longest row.

    Example:
        >>> settle_widths(None, 64)
        [32, 64]
    """
    settled = sorted(widths or [*(width for width in WIDTHS if width < longest), longest])
    if settled[0] < 4 or settled[-1] > longest:
        raise ValueError(
            f"widths must be numbers of tokens between 4 and {longest}, the maximum sequence "
            f"length. Received: widths={widths}"
        )
    return settled


def load(folder: str, description: Mapping[str, Any], threads: int | None) -> Run:
    """Loads the model of a folder; returns its function from input arrays to output arrays.

    Rows run one by one, padded to the next width of the export. Rows longer than the widest raise
    ValueError.

    Args:
        folder: folder of the export.
        description: content of `export.json`.
        threads: number of compute threads; None = one per core.

    Raises:
        ImportError: the extra is not installed.
    """
    interpreter = optional("ai_edge_litert.interpreter", EXTRA).Interpreter(
        os.path.join(folder, FILE), num_threads=threads or os.cpu_count()
    )
    names = interpreter.get_signature_list()
    runners = {
        int(name.removeprefix(_NAME)): interpreter.get_signature_runner(name)
        for name in names
        if name.startswith(_NAME)
    }
    inputs, outputs = description["inputs"], description["outputs"]
    turn = threading.Lock()  # an interpreter has one buffer per tensor, so it is not thread-safe

    def run(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with turn:
            return run_alone(features)

    def run_alone(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Computes each row, and each group of `MASKS` masks, by itself; returns all outputs."""
        arrays = {name: np.asarray(features[name], np.int32) for name in inputs}
        sizes = {
            a: n for k, axes in inputs.items() for a, n in zip(axes, arrays[k].shape, strict=True)
        }
        width = _next_width(runners, sizes["length"])
        steps = {"batch": 1, "length": width, "masks": MASKS}
        results = {
            name: np.zeros([sizes.get(axis, axis) for axis in axes], np.float32)
            for name, axes in outputs.items()
        }
        starts = [range(0, sizes.get(axis, 1), steps[axis]) for axis in ("batch", "masks")]
        for row, mask in product(*starts):
            place = {"batch": row, "length": 0, "masks": mask}

            def part(axes: Any, place: Mapping[str, int] = place) -> tuple[slice, ...]:
                """Returns the slices of a whole array for this call's row and masks."""
                return tuple(
                    slice(place[a], place[a] + steps[a]) if a in steps else slice(None)
                    for a in axes
                )

            parts = {name: x[part(inputs[name])] for name, x in arrays.items()}
            padded = {
                name: np.pad(
                    x, [(0, steps[a] - n) for a, n in zip(inputs[name], x.shape, strict=True)]
                )
                for name, x in parts.items()
            }
            for name, x in runners[width](**padded).items():
                target = results[name][part(outputs[name])]
                target[...] = x[tuple(slice(n) for n in target.shape)]
        return results

    return run


def _next_width(widths: Any, length: int) -> int:
    """Returns the smallest width that is at least `length`; ValueError if there is none."""
    fitting = [width for width in widths if width >= length]
    if not fitting:
        raise ValueError(
            "A sequence must have at most as many tokens as the widest of the export: "
            f"{', '.join(map(str, sorted(widths)))}. Received: {length} tokens"
        )
    return min(fitting)
