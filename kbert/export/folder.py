"""Folders of models for runtimes other than TensorFlow, whose outputs are compared with it.

export.json     description of the export
model.…         files of the runtime
vocab.txt, …    other files that the exporter adds, such as a tokenizer
"""

import contextlib
import errno
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from kbert.core import late
from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.io.json_file import read_json
from kbert.io.paths import Path, copy_tree, is_remote, local_only, remove_tree
from kbert.signatures.rows import RowFunction, Run, differences, largest

DESCRIPTION_FILE = "export.json"
FORMAT_VERSION = 1
RUNTIMES = tuple(late.TABLE["runtime"])
# The largest allowed difference between an export and TensorFlow, measured by `differences`.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1, "int8": 0.3}


def check_format(format: str, precision: str) -> None:
    """Raises ValueError unless `format` is one of `RUNTIMES` and supports `precision`."""
    if format not in RUNTIMES:
        formats = ", ".join(("savedmodel", *RUNTIMES, "safetensors"))
        raise ValueError(f"`format` must be one of {formats}. Received: {format!r}")
    precisions = late.load("runtime", format).PRECISIONS
    if precision not in precisions:
        raise ValueError(
            f"`precision` of {format} must be one of {', '.join(precisions)}. "
            f"Received: {precision!r}"
        )


