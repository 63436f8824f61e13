"""Opens HDF5 files and compares the sizes that they declare with what they contain.

A dataset's shape takes a few bytes, and values that were never written are read as zeros. So a file
of a kilobyte could fill the memory, and half a model could pass for a whole one.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from kbert.checkpoints.sizes import check_ratio
from kbert.io.paths import Path, local_copy


@contextlib.contextmanager
def open_datasets(path: Path) -> Iterator[Mapping[str, Any]]:
    """Opens a file and yields its datasets, after checking that all can be read.

    Args:
        path: path of the HDF5 file.

    Yields:
        Name -> `h5py.Dataset`.

    Raises:
        ValueError: the file is damaged or not an HDF5 file, a dataset is stored in another file or
            is incomplete, or the file is far too small for the sizes that it declares.
    """
    import h5py

    datasets: dict[str, Any] = {}

    def collect(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item

    try:
        with local_copy(path) as local, h5py.File(local, "r") as file:
            file.visititems(collect)
            for name, dataset in datasets.items():
                _check_dataset(name, dataset, path)
            declared = sum(dataset.nbytes for dataset in datasets.values())
            check_ratio(declared, path.stat().st_size, str(path))
            yield datasets
    except (OSError, RuntimeError, KeyError, TypeError, UnicodeError) as error:
        raise ValueError(
            "The file is damaged, truncated or not an HDF5 file "
            f"({' '.join(str(error).split())}). Received: {path}"
        ) from error


def _check_dataset(name: str | bytes, dataset: Any, path: Path) -> None:
    """Raises ValueError unless a dataset has a shape, a UTF-8 name and all its values here."""
    if isinstance(name, bytes):  # h5py returns names that are not UTF-8 as bytes
        raise ValueError(f"Names must be text in UTF-8. Received: {name!r} in {path}")
    if dataset.is_virtual or dataset.external:
        raise ValueError(
            f"Weights must be in the file itself, not in another one. Received: {name} in {path}"
        )
    if dataset.shape is None:
        raise ValueError(f"Weights must have a shape. Received: {name}, which is null, in {path}")
    if dataset.chunks is None:
        whole = dataset.id.get_storage_size() == dataset.nbytes
    else:
        sides = zip(dataset.shape, dataset.chunks, strict=True)
        whole = dataset.id.get_num_chunks() == math.prod(-(-side // of) for side, of in sides)
    if not whole:
        raise ValueError(
            "All values of a dataset must be in the file: missing values would be read as zeros. "
            f"Received: {name} of shape {dataset.shape}, {dataset.nbytes:,} bytes, of which "
            f"{dataset.id.get_storage_size():,} are stored, in {path}"
        )
