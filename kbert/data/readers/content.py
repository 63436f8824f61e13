"""Reads data files as checked UTF-8, plain or gzipped; several files as one table.

Lines and records are read one after the other, at constant memory.
"""

import codecs
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence

from absl import logging

from kbert.data.readers.delimited import parse_rows
from kbert.data.tables.table import Table
from kbert.io.json_file import parse_json
from kbert.text.files import COLUMNAR, File, is_stream, refuse_array
from kbert.text.source import Source
from kbert.text.sources import expand

_FORMATS = {
    ".txt": "lines",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    **dict.fromkeys(COLUMNAR, "columnar"),
}


def format_of(path: str) -> str:
    """Returns the format by the suffix of a path: "lines", "csv", "tsv", "jsonl" or "columnar".

    Raises:
        ValueError: unknown suffix, or the path of a pipe.
    """
    if is_stream(path):
        raise ValueError(
            "The format of a pipe cannot be inferred from a suffix: write it to a file, or pass "
            f"the format to kbert.data.read_table(path, format=…). Received: {path!r}"
        )
    suffix = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    if suffix not in _FORMATS:
        raise ValueError(
            f"The suffix of the input must name its format: {', '.join(_FORMATS)}; texts may also "
            f"end in .gz. Received: {path!r}"
        )
    return _FORMATS[suffix]


class DataFile(File):
    """A file of rows. Bad UTF-8 always raises, since a replaced character could change a label.

    Args:
        path: path of the file; `.gz` is unpacked while reading.
    """

    remedy = ""

    def __init__(self, path: str) -> None:
        super().__init__(path, "fail")

    def blocks(self) -> Generator[bytes, None, None]:
        """Like `File.blocks`; also raises for a NUL byte."""
        lines = 1
        for block in self._blocks():
            if b"\0" in block:
                line = lines + block.count(b"\n", 0, block.index(b"\0"))
                raise ValueError(f"{self.name}, line {line}: text must not contain a NUL byte")
            lines += block.count(b"\n")
            yield block

    def _blocks(self) -> Iterator[bytes]:
        return super().blocks()

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yields (number from 1, line) without the line end, which is \\n or \\r\\n.

        Raises:
            ValueError: invalid UTF-8 or a NUL byte (the message names the line), or invalid gzip
                data.
        """
        for number, line in self.numbered_lines():
            yield number, line.decode().removesuffix("\r")

    def rows(self, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
        """Yields (line from 1, fields) of every row of CSV or TSV that is not blank.

        `delimiter` is the character between fields; `quoted` says whether double quotes may enclose
        a field. Errors are those of `delimited.parse_rows`.
        """
        lines = (f"{line.decode()}\n" for _, line in self.numbered_lines())
        return parse_rows(lines, self.name, delimiter, quoted)

    def objects(self) -> Iterator[tuple[int, dict]]:
        """Yields (line, object) of every line of JSON that is not blank.

        A line that is not a JSON object raises ValueError.
        """
        begun = False
        for number, line in self.lines():
            if line.strip():
                if not begun:
                    refuse_array(self.name, line)
                begun = True
                yield number, json_object(f"{self.name}, line {number}", line)


class StandardInput(DataFile):
    """Typed or piped lines: each is available as soon as it has ended."""

    def __init__(self) -> None:
        Source.__init__(self, "standard input", 0)
        self.path = self.name

    def _blocks(self) -> Iterator[bytes]:
        """Yields the lines of standard input, with their ends; drops a byte-order mark.

        A line that is not UTF-8 raises ValueError.
        """
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{self.name}, line {number}: invalid UTF-8 at byte {error.start}: "
                    f"{error.reason}. Received: bytes {line[error.start :][:4].hex(' ')}"
                ) from None
            yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def read_text(path: str) -> str:
    """Reads a whole file, without a byte-order mark.

    Raises:
        ValueError: invalid UTF-8 or a NUL byte (the message names the line), invalid gzip data, or
            an empty file.
    """
    return b"".join(DataFile(path).blocks()).decode()


def json_object(where: str, line: str) -> dict:
    """Parses a line of JSON that must be an object.

    Raises:
        ValueError: the line is not a JSON object; the message begins with `where`.
    """
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}. Received: {line[:80]!r}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: a line must be one JSON object. Received: {line[:80]!r}")
    return record


def warn_of(path: str, what: str, rows: Sequence[object]) -> None:
    """Logs a warning that lists the first ten of some `rows` (line numbers or ids) of a file.

    `what` follows the number of rows in the message. Without rows nothing is logged.
    """
    if rows:
        suffix = ", …" if len(rows) > 10 else ""
        logging.warning(
            "%s: %d %s %s%s", path, len(rows), what, ", ".join(map(str, rows[:10])), suffix
        )


def read_parts(pattern: str, read: Callable[[str], Iterator[Table]]) -> Iterator[Table]:
    """Yields the tables of each file of a path or pattern, in the order of file names.

    `read` is a function from the path of a file to its tables.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: files differ in their columns, or `read` raises.
    """
    first: tuple[str, Table] | None = None
    for path in sorted(expand(pattern)):
        for table in read(path):
            first = first or (path, table)
            if set(table.columns) != set(first[1].columns):
                raise ValueError(
                    f"The files of {pattern!r} must have the same columns. Received: "
                    f"{list(first[1].columns)} in {first[0]} and {list(table.columns)} in {path}"
                )
            yield table


def read_files(pattern: str, read: Callable[[str], Table]) -> Table:
    """Reads all files of a path or pattern into one table; `read` makes the table of a file.

    Rows are in the order of file names. The errors are those of `read_parts`.
    """
    tables = list(read_parts(pattern, lambda path: iter([read(path)])))
    if len(tables) == 1:
        return tables[0]
    lines = None
    if all(table.lines is not None for table in tables):
        lines = [line for table in tables for line in table.lines or ()]
    paths = sorted(expand(pattern))
    return Table(
        {name: [v for table in tables for v in table[name]] for name in tables[0].columns},
        source=[path for path, table in zip(paths, tables, strict=True) for _ in range(len(table))],
        lines=lines,
    )
