"""Files with one entry per line: vocabularies and merges."""

import os
from collections.abc import Callable, Sequence

from kbert.io.paths import Path, read_settings


def read_lines(
    path: str | os.PathLike, what: str = "vocabulary", entry: str = "piece"
) -> list[str]:
    """Returns the lines of a file without their ends; only "\\n" and "\\r\\n" end a line.

    Args:
        path: the file, UTF-8 with or without a byte order mark.
        what: the kind of file, for error messages.
        entry: the name of an entry, for error messages.

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
        raise FileNotFoundError(f"No {what} file (one {entry} per line). Received: {path}")
    raw = read_settings(path)
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


def check_entries(
    entries: Sequence[str],
    entry: str,
    special: Sequence[str],
    broken_rule: Callable[[str], str | None],
    source: str | None,
    lines: Sequence[int] | None = None,
    *,
    allow_empty: bool = False,
) -> None:
    """Raises ValueError for an empty, invalid or duplicate entry, or a missing special one.

    Raises TypeError for an entry that is not a str.

    Args:
        entries: entries of the vocabulary, in the order of their ids.
        entry: the name of an entry, for error messages.
        special: entries that must be present.
        broken_rule: function from an entry to the rule that it breaks, or None.
        source: the file of the entries, for error messages; None = they come from a list.
        lines: line number of each entry in the file, from 1; None = one entry per line.
        allow_empty: whether one entry may be empty.
    """

    def position(index: int) -> str:
        line = index + 1 if lines is None else lines[index]
        return f"{source}, line {line}" if source else f"entry {index}"

    index_of: dict[str, int] = {}
    for index, value in enumerate(entries):
        if not isinstance(value, str):
            raise TypeError(
                f"A vocabulary must be a sequence of str. Received: {value!r} at {position(index)}."
            )
        if value == "" and not allow_empty:
            raise ValueError(
                f"A vocabulary must not contain empty {entry}s. Received: {position(index)} is "
                "empty."
            )
        rule = broken_rule(value)
        if rule is not None:
            raise ValueError(f"{rule}. Received: {value!r:.40} at {position(index)}.")
        if value in index_of:
            raise ValueError(
                f"The {entry}s of a vocabulary must be unique. Received: {value!r} at "
                f"{position(index_of[value])} and again at {position(index)}."
            )
        index_of[value] = index
    missing = [token for token in special if token not in index_of]
    if missing:
        raise ValueError(
            f"A vocabulary of {entry}s must contain {', '.join(special)}. Received: "
            f"{source or f'a list of {len(index_of)} {entry}s'} without {', '.join(missing)}."
        )
