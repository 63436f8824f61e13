"""Reads records of a file or of standard input one by one, at constant memory.

The formats are those of `kbert.data.readers.read_table`, which keeps a whole table in memory. A
data set of TensorFlow Datasets is read as a table too.
"""

import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from kbert.core import registry
from kbert.core.types import PathLike
from kbert.data.readers import read_table, read_tfds
from kbert.data.readers.content import DataFile, StandardInput, format_of
from kbert.data.readers.tfds import find_data_set
from kbert.text.columnar import ColumnarFile
from kbert.text.files import is_stream

# A line (from 1) or row ("row 0") of the input, and our names of columns -> values.
Record = tuple[int | str, dict[str, Any]]


class Records:
    """The records of an input, to be iterated over once.

    Args:
        path: a .txt, .csv, .tsv or .jsonl file, plain or .gz; a .parquet, .arrow or .feather file;
            "-" for lines of standard input, or the name of another pipe, such as `<(…)` in a
            shell, also for lines; or `tfds:NAME[/CONFIG][:SPLIT]` (default: test), whose records
            are numbered from 1.
        kind: kind of the task, which declares the columns that it needs.
        columns: kbert's name of a column -> the file's name, as in `kbert.experiments.reading`.

    Raises:
        ValueError: the suffix belongs to no known format, the task or the format has no such
            column; during iteration, a line is invalid.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "texts.csv")
        >>> with open(path, "w") as file:
        ...     _ = file.write("stars,review\\n5,Good\\n1,Broke\\n")
        >>> list(Records(path, "classify", {"text": "review"}))
        [(2, {'text': 'Good'}), (3, {'text': 'Broke'})]
    """

    def __init__(
        self,
        path: PathLike,
        kind: str,
        columns: Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self._asked = cast(Any, registry.get("task", kind)).columns
        self._columns = dict(columns or {})
        self._asked.check_names(self._columns.keys() - {"label"}, kind)
        # Programs for texts name the column "text" in any case.
        self._chosen = {ours for ours, theirs in self._columns.items() if ours != theirs}
        is_typed = self.path in ("-", "/dev/stdin")
        self._file: Any
        if self.path.startswith("tfds:"):
            self._format, self._file = "jsonl", _DataSet(self.path, by_layout=not self._chosen)
        else:
            self._format = "lines" if is_typed or is_stream(self.path) else format_of(self.path)
            if self._format == "lines" and self._chosen:
                raise ValueError(
                    f"{self.path}: lines of text have no columns to be named. Received: "
                    f"{', '.join(f'{name}={self._columns[name]}' for name in sorted(self._chosen))}"
                )
            is_columnar = self._format == "columnar"
            self._file = (
                StandardInput()
                if is_typed
                else (ColumnarFile if is_columnar else DataFile)(self.path)
            )
        self.source = self._file.name

    @property
    def size(self) -> int | None:
        """Size on disk in bytes; None for standard input."""
        return self._file.size or None

    @property
    def consumed(self) -> int:
        """Bytes on disk read so far."""
        return self._file.consumed

    def __iter__(self) -> Iterator[Record]:
        if self._format == "lines":
            yield from ((number, {"text": line}) for number, line in self._file.lines())
            return
        file_names = None
        if self._format == "columnar":
            file_names = self._wanted(self._file.names)
            names = [x for x in file_names.values() for x in ([x] if isinstance(x, str) else x)]
            rows = ((row, dict(zip(names, x, strict=True))) for row, x in self._file.rows(names))
        else:
            rows = self._file.objects() if self._format == "jsonl" else self._fields()
        for number, row in rows:
            if file_names is None:
                file_names = self._wanted(row)
            try:
                yield number, {name: _value(row, theirs) for name, theirs in file_names.items()}
            except KeyError as error:
                raise ValueError(
                    f"{self.source}, line {number}: {error.args[0]!r} is missing. Received: "
                    f"{list(row)}"
                ) from None

    def _fields(self) -> Iterator[tuple[int, dict]]:
        """Yields line number and fields by name of each row of a CSV or TSV file.

        Raises:
            ValueError: two columns have the same name.
        """
        quoted = self._format == "csv"
        rows = self._file.rows("," if quoted else "\t", quoted)
        rows = itertools.dropwhile(lambda row: row[1] == [""], rows)  # lines above the header
        number, names = next(rows, (1, []))
        names = [name.strip() for name in names]
        if len(set(names)) < len(names):
            raise ValueError(
                f"{self.source}, line {number}: column names must be unique. Received: {names}"
            )
        for number, fields in rows:
            yield number, dict(zip(names, fields, strict=True))

    def _wanted(self, there: Collection[str]) -> dict[str, str | Sequence[str]]:
        """Returns kbert's name -> the file's name of the columns to read.

        Args:
            there: names of the file's columns.

        Raises:
            ValueError: the file lacks the task's input columns.
        """
        file_names = {name: name for name in there} | self._columns
        names = self._asked.found_in(file_names, self._chosen)
        if names is None:
            raise ValueError(
                f"{self.source}: the task requires the column(s) {self._asked.rule}; name the "
                f"columns of the file that hold them. Received: {list(there)}"
            )
        return {
            name: file_names[name] for name in (*(["id"] if "id" in file_names else []), *names)
        }


class _DataSet:
    """The rows of a data set, as the objects of a file.

    Args:
        path: name of the data set.
        by_layout: whether the rows have kbert's names of columns, where its layout is known, or
            the names of features.
    """

    size = consumed = 0  # bytes are not counted

    def __init__(self, path: str, by_layout: bool) -> None:
        split = None if ":" in path.removeprefix("tfds:") else "test"
        self.name, _, layout = find_data_set(path, split=split)
        self._read = read_tfds if by_layout and layout is not None else read_table

    def objects(self) -> Iterator[tuple[int, dict]]:
        """Yields (number from 1, column -> value) of each row."""
        columns = self._read(self.name).columns
        for number, values in enumerate(zip(*columns.values(), strict=True), 1):
            yield number, dict(zip(columns, values, strict=True))


def _value(row: dict, theirs: str | Sequence[str]) -> Any:
    """Returns the value of a column of a row; a list of values for a list of columns."""
    return row[theirs] if isinstance(theirs, str) else [row[name] for name in theirs]
