"""Models for OpenVINO: `model.xml` and `model.bin`, rows of any number and length."""

import contextlib
import io
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kbert.core.late import optional
from kbert.signatures.rows import RowFunction, Run

EXTRA = "openvino"
PRECISIONS = ("float32", "bfloat16", "int8")
CALIBRATES = False
FILE = "model.xml"


def write(folder: str, rows: RowFunction, precision: str) -> None:
    """Writes a model.

    With "bfloat16" the weights are stored in 16 bits, and the runtime computes in bfloat16 where
    the processor can. With "int8" each column of a kernel is stored in 8 bits with a scale of its
    own (nncf's compression of weights, without calibration).

    Args:
        folder: where.
        rows: the model.
        precision: of `PRECISIONS`.

    Raises:
        ImportError: the extra is not installed.
    """
    openvino = optional("openvino", EXTRA)
    model = openvino.convert_model(rows.concrete)
    for value in model.outputs:  # the names of the graph's nodes would be names of outputs too
        value.tensor.set_names(set(value.get_names()) & set(rows.outputs))
    if precision == "int8":
        nncf = optional("nncf", EXTRA)
        # Its own set_log_level would silence the handlers of the whole process.
        logging.getLogger("nncf").setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):  # tables and a bar
            model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    path = os.path.join(folder, FILE)
    openvino.save_model(model, path, compress_to_fp16=precision == "bfloat16")


def load(folder: str, description: Mapping[str, Any], threads: int | None) -> Run:
    """What runs the model of a folder; see `kbert.export.onnx.runtime.load`."""
    openvino = optional("openvino", EXTRA)
    # Of itself it would compute in bfloat16 wherever the processor can.
    precise = description["precision"] != "bfloat16"
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32" if precise else "bf16"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    model = openvino.Core().compile_model(os.path.join(folder, FILE), "CPU", settings)
    inputs, outputs = description["inputs"], list(description["outputs"])
    # A request is one thread's at a time; in a thread that TensorFlow made it can end the process
    # (seen with 2026.4 on Linux, where the process had exported before).
    own, pool = threading.local(), ThreadPoolExecutor(os.cpu_count())

    def answer(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(own, "request"):
            own.request = model.create_infer_request()
        found = own.request.infer(features)
        return {name: found[name] for name in outputs}

    def run(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {name: np.asarray(features[name], np.int32) for name in inputs}
        return pool.submit(answer, given).result()

    return run
