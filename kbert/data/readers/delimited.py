"""Parses rows of CSV and TSV one after the other, with the line where each begins."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

# The text after an opening quote, up to the closing quote or the end of the line.
_INSIDE = re.compile(r'[^"]*(?:""[^"]*)*')


def parse_rows(
    lines: Iterable[str], source: str, delimiter: str, quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, fields) of every row that is not blank.

    All rows must have as many fields as the first. In a file of one column, a blank line is an
    empty field.

    Args:
        lines: lines with their ends, which are \\n or \\r\\n.
        source: name of the source in messages.
        delimiter: character between fields.
        quoted: whether a field may be enclosed in double quotes (RFC 4180). Such a field may
            contain any character; a quote is written as two quotes. If False, a quote is an
            ordinary character, and every line is a row.

    Raises:
        ValueError: a row with another number of fields, or a quote that never closes; the message
            names the line.

    Example:
        >>> list(parse_rows(["a,b\\n", '"x\\n', 'y",z\\n'], "memory", ",", quoted=True))
        [(1, ['a', 'b']), (2, ['x\\ny', 'z'])]
    """
    parse = _quoted if quoted else _plain
    width, blank = None, []
    for line, fields in parse(lines, source, delimiter):
        if fields == [""] and width != 1:
            if width is None:
                blank.append(line)  # whether it is a row depends on the width of the first row
            continue
        if width is None:
            width = len(fields)
            yield from ((number, [""]) for number in blank if width == 1)
        if len(fields) != width:
            hint = ""
            if not quoted and any(field.startswith('"') for field in fields):
                hint = "; if fields are quoted, pass quoted=True"
            raise ValueError(
                f"{source}, line {line}: the row has {len(fields)} columns, the first row has "
                f"{width}{hint}. Received: {fields!s:.80}"
            )
        yield line, fields


def _plain(lines: Iterable[str], source: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\n").removesuffix("\r").split(delimiter)


def _quoted(lines: Iterable[str], source: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line of its beginning, fields) for each row, where fields may be in double quotes.

    A quoted field may contain the delimiter, line ends, and a quote as two quotes.

    Args:
        lines: lines of the file, with their ends.
        source: the file's name, for messages.
        delimiter: character between fields.

    Raises:
        ValueError: a quote never closes, or text follows the closing quote.
    """
    # Not the csv module: it limits the size of fields for the whole process, and for a quote that
    # never closes it reports the line at the end of the file.
    separator = re.escape(delimiter)
    plain, end = re.compile(rf"[^{separator}\n]*"), re.compile(rf"{separator}|\r?\n|\r?\Z")
    parts: list[str] | None = None  # the parts of a quoted field that is still open
    for number, line in enumerate(lines, 1):
        position = 0
        if parts is None:
            begin, fields = number, []
        while True:
            if parts is None and line.startswith('"', position):
                parts, opened = [], (number, line[position : position + 40])
                position += 1
            if parts is None:
                field: Any = plain.match(line, position)
                stop: Any = end.match(line, field.end())
                # A carriage return is part of the line's end, but not of a delimiter.
                fields.append(field[0] if stop[0] == delimiter else field[0].removesuffix("\r"))
            else:
                inside: Any = _INSIDE.match(line, position)
                parts.append(inside[0])
                if inside.end() == len(line):
                    break  # the field continues in the next line
                stop = end.match(line, inside.end() + 1)
                if stop is None:
                    around = line[max(inside.end() - 19, 0) : inside.end() + 21]
                    raise ValueError(
                        f"{source}, line {opened[0]}: a quote opens here and closes in line "
                        f"{number}, where {delimiter!r} or the end of the line must follow. "
                        f"Received: {around!r}"
                    )
                fields.append("".join(parts).replace('""', '"'))
                parts = None
            position = stop.end()
            if stop[0] != delimiter:
                yield begin, fields
                break
    if parts is not None:
        raise ValueError(
            f"{source}, line {opened[0]}: a quote opens here and never closes. "
            f"Received: {opened[1]!r}"
        )
