"""Unpacks archives of published models, such as Google's zip files of TensorFlow 1 checkpoints."""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from kbert.io import atomic
from kbert.io.paths import cache_folder

# Weights hardly shrink in a zip, so a release is about as large as its archive.
_LARGEST_RATIO = 20
_ALWAYS_ALLOWED = 1 << 28
_MOST_MEMBERS = 1_000
_CHUNK = 1 << 22


def unpacked(path: Path) -> Path:
    """Returns the model folder of an archive, unpacked into kbert's cache by the first call.

    The cache is keyed by the archive's SHA-256, so another file of the same name is another entry.
    An entry appears only after every member has been unpacked and checked.

    Args:
        path: a zip file, e.g. Google's `uncased_L-12_H-768_A-12.zip`.

    Returns:
        The unpacked folder that contains the files: the archive's root, or the single folder in it.

    Raises:
        ValueError: the archive is damaged, or unsafe to unpack.
        OSError: the cache cannot be written.
    """
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    target = Path(cache_folder(), "unpacked", checksum)
    if not target.is_dir():
        _unpack(path, target)
    return _innermost(target)


def _unpack(path: Path, target: Path) -> None:
    """Unpacks a zip file into the new folder `target`, which appears only when it is complete.

    A damaged file raises ValueError.
    """
    with atomic.naming(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f"{target.name[:16]}-", dir=target.parent))
    try:
        try:
            with zipfile.ZipFile(path) as archive:
                members = _checked(archive, path)
                for member in members:
                    _extract(archive, member, temporary)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise ValueError(f"The zip file is damaged ({error}). Received: {path}") from error
        with atomic.naming(str(target)):
            temporary.chmod(0o755)  # mkdtemp makes folders that only one user can read
            _rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rename(temporary: Path, target: Path) -> None:
    try:
        temporary.rename(target)
    except OSError:
        if not target.is_dir():  # another process was faster and has unpacked the same files
            raise


def _checked(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """Returns the archive's files, without folders; raises ValueError if it is unsafe to unpack.

    Every member must be a plain file or folder below the archive's root, not a link and not
    encrypted. Number and total size of the files are limited. `path` is the archive's own path.
    """
    members = archive.infolist()
    names = [member.filename for member in members]
    if len(names) > _MOST_MEMBERS or len(set(names)) < len(names):
        raise ValueError(
            f"An archive of a model must have at most {_MOST_MEMBERS} files, with different "
            f"names. Received: {path} with {len(names)}, {len(set(names))} different"
        )
    for member in members:
        posix, windows = PurePosixPath(member.filename), PureWindowsPath(member.filename)
        outside = posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts
        kind = stat.S_IFMT(member.external_attr >> 16)
        if outside or kind not in (0, stat.S_IFREG, stat.S_IFDIR) or member.flag_bits & 1:
            raise ValueError(
                "An archive's members must be plain files and folders below its root, not links, "
                f"not encrypted. Received: {member.filename!r} in {path}"
            )
    size, limit = sum(member.file_size for member in members), path.stat().st_size * _LARGEST_RATIO
    if size > max(limit, _ALWAYS_ALLOWED):
        raise ValueError(
            f"An archive of a model must unpack to at most {_LARGEST_RATIO} times its size. "
            f"Received: {path}, which would unpack to {size:,} bytes"
        )
    return [member for member in members if not member.is_dir()]


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    """Writes one member of the archive below `folder`; reading it to the end checks its CRC."""
    target = folder / PurePosixPath(member.filename)
    with contextlib.ExitStack() as stack:
        with atomic.naming(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(open(target, "wb"))
        source = stack.enter_context(archive.open(member))
        while chunk := source.read(_CHUNK):
            with atomic.naming(str(target)):
                output.write(chunk)
        with atomic.naming(str(target)):
            output.flush()
            os.fsync(output.fileno())


def _innermost(folder: Path) -> Path:
    """Returns `folder` or, while it contains only one folder, that folder; ignores `__MACOSX`."""
    while True:
        entries = [path for path in folder.iterdir() if path.name != "__MACOSX"]
        if len(entries) != 1 or not entries[0].is_dir():
            return folder
        folder = entries[0]
