"""What data, weights and files are recognised by when work resumes.

Files of every version hold these numbers: what an existing one is made of never changes. CRC-32
where a change by accident is to be found, BLAKE2 where a name is made of content, SHA-256 where
others compute it too.
"""

import hashlib
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from kbert.io.paths import Path

# Text counts in UTF-8, an array by its bytes in row-major order.
Part: TypeAlias = str | bytes | memoryview | np.ndarray

_BLOCK = 1 << 24  # bytes of a file in memory at once


def crc32(parts: Iterable[Part], start: int = 0) -> int:
    """The CRC-32 of parts in sequence.

    Args:
        parts: read once, so that they need not be in memory together.
        start: the CRC-32 so far.

    Example:
        >>> crc32(["ab", b"c"]) == crc32(["bc"], start=crc32(["a"]))
        True
    """
    for part in parts:
        start = zlib.crc32(_bytes(part), start)
    return start


def crc32_of_files(*paths: Path) -> int:
    """The CRC-32 of files in sequence, at constant memory."""
    return crc32(itertools.chain.from_iterable(map(_blocks, paths)))


def blake2b(parts: Iterable[Part], size: int = 16) -> str:
    """The BLAKE2b of parts in sequence.

    Args:
        parts: read once, see `crc32`.
        size: bytes of the digest.

    Returns:
        Twice as many hexadecimal digits.

    Example:
        >>> blake2b(["rain"], size=4)
        '5d442127'
    """
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(_bytes(part))
    return digest.hexdigest()


def sha256(text: str | bytes) -> str:
    """The SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(_bytes(text)).hexdigest()


def sha256_of_json(value: Any) -> str:
    """The SHA-256 of a value, whatever the order of its names.

    Example:
        >>> sha256_of_json({"a": 1, "b": 2}) == sha256_of_json({"b": 2, "a": 1})
        True
    """
    return sha256(json.dumps(value, sort_keys=True))


def _bytes(part: Part) -> Any:
    if isinstance(part, str):
        return part.encode()
    # As bytes: NumPy's own and bfloat16 alike, and a scalar too.
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8) if hasattr(part, "dtype") else part


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block
