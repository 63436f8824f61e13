"""Files that appear whole or not at all: written under a temporary name, then renamed."""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import tensorflow as tf
from absl import logging

_MARK = ".writing-"


def temporary_name(path: str) -> str:
    """A name beside `path` that no other process uses."""
    return f"{path}{_MARK}{os.getpid()}"


def write(path: str | os.PathLike, *parts: bytes | memoryview) -> None:
    """Writes the parts, one after the other, to `path`.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "greeting")
    >>> write(path, b"good ", b"day")
    >>> open(path).read(), os.listdir(os.path.dirname(path))
    ('good day', ['greeting'])
    """
    with writing(path) as file:
        for part in parts:
            file.write(part)


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file to write to, that has its name when the block is left without an error."""
    path = os.fspath(path)
    temporary = temporary_name(path)
    try:
        with naming(path), open(temporary, "wb") as file:
            yield file
        publish(temporary, path)
    finally:
        remove(temporary)


def write_together(
    contents: Mapping[str | os.PathLike, bytes], obsolete: Iterable[str | os.PathLike] = ()
) -> None:
    """Writes files that belong together, so that never one is there beside another's.

    Whenever the process dies there are the old files, the new ones, or (for the moment between
    the renames) no last one. So the last file must be the one that readers look for first.

    Args:
        contents: path -> bytes, in the order of publication.
        obsolete: files of what was there before, removed in the same moment.
    """
    paths = {os.fspath(path): temporary_name(os.fspath(path)) for path in contents}
    try:
        for (path, temporary), content in zip(paths.items(), contents.values(), strict=True):
            with naming(path), open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path in (list(paths)[-1], *obsolete):
            remove(path)
        for path, temporary in paths.items():
            with naming(path):
                os.replace(temporary, path)
    finally:
        for temporary in paths.values():
            remove(temporary)


def publish(temporary: str, path: str) -> None:
    """Gives a finished temporary file its name, once its bytes are on the disk."""
    with naming(path):
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)


def remove(path: str | os.PathLike) -> None:
    """Removes a file that may not be there."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def remove_leftovers(folder: str) -> None:
    """Removes what processes that were killed in the middle of a write have left."""
    for name in os.listdir(folder):
        if _MARK in name:
            remove(os.path.join(folder, name))


@contextlib.contextmanager
def only_one(folder: str | os.PathLike) -> Iterator[None]:
    """Makes the folder and keeps a second process waiting; the lock dies with its holder."""
    folder = os.fspath(folder)
    with naming(folder):
        os.makedirs(folder, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.warning("Another process is writing %s: waiting for it", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems know no locks on folders
            logging.warning("No lock on %s: start only one process there (%s)", folder, error)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Turns any failure to write, TensorFlow's own included, into an OSError that names the file.

    The rule of the house: a full or read-only disk ends the program with the file's name and the
    system's reason, and what was finished before stays usable.
    """
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(f"Cannot write {path}: {error.message}") from error
    except OSError as error:
        raise OSError(error.errno, f"Cannot write {path}: {error.strerror or error}") from error
