"""Arrays in NumPy's own files.

A file that grows has a header of a fixed length, which is written at its end. Of a file that is
read the size is compared with what its header declares: NumPy would take memory for it, and reads a
damaged header with Python's tokenizer, whose errors are of many kinds.
"""

import math
import os
import tokenize

import numpy as np

from kbert.io.paths import Path

# Bytes of `header`, a multiple of 64 as NumPy has it: enough for any shape that grows.
HEADER_BYTES = 128
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


def header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The header of a `.npy` file, `HEADER_BYTES` long whatever the shape (format 1.0).

    Args:
        dtype: the numbers' type; they follow in row-major order.
        shape: the array's.

    Example:
        >>> import io
        >>> array = np.arange(6.0).reshape(2, 3)
        >>> np.load(io.BytesIO(header(array.dtype, array.shape) + array.tobytes())).shape
        (2, 3)
    """
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    body = text.ljust(HEADER_BYTES - 11).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body
