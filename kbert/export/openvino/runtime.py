"""Models for OpenVINO: `model.xml` and `model.bin`, rows of any number and length."""

import contextlib
import errno
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
    """Writes the model, `model.xml` and `model.bin`.

    With "bfloat16" the weights are stored in 16 bits, and the runtime computes in bfloat16 if the
    processor supports it. With "int8" the kernels are stored in 8 bits, each column with its own
    scale (weight compression of nncf, without calibration).

    Args:
        folder: folder to write to.
        rows: the model: a function of rows of ids.
        precision: "float32", "bfloat16" or "int8".

    Raises:
        ImportError: the extra is not installed.
        OSError: the disk is full or not writable.
    """
    openvino = optional("openvino", EXTRA)
    model = openvino.convert_model(rows.concrete)
    for value in model.outputs:  # otherwise names of the graph's nodes would name outputs too
        value.tensor.set_names(set(value.get_names()) & set(rows.outputs))
    if precision == "int8":
        nncf = optional("nncf", EXTRA)
        # nncf's own set_log_level would silence the handlers of the whole process.
        logging.getLogger("nncf").setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):  # nncf prints tables and a progress bar
            model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    path = os.path.join(folder, FILE)
    try:
        openvino.save_model(model, path, compress_to_fp16=precision == "bfloat16")
    except RuntimeError as error:
        if "iostream" not in str(error):
            raise
        raise OSError(errno.EIO, str(error)) from error  # a full disk; C++ streams do not say why


def load(folder: str, description: Mapping[str, Any], threads: int | None) -> Run:
    """Loads the model of a folder; returns its function from input arrays to output arrays.

    Several threads may call the function at a time.

    Args:
        folder: folder of the export.
        description: content of `export.json`.
        threads: number of compute threads; None = the runtime's default.

    Raises:
        ImportError: the extra is not installed.
    """
    openvino = optional("openvino", EXTRA)
    # By default it would compute in bfloat16 if the processor supports it.
    precise = description["precision"] != "bfloat16"
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32" if precise else "bf16"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    model = openvino.Core().compile_model(os.path.join(folder, FILE), "CPU", settings)
    inputs, outputs = description["inputs"], list(description["outputs"])
    # Only one thread may use a request at a time. In a thread made by TensorFlow it can crash the
    # process (seen with 2026.4 on Linux, in a process that had exported before).
    thread_local, pool = threading.local(), ThreadPoolExecutor(os.cpu_count())

    def answer(features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(thread_local, "request"):
            thread_local.request = model.create_infer_request()
        results = thread_local.request.infer(features)
        return {name: results[name] for name in outputs}

    def run(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        arrays = {name: np.asarray(features[name], np.int32) for name in inputs}
        return pool.submit(answer, arrays).result()

    return run
