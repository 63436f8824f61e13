"""The size of a cache on disk, computed before anything is written.

Shapes: n rows.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kbert.distillation.cache.layout import Layout
from kbert.distillation.cache.store import Store, show_bytes

_INDEX_BYTES = 24  # bytes per row for its key and its sizes


class CacheSize(NamedTuple):
    """The size of a cache on disk.

    Attributes:
        rows: number of distinct rows of the table.
        total_bytes: bytes of all rows.
        missing_rows: number of rows whose outputs are not computed yet.
        missing_bytes: bytes of the missing rows.
        by_output: name of an output -> bytes of all rows.
    """

    rows: int
    total_bytes: int
    missing_rows: int
    missing_bytes: int
    by_output: dict[str, int]

    def __str__(self) -> str:
        mean = self.total_bytes / max(self.rows, 1)
        details = ", ".join(f"{name} {show_bytes(size)}" for name, size in self.by_output.items())
        return (
            f"{self.rows:,} texts, {show_bytes(mean)} each, {show_bytes(self.total_bytes)} in all "
            f"({details}); to be written: {self.missing_rows:,} texts, "
            f"{show_bytes(self.missing_bytes)}"
        )


def cache_size(
    store: Store,
    keys: np.ndarray,
    sizes: np.ndarray,
    layouts: Mapping[str, Layout],
    needed: Sequence[str],
) -> CacheSize:
    """Returns the size of distinct rows; a row is missing if the cache lacks a needed output of it.

    Args:
        store: the cache.
        keys: keys of the rows, (n,).
        sizes: sizes of the rows, (n, 2), see `row_keys`.
        layouts: name -> layout of all outputs to cache.
        needed: names of the outputs that the loss reads.
    """
    places = {name: store.find(keys, name) for name in layouts}
    is_missing = np.any([places[name] < 0 for name in needed], axis=0)
    row_bytes = {name: layout.bytes_of(sizes) for name, layout in layouts.items()}
    missing_names = [name for name in layouts if np.any(places[name][is_missing] < 0)]
    return CacheSize(
        rows=len(keys),
        total_bytes=int(sum(x.sum() for x in row_bytes.values()) + _INDEX_BYTES * len(keys)),
        missing_rows=int(is_missing.sum()),
        missing_bytes=int(
            sum(row_bytes[name][is_missing].sum() for name in missing_names)
            + _INDEX_BYTES * is_missing.sum()
        ),
        by_output={name: int(x.sum()) for name, x in row_bytes.items()},
    )
