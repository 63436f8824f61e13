"""Output that a killed program resumes: a note of what is written, and how far it is.

A note is a file of JSON: what the output is made of, settings and sources, and how much of it is
there. It is published when the bytes that it describes are on the disk, so a restart may trust it:
of files that grow it cuts off what came after, and of shards, each of which is there whole or not
at all (`kbert.io.atomic`), it writes those that are missing.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from kbert.io import atomic
from kbert.io.json_file import read_json
from kbert.io.paths import exists, local_only


def read_note(path: str | os.PathLike, what: str) -> dict[str, Any] | None:
    """What `write_note` wrote; None where there is no such file.

    Args:
        path: the file.
        what: what an error calls it.

    Raises:
        ValueError: the file is no JSON object.
    """
    if not exists(path):
        return None
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(
            f"{what} must be JSON, as it was written, and was cut off or changed. {error}"
        ) from error


def write_note(path: str | os.PathLike, note: Mapping[str, Any]) -> None:
    """Writes a note, whole or not at all.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "note.json")
    >>> write_note(path, {"records": 3})
    >>> read_note(path, "The note"), read_note(path + "x", "The note")
    ({'records': 3}, None)
    """
    text = json.dumps(note, indent=2, ensure_ascii=False) + "\n"
    atomic.write(path, text.encode())


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """The values that differ from those in a note: their names, and both values in words.

    What is not there counts as None: so an option may be added that is None where it is not used.

    >>> differences({"seed": 1, "shape": [2, 3]}, {"seed": 2, "shape": (2, 3), "words": None})
    {'seed': 'seed was 1, is 2'}
    """
    now = json.loads(json.dumps(now))  # as it comes back from a file
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return {name: f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in names}


class GrowingFiles:
    """Files that grow together, a chunk at a time.

    Args:
        *paths: of the files; local ones, since an object store cannot grow a file.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "growing")
        >>> with GrowingFiles(path) as files:
        ...     files.open()
        ...     files.append(b"a chunk, ")
        ...     noted = files.sizes()
        ...     files.append(b"and one that nothing knows of")
        >>> with GrowingFiles(path) as files:
        ...     files.open(noted)
        ...     files.append(b"its successor")
        >>> open(path).read()
        'a chunk, its successor'
    """

    def __init__(self, *paths: str) -> None:
        self.paths = tuple(local_only(path, "Output that grows while it is made") for path in paths)
        self.files: list[BinaryIO] = []

    def __enter__(self) -> "GrowingFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def open(self, sizes: Sequence[int] | None = None) -> None:
        """Opens the files for the next chunk.

        Args:
            sizes: bytes that each keeps; what was written after them is cut off. None = 0.

        Raises:
            OSError: a file cannot be written.
            BlockingIOError: another process is writing one of them.
            ValueError: a file has fewer bytes.
        """
        for path, size in zip(self.paths, sizes or [0] * len(self.paths), strict=True):
            with atomic.naming(path):
                file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            self.files.append(file)
            atomic.claim(file.fileno(), path)
            there = file.seek(0, os.SEEK_END)
            if there < size:
                raise ValueError(
                    f"{path} must have the {size} bytes that were written to it. Received: {there}"
                )
            file.truncate(size)
            file.seek(size)

    def append(self, *chunks: bytes) -> None:
        """Adds to each file; all is on the disk when this returns."""
        for file, path, chunk in zip(self.files, self.paths, chunks, strict=True):
            with atomic.naming(path):
                file.write(chunk)
                file.flush()
                os.fsync(file.fileno())

    def sizes(self) -> list[int]:
        """Bytes of each file."""
        return [file.tell() for file in self.files]

    def close(self) -> None:
        """Closes the files."""
        while self.files:
            self.files.pop().close()