def refuse_full(folder: PathLike) -> None:
    """Raises ValueError if a folder exists and is not empty."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"An export requires a new or empty folder. Received: {folder}")


def export_rows(
    folder: PathLike,
    rows: RowFunction,
    *,
    format: str,
    precision: str,
    samples: Sequence[Mapping[str, np.ndarray]],
    about: Mapping[str, Any],
    save_beside: Callable[[str], None],
    tolerance: float | None = None,
    **options: Any,
) -> str:
    """Writes a model for a runtime, runs it, and keeps it if its outputs equal TensorFlow's.

    Args:
        folder: path of the export, new or empty. It is written completely or not at all.
        rows: the model: a function of rows of ids.
        format: name of the runtime, one of `RUNTIMES`.
        precision: one of the runtime's `PRECISIONS`.
        samples: batches on which the runtime and TensorFlow are compared.
        about: further content of `export.json`.
        save_beside: function that is called with the folder and writes further files.
        tolerance: largest allowed difference, see `differences`; None = the value in `TOLERANCES`.
        **options: further arguments of the runtime's `write`.

    Returns:
        Path of the folder.

    Raises:
        ImportError: the extra of the runtime is not installed.
        OSError: the disk is full or not writable.
        ValueError: the format or precision is unknown, the folder is not empty, or a difference
            exceeds the tolerance.
    """
    check_format(format, precision)
    folder = os.fspath(folder)
    refuse_full(folder)
    runtime = late.load("runtime", format)
    exact = precision == "float32" or tolerance is not None
    tolerance = TOLERANCES[precision] if tolerance is None else tolerance
    # A rename would replace a link, not the folder that it leads to.
    target = folder if is_remote(folder) else os.path.realpath(folder)
    parent_dir = tempfile.gettempdir() if is_remote(folder) else os.path.dirname(target)
    os.makedirs(parent_dir, exist_ok=True)
    partial = os.path.join(parent_dir, f".{uuid.uuid4().hex}.partial")
    os.mkdir(partial)
    try:
        if runtime.CALIBRATES:  # int8 rounding depends on activations for the samples
            options["samples"] = samples
        with atomic.naming(folder), _refusing(format):
            facts = runtime.write(partial, rows, precision, **options) or {}
        size = sum(os.path.getsize(os.path.join(partial, name)) for name in os.listdir(partial))
        save_beside(partial)
        description = {
            "format_version": FORMAT_VERSION,
            "format": format,
            "precision": precision,
            "inputs": {name: list(axes) for name, axes in rows.inputs.items()},
            "outputs": {name: list(axes) for name, axes in rows.outputs.items()},
            "bytes": size,
            **facts,
            **about,
        }
        with _refusing(format):
            deviations = differences(rows, samples, runtime.load(partial, description, None))
        description["differences"] = deviations
        # With fewer bits a generated text may differ where two words are equally likely; only the
        # float outputs, such as its score, are compared then.
        bounded = set(deviations) if exact else set(deviations) - rows.whole
        worst = largest({name: deviations[name] for name in bounded})
        logging.info(
            "%s, %s: %.1f MB, largest difference from TensorFlow %.2g (%s)",
            *(format, precision, size / 1e6, deviations[worst], worst),
        )
        if not deviations[worst] <= tolerance:
            raise ValueError(
                f"An export in {precision} must not differ from TensorFlow by more than "
                f"{tolerance:g}, relative to the largest number of TensorFlow's output; pass "
                f"`tolerance` for another bound. Received: {deviations[worst]:.3g} in {worst!r}"
            )
        with atomic.naming(folder):
            with open(os.path.join(partial, DESCRIPTION_FILE), "w", encoding="utf-8") as file:
                json.dump(description, file, indent=2, ensure_ascii=False)
                file.write("\n")
            _publish(partial, target)
    finally:
        remove_tree(partial)
    return folder


@contextlib.contextmanager
def _refusing(format: str) -> Iterator[None]:
    """Converts errors of a runtime in a `with` block to a ValueError that names the runtime.

    ValueError, ImportError and OSError stay as they are.

    Args:
        format: name of the runtime.
    """
    try:
        yield
    except (ValueError, ImportError, OSError):
        raise
    except Exception as error:
        raise ValueError(
            f"{format} cannot convert or run a part of this model; another format may support it. "
            f"Received: {' '.join(str(error).split())[:500]}"
        ) from error


def _publish(partial: str, folder: str) -> None:
    """Moves the finished folder `partial` to `folder`, whose local path has no links.

    A folder that cannot be replaced gets the files one by one: a remote one, a mount point, and the
    working directory, which would be a deleted folder for this process. `export.json` comes last,
    so that no reader finds an incomplete export.
    """
    if not (is_remote(folder) or folder == os.getcwd()):
        try:
            os.rename(partial, folder)
            return
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EXDEV):  # errors for a mount point
                raise
    last = os.path.join(partial, DESCRIPTION_FILE)
    text = Path(last).read_text(encoding="utf-8")
    os.remove(last)
    if is_remote(folder):
        copy_tree(partial, folder)
    else:
        for name in os.listdir(partial):
            shutil.move(os.path.join(partial, name), folder)
    (Path(folder) / DESCRIPTION_FILE).write_text(text, encoding="utf-8")


def read_description(folder: PathLike) -> dict[str, Any]:
    """Reads `export.json` of a folder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of a later version.
    """
    path = Path(folder) / DESCRIPTION_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"The folder of an export to a runtime must have a file {DESCRIPTION_FILE}. Received: "
            f"{os.fspath(folder)!r}"
        )
    description = read_json(path)
    version, format = description.get("format_version"), description.get("format")
    if version != FORMAT_VERSION or format not in RUNTIMES:
        raise ValueError(
            f"This version of kbert reads exports of version {FORMAT_VERSION} for "
            f"{', '.join(RUNTIMES)}. Received: {version!r} for {format!r} in {path}"
        )
    return description


def open_runtime(folder: PathLike, threads: int | None = None) -> Run:
    """Loads the model of a folder; returns a function from arrays of ids to arrays, by name.

    Args:
        folder: local folder that `export_rows` wrote.
        threads: number of compute threads; None = the runtime's default.

    Raises:
        FileNotFoundError: the folder has no export.
        ImportError: the extra of the runtime is not installed.
        ValueError: the description is damaged or of a later version.
    """
    description = read_description(folder)
    runtime = late.load("runtime", description["format"])
    return runtime.load(local_only(folder, "A runtime"), description, threads)
