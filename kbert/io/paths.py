"""Local paths, and remote paths of TensorFlow's file systems: `gs://…`, `hdfs://…`.

Only this module tells the two apart. `Path` is `pathlib.Path` for a local path. For one with a
scheme it is a `RemotePath`: the same methods, through `tf.io.gfile`. (pathlib itself turns
`gs://a/b` into `gs:/a/b`, a local folder.)

An object store lacks three things: a folder cannot be renamed in one step, nothing can be locked,
and appending to a file writes the whole file again.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import glob as local_glob
import io
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_COLLAPSED = re.compile(r"(gs|s3|hdfs|ram):/(?!/)")
_BUFFER_BYTES = 1 << 20
# Far above the largest tokenizer.json, of half a million subwords.
MAX_SETTINGS_BYTES = 1 << 28

if TYPE_CHECKING:
    from pathlib import Path  # a RemotePath has the same methods
else:

    class Path:
        """A `pathlib.Path`, or a `RemotePath` if the path has a scheme.

        >>> Path("shards", "manifest.json").name, Path("gs://bucket/shards") / "manifest.json"
        ('manifest.json', RemotePath('gs://bucket/shards/manifest.json'))
        """

        def __new__(cls, path: str | os.PathLike, *more: str | os.PathLike) -> Any:
            joined = os.path.join(path, *more)
            return RemotePath(joined) if is_remote(joined) else pathlib.Path(path, *more)


def is_remote(path: str | os.PathLike) -> bool:
    """Returns whether a path has a scheme, so that only TensorFlow can open it.

    >>> is_remote("gs://bucket/text.txt"), is_remote("tfds:wikipedia"), is_remote("/gs:/bucket")
    (True, False, False)

    Raises:
        ValueError: pathlib has removed one of the scheme's two slashes.
    """
    text = os.fspath(path)
    if _COLLAPSED.match(text):
        raise ValueError(
            "A URL must have two slashes after its scheme, but pathlib.Path drops one of them: "
            f"pass the path as a string. Received: {text!r}"
        )
    return bool(_SCHEME.match(text))


@functools.total_ordering
class RemotePath(os.PathLike):
    """The part of `pathlib.Path` that kbert uses, through `tf.io.gfile`, with the same errors.

    Args:
        path: path with a scheme.

    Example:
        >>> path = RemotePath("ram://example") / "text.txt"
        >>> path.write_text("one\\ntwo\\n")
        >>> with path.open(encoding="utf-8") as file:
        ...     list(file)
        ['one\\n', 'two\\n']
        >>> path.exists(), path.with_suffix(".json").exists(), path.stat().st_size
        (True, False, 8)
    """

    def __init__(self, path: str) -> None:
        self._path = path.rstrip("/")

    def __fspath__(self) -> str:
        return self._path

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"RemotePath({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._path == other._path

    def __lt__(self, other: RemotePath) -> bool:
        return self._path < other._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __truediv__(self, name: str | os.PathLike) -> RemotePath:
        return RemotePath(os.path.join(self._path, name))

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self._path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The last component without its suffix."""
        return pathlib.PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The suffix of the last component, with its dot."""
        return pathlib.PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder that contains the path."""
        return RemotePath(self._path.rpartition("/")[0])

    @property
    def parents(self) -> list[RemotePath]:
        """The folders that contain the path, the nearest first; the bucket is the last."""
        scheme, _, path = self._path.partition("://")
        names = path.split("/")
        return [
            RemotePath(f"{scheme}://{'/'.join(names[:count])}")
            for count in range(len(names) - 1, 0, -1)
        ]

    def with_suffix(self, suffix: str) -> RemotePath:
        """Returns the path with another suffix."""
        return self.parent / (self.stem + suffix)

    def resolve(self) -> RemotePath:
        """Returns itself: there are no links and no current folder."""
        return self

    def exists(self) -> bool:
        """Returns whether there is such a file or folder."""
        with self._errors() as gfile:
            return gfile.exists(self._path)

    def is_file(self) -> bool:
        """Returns whether there is such a file."""
        return self._is_directory() is False

    def is_dir(self) -> bool:
        """Returns whether there is such a folder: in an object store, names that begin with it."""
        return self._is_directory() is True

    def _is_directory(self) -> bool | None:
        """Whether the path is a folder; None if it does not exist."""
        # gfile.isdir would also return False for a path that cannot be reached.
        try:
            with self._errors() as gfile:
                return gfile.stat(self._path).is_directory
        except FileNotFoundError:
            return None

    def stat(self) -> os.stat_result:
        """Returns size and modification time; the other fields are 0."""
        with self._errors() as gfile:
            info = gfile.stat(self._path)
        times = {"st_mtime_ns": info.mtime_nsec}
        return os.stat_result((0,) * 6 + (info.length,) + (0,) * 3, times)

    def iterdir(self) -> Iterator[RemotePath]:
        """Yields the files and folders in the folder."""
        with self._errors() as gfile:
            names = gfile.listdir(self._path)
        # Some file systems end a folder's name with a slash, some list the folder itself.
        return iter([self / name for name in (x.rstrip("/") for x in names) if name])

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yields the paths in the folder, or (`a/*.txt`) in folders below, that match a pattern."""
        name_pattern, _, inner_pattern = pattern.partition("/")
        for path in self.iterdir() if self.exists() else ():
            if fnmatch.fnmatchcase(path.name, name_pattern):
                if not inner_pattern:
                    yield path
                elif path.is_dir():
                    yield from path.glob(inner_pattern)

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Yields the paths in the folder and all folders below it whose names match a pattern."""
        for path in self.iterdir() if self.exists() else ():
            if fnmatch.fnmatchcase(path.name, pattern):
                yield path
            if path.is_dir():
                yield from path.rglob(pattern)

    def open(
        self, mode: str = "r", encoding: str | None = None, newline: str | None = None
    ) -> IO[Any]:
        """Opens the file, like `open`; in an object store a file appears when it is closed."""
        raw = _RawFile(self, mode.replace("b", "").replace("t", ""))
        buffered: Any = (io.BufferedReader if raw.readable() else io.BufferedWriter)(
            raw, _BUFFER_BYTES
        )
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, None, newline)

    def read_bytes(self) -> bytes:
        """Returns the content of the file."""
        with self.open("rb") as file:
            return file.read()

    def read_text(self, encoding: str | None = None) -> str:
        """Returns the content of the file as text."""
        with self.open(encoding=encoding) as file:
            return file.read()

    def write_bytes(self, content: bytes | memoryview) -> None:
        """Writes the content of the file."""
        with self.open("wb") as file:
            file.write(content)

    def write_text(self, content: str, encoding: str | None = None) -> None:
        """Writes text as the content of the file."""
        with self.open("w", encoding=encoding) as file:
            file.write(content)

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Makes the folder and its parent folders; `parents` has no effect.

        If `exist_ok` is False, an existing folder raises FileExistsError.
        """
        if not exist_ok and self.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self._path)
        with self._errors() as gfile:
            gfile.makedirs(self._path)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the file; a missing one raises FileNotFoundError unless `missing_ok`."""
        try:
            with self._errors() as gfile:
                gfile.remove(self._path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Removes the folder; raises OSError if it is not empty."""
        if any(self.iterdir()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), self._path)
        with self._errors() as gfile:
            gfile.rmtree(self._path)

    def replace(self, target: str | os.PathLike) -> None:
        """Renames the file to `target`; replaces any file of that name."""
        with self._errors() as gfile:
            gfile.rename(self._path, os.fspath(target), overwrite=True)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[Any]:
        """Yields `tf.io.gfile`; converts its errors to those of a local path."""
        import tensorflow as tf  # here: it takes seconds, and local paths do not need it

        kinds = {
            tf.errors.NotFoundError: errno.ENOENT,
            tf.errors.AlreadyExistsError: errno.EEXIST,
            tf.errors.PermissionDeniedError: errno.EACCES,
            tf.errors.UnauthenticatedError: errno.EACCES,
            tf.errors.UnimplementedError: errno.ENOTSUP,  # a scheme without a registered plugin
        }
        try:
            yield tf.io.gfile
        except tf.errors.OpError as error:
            number = kinds.get(type(error), errno.EIO)
            raise OSError(number, error.message or os.strerror(number), self._path) from error


class _RawFile(io.RawIOBase):
    """A file of `tf.io.gfile` as a raw stream, for Python's buffer and text layers.

    `mode` is "r", or the letter of another mode of `open` for writing.
    """

    def __init__(self, path: RemotePath, mode: str) -> None:
        self._errors = path._errors
        self._reads = mode == "r"
        with self._errors() as gfile:
            self._file = gfile.GFile(os.fspath(path), f"{mode}b")
            # gfile opens a file at its first use: a missing file must raise here, and a written
            # file must exist even if it stays empty.
            self._file.read(0) if self._reads else self._file.write(b"")

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return not self._reads

    def seekable(self) -> bool:
        return self._reads

    def readinto(self, buffer: Any) -> int:
        with self._errors():
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        with self._errors():
            return self._file.read()

    def write(self, content: Any) -> int:
        with self._errors():
            self._file.write(bytes(content))
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with self._errors():
            self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        with self._errors():
            return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._errors():
                self._file.close()


def exists(path: str | os.PathLike) -> bool:
    """Returns whether there is such a file or folder; False if a local path cannot be checked."""
    return Path(path).exists() if is_remote(path) else os.path.exists(path)


def is_dir(path: str | os.PathLike) -> bool:
    """Returns whether there is such a folder; False if a local path cannot be checked."""
    return Path(path).is_dir() if is_remote(path) else os.path.isdir(path)


def is_file(path: str | os.PathLike) -> bool:
    """Returns whether there is such a file; False if a local path cannot be checked."""
    return Path(path).is_file() if is_remote(path) else os.path.isfile(path)


def absolute(path: str | os.PathLike) -> str:
    """Returns the absolute path; one with a scheme is absolute already."""
    return os.fspath(path) if is_remote(path) else os.path.abspath(path)


def check_folder(path: str | os.PathLike) -> None:
    """Raises NotADirectoryError if the path, or one of its parents, is a file.

    >>> check_folder("/no/such/folder")
    """
    existing = absolute(path)
    while not (is_remote(path) or os.path.lexists(existing)):
        existing = os.path.dirname(existing)
    if is_file(existing):
        raise NotADirectoryError(
            f"{os.fspath(path)} must be a folder, or a path where one can be created. Received: "
            f"the file {existing}"
        )


def glob(pattern: str) -> list[str]:
    """Returns the paths that match a pattern, in any order; `**` matches folders of any depth.

    `**` in a pattern with a scheme raises ValueError.

    >>> glob("/no/such/*.txt"), glob("ram://none/*.txt")
    ([], [])
    """
    if not is_remote(pattern):
        return local_glob.glob(pattern, recursive=True)
    if "**" in pattern:
        raise ValueError(f"`**` is supported in local patterns only. Received: {pattern!r}")
    with RemotePath(pattern)._errors() as gfile:
        return gfile.glob(pattern)


def remove_tree(folder: str | os.PathLike) -> None:
    """Removes a folder and its content; ignores what is missing or cannot be removed."""
    if not is_remote(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError), RemotePath(os.fspath(folder))._errors() as gfile:
        gfile.rmtree(os.fspath(folder))


def copy_tree(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copies the content of a folder into another; existing files are replaced."""
    if not (is_remote(source) or is_remote(target)):
        shutil.copytree(source, target, dirs_exist_ok=True)
        return
    Path(target).mkdir(parents=True, exist_ok=True)
    for path in Path(source).iterdir():
        if path.is_dir():
            copy_tree(path, Path(target) / path.name)
        else:
            copy(path, Path(target) / path.name)


def move_tree(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Renames the folder `source` to `target`, in one step.

    If a path has a scheme, the folder is copied file by file, then removed.
    """
    if not (is_remote(source) or is_remote(target)):
        os.replace(source, target)
        return
    copy_tree(source, target)
    remove_tree(source)


def copy(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copies the bytes of a file; replaces the target if it exists."""
    with Path(source).open("rb") as content, Path(target).open("wb") as file:
        shutil.copyfileobj(content, file, _BUFFER_BYTES)


def read_settings(path: str | os.PathLike) -> bytes:
    """Reads a file of settings or a vocabulary as bytes.

    Raises:
        ValueError: the file is larger than any such file (`MAX_SETTINGS_BYTES`). A sparse file can
            be that large without using disk space.

    Example:
        >>> path = Path(tempfile.mkdtemp(), "config.json")
        >>> _ = path.write_text("{}")
        >>> read_settings(path)
        b'{}'
    """
    size = Path(path).stat().st_size
    if size > MAX_SETTINGS_BYTES:
        raise ValueError(
            f"A file of settings or a vocabulary must have at most {MAX_SETTINGS_BYTES} bytes. "
            f"Received: {size} in {os.fspath(path)}"
        )
    return Path(path).read_bytes()


@contextlib.contextmanager
def local_copy(path: str | os.PathLike) -> Iterator[str]:
    """Yields a local file of the same content and name, for a library that opens files itself.

    A local path is yielded unchanged. The copy of a remote file is deleted at the end of the block;
    an open file or a memory map of it stays readable.
    """
    if not is_remote(path):
        yield os.fspath(path)
        return
    with tempfile.TemporaryDirectory(prefix="kbert-") as folder:
        copied = os.path.join(folder, os.path.basename(os.fspath(path)))
        copy(path, copied)
        yield copied


def local_only(path: str | os.PathLike, what: str) -> str:
    """Returns the path; raises if it is not local.

    Args:
        path: the path.
        what: what requires a local path, the subject of the error message.

    Raises:
        ValueError: the path has a scheme.

    Example:
        >>> local_only("gs://bucket/page.html", "A page")
        Traceback (most recent call last):
        ...
        ValueError: A page requires a local path. Received: 'gs://bucket/page.html'
    """
    if is_remote(path):
        raise ValueError(f"{what} requires a local path. Received: {os.fspath(path)!r}")
    return os.fspath(path)


def cache_folder() -> str:
    """Returns the folder for files that kbert can make or download again.

    Returns:
        `$KBERT_CACHE`, or `kbert` under `$XDG_CACHE_HOME` (default `~/.cache`).
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("KBERT_CACHE") or os.path.join(base, "kbert")
