"""Files of which each line is an entry: vocabularies and merges."""

import os
from pathlib import Path


def read_lines(
    path: str | os.PathLike, what: str = "vocabulary", entry: str = "piece"
) -> list[str]:
    """The lines of a file. Only line feeds end one, with or without a return before.

    Args:
        path: the file, UTF-8 with or without a byte order mark.
        what: the kind of file, for messages.
        entry: what a line holds, for messages.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not UTF-8; the message names file and line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "vocab.txt")
        >>> _ = path.write_bytes(b"\\xef\\xbb\\xbfpen\\r\\n##cil\\r\\n")
        >>> read_lines(path)
        ['pen', '##cil']
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No {what} file (one {entry} a line). Received: {path}")
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"A {what} must be UTF-8. Received: {path}, line {line}: {error.reason} "
            f"at byte {error.start}."
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
