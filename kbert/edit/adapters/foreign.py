"""What folders of other packages share: a JSON file of settings beside a file of weights."""

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


def read_folder(
    folder: PathLike, weights_file: str, package: str, hint: str = ""
) -> tuple[dict[str, Any], Arrays]:
    """Settings and weights.

    Args:
        folder: with `FOREIGN_FILE` and the file of weights.
        weights_file: its name; safetensors.
        package: that has written the folder, for messages.
        hint: what to do where the weights are not there.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: one is damaged.
    """
    path = Path(folder)
    for file, more in ((FOREIGN_FILE, ""), (weights_file, hint)):
        if not (path / file).is_file():
            raise FileNotFoundError(
                f"A folder of {package} holds {file}{more}. Received: {os.fspath(folder)}"
            )
    content, arrays = read_json(path / FOREIGN_FILE), read_safetensors(path / weights_file)
    check_finite(arrays, os.fspath(path / weights_file))
    return content, arrays


def check_only(
    content: Mapping[str, Any], only: Mapping[str, Collection[Any]], what: str, source: Any
) -> None:
    """Raises ValueError for a setting that changes what is computed and is not read.

    Args:
        content: the settings; one that is missing is as the last value allowed.
        only: name -> the values that are allowed.
        what: whose settings they are.
        source: the file.
    """
    for key, allowed in only.items():
        *_, usual = allowed
        if content.get(key, usual) not in allowed:
            raise ValueError(
                f"`{key}` of {what} must be {usual!r} here. Received: {content[key]!r} in {source}"
            )


def write_folder(
    folder: PathLike, content: Mapping[str, Any], arrays: Arrays, weights_file: str
) -> None:
    """Writes both files, or neither.

    Args:
        folder: made where it is missing.
        content: the settings.
        arrays: the weights.
        weights_file: their file's name.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    text = (json.dumps(content, indent=2) + "\n").encode()
    atomic.write_together({path / weights_file: serialise(arrays), path / FOREIGN_FILE: text})
