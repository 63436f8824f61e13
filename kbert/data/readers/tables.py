"""Reads tables from CSV, TSV, JSON lines, plain lines, Parquet, Arrow and tensorflow-datasets."""

import difflib
import functools
import itertools
import os
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import Any

from kbert.core.types import PathLike
from kbert.data.readers.content import DataFile, format_of, read_files, read_parts
from kbert.data.tables.table import Table

PART_ROWS = 4096  # rows of a part, if a table is read in parts


def read_table(
    path: PathLike,
    *,
    format: str | None = None,
    columns: Mapping[str, str | int] | None = None,
    optional: Collection[str] = (),
    header: bool = True,
    delimiter: str | None = None,
    quoted: bool | None = None,
    numeric_labels: bool = False,
    label_separator: str | None = None,
) -> Table:
    """Reads a table from a file, several files, or a TensorFlow data set.

    Args:
        path: a file, plain or `.gz`; a pattern of files; or `tfds:NAME[/CONFIG][:SPLIT]`. Class
            labels of TensorFlow data sets and of `datasets` are read as names. Rows without one
            (-1) are left out and counted in a warning; if no row has one, the column is left out.
        format: "csv", "tsv", "jsonl" (one object per line), "lines" (one text per line) or
            "columnar" (Parquet, Arrow files and streams, Feather; needs pyarrow); None chooses by
            the suffix.
        columns: name in the table -> name (or position from 0) in the file, such as
            {"text": "review", "label": "stars"}; None reads every column under its own name. A file
            of lines has one column, "text" or 0. A field of a struct in a columnar file is named
            "COLUMN.FIELD"; columns of such files have no positions. White space is removed around
            column names of CSV and TSV, and around labels that are names except in columnar files.
        optional: keys of `columns` (names in the table) that a file may lack.
        header: whether the first line of CSV and TSV names the columns; if False, `columns` must
            give positions.
        delimiter: character between fields; None chooses by the format.
        quoted: whether double quotes enclose fields (RFC 4180); None is True for CSV, False for
            TSV.
        numeric_labels: whether texts in the column `label` are numbers (regression).
        label_separator: text between the names in a text of the column `label`, which then
            contains any number of names (multi-label; an empty field has none).

    Raises:
        FileNotFoundError: no file matches.
        ValueError: a wrong number of columns, an empty label, a missing value, invalid JSON or
            UTF-8, or a quote that never closes (the message names file and line, or the row from
            0); a damaged file; or a missing column.
        ImportError: pyarrow is not installed, for a columnar file.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "reviews.csv")
        >>> with open(path, "w") as file:
        ...     _ = file.write('review,stars\\n"Good, cheap",5\\nBroke,1\\n')
        >>> read_table(path, columns={"text": "review", "label": "stars"}).columns
        {'text': ['Good, cheap', 'Broke'], 'label': ['5', '1']}
    """
    path = os.fspath(path)
    if path.startswith("tfds:"):
        from kbert.data.readers.datasets import read_split

        _refuse_layout(path, header, delimiter, quoted)
        table = read_split(path, columns, optional)
        return _convert_labels(table, numeric_labels, label_separator)
    parts = functools.partial(
        _parts_of_file,
        size=None,
        format=format,
        columns=columns,
        optional=optional,
        header=header,
        delimiter=delimiter,
        quoted=quoted,
        numeric_labels=numeric_labels,
        label_separator=label_separator,
    )

    def whole(file: str) -> Table:
        (table,) = parts(file)  # to the end, where the rows that were left out are counted
        return table

    return read_files(path, whole)


def if_file(data: Any) -> Any:
    """Returns the table of a file, a pattern or a `tfds:` name; returns other data unchanged."""
    if not isinstance(data, str | os.PathLike):
        return data
    if os.fspath(data).startswith("tfds:"):
        from kbert.data.readers.tfds import read_tfds

        return read_tfds(os.fspath(data))
    return read_table(data)


