"""Arrays in `.npy` files.

A file that grows has a header of fixed length, which is written last. On reading, the size of the
file is compared with what its header declares: NumPy would allocate that much memory. NumPy parses
a damaged header with Python's tokenizer, which raises errors of many types.
"""

import math
import os
import tokenize

import numpy as np

from kbert.io.paths import Path

# Bytes of `header`, a multiple of 64 as in NumPy: enough for any shape that grows.
HEADER_BYTES = 128
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(path: str | os.PathLike, *, mapped: bool = False) -> np.ndarray:
    """Reads the array of a `.npy` file.

    Args:
        path: the file.
        mapped: whether to map the file, which must be local, instead of reading it into memory.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a `.npy` file, its size differs from what its header declares,
            or it holds Python objects, which are never unpickled.

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
        # NumPy raises any of these for a damaged header.
        except (ValueError, EOFError, SyntaxError, TypeError, tokenize.TokenError) as error:
            raise ValueError(
                "A .npy file must contain exactly one complete array of numbers. Received: "
                f"{path} of {size} bytes: {' '.join(str(error).split())}"
            ) from error
        if mapped:
            return np.load(path, mmap_mode="r")
        file.seek(0)
        return np.load(file)


def header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Returns the header of a `.npy` file, `HEADER_BYTES` long for any shape (format 1.0).

    Args:
        dtype: type of the numbers, which follow in row-major order.
        shape: shape of the array.

    Example:
        >>> import io
        >>> array = np.arange(6.0).reshape(2, 3)
        >>> np.load(io.BytesIO(header(array.dtype, array.shape) + array.tobytes())).shape
        (2, 3)
    """
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    body = text.ljust(HEADER_BYTES - 11).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body
