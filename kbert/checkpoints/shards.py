"""Weights in several safetensors files, with an index that says which array lies in which."""

import re
from pathlib import Path

import numpy as np

from kbert.checkpoints.preset import read_json
from kbert.checkpoints.safetensors import read_safetensors

INDEX_FILE = "model.safetensors.index.json"


def read_shards(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of the files that the index names.

    Args:
        folder: holds `model.safetensors.index.json` and the files beside it.

    Returns:
        name -> array, as from `read_safetensors`.

    Raises:
        ValueError: the index or a file is damaged, a file is missing or not in this folder, or
            the files do not hold exactly what the index says.
    """
    path = folder / INDEX_FILE
    places = _read_index(path)
    files = sorted(set(places.values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"All {len(files)} files of the index must be there. "
            f"Received: no {', '.join(missing)} beside {path}"
        )
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        found = read_safetensors(folder / file)
        expected = {name for name, place in places.items() if place == file}
        wrong = sorted(expected ^ found.keys())
        if wrong:
            raise ValueError(
                "A file must hold what the index says, no more and no less. Received: "
                f"{', '.join(wrong)} in one of the two alone, {folder / file} or {path}"
            )
        arrays |= found
    return arrays


def _read_index(path):
    places = read_json(path).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(
            "An index must hold a `weight_map`, from the names of arrays to those of files. "
            f"Received: {path}"
        )
    for file in places.values():
        # A path could lead to any file of the machine.
        if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file):
            raise ValueError(
                "An index must name safetensors files of its own folder, without a path. "
                f"Received: {file!r} in {path}"
            )
    return places
