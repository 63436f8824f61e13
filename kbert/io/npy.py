"""Arrays in NumPy's own files: what a header declares is compared with the file before it is read.

NumPy takes memory for what a header declares, and reads a damaged one with Python's tokenizer,
whose errors are of many kinds.
"""

import math
import os
import tokenize

import numpy as np

from kbert.io.paths import Path

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(path: str | os.PathLike, *, mapped: bool = False) -> np.ndarray:
    """The array of a `.npy` file.

    Args:
        path: the file.
        mapped: leave it on the disk, a local one, and read what is asked for.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no `.npy` file, has not the bytes that its header declares, or holds
            Python objects, which are never unpickled.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/two.npy"
        >>> np.save(path, np.arange(2))
        >>> read_npy(path).tolist()
        [0, 1]
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            if version not in _HEADERS:
                raise ValueError(f"version {version}")
            shape, _, dtype = _HEADERS[version](file)
            if dtype.hasobject:
                raise ValueError("Python objects")
            declared = file.tell() + math.prod(shape) * dtype.itemsize
            if min(shape, default=0) < 0 or declared != size:
                raise ValueError(f"{declared} bytes declared")
        # What NumPy raises for a damaged header, besides ValueError.
        except (ValueError, EOFError, SyntaxError, TypeError, tokenize.TokenError) as error:
            raise ValueError(
                f"A .npy file holds one whole array of numbers. Received: {path} of {size} bytes: "
                f"{' '.join(str(error).split())}"
            ) from error
        if mapped:
            return np.load(path, mmap_mode="r")
        file.seek(0)
        return np.load(file)