def table_parts(path: PathLike, size: int = PART_ROWS, **options: Any) -> Iterator[Table]:
    """Yields a table that is larger than memory in parts: tables of some of its rows, in order.

    Args:
        path: a file, plain or `.gz`, or a pattern of files.
        size: maximum number of rows in a part.
        **options: keyword arguments of `read_table`.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: an error of `read_table`, when the faulty part is reached.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "reviews.csv")
        >>> with open(path, "w") as file:
        ...     _ = file.write("text,label\\nGood,5\\nBroke,1\\nFine,3\\n")
        >>> [(part["text"], part.place(0)[-6:]) for part in table_parts(path, size=2)]
        [(['Good', 'Broke'], 'line 2'), (['Fine'], 'line 4')]
    """
    path = os.fspath(path)
    if path.startswith("tfds:") or size < 1:
        raise ValueError(
            "table_parts requires a file and a size of at least 1; read a TensorFlow dataset "
            f"with as_numpy_iterator(). Received: {path}, size={size}"
        )
    options = {**(read_table.__kwdefaults__ or {}), **options}
    yield from read_parts(path, functools.partial(_parts_of_file, size=size, **options))


def _parts_of_file(
    path: str,
    *,
    size: int | None,
    format: str | None,
    columns: Mapping[str, str | int] | None,
    optional: Collection[str],
    header: bool,
    delimiter: str | None,
    quoted: bool | None,
    numeric_labels: bool,
    label_separator: str | None,
) -> Iterator[Table]:
    """Yields tables of at most `size` rows of a file, or with None one table of all rows.

    The other arguments are those of `read_table`.
    """
    kind = format or format_of(path)
    if kind in ("csv", "tsv"):
        quotes = kind == "csv" if quoted is None else quoted
        separator = delimiter or {"csv": ",", "tsv": "\t"}[kind]
        tables = _read_delimited(path, size, columns, optional, header, separator, quotes)
        named = not numeric_labels and label_separator is None
        for table in tables:
            if named:
                yield _with_names(table)
            elif "label" in table:
                yield _convert_labels(table, numeric_labels, label_separator)
            else:
                raise ValueError(
                    f"There is no column 'label' in {table.place(0)}, only {list(table.columns)}: "
                    "name it with columns="
                )
        return
    if kind == "lines":
        tables = _read_lines(path, size, _there(path, columns, ["text"], optional))
    elif kind == "jsonl":
        tables = map(_strip_labels, _read_json_lines(path, size, columns, optional))
    elif kind == "columnar":
        tables = _read_columnar(path, size, columns, optional)
    else:
        raise ValueError(
            "format must be 'csv', 'tsv', 'jsonl', 'lines' or 'columnar'. Received: "
            f"{format!r} for {path}"
        )
    _refuse_layout(path, header, delimiter, quoted)
    for table in tables:
        yield _convert_labels(table, numeric_labels, label_separator)


def _refuse_layout(path: str, header: bool, delimiter: str | None, quoted: bool | None) -> None:
    """Raises ValueError if an argument that only CSV and TSV have is not its default."""
    given = {"delimiter": delimiter, "quoted": quoted} | ({} if header else {"header": header})
    if given := {name: value for name, value in given.items() if value is not None}:
        listed = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(
            "`header`, `delimiter` and `quoted` describe CSV and TSV only. Received: "
            f"{listed} for {path}"
        )


def _chunks(rows: Iterator, size: int | None, begin: Sequence = ()) -> Iterator[list]:
    """Yields lists of at most `size` rows: first the rows of `begin`, then `rows`."""
    rows = itertools.chain(begin, rows)
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def _there(
    path: str,
    columns: Mapping[str, str | int] | None,
    names: Container[Any],
    optional: Collection[str],
) -> Mapping[str, str | int] | None:
    """Returns `columns` (name in the table -> in the file) without optional ones the file lacks.

    `names` are the columns of the file, `optional` are names in the table. None stays None. Raises
    ValueError if the file has none of the columns.
    """
    if not columns:
        return None
    there = {ours: x for ours, x in columns.items() if ours not in optional or x in names}
    if not there:
        raise ValueError(f"{path} has none of the columns. Received: {[*columns.values()]}")
    return there


