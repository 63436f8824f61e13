"""A folder of shards and its manifest, with the cached outputs of rows.

Shapes: N rows, B rows of a batch, W texts of a row, T tokens.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kbert.core.types import PathLike
from kbert.distillation.cache.layout import Layout
from kbert.distillation.cache.shard import SUFFIX, OutputShard, write_shard
from kbert.io.chunks import chunks
from kbert.io.outputs import check_same, read_note, write_note
from kbert.io.paths import local_only

MANIFEST = "manifest.json"
FORMAT = 1
SHARD_BYTES, SHARD_ROWS = 64 << 20, 4096  # size of a shard: what a kill loses at most
_OPEN_SHARDS = 256
_ROW_BITS = 32  # low bits of a place, for the row; the shard's number is above them

Row = tuple[bytes, np.ndarray, Mapping[str, np.ndarray]]


class Store:
    """The cached outputs of one teacher.

    Shards are written under temporary names, renamed, and never changed. So a killed process leaves
    complete shards only, and any number of processes can read them.

    Args:
        folder: folder of the cache, created when the first shard is written.
        teacher: identity of the teacher, as a dict for JSON.
        dtype: type of token-wise outputs.

    Attributes:
        layouts: name of an output -> its layout.

    Raises:
        ValueError: the folder contains outputs of another teacher or with another dtype, or a shard
            is damaged.
    """

    def __init__(self, folder: PathLike, teacher: Mapping[str, Any], dtype: str) -> None:
        self.folder = local_only(folder, "A cache of a teacher's outputs")
        self._identity = {"format": FORMAT, "dtype": dtype, "teacher": teacher}
        self.layouts: dict[str, Layout] = {}
        self._shards: dict[str, OutputShard] = {}
        self._found: dict[tuple[str, ...], tuple[np.ndarray, np.ndarray]] = {}
        self._opened: dict[str, OutputShard] = {}
        self.refresh()

    def refresh(self) -> None:
        """Loads shards that other processes have written."""
        manifest = read_note(os.path.join(self.folder, MANIFEST), "The manifest of a cache")
        if manifest is None:
            return
        check_same(self.folder, MANIFEST, manifest, self._identity)
        self.layouts |= {k: Layout.from_json(x) for k, x in manifest["outputs"].items()}
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(SUFFIX) and name not in self._shards:
                self._shards[name] = OutputShard(os.path.join(self.folder, name), self.layouts)

    def find(self, keys: np.ndarray, name: str) -> np.ndarray:
        """Returns the place of output `name` for each row, (N,) int64; -1 if it is not cached.

        Args:
            keys: keys of the rows, (N,) of 16 bytes.
            name: name of the output.

        Returns:
            Places for `read`: number of the shard · 2³² + number of the row in it.
        """
        shards = tuple(x for x, shard in self._shards.items() if name in shard.names)
        if not shards:
            return np.full(len(keys), -1, np.int64)
        if shards not in self._found:
            numbers = {x: number << _ROW_BITS for number, x in enumerate(self._shards)}
            places = np.concatenate([numbers[x] + np.arange(len(self._shards[x])) for x in shards])
            known_keys = np.concatenate([self._shards[x].keys for x in shards])
            order = np.argsort(known_keys, kind="stable")
            self._found = {shards: (known_keys[order], places[order])}
        known_keys, places = self._found[shards]
        positions = np.minimum(np.searchsorted(known_keys, keys), len(known_keys) - 1)
        return np.where(known_keys[positions] == keys, places[positions], -1)

    def write(self, rows: Iterable[Row], layouts: Mapping[str, Layout]) -> None:
        """Writes rows to new shards; only one process at a time may call it.

        Args:
            rows: (key, W and T as an array (2,), name -> flat array) of each row.
            layouts: name -> layout of these outputs.

        Raises:
            OSError: the disk is full or not writable.
        """
        if not layouts.items() <= self.layouts.items() or not self._shards:
            self.layouts |= layouts
            outputs = {name: layout.to_json() for name, layout in self.layouts.items()}
            path = os.path.join(self.folder, MANIFEST)
            write_note(path, {**self._identity, "outputs": outputs})
        for part in chunks(rows, SHARD_ROWS, SHARD_BYTES, _bytes_of):
            keys, sizes, vectors = zip(*part, strict=True)
            columns = {name: [row[name] for row in vectors] for name in vectors[0]}
            self._check_counts(np.stack(sizes), columns)
            write_shard(self.folder, np.array(keys, "S16"), np.stack(sizes), columns)
        self.refresh()

    def read(self, name: str, places: np.ndarray, texts: int, tokens: int) -> np.ndarray:
        """Returns one output of the rows of a batch.

        Args:
            name: name of the output.
            places: places of the rows, (B,), from `find`.
            texts: number W of texts per row in the batch.
            tokens: number T of tokens per text in the batch.

        Returns:
            The values (B, …) in the shape of the output's layout, padded.
        """
        layout = self.layouts[name]
        batch = np.full((len(places), *layout.shape(texts, tokens)), layout.fill, layout.dtype)
        shards = list(self._shards.values())
        for row, place in enumerate(places.tolist()):
            shard = shards[place >> _ROW_BITS]
            values = shard.row(name, place & (1 << _ROW_BITS) - 1)
            target: Any = (row, *map(slice, values.shape))
            batch[target] = values
            self._keep_few_open(shard)
        return batch

    def check_space(self, needed: int) -> None:
        """Raises OSError if the disk has fewer than `needed` bytes free."""
        folder = os.path.abspath(self.folder)
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(
                errno.ENOSPC,
                f"The teacher's outputs need {show_bytes(needed)} of disk space, more than is "
                "free: use another cache_dir, shorter sequences (max_length) or fewer layers. "
                f"Received: {show_bytes(free)} in {self.folder}",
            )

    def _keep_few_open(self, shard: OutputShard) -> None:
        """Closes the shard that was opened first if more than `_OPEN_SHARDS` are open."""
        if shard.path not in self._opened:
            self._opened[shard.path] = shard
            if len(self._opened) > _OPEN_SHARDS:
                self._opened.pop(next(iter(self._opened))).close()

    def _check_counts(self, sizes: np.ndarray, columns: Mapping[str, Sequence[np.ndarray]]) -> None:
        """Raises ValueError if the length of an array is not that of its layout and row size."""
        for name, rows in columns.items():
            if not np.array_equal([len(x) for x in rows], self.layouts[name].counts(sizes)):
                raise ValueError(
                    f"Rows of {name} must have the shape {self.layouts[name].axes}: the task's "
                    "`predicts_per` must match its predictions. Received: other shapes"
                )


def _bytes_of(row: Row) -> int:
    return sum(x.nbytes for x in row[2].values())


def show_bytes(size: float) -> str:
    """Formats a number of bytes with a decimal prefix, such as 1.23 MB.

    >>> show_bytes(8), show_bytes(1_234_567)
    ('8 B', '1.23 MB')
    """
    for prefix in ("", "k", "M", "G"):
        if size < 1000:
            return f"{size:.3g} {prefix}B" if prefix else f"{size:.0f} B"
        size /= 1000
    return f"{size:.3g} TB"
