"""A shard of a cache: a safetensors file with the outputs of some rows, read in slices.

Shapes: n rows of the shard.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbert.distillation.cache.keys import KEY_BYTES
from kbert.distillation.cache.layout import Layout
from kbert.io import fingerprints
from kbert.io.arrays import open_safetensors, write_safetensors

SUFFIX = ".safetensors"
_INDEX = ("keys", "sizes")
_SUMS = "checksums"


def write_shard(
    folder: str, keys: np.ndarray, sizes: np.ndarray, outputs: Mapping[str, Sequence[np.ndarray]]
) -> str:
    """Writes a complete shard, or nothing, and returns its path.

    The name is a hash of the shard's keys and output names, so that two processes that write the
    same rows write one file.

    Args:
        folder: folder of the cache.
        keys: keys of the rows, (n,) of 16 bytes.
        sizes: sizes of the rows, (n, 2) int32, see `row_keys`.
        outputs: name -> n flat arrays.
    """
    raw_keys = np.frombuffer(keys.tobytes(), np.uint8).reshape(-1, KEY_BYTES)
    arrays: dict[str, np.ndarray] = {"keys": raw_keys, "sizes": np.asarray(sizes, np.int32)}
    arrays |= {name: np.concatenate(rows) for name, rows in outputs.items()}
    names = sorted(outputs)
    checksums = [
        fingerprints.crc32(arrays[name] for name in _INDEX),
        *(fingerprints.crc32([arrays[x]]) for x in names),
    ]
    arrays[_SUMS] = np.array(checksums, np.uint32)
    path = os.path.join(folder, fingerprints.blake2b(["\n".join(names), raw_keys], 8) + SUFFIX)
    write_safetensors(path, arrays)
    return path


class OutputShard:
    """An existing shard; the checksum of an output is verified when it is first read.

    Args:
        path: file of the shard.
        layouts: name of an output -> its layout.

    Attributes:
        keys: keys of the rows, (n,) of 16 bytes.
        sizes: sizes of the rows, (n, 2) int32: W and T of each.
        names: names of the outputs in the shard.

    Raises:
        ValueError: the file is damaged or truncated.
    """

    def __init__(self, path: str, layouts: Mapping[str, Layout]) -> None:
        self.path = path
        self._layouts = layouts
        file = self._file()
        tensor_names = {*file.keys()}
        self.names = sorted(tensor_names - {*_INDEX, _SUMS})
        unknown = [name for name in self.names if name not in layouts]
        if unknown or len(tensor_names) != len(self.names) + 3:
            raise self._damaged(f"the manifest has no {', '.join(unknown) or 'such shard'}")
        raw_keys, sizes, checksums = (file.get_tensor(name) for name in (*_INDEX, _SUMS))
        self._sums = dict(zip(("", *self.names), checksums.tolist(), strict=True))
        if fingerprints.crc32([raw_keys, sizes]) != self._sums[""]:
            raise self._damaged("the checksum of its index differs")
        self.keys = np.frombuffer(raw_keys.tobytes(), f"S{KEY_BYTES}")
        self.sizes = sizes
        self._arrays: dict[str, Any] = {}  # read in slices
        self._ends: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def row(self, name: str, number: int) -> np.ndarray:
        """Returns output `name` of row `number` of the shard, without padding."""
        if name not in self._arrays:
            self._arrays[name] = self._open(name)
        start, end = self._ends[name][number : number + 2]
        shape = self._layouts[name].shape(*self.sizes[number].tolist())
        return self._arrays[name][start:end].reshape(shape)

    def close(self) -> None:
        """Closes the file; the next call of `row` opens it again."""
        self._arrays = {}

    def _open(self, name: str) -> Any:
        """Returns a slice of the file for one output; verifies the checksum the first time."""
        file = self._file()
        if name not in self._ends:
            array = file.get_tensor(name)
            ends = np.concatenate([[0], np.cumsum(self._layouts[name].counts(self.sizes))])
            if len(array) != ends[-1] or fingerprints.crc32([array]) != self._sums[name]:
                raise self._damaged(f"the checksum of {name} differs")
            self._ends[name] = ends
        return file.get_slice(name)

    def _file(self) -> Any:
        try:
            return open_safetensors(self.path)
        except ValueError as error:
            raise self._damaged("not a valid safetensors file") from error

    def _damaged(self, why: str) -> ValueError:
        return ValueError(
            "A shard of the teacher's outputs is damaged: delete it, and its rows are computed "
            f"again. Received: {self.path} ({why})"
        )
