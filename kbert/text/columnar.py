"""Texts in columns: Parquet and Arrow files, and data in memory.

Files are read in batches of rows, at constant memory. Errors name the file and the row, from 0.
"""

import contextlib
import difflib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from kbert.core.in_memory import arrow_features, by_names, column_or_rows, plain
from kbert.core.late import optional
from kbert.io import fingerprints
from kbert.io.paths import Path, is_remote
from kbert.text import files, source

BATCH_ROWS = 4096
_BATCH_BYTES = 16 << 20  # values in memory at once, if rows are long
_READ_BYTES = 1 << 20
# What an Arrow stream ends with: the mark of a message, which the oldest streams lack, and a length
# of 0. https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
_MARK, _END = b"\xff" * 4, bytes(4)


class ColumnarFile(files.File):
    """A Parquet file, or an Arrow file or stream (Feather version 2), told apart by their content.

    A name of a column is that of a column in the file, or `COLUMN.FIELD` for a field of a struct.
    As a source, the file contains a document per row.

    Args:
        path: path of the file.
        field: name of the column with the texts of documents.
        on_bad_utf8: policy for texts of `texts` and `documents`: "fail" raises at the first bad
            byte, "replace" inserts U+FFFD instead.

    Attributes:
        left_out: number of rows without a label that the last reading left out.

    Raises:
        ImportError: pyarrow is not installed, when the file is read.
    """

    left_out = 0

    def __init__(self, path: str, field: str = "text", on_bad_utf8: str = "fail") -> None:
        super().__init__(path, on_bad_utf8)
        self.field = field

    def identity(self) -> dict:
        return {**super().identity(), "field": self.field}

    @functools.cached_property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self._schema.names)

    @functools.cached_property
    def _schema(self) -> Any:
        with self._open(None) as (schema, _):
            return schema

    def __contains__(self, name: object) -> bool:
        """Returns whether there is exactly one column, or field of a struct, of this name."""
        return self._parts(str(name)) is not None

    def has_classes(self, name: str) -> bool:
        """Returns whether `datasets` declares classes for a column, one per row."""
        return getattr(self._feature(name), "names", None) is not None

    def is_unlabelled(self, name: str) -> bool:
        """Returns whether a column of classes has none in any row (-1)."""
        # The first batch of a labelled file answers already.
        return not any(rows for rows, _ in self.batches([name], labels=[name]))

    def batches(
        self, names: Sequence[str], *, as_bytes: bool = False, labels: Collection[str] = ()
    ) -> Iterator[tuple[Sequence[int], list[list]]]:
        """Yields (numbers of rows, columns) of each batch of at most `BATCH_ROWS` rows.

        Args:
            names: names of the columns.
            as_bytes: whether texts are bytes, which may be invalid UTF-8.
            labels: those of `names` whose classes are labels: rows in which one is -1, which stands
                for no label, are left out, and counted in `left_out`.

        Raises:
            ValueError: a column is missing, the file is damaged, a text is not valid UTF-8, or the
                number of a class has no name.
        """
        parts = [self._checked_parts(name) for name in names]
        features = [self._feature(name) for name in names]
        first = self.left_out = 0
        with self._open([".".join(x) for x in parts]) as (_, read):
            for batch in read():
                rows: Sequence[int] = range(first, first + batch.num_rows)
                arrays = [_array(batch, x, as_bytes) for x in parts]
                for array in arrays:
                    self._check(array, functools.partial(self._place, rows))
                columns = [array.to_pylist() for array in arrays]
                marks = [
                    column for name, column in zip(names, columns, strict=True) if name in labels
                ]
                if any(-1 in column for column in marks):
                    kept = [i for i in range(len(rows)) if all(column[i] != -1 for column in marks)]
                    columns = [[column[i] for i in kept] for column in columns]
                    rows = [rows[i] for i in kept]
                    self.left_out += batch.num_rows - len(rows)
                place = functools.partial(self._place, rows)
                yield (
                    rows,
                    [
                        by_names(values, feature, name, place)
                        for name, feature, values in zip(names, features, columns, strict=True)
                    ],
                )
                first += batch.num_rows

    def rows(
        self, names: Sequence[str], *, as_bytes: bool = False, labels: Collection[str] = ()
    ) -> Iterator[tuple[str, tuple]]:
        """Yields ("row 0", values of these columns) and so on for every row, see `batches`."""
        for rows, columns in self.batches(names, as_bytes=as_bytes, labels=labels):
            for row, *values in zip(rows, *columns, strict=True):
                yield f"row {row}", tuple(values)

    def texts(self, names: Sequence[str]) -> Iterator[list[bytes]]:
        """Yields the texts of these columns, as UTF-8, for every row.

        A value that is no text, or invalid UTF-8 with on_bad_utf8="fail", raises ValueError.
        """
        self.replaced_characters = 0
        for row, values in self.rows(names, as_bytes=True):
            where = f"{self.path}, {row}"
            yield [self.decoded(x, where, name) for name, x in zip(names, values, strict=True)]

    def documents(self) -> Iterator[bytes]:
        row = -1
        for row, (text,) in enumerate(self.texts([self.field])):
            yield from self.parts(
                text.replace(b"\r\n", b"\n").strip(), functools.partial(self._place, [row], 0)
            )
        if row < 0:
            raise ValueError(f"{self.path} holds no rows")

    def expansion(self) -> float:
        _, (texts,) = next(self.batches([self.field], as_bytes=True), ([], [[]]))
        return sum(len(text or b"") for text in texts) / max(self.consumed, 1)

    def _place(self, rows: Sequence[int], index: int) -> str:
        return f"{self.path}, row {rows[index]}"

    def _parts(self, name: str) -> list[str] | None:
        """Returns the column and the fields inside it that a name stands for; None without any."""
        if name in self.names:
            return [name] if self.names.count(name) == 1 else None
        column, *fields = name.split(".")
        if not fields or self.names.count(column) != 1:
            return None
        inner = self._schema.field(column).type
        for field in fields:
            index = inner.get_field_index(field) if hasattr(inner, "get_field_index") else -1
            if index < 0:
                return None
            inner = inner.field(index).type
        return [column, *fields]

    def _checked_parts(self, name: str) -> list[str]:
        parts = self._parts(name)
        if parts is None:
            close = difflib.get_close_matches(name, self.names, n=1)
            hint = f"; did you mean {close[0]!r}" if close and close[0] != name else ""
            raise ValueError(
                f"{self.path}: exactly one column must be named {name!r} (a field of a struct is "
                f"named COLUMN.FIELD). Received: {self.names}{hint}"
            )
        return parts

    def _feature(self, name: str) -> Any:
        """Returns the feature that `datasets` declares for a column, None without one."""
        column, *fields = self._checked_parts(name)
        feature = self._features.get(column)
        for field in fields:
            feature = feature.get(field) if isinstance(feature, Mapping) else None
        return feature

    @functools.cached_property
    def _features(self) -> Mapping[str, Any]:
        try:
            return arrow_features(self._schema)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error

    def _check(self, array: Any, place: Callable[[int], str]) -> None:
        """Raises ValueError, by `place`, for a column with invalid UTF-8 or damaged offsets."""
        fault = _fault(array)
        if fault is not None:
            # The values of a dictionary belong to no row.
            rows = range(0 if _is_dictionary(array) else len(array))
            bad = next((row for row in rows if _fault(array[row : row + 1]) is not None), None)
            where = self.path if bad is None else place(bad)
            raise ValueError(f"{where}: a value is damaged or not UTF-8. Received: {fault}")

    @contextlib.contextmanager
    def _open(self, names: Sequence[str] | None) -> Iterator[tuple[Any, Callable[[], Iterator]]]:
        """Opens the file; gives its schema, and a function that yields batches of the columns.

        None opens only the schema. An error of pyarrow becomes a ValueError with the file's name.
        """
        arrow = optional("pyarrow", "arrow", "A Parquet or Arrow file")
        try:
            with Path(self.path).open("rb") as file:
                begin = file.read(6)
                file.seek(0)
                if begin[:4] == b"PAR1":
                    yield self._open_parquet(file, names)
                    return
                self._refuse(begin)
                if is_remote(self.path):
                    yield self._open_ipc(arrow.ipc, file, begin, names)
                    return
                with arrow.memory_map(self.path) as mapped:
                    yield self._open_ipc(arrow.ipc, mapped, begin, names)
        except arrow.ArrowException as error:
            raise ValueError(self._damaged(error)) from error
        except OSError as error:
            if error.errno is not None:  # of the file system
                raise
            raise ValueError(self._damaged(error)) from error

    def _damaged(self, error: Exception) -> str:
        return f"{self.path} must be a whole Parquet or Arrow file. Received: {error}"

    def _refuse(self, begin: bytes) -> None:
        """Raises ValueError if a file's first bytes are those of a similar format."""
        if begin.startswith(b"FEA1"):
            raise ValueError(
                f"{self.path}: a Feather file must have version 2 (pyarrow.feather.write_feather "
                "writes it). Received: version 1"
            )
        if begin.startswith(b"\x1f\x8b"):
            raise ValueError(
                f"{self.path}: Parquet and Arrow files must not be gzipped, as their columns are "
                "compressed already: unpack the file. Received: gzip data"
            )

    def _open_parquet(
        self, file: Any, names: Sequence[str] | None
    ) -> tuple[Any, Callable[[], Iterator]]:
        """Returns the schema of an open Parquet file, and the function that yields its batches."""
        parquet = optional("pyarrow.parquet", "arrow", "A Parquet file")
        # So the pages of a column are read one after the other. By default all row groups are
        # read ahead and stay in memory.
        opened = parquet.ParquetFile(file, buffer_size=_READ_BYTES, pre_buffer=False)
        notes = opened.metadata
        size = sum(notes.row_group(i).total_byte_size for i in range(notes.num_row_groups))

        def read() -> Iterator[Any]:
            done, rows = 0, _batch_rows(size, notes.num_rows)
            for batch in opened.iter_batches(rows, columns=names):
                done += batch.num_rows
                self.consumed = self.size * done // notes.num_rows
                yield batch

        return opened.schema_arrow, read

    def _open_ipc(
        self, ipc: Any, file: Any, begin: bytes, names: Sequence[str] | None
    ) -> tuple[Any, Callable[[], Iterator]]:
        """Returns the same for an open Arrow file or stream; `begin` are its first bytes."""
        is_stream = begin != b"ARROW1"
        open_reader = ipc.open_stream if is_stream else ipc.open_file
        schema = open_reader(file).schema
        file.seek(0)
        wanted = {*(names or ()), *(name.partition(".")[0] for name in names or ())}
        fields = [index for index, name in enumerate(schema.names) if name in wanted]
        reader = open_reader(file, options=ipc.IpcReadOptions(included_fields=fields))
        count = 0 if is_stream else reader.num_record_batches

        def read() -> Iterator[Any]:
            batches = reader if is_stream else map(reader.get_batch, range(count))
            for number, batch in enumerate(batches, 1):
                rows = _batch_rows(batch.nbytes, batch.num_rows)
                for start in range(0, batch.num_rows, rows):  # a file may be one batch
                    yield batch.slice(start, rows)
                self.consumed = file.tell() if is_stream else self.size * number // count
            if is_stream:
                self._warn_without_end(file, _MARK + _END if begin[:4] == _MARK else _END)

        return schema, read

    def _warn_without_end(self, file: Any, end: bytes) -> None:
        """Logs a warning unless an Arrow stream that was read ends with `end`.

        The format permits a stream without an end, so one that was cut behind a batch is valid.
        """
        file.seek(max(self.size - len(end), 0))
        if file.read(len(end)) != end:
            logging.warning(
                "%s: an Arrow stream without its end marker: the file may be truncated", self.path
            )


