"""The content of data files: checked UTF-8, plain or gzipped; several files as one table.

Lines and records come one after the other, in memory that does not grow with the file.
"""

import codecs
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence

from absl import logging

from kbert.data.readers.delimited import parse_rows
from kbert.data.tables.table import Table
from kbert.io.json_file import parse_json
from kbert.text.files import File, is_stream, refuse_array
from kbert.text.source import Source
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
    if is_stream(path):
        raise ValueError(
            "A pipe has no suffix that gives its format: write it into a file, or read it by "
            f"kbert.data.read_table(path, format=…). Received: {path!r}"
        )
    suffix = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    if suffix not in _FORMATS:
        raise ValueError(
            f"The suffix of the input gives its format: {', '.join(_FORMATS)}, each also with "
            f".gz. Received: {path!r}"
        )
    return _FORMATS[suffix]


class DataFile(File):
    """A file of rows, where a character put in place of a bad byte could be a wrong label.

    Args:
        path: the file; `.gz` is unpacked while reading.
    """

    remedy = ""

    def __init__(self, path: str) -> None:
        super().__init__(path, "fail")

    def blocks(self) -> Generator[bytes, None, None]:
        """As those of a `File`, without a NUL byte."""
        lines = 1
        for block in self._blocks():
            if b"\0" in block:
                line = lines + block.count(b"\n", 0, block.index(b"\0"))
                raise ValueError(f"{self.name}, line {line}: a NUL byte, which no text holds")
            lines += block.count(b"\n")
            yield block

    def _blocks(self) -> Iterator[bytes]:
        return super().blocks()

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their numbers from 1, without their ends, which are \\n or \\r\\n.

        Raises:
            ValueError: invalid UTF-8, a NUL byte, unsound gzip data; with the line.
        """
        for number, line in self.numbered_lines():
            yield number, line.decode().removesuffix("\r")

    def rows(self, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
        """The fields of every row of CSV or TSV, as `delimited.parse_rows` gives them."""
        lines = (f"{line.decode()}\n" for _, line in self.numbered_lines())
        return parse_rows(lines, self.name, delimiter, quoted)

    def objects(self) -> Iterator[tuple[int, dict]]:
        """The object in every line of JSON that is not blank."""
        begun = False
        for number, line in self.lines():
            if line.strip():
                if not begun:
                    refuse_array(self.name, line)
                begun = True
                yield number, json_object(f"{self.name}, line {number}", line)


class StandardInput(DataFile):
    """Lines that are typed or piped: each is there as soon as it has ended."""

    def __init__(self) -> None:
        Source.__init__(self, "standard input", 0)
        self.path = self.name

    def _blocks(self) -> Iterator[bytes]:
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
    """The whole file, without a byte-order mark.

    Raises:
        ValueError: an empty file, invalid UTF-8, a NUL byte, unsound gzip data; with the line.
    """
    return b"".join(DataFile(path).blocks()).decode()


def json_object(where: str, line: str) -> dict:
    """The object that a line of JSON holds.

    Raises:
        ValueError: it holds something else; the message begins with `where`.
    """
    try:
        record = parse_json(line)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}. Received: {line[:80]!r}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: a line holds one JSON object. Received: {line[:80]!r}")
    return record


def warn_of(path: str, what: str, rows: Sequence[object]) -> None:
    """Says in the log what became of some rows of a file, where there are any."""
    if rows:
        more = ", …" if len(rows) > 10 else ""
        logging.warning(
            "%s: %d %s %s%s", path, len(rows), what, ", ".join(map(str, rows[:10])), more
        )


def read_parts(pattern: str, read: Callable[[str], Iterator[Table]]) -> Iterator[Table]:
    """The tables of each file of a path or pattern, one after the other in the order of names.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: files differ in their columns, or what `read` raises.
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
    """The tables of all files of a path or pattern, one below the other; see `read_parts`."""
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
