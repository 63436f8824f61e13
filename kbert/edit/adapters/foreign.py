"""Adapter folders of other packages: a JSON file of settings and a file of weights."""

import json
import os
from collections.abc import Collection, Mapping
from typing import Any

from kbert.core.types import Arrays, PathLike
from kbert.edit.adapters.files import FOREIGN_FILE
from kbert.io import atomic
from kbert.io.arrays import check_finite, read_safetensors, serialise
from kbert.io.json_file import read_json
from kbert.io.paths import Path


def read_adapter_files(
    folder: PathLike, weights_file: str, package: str, hint: str = ""
) -> tuple[dict[str, Any], Arrays]:
    """Returns the settings of an adapter folder, and its weights by name.

    Args:
        folder: folder with `FOREIGN_FILE` and the file of weights.
        weights_file: name of the file of weights, in safetensors format.
        package: package that has written the folder, for messages.
        hint: addition to the message if the file of weights is missing.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or a weight is NaN or infinite.
    """
    path = Path(folder)
    for file, ending in ((FOREIGN_FILE, ""), (weights_file, hint)):
        if not (path / file).is_file():
            raise FileNotFoundError(
                f"A folder of {package} must contain {file}{ending}. Received: {os.fspath(folder)}"
            )
    content, arrays = read_json(path / FOREIGN_FILE), read_safetensors(path / weights_file)
    check_finite(arrays, os.fspath(path / weights_file))
    return content, arrays


def check_only(
    content: Mapping[str, Any], only: Mapping[str, Collection[Any]], what: str, source: Any
) -> None:
    """Raises ValueError for an unsupported value of a setting that changes the computation.

    Args:
        content: the settings; a missing one counts as the last of the allowed values.
        only: name of a setting -> its allowed values.
        what: what the settings describe, for the message.
        source: file of the settings, for the message.
    """
    for key, allowed in only.items():
        *_, default = allowed
        if content.get(key, default) not in allowed:
            raise ValueError(
                f"`{key}` of {what} must be {default!r} to be supported by kbert. Received: "
                f"{content[key]!r} in {source}"
            )


def write_adapter_files(
    folder: PathLike, content: Mapping[str, Any], arrays: Arrays, weights_file: str
) -> None:
    """Writes the settings and the weights of an adapter: both files, or neither.

    Args:
        folder: folder to write to, created if missing.
        content: the settings.
        arrays: the weights.
        weights_file: name of the file of weights.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    text = (json.dumps(content, indent=2) + "\n").encode()
    atomic.write_together({path / weights_file: serialise(arrays), path / FOREIGN_FILE: text})