class MemoryColumn(source.Source):
    """Texts of one column of data in memory, one document per row.

    Args:
        data: data with columns, as for `kbert.core.in_memory.columns_of`; it must give the same
            rows each time.
        field: name of the column.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.
    """

    def __init__(self, data: Any, field: str, on_bad_utf8: str) -> None:
        source.check_bad_utf8_policy(on_bad_utf8)
        super().__init__("the data", 0)
        self.data, self.field = data, field
        self.errors = "strict" if on_bad_utf8 == "fail" else "replace"
        self.rows = self.checksum = 0
        for _, text in self._texts():
            self.rows += 1
            self.size += len(text)
            self.checksum = fingerprints.crc32([text], self.checksum)
        if not self.rows:
            raise ValueError(f"The column {field!r} of {self.name} holds no rows")
        self.name = f"the data ({self.rows} rows, checksum {self.checksum:08x})"

    def identity(self) -> dict:
        return {"name": self.name, "size": self.size, "field": self.field}

    def documents(self) -> Iterator[bytes]:
        self.consumed = 0
        for place, text in self._texts():
            self.consumed += len(text)
            yield from self.parts(
                text.replace(b"\r\n", b"\n").strip(), functools.partial(str, place)
            )

    def _texts(self) -> Iterator[tuple[str, bytes]]:
        """Yields (place, text as UTF-8) of every row."""
        self.replaced_characters = 0
        for row, value in enumerate(column_or_rows(self.data, (self.field,))):
            value = plain(value)
            if isinstance(value, str):
                value = value.encode(errors="surrogatepass")  # refused or replaced as bad UTF-8
            place = f"row {row} of the data"
            yield place, self.decoded(value, place, self.field)