def _read_lines(
    path: str, size: int | None, columns: Mapping[str, str | int] | None
) -> Iterator[Table]:
    """Yields tables of at most `size` lines of a text file; None = one table of all lines.

    `columns` maps names in the table to the file's only column, "text" or 0; None = "text". Other
    columns raise ValueError.
    """
    chosen_columns = columns or {"text": "text"}
    if unknown := {
        name: column for name, column in chosen_columns.items() if column not in ("text", 0)
    }:
        raise ValueError(
            f"{path} has one column, a text per line: name it 'text', or 0 by its position. "
            f"Received: columns={unknown}"
        )
    for lines in _chunks(DataFile(path).lines(), size):
        yield Table(
            {name: [text for _, text in lines] for name in chosen_columns},
            source=path,
            lines=[number for number, _ in lines],
        )


def _read_delimited(
    path: str,
    size: int | None,
    columns: Mapping[str, str | int] | None,
    optional: Collection[str],
    header: bool,
    delimiter: str,
    quoted: bool,
) -> Iterator[Table]:
    """Yields tables of at most `size` rows of a CSV or TSV file; None = one table of all rows.

    Args:
        path: the file.
        size: maximum number of rows of a table, or None.
        columns: name in the table -> name or position in the file; None = all columns.
        optional: names in the table that the file may lack.
        header: whether the first row has the names of the columns.
        delimiter: character between fields.
        quoted: whether fields may be in double quotes.

    Raises:
        ValueError: there are no rows, a column does not exist, or `columns` is missing without a
            header.
    """
    rows = DataFile(path).rows(delimiter, quoted)
    first = next(rows, None)
    names = [name.strip() for name in first[1]] if header and first else []
    if header and first:
        first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} holds no rows{' below its header' if header else ''}")
    width = len(first[1])
    if columns is None and not header:
        raise ValueError(
            f"{path} is read without a header: name its columns, such as columns={{'text': 0}}. "
            f"Its first row has {width} columns"
        )
    columns = _there(path, columns, names, optional)
    positions = {
        name: _position(path, column, names, width)
        for name, column in (columns or {name: name for name in names}).items()
    }
    for chunk in _chunks(rows, size, [first]):
        yield Table(
            {name: [fields[index] for _, fields in chunk] for name, index in positions.items()},
            source=path,
            lines=[line for line, _ in chunk],
        )


def _position(path: str, column: str | int, names: list[str], width: int) -> int:
    """Returns the position from 0 of a column that is given by name or position.

    Args:
        path: file, for messages.
        column: name of the column, or its position from 0.
        names: names of the columns in the header.
        width: number of columns.

    Raises:
        ValueError: there is no such column, or two have this name.
    """
    if isinstance(column, int):
        if not 0 <= column < width:
            raise ValueError(f"{path} has the columns 0 to {width - 1}. Received: {column}")
        return column
    column = column.strip()
    if names.count(column) != 1:
        close = difflib.get_close_matches(column, names, n=1)
        hint = f"; did you mean {close[0]!r}" if close and close[0] != column else ""
        raise ValueError(
            f"{path}, line 1: exactly one column must be named {column!r}. Received: {names}{hint}"
        )
    return names.index(column)


