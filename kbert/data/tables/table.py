"""A table of examples in memory: what readers give, what tasks are trained on and asked about.

The names of columns are the same everywhere: `text`, or `first` and `second` for a pair, and
`negatives`, lists of texts, behind it; `label` (a name, an index, a number, or a list of names);
`words` and `labels` for tagging; `question`, `context`, `answers` and `answer_starts`; `context`
and `choices`; `id`. Their values are checked when a table is made, so that an error names the file
and line it comes from. Columns of other names are kept as they are.
"""

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import tensorflow as tf

from kbert.order import check_order

TEXT = ("text", "first", "second", "question", "context")
TEXT_LISTS = ("words", "labels", "choices", "answers", "negatives")


class Table:
    """Columns of equal length, with the place each row comes from.

    `table["text"]` is a column, a list; `table[:500]` the table of these rows, any slice.

    Args:
        columns: name -> values, one a row.
        source: where the rows come from, for error messages; or one source a row.
        lines: the line (from 1) of each row in its source.

    Raises:
        ValueError: columns differ in length, a text is no text, labels are of mixed types.

    Example:
        >>> table = Table({"text": ["Free!", "Hi"], "label": ["spam", "ham"]})
        >>> len(table), table["label"], table.place(1)
        (2, ['spam', 'ham'], 'row 1 of the data')
        >>> table[-1:]["text"]
        ['Hi']
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence],
        *,
        source: str | Sequence[str] = "the data",
        lines: Sequence[int] | None = None,
    ) -> None:
        self.source = source if isinstance(source, str) else list(source)
        self.lines = None if lines is None else list(lines)
        self.columns = {name: _values(name, column) for name, column in columns.items()}
        sizes = {name: len(column) for name, column in self.columns.items()}
        if self.lines is not None:
            sizes["lines"] = len(self.lines)
        if not isinstance(self.source, str):
            sizes["source"] = len(self.source)
        if not self.columns or len(set(sizes.values())) > 1:
            raise ValueError(
                "A table has at least one column, and all columns have the same number of rows. "
                f"Received: {sizes}"
            )
        for name, column in self.columns.items():
            if name in TEXT:
                column[:] = [self._text(name, row, value) for row, value in enumerate(column)]
            elif name in TEXT_LISTS:
                column[:] = [self._texts(name, row, value) for row, value in enumerate(column)]
            elif name == "label":
                self.columns[name] = self._labels(column)
            else:
                column[:] = map(_python, column)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    @overload
    def __getitem__(self, name: str) -> list: ...

    @overload
    def __getitem__(self, name: slice) -> "Table": ...

    def __getitem__(self, name: str | slice) -> "list | Table":
        """A column by its name, or the rows of a slice as a table."""
        if isinstance(name, slice):
            return self.take(range(len(self))[name])
        if not isinstance(name, str):
            raise ValueError(
                "In brackets stands the name of a column, or a slice of rows, table[:500]; for "
                f"single rows see take([0, 2]). Received: {name!r:.80} ({type(name).__name__})"
            )
        if name not in self.columns:
            raise ValueError(
                f"There is no column {name!r} in {self._origin()}. "
                f"Received: the columns {list(self.columns)}"
            )
        return self.columns[name]

    def __repr__(self) -> str:
        return f"Table({len(self)} rows of {', '.join(self.columns)}, from {self._origin()})"

    @property
    def checksum(self) -> int:
        """CRC-32 of the columns, by which a restart knows the data again."""
        checksum = 0
        for name, column in self.columns.items():
            checksum = zlib.crc32(json.dumps([name, column], default=str).encode(), checksum)
        return checksum

    def take(self, rows: Sequence[int]) -> "Table":
        """The given rows (from 0), in the given order."""
        one = isinstance(self.source, str)
        return Table(
            {name: [column[row] for row in rows] for name, column in self.columns.items()},
            source=self.source if one else [self.source[row] for row in rows],
            lines=None if self.lines is None else [self.lines[row] for row in rows],
        )

    def rename(self, names: Mapping[str, str]) -> "Table":
        """The same rows with columns renamed: `names` is old name -> new name."""
        for name in names:
            self[name]  # raises for a column that is not there
        renamed = [names.get(name, name) for name in self.columns]
        if len(set(renamed)) < len(renamed):
            raise ValueError(f"Two columns cannot have one name. Received: {renamed}")
        columns = dict(zip(renamed, self.columns.values(), strict=True))
        return Table(columns, source=self.source, lines=self.lines)

    def with_column(self, name: str, column: Sequence) -> "Table":
        """The same rows with a column more, or with another one of that name."""
        return Table({**self.columns, name: column}, source=self.source, lines=self.lines)

    def place(self, row: int) -> str:
        """Where a row (from 0) comes from: "dev.tsv, line 7" or "row 6 of the data"."""
        one = isinstance(self.source, str)
        source = self.source if one else self.source[row]
        if self.lines is not None:
            return f"{source}, line {self.lines[row]}"
        return f"row {row} of {source}" if one else f"{source} (row {row} of all)"

    def _origin(self) -> str:
        if isinstance(self.source, str):
            return self.source
        first, *others = dict.fromkeys(self.source)
        return f"{first} and {len(others)} other files" if others else first

    def _text(self, name: str, row: int, value: object) -> str:
        value = _python(value)
        if isinstance(value, bytes):
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{self.place(row)}: {name!r} is not UTF-8 at byte {error.start}: "
                    f"{error.reason}. Received: bytes {value[error.start :][:4].hex(' ')}"
                ) from None
        if not isinstance(value, str):
            hint = "; batches of rows must be unbatched" if isinstance(value, list) else ""
            raise ValueError(
                f"{self.place(row)}: {name!r} must be a string{hint}. Received: {value!r:.80}"
            )
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{self.place(row)}: {name!r} holds half a surrogate pair at character "
                    f"{error.start}, which UTF-8 cannot write. "
                    f"Received: {value[max(error.start - 20, 0) :]!r:.80}"
                ) from None
        return value

    def _texts(self, name: str, row: int, values: object) -> list:
        values = _python(values)
        if not isinstance(values, list | tuple):
            raise ValueError(
                f"{self.place(row)}: {name!r} must be a list of strings. Received: {values!r:.80}"
            )
        values = [_python(value) for value in values]
        indices = name == "labels"  # of words: names, or indices into a task's labels
        return [
            value if indices and isinstance(value, int) else self._text(name, row, value)
            for value in values
        ]

    def _labels(self, values: list) -> list:
        """Names, integers, numbers or lists of names: one of these throughout."""
        labels: list[Any] = []
        kinds: dict[str, int] = {}  # kind -> the first row that has it
        for row, value in enumerate(values):
            value = _python(value)
            if isinstance(value, list):
                value, kind = self._texts("label", row, value), "lists of names"
            elif isinstance(value, str | bytes):
                value, kind = self._text("label", row, value), "names"
            elif isinstance(value, int):  # True and False count as 1 and 0
                value, kind = int(value), "integers"
            elif isinstance(value, float) and math.isfinite(value):
                kind = "numbers"
            else:
                raise ValueError(
                    f"{self.place(row)}: a label is a name, an index, a finite number or a list "
                    f"of names. Received: {value!r:.80}"
                )
            labels.append(value)
            kinds.setdefault(kind, row)
        if set(kinds) == {"integers", "numbers"}:
            return [float(label) for label in labels]
        if len(kinds) > 1:
            found = "; ".join(
                f"{kind} ({labels[row]!r} at {self.place(row)})" for kind, row in kinds.items()
            )
            raise ValueError(f"Labels must all be of one type. Received: {found}")
        return labels


def as_table(data: object, labels: Sequence | None = None) -> Table:
    """The data a user has in hand, as a table.

    Args:
        data: a `Table`; a mapping of columns; a pandas frame; a list (array, series, generator)
            of texts, of (first, second) tuples, of lists of words, or of dicts; a tuple of one of
            these and its labels, as Keras' `validation_data`; a `tf.data.Dataset` of dicts or of
            (x, y). Its batches are taken apart where they can be told from rows: a vector of
            strings alone is a row of words.
        labels: the labels, where `data` has none: the column `label`, or `labels` (of lists of
            names) where the rows are lists of words.

    Raises:
        ValueError: the data is none of these, or what `Table` raises.

    Example:
        >>> as_table([("A man eats.", "A man is eating.")], labels=[4.8]).columns
        {'first': ['A man eats.'], 'second': ['A man is eating.'], 'label': [4.8]}
    """
    if isinstance(data, tuple):
        if len(data) != 2 or isinstance(data[0], str | bytes) or labels is not None:
            raise ValueError(
                "A tuple is (data, labels): as_table((texts, labels)). A list of texts is "
                "['…', '…'], a list of pairs [('…', '…')]. Received: a tuple of "
                f"{len(data)}{' and separate labels' if labels is not None else ''}"
            )
        return as_table(*data)
    if not isinstance(data, Table):
        data = Table(_columns(data))
    if labels is None:
        return data
    name = "labels" if "words" in data else "label"
    if name in data:
        raise ValueError(f"The data has a column {name!r} already: give the labels once")
    return data.with_column(name, labels)


def _columns(data: Any) -> dict[str, list]:
    if isinstance(data, Mapping):
        return dict(data)
    if hasattr(data, "dtypes") and hasattr(data, "columns"):  # a frame of pandas or polars
        if len(set(data.columns)) < len(data.columns):
            raise ValueError(f"Two columns cannot have one name. Received: {list(data.columns)}")
        return {str(name): list(data[name]) for name in data.columns}
    if hasattr(data, "element_spec"):
        return _dataset_columns(data)
    data = _without_tensor(data)
    check_order(data, "The data")
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise ValueError(
            "The data is a Table, columns, a frame, a list of texts, pairs or words, or a "
            f"tf.data.Dataset. Received: {data!r:.80} ({type(data).__name__})"
        )
    shape: Sequence[int] = getattr(data, "shape", ())
    if len(shape) == 2 and shape[1] == 2:  # an array of pairs
        data = [tuple(row) for row in data]
    return _row_columns([_python(row) for row in data])


def _row_columns(rows: list) -> dict[str, list]:
    """Columns of rows that are all texts, all pairs, all lists of words or all dicts."""
    first = rows[0] if rows else ""
    if isinstance(first, Mapping):
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping) or set(row) != set(first):
                found = sorted(row) if isinstance(row, Mapping) else f"{row!r:.80}"
                raise ValueError(
                    f"row {number} of the data: every row must have the columns "
                    f"{sorted(first)}. Received: {found}"
                )
        return {name: [row[name] for row in rows] for name in first}
    if isinstance(first, tuple):
        for number, row in enumerate(rows):
            if not isinstance(row, tuple) or len(row) != 2:
                raise ValueError(
                    f"row {number} of the data: a pair is a tuple of two texts. "
                    f"Received: {row!r:.80}"
                )
        return {"first": [row[0] for row in rows], "second": [row[1] for row in rows]}
    return {"words" if isinstance(first, list) else "text": rows}


def _dataset_columns(dataset: tf.data.Dataset) -> dict[str, list]:
    """Columns of a `tf.data.Dataset` whose elements are x or (x, y), x as in `_row_columns`."""
    if int(dataset.cardinality()) == -1:  # tf.data.INFINITE_CARDINALITY
        raise ValueError("The data set never ends: take(n) rows of it, or drop repeat()")
    if _is_batched(dataset.element_spec):
        dataset = dataset.unbatch()
    spec = dataset.element_spec
    labelled = isinstance(spec, tuple)
    if labelled and len(spec) != 2:
        raise ValueError(f"Elements are x or (x, y). Received: tuples of {len(spec)}")
    rows, labels = [], []
    for element in dataset.as_numpy_iterator():
        row = element[0] if labelled else element
        rows.append(row if isinstance(row, Mapping | tuple) else _python(row))
        if labelled:
            labels.append(element[1])
    columns = _row_columns(rows)
    if labelled:
        columns["labels" if "words" in columns else "label"] = labels
    return columns


def _is_batched(spec: Any) -> bool:
    """Whether elements hold several texts where a row has one."""
    x = spec[0] if isinstance(spec, tuple) else spec
    if isinstance(x, Mapping):
        texts = [name for name in (*TEXT, *TEXT_LISTS) if name in x]
        return any((x[name].shape.rank or 0) > (name in TEXT_LISTS) for name in texts)
    if isinstance(x, tuple):  # a pair
        return any(side.shape.rank for side in x)
    y = spec[1] if isinstance(spec, tuple) and len(spec) == 2 else None
    # A vector of strings is a row of words, whose labels are names or indices; texts may have
    # numbers.
    return x.shape.rank == 2 or bool(y is not None and y.shape.rank and y.dtype.is_floating)


def _values(name: str, column: object) -> list:
    column = _without_tensor(column)
    check_order(column, f"The column {name!r}")
    if isinstance(column, str | bytes) or not isinstance(column, Iterable):
        raise ValueError(
            f"The column {name!r} must be a sequence with one value a row. "
            f"Received: {column!r:.80} ({type(column).__name__})"
        )
    return list(column)


def _without_tensor(values: object) -> object:
    """A tensor as an array; anything else as it is."""
    return values.numpy() if hasattr(values, "numpy") else values


def _python(value: object) -> object:
    """NumPy's scalars and arrays and ragged values as Python's; anything else as it is."""
    if type(value) in (str, int, float, list):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    for convert in ("tolist", "to_list"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    return value
