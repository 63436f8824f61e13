"""Files that appear whole or not at all, and folders with only one writing process.

A file is written under a temporary name, then renamed. This also holds for an object store: a name
appears there when its object is closed, but an error in the middle closes it too. Other file
systems of TensorFlow, such as `hdfs://`, show a file while it grows.
"""

import contextlib
import contextvars
import dataclasses
import errno
import fcntl
import io
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, BinaryIO

from absl import logging

from kbert.io import fingerprints
from kbert.io.paths import Path, cache_folder, is_remote

_MARK = ".writing-"
_LOCK = ".lock"


@dataclasses.dataclass
class _Block:
    """What a block of `together` has done so far.

    Attributes:
        files: path -> temporary name of its new content.
        last: paths of the files that readers look for first.
        obsolete: paths of old files that go.
    """

    files: dict[str, str] = dataclasses.field(default_factory=dict)
    last: list[str] = dataclasses.field(default_factory=list)
    obsolete: set[str] = dataclasses.field(default_factory=set)


_block: contextvars.ContextVar[_Block | None] = contextvars.ContextVar("block", default=None)
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)  # errors for a lock that another process holds


def temporary_name(path: str) -> str:
    """Returns a name next to `path` that no other process uses."""
    return f"{path}{_MARK}{os.getpid()}"


def write(path: str | os.PathLike, *parts: bytes | memoryview) -> None:
    """Writes the concatenated parts to `path`, whole or not at all.

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
    """Opens a file for writing bytes; it gets its name when the block ends without an error.

    After an error, no part of it remains, and a former file of that name stays. In a block of
    `together` the file gets its name when that block ends.
    """
    path = os.fspath(path)
    temporary = temporary_name(path)
    try:
        with naming(path), Path(temporary).open("wb") as file:
            yield file
            sync(file)
        if (block := _block.get()) is not None:
            block.files[path] = temporary
            return
        with naming(path):
            Path(temporary).replace(path)
    except BaseException:
        _unlink(temporary)
        raise


def write_together(
    contents: Mapping[str | os.PathLike, bytes], obsolete: Iterable[str | os.PathLike] = ()
) -> None:
    """Writes files that belong together, so that old and new ones are never mixed.

    Args:
        contents: path -> bytes. The last file must be the one that readers look for first.
        obsolete: old files, which are removed.
    """
    with together() as last:
        for path in obsolete:
            remove(path)
        for path, content in contents.items():
            write(path, content)
        last.append(os.fspath(path))


@contextlib.contextmanager
def together() -> Iterator[list[str]]:
    """Writes and removes files, by the functions of this module, all when the block ends.

    If the block fails, as on a full disk, the old files stay as they were. Whenever the process
    dies, there are the old files, the new ones, or (between the renames) no last file, and readers
    refuse the folder. A block inside another is part of it.

    Yields:
        Paths of the files that readers look for first, to be appended to: they get their names
        last, in this order.
    """
    if (outer := _block.get()) is not None:
        yield outer.last
        return
    block = _Block()
    token = _block.set(block)
    try:
        yield block.last
        last = [path for path in block.last if path in block.files]
        for path in (*reversed(last), *(block.obsolete - block.files.keys())):
            _unlink(path)
        for path in (*[path for path in block.files if path not in last], *last):
            with naming(path):
                Path(block.files[path]).replace(path)
            del block.files[path]
    finally:
        _block.reset(token)
        for temporary in block.files.values():
            _unlink(temporary)


def newest(path: str | os.PathLike) -> Path:
    """Returns where the content of a file is that the current block of `together` wrote, or `path`.

    A file that the block has removed is still there.
    """
    block = _block.get()
    return Path(path if block is None else block.files.get(os.fspath(path), path))


def publish(temporary: str, path: str) -> None:
    """Renames a finished temporary file to `path`, once its bytes are on the disk."""
    with naming(path):
        if not is_remote(temporary):
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        Path(temporary).replace(path)


def sync(file: IO[Any]) -> None:
    """Waits until written bytes are on the disk; a remote file is stored when it is closed."""
    file.flush()
    with contextlib.suppress(io.UnsupportedOperation):
        os.fsync(file.fileno())


def remove(path: str | os.PathLike) -> None:
    """Removes a file, if it exists; in a block of `together`, when the block ends."""
    if (block := _block.get()) is None:
        _unlink(path)
        return
    path = os.fspath(path)
    block.obsolete.add(path)
    if temporary := block.files.pop(path, None):
        _unlink(temporary)


def _unlink(path: str | os.PathLike) -> None:
    Path(path).unlink(missing_ok=True)


def remove_leftovers(folder: str) -> None:
    """Removes the temporary files in a folder, left by processes that were killed while writing."""
    for path in Path(folder).iterdir():
        if is_leftover(path.name):
            remove(path)


def is_leftover(name: str) -> bool:
    """Returns whether a file has a temporary name."""
    return _MARK in name


def stand_in(folder: str) -> str:
    """Returns the folder; for one with a scheme, a local folder for its locks and memory maps.

    >>> stand_in("shards"), os.path.relpath(stand_in("gs://bucket/shards"), cache_folder())
    ('shards', 'remote/da260b64a9c1ab67')
    """
    if not is_remote(folder):
        return folder
    name = fingerprints.sha256(folder.rstrip("/"))[:16]
    return os.path.join(cache_folder(), "remote", name)


@contextlib.contextmanager
def only_one(folder: str | os.PathLike) -> Iterator[None]:
    """Makes and locks the folder; a second process waits. The lock ends with its process.

    A folder with a scheme is locked only for the processes of this machine, as in
    `refusing_others`.
    """
    folder = os.fspath(folder)
    with naming(folder):
        lock = os.open(_make(folder), os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.warning("Another process is writing %s: waiting for it", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks on folders
            logging.warning("Cannot lock %s: run only one process on it (%s)", folder, error)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def refusing_others(folder: str | os.PathLike) -> Iterator[None]:
    """Makes and locks the folder; for a second process it raises instead of waiting.

    The lock is the kernel's (`flock`), on a file `.lock` that names host and process. It ends with
    the process that holds it, even if that is killed, so a folder is never left locked. On one host
    it always works. On NFS (Linux, version 3 with its lock service, or 4), Lustre and GPFS it also
    works between hosts, unless they are mounted with local locks (`nolock`, `localflock`).

    A file system without locks, such as one over an object store, causes a warning: nothing stops a
    second process there. A folder with a scheme (`gs://…`) causes a warning too: the lock is then
    on a file in kbert's cache folder, and separates only the processes of this machine.

    Args:
        folder: the folder; it is made if missing.

    Raises:
        RuntimeError: another process writes to the folder; the message names it.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with refusing_others(folder):
        ...     os.listdir(folder)
        ['.lock']
        >>> os.listdir(folder)
        []
    """
    folder = os.fspath(folder)
    with naming(folder):
        path = os.path.join(_make(folder), _LOCK)
    with naming(path):
        lock = _lock(path, folder)
    try:
        with naming(path):
            os.truncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        remove(path)  # while the lock is held, so that it is not another process' file
        os.close(lock)


def claim(file: int, path: str) -> None:
    """Locks a file for this process until it is closed: two writers would mix their bytes.

    The lock is the kernel's (`flock`), as in `refusing_others`.

    Args:
        file: descriptor of the file.
        path: name of the file in messages.

    Raises:
        BlockingIOError: the file is already locked, by another process or by this one.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            logging.warning("Cannot lock %s: run only one process on it (%s)", path, error)
            return
        raise BlockingIOError(
            "Only one process may write a file at a time: wait for the other process, end it, or "
            f"choose another file. Received: {path}, which another process is writing"
        ) from None