def _batch_rows(size: int, rows: int) -> int:
    """Returns how many of `rows` rows that have `size` bytes together are read at once."""
    return max(1, min(BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1)))


def _array(batch: Any, parts: Sequence[str], as_bytes: bool) -> Any:
    """Returns a column of a record batch, or the field of a struct; with `as_bytes` as binary."""
    array = batch.column(parts[0])
    for part in parts[1:]:
        array = array.flatten()[array.type.get_field_index(part)]
    return _as_binary(array) if as_bytes else array


def _as_binary(array: Any) -> Any:
    """Returns an array of texts as binary, any other array as it is."""
    if hasattr(array.type, "run_end_type"):  # pyarrow casts only the values
        values = _as_binary(array.values)
        return type(array).from_arrays(array.run_ends, values).slice(array.offset, len(array))
    kind = array.type.value_type if _is_dictionary(array) else array.type
    is_text = str(kind) in ("string", "large_string", "string_view")
    return array.cast("large_binary") if is_text else array


def _is_dictionary(array: Any) -> bool:
    return hasattr(array.type, "index_type")


def _fault(array: Any) -> str | None:
    """Returns why the content of an array is invalid, None if it is valid."""
    try:
        array.validate(full=True)
    except ValueError as error:
        return str(error)
    return None
