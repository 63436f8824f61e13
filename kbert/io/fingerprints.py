"""Checksums that identify data, weights and files when work resumes.

Files of every version contain these checksums, so the input of an existing one never changes.
CRC-32 detects accidental changes, BLAKE2 makes names from content, and SHA-256 is for checksums
that others compute too.
"""

import hashlib
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from kbert.io.paths import Path

# Text is hashed in UTF-8, an array by its bytes in row-major order.
Part: TypeAlias = str | bytes | memoryview | np.ndarray

_BLOCK = 1 << 24  # bytes of a file in memory at once


def crc32(parts: Iterable[Part], start: int = 0) -> int:
    """Returns the CRC-32 of concatenated parts.

    Args:
        parts: the parts; they are read once, so they need not be in memory together.
        start: CRC-32 of what comes before the parts.

    Example:
        >>> crc32(["ab", b"c"]) == crc32(["bc"], start=crc32(["a"]))
        True
    """
    for part in parts:
        start = zlib.crc32(_bytes(part), start)
    return start


def crc32_of_files(*paths: Path) -> int:
    """Returns the CRC-32 of concatenated files, at constant memory."""
    return crc32(itertools.chain.from_iterable(map(_blocks, paths)))


def blake2b(parts: Iterable[Part], size: int = 16) -> str:
    """Returns the BLAKE2b digest of concatenated parts.

    Args:
        parts: the parts; they are read once, so they need not be in memory together.
        size: bytes of the digest.

    Returns:
        The digest, 2 · `size` hexadecimal digits.

    Example:
        >>> blake2b(["rain"], size=4)
        '5d442127'
    """
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(_bytes(part))
    return digest.hexdigest()


def sha256(text: str | bytes) -> str:
    """Returns the SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(_bytes(text)).hexdigest()


def sha256_of_json(value: Any) -> str:
    """Returns the SHA-256 of a JSON value, in any order of its keys.

    Example:
        >>> sha256_of_json({"a": 1, "b": 2}) == sha256_of_json({"b": 2, "a": 1})
        True
    """
    return sha256(json.dumps(value, sort_keys=True))


def _bytes(part: Part) -> Any:
    if isinstance(part, str):
        return part.encode()
    # Bytes of any array: types of NumPy and bfloat16 alike, and scalars too.
    return np.ascontiguousarray(part).reshape(-1).view(np.uint8) if hasattr(part, "dtype") else part


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block
