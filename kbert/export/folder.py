"""Folders of models for runtimes other than TensorFlow, checked against it.

export.json     what the folder holds: `describe`
model.…         the runtime's files
vocab.txt, …    what whoever exports writes beside them, such as a tokenizer
"""

import contextlib
import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from kbert.core import late
from kbert.core.types import PathLike
from kbert.io.json_file import read_json
from kbert.io.paths import Path, copy_tree, is_remote, local_only, remove_tree
from kbert.signatures.rows import RowFunction, Run, differences, largest

DESCRIPTION_FILE = "export.json"
FORMAT_VERSION = 1
RUNTIMES = tuple(late.TABLE["runtime"])
# The largest difference to TensorFlow that an export may have, as `differences` measures it.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1, "int8": 0.3}


def check_format(format: str, precision: str) -> None:
    """Raises ValueError unless a runtime of that name has models of that precision."""
    if format not in RUNTIMES:
        known = ", ".join(("savedmodel", *RUNTIMES, "safetensors"))
        raise ValueError(f"`format` must be one of {known}. Received: {format!r}")
    precisions = late.load("runtime", format).PRECISIONS
    if precision not in precisions:
        raise ValueError(
            f"`precision` of {format} must be one of {', '.join(precisions)}. "
            f"Received: {precision!r}"
        )


def refuse_full(folder: PathLike) -> None:
    """Raises ValueError unless a folder is new or empty."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"An export is written to a new or empty folder. Received: {folder}")


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
    """Writes a model for a runtime, runs it, and keeps it if it computes what TensorFlow does.

    Args:
        folder: new or empty. It is there when it is complete, or not at all.
        rows: the model.
        format: one of `RUNTIMES`.
        precision: one of the runtime's `PRECISIONS`.
        samples: batches that both are run on.
        about: what else `export.json` says.
        save_beside: called with the folder, writes what else belongs into it.
        tolerance: the largest difference, see `differences`; None = as `TOLERANCES` says.
        **options: of the runtime's `write`.

    Returns:
        The folder.

    Raises:
        ImportError: the runtime's extra is not installed.
        ValueError: no such format or precision, a folder that is not empty, or a difference above
            the tolerance.
    """
    check_format(format, precision)
    folder = os.fspath(folder)
    refuse_full(folder)
    runtime = late.load("runtime", format)
    exact = precision == "float32" or tolerance is not None
    tolerance = TOLERANCES[precision] if tolerance is None else tolerance
    if not is_remote(folder):
        os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    place = tempfile.gettempdir() if is_remote(folder) else os.path.dirname(os.path.abspath(folder))
    partial = os.path.join(place, f".{uuid.uuid4().hex}.partial")
    os.mkdir(partial)
    try:
        if runtime.CALIBRATES:  # it rounds by what they look like inside
            options["samples"] = samples
        with _refusing(format):
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
            found = differences(rows, samples, runtime.load(partial, description, None))
        description["differences"] = found
        # In fewer bits a text may go another way at a word that is as likely; its score tells.
        bounded = set(found) if exact else set(found) - rows.whole
        worst = largest({name: found[name] for name in bounded})
        logging.info(
            "%s, %s: %.1f MB, largest difference to TensorFlow %.2g (%s)",
            *(format, precision, size / 1e6, found[worst], worst),
        )
        if not found[worst] <= tolerance:
            raise ValueError(
                f"An export in {precision} may differ from TensorFlow by {tolerance:g} at most, in "
                "units of the largest number that it gives; `tolerance` sets another bound. "
                f"Received: {found[worst]:.3g} in {worst!r}"
            )
        with open(os.path.join(partial, DESCRIPTION_FILE), "w", encoding="utf-8") as file:
            json.dump(description, file, indent=2, ensure_ascii=False)
            file.write("\n")
        _publish(partial, folder)
    finally:
        remove_tree(partial)
    return folder


@contextlib.contextmanager
def _refusing(format: str) -> Iterator[None]:
    """Turns what a runtime raises, of many classes of its own, into a ValueError that names it."""
    try:
        yield
    except (ValueError, ImportError, OSError):
        raise
    except Exception as error:
        raise ValueError(
            f"The model has what {format} cannot convert or run; another format may. "
            f"Received: {' '.join(str(error).split())[:500]}"
        ) from error


def _publish(partial: str, folder: str) -> None:
    """Gives a finished folder its name; where none can be renamed, its description comes last."""
    if not is_remote(folder):
        os.rename(partial, folder)
        return
    last = os.path.join(partial, DESCRIPTION_FILE)
    text = Path(last).read_text(encoding="utf-8")
    os.remove(last)
    copy_tree(partial, folder)
    (Path(folder) / DESCRIPTION_FILE).write_text(text, encoding="utf-8")


def read_description(folder: PathLike) -> dict[str, Any]:
    """`export.json` of a folder.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged or of a later version.
    """
    path = Path(folder) / DESCRIPTION_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"An export to a runtime has a file {DESCRIPTION_FILE}. Received: {os.fspath(folder)!r}"
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
    """What runs the model of a folder: arrays of ids by name -> arrays by name.

    Args:
        folder: as `export_rows` writes it; a local one.
        threads: how many; None = as the runtime chooses.

    Raises:
        FileNotFoundError: it is no such folder.
        ImportError: the runtime's extra is not installed.
        ValueError: its description is damaged or of a later version.
    """
    description = read_description(folder)
    runtime = late.load("runtime", description["format"])
    return runtime.load(local_only(folder, "A runtime"), description, threads)