def _make(folder: str) -> str:
    """Makes the folder; returns the local folder for its lock: itself, if it has no scheme.

    For one with a scheme, it is a folder in kbert's cache (`stand_in`), and a warning is logged.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    local = stand_in(folder)
    if local != folder:
        os.makedirs(local, exist_ok=True)
        logging.warning("Cannot lock %s against other machines: run only one process on it", folder)
    return local


def _lock(path: str, folder: str) -> int:
    """Opens the file at `path` and locks it; returns its descriptor.

    If another process has the lock, it raises RuntimeError, which names `folder` and that process.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN:
                logging.warning("Cannot lock %s: run only one process on it (%s)", path, error)
                return lock
            holder = os.pread(lock, 1000, 0).decode(errors="replace") or "another process"
            os.close(lock)
            raise RuntimeError(
                "Only one process may write to a folder at a time: wait for the other process, "
                f"end it, or choose another folder. Received: {folder}, in use by {holder}"
            ) from None
        # The former holder may have removed the file between the two calls.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        os.close(lock)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Converts a failure to write in the block, even TensorFlow's, to an OSError that names `path`.

    A full or read-only disk ends the program with the file's name and the system's reason. Files
    that were finished before stay usable.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"Cannot write {path}: {error.strerror or error}") from error
    except Exception as error:
        tf = sys.modules.get("tensorflow")  # imported already if this is one of its errors
        if tf is None or not isinstance(error, tf.errors.OpError):
            raise
        raise OSError(f"Cannot write {path}: {error.message}") from error
