"""Reads and writes weights in several files, with an index of array name -> file."""

import json
import re
from collections.abc import Callable

import numpy as np

from kbert.core.types import Arrays, PathLike
from kbert.io import atomic
from kbert.io.arrays import WEIGHTS_FILE, read_safetensors, serialise
from kbert.io.json_file import read_json
from kbert.io.paths import Path

INDEX_SUFFIX = ".index.json"
INDEX_FILE = WEIGHTS_FILE + INDEX_SUFFIX


def read_shards(
    folder: Path,
    index_file: str = INDEX_FILE,
    read: Callable[[Path], dict[str, np.ndarray]] = read_safetensors,
) -> dict[str, np.ndarray]:
    """Reads all arrays of the files in an index.

    Args:
        folder: folder with the index and the files.
        index_file: name of the index. It determines the ending of the file names:
            `….bin.index.json` may only name `….bin` files.
        read: function that reads one file; returns name -> array.

    Returns:
        Name -> array, as returned by `read`.

    Raises:
        ValueError: the index or a file is damaged, a file is missing or not in this folder, or
            the files do not contain exactly the arrays in the index.
    """
    path = folder / index_file
    index = _read_index(path)
    files = sorted(set(index.values()))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"All {len(files)} files of the index must exist. Received: no {', '.join(missing)} "
            f"next to {path}"
        )
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        shard_arrays = read(folder / file)
        expected = {name for name, file_name in index.items() if file_name == file}
        wrong = sorted(expected ^ shard_arrays.keys())
        if wrong:
            raise ValueError(
                "A file must contain the arrays that the index lists, and no others. Received: "
                f"{', '.join(wrong)} in only one of {folder / file} and {path}"
            )
        arrays |= shard_arrays
    return arrays


def write_shards(
    folder: Path,
    arrays: Arrays,
    config_file: str,
    config: bytes,
    max_shard_size: int | None,
) -> None:
    """Writes weights and config so that the two never come from different saves.

    Args:
        folder: folder to write to; created if missing. Weights in it are replaced.
        arrays: name -> array.
        config_file: file name of the config.
        config: content of the config file, in bytes.
        max_shard_size: maximum bytes of arrays in one file; a larger array has a file of its own.
            None = one file. A single file has no index.

    Raises:
        ValueError: `max_shard_size` is less than 1.
    """
    if max_shard_size is not None and max_shard_size < 1:
        raise ValueError(
            "`max_shard_size` must be a number of bytes, 1 or more, or None. "
            f"Received: {max_shard_size!r}"
        )
    shards = _split(arrays, max_shard_size)
    names = [WEIGHTS_FILE]
    if len(shards) > 1:
        names = [
            f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)
        ]
    contents: dict[PathLike, bytes] = {
        folder / name: serialise({key: arrays[key] for key in keys})
        for name, keys in zip(names, shards, strict=True)
    }
    if len(shards) > 1:
        weight_map = {key: name for name, keys in zip(names, shards, strict=True) for key in keys}
        total = sum(array.nbytes for array in arrays.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        contents[folder / INDEX_FILE] = (json.dumps(index, indent=2) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    old_files = [
        folder / WEIGHTS_FILE,
        folder / INDEX_FILE,
        *folder.glob("model-*-of-*.safetensors"),
    ]
    atomic.write_together(
        {**contents, folder / config_file: config}, obsolete=set(old_files) - contents.keys()
    )


def _split(arrays: Arrays, max_shard_size: int | None) -> list[list[str]]:
    """Returns the sorted names of arrays, split into one list for each file.

    Each file has as many arrays as fit into `max_shard_size` bytes, at least one; None = one file.
    """
    shards: list[list[str]] = [[]]
    size = 0
    for name in sorted(arrays):
        size += arrays[name].nbytes
        if max_shard_size is not None and size > max_shard_size and shards[-1]:
            shards.append([])
            size = arrays[name].nbytes
        shards[-1].append(name)
    return shards


def _read_index(path: Path) -> dict[str, str]:
    """Reads an index of shards: array name -> file name.

    Raises ValueError if the index is damaged, or if a file name has a path or another ending than
    the index itself.
    """
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(
            "An index must have a `weight_map` from names of arrays to names of files. Received: "
            f"{path}"
        )
    suffix = path.name.removesuffix(INDEX_SUFFIX).rpartition(".")[2]
    for file in weight_map.values():
        # A path could point to any file on the machine.
        if not isinstance(file, str) or not re.fullmatch(rf"[\w.-]+\.{suffix}", file):
            raise ValueError(
                f"An index must name {suffix} files in its folder, without a path. "
                f"Received: {file!r} in {path}"
            )
    return weight_map
