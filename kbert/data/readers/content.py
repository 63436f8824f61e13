"""The content of data files: checked UTF-8, plain or gzipped; several files as one table."""

import json
import os
from collections.abc import Callable, Iterator

from kbert.data.tables.table import Table
from kbert.text.files import File
from kbert.text.sources import expand

_FORMATS = {
    ".txt": "lines",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


def format_of(path: str) -> str:
    """The format by the suffix: "lines", "csv", "tsv" or "jsonl".

    Raises:
        ValueError: the suffix tells none of them.
    """
    suffix = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    if suffix not in _FORMATS:
        raise ValueError(
            f"The suffix of the input tells its format: {', '.join(_FORMATS)}, each also with "
            f".gz. Received: {path!r}"
        )
    return _FORMATS[suffix]


class DataFile(File):
    """A file of rows, where a character put in place of a bad byte could be a wrong label."""

    remedy = ""


def read_text(path: str) -> str:
    """The whole file, without a byte-order mark.

    Raises:
        ValueError: an empty file, invalid UTF-8, a NUL byte, unsound gzip data; with the line.
    """
    content = b"".join(DataFile(path, "fail").blocks())
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise ValueError(f"{path}, line {line}: a NUL byte, which no text holds")
    return content.decode("utf-8")


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, without their ends. Only \\n and \\r\\n end a line."""
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\r")


def json_object(where: str, line: str) -> dict:
    """The object that a line of JSON holds.

    Raises:
        ValueError: it holds something else; the message begins with `where`.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}. Received: {line[:80]!r}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: a line holds one JSON object. Received: {line[:80]!r}")
    return record


def read_files(pattern: str, read: Callable[[str], Table]) -> Table:
    """The tables of all files of a path or pattern, one below the other in the order of names.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: files differ in their columns, or what `read` raises.
    """
    paths = sorted(expand(pattern))
    tables = [read(path) for path in paths]
    if len(tables) == 1:
        return tables[0]
    for path, table in zip(paths, tables, strict=True):
        if set(table.columns) != set(tables[0].columns):
            raise ValueError(
                f"The files of {pattern!r} must have the same columns. Received: "
                f"{list(tables[0].columns)} in {paths[0]} and {list(table.columns)} in {path}"
            )
    lines = None
    if all(table.lines is not None for table in tables):
        lines = [line for table in tables for line in table.lines]
    return Table(
        {name: [v for table in tables for v in table[name]] for name in tables[0].columns},
        source=[path for path, table in zip(paths, tables, strict=True) for _ in range(len(table))],
        lines=lines,
    )
