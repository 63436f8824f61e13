"""File formats that grow by one chunk of records at a time (`kbert.io.outputs`)."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.io.npy import HEADER_BYTES, header
from kbert.io.paths import Path

_UNFINISHED = b"kbert: vectors that are still being computed\n"  # not a header of NumPy


class Format:
    """Converts records to bytes, for one file or several that grow together."""

    holds_vectors = False

    def names(self, path: str) -> list[str]:
        """Returns the paths of an output's files; `path`, which readers look for, is the first."""
        return [path]

    def encode(self, records: Any, ends: Sequence[int]) -> list[bytes]:
        """Returns the bytes to append to each file.

        Args:
            records: a chunk of records.
            ends: size of each file before, in bytes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `encode`.")

    def heads(self, ends: Sequence[int], finished: bool) -> list[bytes]:
        """Returns the header of each file, which is written before all records.

        `ends` are the sizes of the files so far, in bytes. A header has the same length before and
        after the files are `finished`.
        """
        return [b""] * len(ends)

    def sizes(self, paths: Sequence[str], records: int) -> list[int]:
        """Returns the bytes of the header and the first `records` records in each of the `paths`.

        Raises:
            ValueError: a file of JSON lines has fewer records.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `sizes`.")


class JsonLines(Format):
    """Lines of JSON, one per record.

    >>> JsonLines().encode(['{"a": 1}', '{"a": 2}'], [0])
    [b'{"a": 1}\\n{"a": 2}\\n']
    """

    def encode(self, records: Sequence[str], ends: Sequence[int]) -> list[bytes]:
        return ["".join(f"{line}\n" for line in records).encode()]

    def sizes(self, paths: Sequence[str], records: int) -> list[int]:
        with Path(paths[0]).open("rb") as file:
            lines = itertools.islice(file, records)
            sizes = [len(line) for line in lines if line.endswith(b"\n")]
        if len(sizes) < records:
            raise ValueError(
                f"{paths[0]} must have the {records} lines that were written to it. "
                f"Received: {len(sizes)}"
            )
        return [sum(sizes)]


class Array(Format):
    """A `.npy` file, (N, D): `numpy.load` returns the vectors of N records.

    Until the file is finished it has no valid NumPy header, so that a part of it cannot be mistaken
    for the whole.

    Args:
        width: size D of a vector.
        ragged: whether each record has its own number of vectors. N then counts vectors, and a
            second file `<path>.ends.npy`, (records,) int64, holds the end of each record.
        dtype: type of the numbers in the file.
    """

    holds_vectors = True

    def __init__(self, width: int, ragged: bool = False, dtype: str = "float32") -> None:
        self.width, self.ragged = width, ragged
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._bytes = [width * self.dtype.itemsize, 8][: 1 + ragged]  # per row of each file

    def names(self, path: str) -> list[str]:
        return [path, f"{path}.ends.npy"] if self.ragged else [path]

    def encode(self, records: Any, ends: Sequence[int]) -> list[bytes]:
        if not self.ragged:
            return [np.asarray(records, self.dtype).tobytes()]
        vectors = b"".join(row.astype(self.dtype).tobytes() for row in records)
        row_ends = self._rows(ends)[0] + np.cumsum([len(row) for row in records])
        return [vectors, row_ends.astype("<i8").tobytes()]

    def heads(self, ends: Sequence[int], finished: bool) -> list[bytes]:
        if not finished:
            return [_UNFINISHED.ljust(HEADER_BYTES, b"\0")] * len(ends)
        rows = self._rows(ends)
        heads = [header(self.dtype, (rows[0], self.width))]
        return [*heads, header(np.dtype("<i8"), (rows[1],))] if self.ragged else heads

    def sizes(self, paths: Sequence[str], records: int) -> list[int]:
        rows = [records]
        if self.ragged:
            with Path(paths[1]).open("rb") as file:
                file.seek(HEADER_BYTES + 8 * (records - 1))
                rows.insert(0, int.from_bytes(file.read(8), "little"))
        return [HEADER_BYTES + n * size for n, size in zip(rows, self._bytes, strict=True)]

    def _rows(self, ends: Sequence[int]) -> list[int]:
        return [(end - HEADER_BYTES) // size for end, size in zip(ends, self._bytes, strict=True)]