def _convert_labels(table: Table, numeric: bool, separator: str | None) -> Table:
    """Returns the table with numbers or lists of names instead of the texts in the column "label".

    Args:
        table: any table; labels that are no texts stay.
        numeric: whether texts become floats.
        separator: text between the names of a row's list of labels; None = labels are no lists.

    Raises:
        ValueError: a label is empty or not a number, or both conversions are asked for.
    """
    if numeric and separator is not None:
        raise ValueError("Pass numeric_labels or label_separator, not both")
    if "label" not in table or not (numeric or separator is not None):
        return table

    def number(row: int, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise ValueError(
                f"{table.place(row)}: the label must be a number. Received: {text!r:.80}"
            ) from None

    def names(row: int, text: str) -> list[str]:
        parts = text.split(separator) if text.strip() else []
        return [_name(table, row, part) for part in parts]

    convert: Callable[[int, str], object] = number if numeric else names
    labels = [convert(row, x) if isinstance(x, str) else x for row, x in enumerate(table["label"])]
    return table.with_column("label", labels)


def _with_names(table: Table) -> Table:
    """Returns the table without white space around the names in the column "label", if any."""
    if "label" not in table:
        return table
    names = [_name(table, row, text) for row, text in enumerate(table["label"])]
    return table.with_column("label", names)


def _name(table: Table, row: int, text: str) -> str:
    """Returns a label without white space around it; raises ValueError if nothing is left."""
    if not text.strip():
        raise ValueError(f"{table.place(row)}: the label is empty")
    return text.strip()


def _strip_labels(table: Table) -> Table:
    """Strips white space around names in the columns `label` and `labels`, even inside lists."""

    def strip(label: object) -> object:
        if isinstance(label, list):
            return list(map(strip, label))
        return label.strip() if isinstance(label, str) else label

    for name in ("label", "labels"):
        if name in table:
            table = table.with_column(name, list(map(strip, table[name])))
    return table


def json_lines(path: str) -> list[tuple[int, dict]]:
    """Returns (line from 1, object) of every line of a JSON lines file that is not blank.

    Raises:
        ValueError: a line is not a JSON object, or the file has no objects.
    """
    objects = list(DataFile(path).objects())
    if not objects:
        raise ValueError(f"{path} holds no rows")
    return objects


def _read_json_lines(
    path: str,
    size: int | None,
    columns: Mapping[str, str | int] | None,
    optional: Collection[str],
) -> Iterator[Table]:
    """Yields tables of at most `size` objects of a JSON lines file; None = one table of all.

    Args:
        path: the file.
        size: maximum number of rows of a table, or None.
        columns: name in the table -> key in the objects; None = the keys of the first object.
        optional: names in the table that the first object may lack.

    Raises:
        ValueError: there are no objects, or one lacks a key.
    """
    chosen_columns: Mapping[Any, Any] | None = None
    for chunk in _chunks(DataFile(path).objects(), size):
        if chosen_columns is None:  # the first object determines the columns
            first = chunk[0][1]
            chosen_columns = _there(path, columns, [*first], optional) or {
                name: name for name in first
            }
        if not chosen_columns:
            raise ValueError(
                f"{path}, line {chunk[0][0]}: the first object must name the columns. Received: "
                "an empty object"
            )
        for line, record in chunk:
            missing = sorted(set(chosen_columns.values()) - set(record), key=str)
            if missing:
                raise ValueError(
                    f"{path}, line {line}: the object must have the keys "
                    f"{[*map(str, chosen_columns.values())]}. Received: {[*record]}, "
                    f"without {missing}"
                )
        yield Table(
            {name: [record[key] for _, record in chunk] for name, key in chosen_columns.items()},
            source=path,
            lines=[line for line, _ in chunk],
        )
    if chosen_columns is None:
        raise ValueError(f"{path} holds no rows")


def _read_columnar(
    path: str,
    size: int | None,
    columns: Mapping[str, str | int] | None,
    optional: Collection[str],
) -> Iterator[Table]:
    """Yields tables of at most `size` rows of a Parquet or Arrow file; None = one table of all.

    Args:
        path: the file.
        size: maximum number of rows of a table, or None.
        columns: name in the table -> column in the file; None = all columns.
        optional: names in the table that the file may lack.

    Raises:
        ValueError: there are no rows, or a column does not exist.
    """
    from kbert.data.readers.rows import NO_LABEL, note_left_out
    from kbert.text.columnar import ColumnarFile

    file = ColumnarFile(path)
    given = _there(path, columns, file, optional) or {name: name for name in file.names}
    chosen = {ours: str(name) for ours, name in given.items()}
    answers = chosen.get("answers")
    if f"{answers}.answer_start" in file:  # a struct, as `datasets` stores SQuAD
        chosen["answers"] = f"{answers}.text"
        if chosen.get("answer_starts") not in file:
            chosen["answer_starts"] = f"{answers}.answer_start"
    classes = [name for name in chosen.values() if file.has_classes(name)]
    unlabelled = [name for name in classes if file.is_unlabelled(name)]
    chosen = {ours: name for ours, name in chosen.items() if name not in unlabelled}
    empty = True
    for chunk in _chunks(file.rows([*chosen.values()], labels={*classes} - {*unlabelled}), size):
        empty = False
        yield Table(
            {name: [values[index] for _, values in chunk] for index, name in enumerate(chosen)},
            source=path,
            lines=[row for row, _ in chunk],
        )
    if file.left_out:
        note_left_out(path, {NO_LABEL: file.left_out})
    if empty:
        raise ValueError(f"{path} holds no rows{' with every label' if file.left_out else ''}")
