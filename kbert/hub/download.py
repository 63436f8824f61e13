"""Published files by their address: fetched once, and compared with their SHA-256."""

import http.client
import os
import urllib.parse
import urllib.request

from kbert.hub import archive
from kbert.io import atomic, fingerprints
from kbert.io.paths import Path, cache_folder

_SECONDS = 30  # without a byte
_SCHEMES = ("https", "http", "file")


def fetch(url: str, sha256: str) -> Path:
    """A published file, in kbert's cache; of a zip archive the folder it is unpacked to.

    For data sets, which fit in memory, and not for corpora. What is there is compared with the
    checksum too, at every call, and not fetched again.

    Args:
        url: `http://`, `https://` or `file://`.
        sha256: the file's checksum, in hexadecimal digits.

    Returns:
        The file, or the folder of an archive's files.

    Raises:
        ConnectionError: the address cannot be reached, or has no such file.
        ValueError: the file is not the one with that checksum; it is not kept. Or the address
            is of no file.
        OSError: the cache cannot be written.

    Example:
        >>> import tempfile
        >>> published = Path(tempfile.mkdtemp(), "data.txt")
        >>> _ = published.write_text("good day")
        >>> file = fetch(f"file://{published}", fingerprints.sha256("good day"))
        >>> file.name, file.read_text()
        ('data.txt', 'good day')
    """
    sha256 = sha256.lower()
    path = Path(cache_folder(), "fetched", sha256, _name(url))
    if path.exists():
        _check(path.read_bytes(), sha256, path)
    else:
        content = _read(url, path)
        _check(content, sha256, url)
        with atomic.naming(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content)
    return archive.unpacked(path) if path.suffix == ".zip" else path


def _name(url: str) -> str:
    """The file's, without what a server is asked besides: `data.zip?download=1` is an archive."""
    parts = urllib.parse.urlsplit(url)
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    if parts.scheme not in _SCHEMES or name in ("", ".", "..") or "\\" in name:
        raise ValueError(
            f"An address is {', '.join(f'{x}://' for x in _SCHEMES)} and ends in the name of a "
            f"file. Received: {url!r}"
        )
    return name


def _read(url: str, path: Path) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as source:
            return source.read()
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(
            f"The file cannot be fetched ({getattr(error, 'reason', error)}): see that the address "
            f"can be reached, or put the file at {path}. Received: {url}"
        ) from error


def _check(content: bytes, sha256: str, what: str | os.PathLike) -> None:
    found = fingerprints.sha256(content)
    if found != sha256:
        raise ValueError(
            f"The file's SHA-256 must be {sha256}: another version, or damaged on its way. "
            f"Received: {found} of {os.fspath(what)}"
        )
