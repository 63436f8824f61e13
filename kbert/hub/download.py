"""Downloads published files by URL, once, and checks their SHA-256."""

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
    """Downloads a published file into kbert's cache; a zip archive is also unpacked there.

    Meant for data sets that fit in memory, not for corpora. A cached file is not downloaded again;
    its checksum is compared at every call.

    Args:
        url: URL of the file: `http://`, `https://` or `file://`.
        sha256: SHA-256 of the file, in hexadecimal digits.

    Returns:
        The path of the file, or of the folder with an archive's files.

    Raises:
        ConnectionError: the URL cannot be reached, or has no such file.
        ValueError: the downloaded file has another checksum, and is not cached. Or the URL does not
            end in a file name.
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
    """Returns the file name in a URL, without its query: "data.zip" of `…/data.zip?download=1`.

    Raises ValueError for another scheme than `http`, `https` and `file`, or without a file name.
    """
    parts = urllib.parse.urlsplit(url)
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    if parts.scheme not in _SCHEMES or name in ("", ".", "..") or "\\" in name:
        raise ValueError(
            f"A URL must start with {', '.join(f'{x}://' for x in _SCHEMES)} and end with the "
            f"name of a file. Received: {url!r}"
        )
    return name


def _read(url: str, path: Path) -> bytes:
    """Downloads a file and returns its content.

    `path` is where the user may put the file instead, for the message. A failure raises
    ConnectionError.
    """
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as source:
            return source.read()
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(
            f"The file cannot be downloaded ({getattr(error, 'reason', error)}): check that the "
            f"URL can be reached, or put the file at {path}. Received: {url}"
        ) from error


def _check(content: bytes, sha256: str, what: str | os.PathLike) -> None:
    """Raises ValueError unless a file's content has the SHA-256 `sha256` (hexadecimal).

    `what` is the file's path or URL, for the message.
    """
    actual_sha256 = fingerprints.sha256(content)
    if actual_sha256 != sha256:
        raise ValueError(
            f"The file's SHA-256 must be {sha256}: this is another version, or the file is "
            f"damaged. Received: {actual_sha256} of {os.fspath(what)}"
        )
