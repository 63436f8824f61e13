"""Rows of CSV and TSV with the line each begins at."""

import re
from collections.abc import Iterator

from kbert.data.readers.content import numbered_lines, read_text


def rows(path: str, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of every row that is not blank; all rows have as many fields as the first.

    A blank line is an empty field in a file of one column.

    Args:
        path: the file; `.gz` is unpacked while reading.
        delimiter: one character between fields.
        quoted: a field that begins with a double quote ends with one, holds any character in
            between, and a quote as two of them (RFC 4180). Without it a quote is a character
            like others, and every line is a row.

    Raises:
        ValueError: a row of another number of fields, a quote that never closes; with the line.
    """
    found = list(_quoted(path, delimiter) if quoted else _plain(path, delimiter))
    width = next((len(fields) for _, fields in found if fields != [""]), 0)
    for line, fields in found:
        if fields == [""] and width != 1:
            continue
        if len(fields) != width:
            hint = ""
            if not quoted and any(field.startswith('"') for field in fields):
                hint = "; if fields are quoted, say so (quoted=True)"
            raise ValueError(
                f"{path}, line {line}: the row has {len(fields)} columns, the first row has "
                f"{width}{hint}. Received: {str(fields):.80}"
            )
        yield line, fields


def _plain(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    for line, text in numbered_lines(path):
        yield line, text.split(delimiter)


def _quoted(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    # Not the csv module: it limits the size of fields for the whole process, and gives the end of
    # the file as the line of a quote that never closes.
    text = read_text(path)
    end = rf"({re.escape(delimiter)}|\r?\n|\r?\Z)"
    field = re.compile(
        rf'"([^"]*(?:""[^"]*)*)"{end}|(?!")([^{re.escape(delimiter)}\n]*)({re.escape(delimiter)}|\n|\Z)'
    )
    line, position, fields = 1, 0, []
    begin = 0  # of the row
    while position < len(text) or fields:
        match = field.match(text, position)
        if match is None:
            raise ValueError(_bad_quote(path, text, position, delimiter))
        quoted, quoted_end, plain, plain_end = match.groups()
        stop = plain_end if quoted is None else quoted_end
        position = match.end()
        if quoted is not None:
            fields.append(quoted.replace('""', '"'))
        else:
            fields.append(plain if stop == delimiter else plain.removesuffix("\r"))
        if stop != delimiter:
            yield line, fields
            line += text.count("\n", begin, position)
            begin, fields = position, []


def _bad_quote(path: str, text: str, position: int, delimiter: str) -> str:
    line = text.count("\n", 0, position) + 1
    closing = re.compile(r'"[^"]*(?:""[^"]*)*"').match(text, position)
    if closing is None:
        return (
            f"{path}, line {line}: a quote opens here and never closes. "
            f"Received: {text[position : position + 40]!r}"
        )
    after = text.count("\n", 0, closing.end()) + 1
    return (
        f"{path}, line {line}: a quote opens here and closes in line {after}, where "
        f"{delimiter!r} or the end of the line must follow. "
        f"Received: {text[max(closing.end() - 20, position) : closing.end() + 20]!r}"
    )
