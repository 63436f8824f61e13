"""A table of examples in memory: the output of readers, the input of tasks.

The names of columns are the same everywhere:

- `text`, or `first` and `second` for a pair, optionally with `negatives` (lists of texts);
- `label` (a name, an index, a number, or a list of names);
- `words` and `labels` for tagging;
- `question`, `context`, `answers` and `answer_starts`;
- `context` and `choices`;
- `id`; and `group`, for rows that must all be right together.
The values are checked when a table is made, so that an error names the file and line. Columns with
other names are not checked.
"""

import array
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, overload

from kbert.core.in_memory import TEXT, TEXT_LISTS, check_utf8, columns_of, plain, values_of
from kbert.io import fingerprints


class Table:
    """Columns of equal length, with the origin of each row.

    `table["text"]` is a column, as a list. `table[:500]` is a table of these rows, for any slice.

    Args:
        columns: name -> values, one per row.
        source: origin of the rows for error messages; or a list with one origin per row.
        lines: line (from 1) of each row in its source; or a text such as "row 0", for a source
            without lines.
        start: number of the first row in messages without lines, if other rows came before; or the
            numbers of all rows, as a range or an `array.array`.

    Raises:
        ValueError: columns differ in length, a text is not a string, or labels have mixed types.

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
        lines: Sequence[int | str] | None = None,
        start: int | range | array.array = 0,
    ) -> None:
        self.source = source if isinstance(source, str) else list(source)
        self.lines = None if lines is None else list(lines)
        self.columns = {name: values_of(column, name) for name, column in columns.items()}
        sizes = {name: len(column) for name, column in self.columns.items()}
        if self.lines is not None:
            sizes["lines"] = len(self.lines)
        if not isinstance(self.source, str):
            sizes["source"] = len(self.source)
        if not self.columns or len(set(sizes.values())) > 1:
            raise ValueError(
                "A table must have at least one column, and all columns must have the same "
                f"number of rows. Received: {sizes}"
            )
        if not isinstance(start, range | array.array):
            start = range(int(start), int(start) + len(self))
        self.numbers = start
        for name, column in self.columns.items():
            if name in TEXT:
                column[:] = [self._text(name, row, value) for row, value in enumerate(column)]
            elif name in TEXT_LISTS:
                column[:] = [self._texts(name, row, value) for row, value in enumerate(column)]
            elif name == "label":
                self.columns[name] = self._labels(column)
            else:
                column[:] = map(plain, column)
            if name in ("id", "group"):  # bytes in files without a type for text
                column[:] = [
                    self._text(name, row, x) if isinstance(x, bytes) else x
                    for row, x in enumerate(column)
                ]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    @overload
    def __getitem__(self, name: str) -> list: ...

    @overload
    def __getitem__(self, name: slice) -> "Table": ...

    def __getitem__(self, name: str | slice) -> "list | Table":
        """Returns a column by its name, or the rows of a slice as a table."""
        if isinstance(name, slice):
            return self.take(range(len(self))[name])
        if not isinstance(name, str):
            raise ValueError(
                "Index a table by the name of a column or by a slice of rows, such as "
                f"table[:500]; for single rows use take([0, 2]). Received: {name!r:.80} "
                f"({type(name).__name__})"
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
    def start(self) -> int:
        """Number of the first row in messages without lines; 0 without rows."""
        return self.numbers[0] if len(self) else 0

    @property
    def checksum(self) -> int:
        """CRC-32 of the columns, by which a resumed run recognises the data."""
        checksum = 0
        for name, column in self.columns.items():
            if name == "label":  # runs of earlier versions stored True as 1
                column = [int(x) if isinstance(x, bool) else x for x in column]
            checksum = fingerprints.crc32([json.dumps([name, column], default=str)], checksum)
        return checksum

    def take(self, rows: Sequence[int]) -> "Table":
        """Returns a table of the given rows (from 0), in the given order.

        Messages name each row as they do in this table.
        """
        has_one_source = isinstance(self.source, str)
        return Table(
            {name: [column[row] for row in rows] for name, column in self.columns.items()},
            source=self.source if has_one_source else [self.source[row] for row in rows],
            lines=None if self.lines is None else [self.lines[row] for row in rows],
            start=array.array("q", (self.numbers[row] for row in rows)),
        )

    def head(self, rows: int = 5) -> "Table":
        """Returns a table of the first `rows` rows.

        >>> Table({"text": ["a", "b", "c"]}).head(2)["text"]
        ['a', 'b']
        """
        return self[:rows]

    def rename(self, names: Mapping[str, str]) -> "Table":
        """Returns a table with columns renamed; `names` is old name -> new name.

        An old name that does not exist, or two columns with one new name, raise ValueError.
        """
        for name in names:
            self[name]  # raises if the column does not exist
        renamed = [names.get(name, name) for name in self.columns]
        if len(set(renamed)) < len(renamed):
            raise ValueError(f"Column names must be unique. Received: {renamed}")
        columns = dict(zip(renamed, self.columns.values(), strict=True))
        return Table(columns, source=self.source, lines=self.lines, start=self.numbers)

    def with_column(self, name: str, column: Sequence) -> "Table":
        """Returns a table with a column of one value per row added or replaced."""
        columns = {**self.columns, name: column}
        return Table(columns, source=self.source, lines=self.lines, start=self.numbers)

    def place(self, row: int) -> str:
        """Returns the origin of a row: "dev.tsv, line 7" or "row 6 of the data" (from 0)."""
        has_one_source = isinstance(self.source, str)
        source = self.source if has_one_source else self.source[row]
        if self.lines is not None:
            line = self.lines[row]
            return f"{source}, {line if isinstance(line, str) else f'line {line}'}"
        number = self.numbers[row]
        return f"row {number} of {source}" if has_one_source else f"{source} (row {number} of all)"

    def _origin(self) -> str:
        if isinstance(self.source, str):
            return self.source
        first, *other_sources = dict.fromkeys(self.source)
        return f"{first} and {len(other_sources)} other files" if other_sources else first

    def _text(self, name: str, row: int, value: object) -> str:
        """Returns a cell as a string; bytes are decoded as UTF-8.

        `name` is the column, `row` the number of the row. A value that is not valid text raises
        ValueError, which names the place.
        """
        value = plain(value)
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
        check_utf8(value, f"{self.place(row)}: {name!r}")
        return value

    def _texts(self, name: str, row: int, values: object) -> list:
        """Returns a cell that holds a list of strings; raises ValueError if it is none.

        In the column "labels", integers (indices of labels) are kept. `name` is the column, `row`
        the number of the row.
        """
        values = plain(values)
        if not isinstance(values, list | tuple):
            raise ValueError(
                f"{self.place(row)}: {name!r} must be a list of strings. Received: {values!r:.80}"
            )
        values = [plain(value) for value in values]
        indices = name == "labels"  # labels of words: names, or indices into a task's labels
        return [
            value if indices and isinstance(value, int) else self._text(name, row, value)
            for value in values
        ]

    def _one_number(self, row: int, values: list) -> Any:
        """Returns the number in a label that is a list of one number, from labels of shape (N, 1).

        Several numbers raise ValueError. A list with other values is returned unchanged, to be
        refused as a list of names. `row` is the number of the row, for the message.
        """
        numbers = [value for value in map(plain, values) if isinstance(value, int | float)]
        if len(numbers) == len(values) == 1:
            return numbers[0]
        if len(numbers) < len(values):
            return values  # refused as no list of names
        hint = ""
        if set(numbers) <= {0, 1}:
            hint = (
                ", not one-hot vectors: pass labels.argmax(1), or lists of names for several "
                "labels per row"
            )
        raise ValueError(
            f"{self.place(row)}: labels must be numbers, class ids or names, one per row{hint}. "
            f"Received: {values!r:.80}"
        )

    def _labels(self, values: list) -> list:
        """Returns the checked labels: all names, all booleans, all numbers, or all lists of names.

        If some numbers are integers and some are not, all become floats. Other mixtures raise
        ValueError.
        """
        labels: list[Any] = []
        kinds: dict[str, int] = {}  # kind -> the first row that has it
        for row, value in enumerate(values):
            value = plain(value)
            if isinstance(value, list) and value and not isinstance(value[0], str | bytes):
                value = self._one_number(row, value)
            if isinstance(value, list):
                value, kind = self._texts("label", row, value), "lists of names"
            elif isinstance(value, str | bytes):
                value, kind = self._text("label", row, value), "names"
            elif isinstance(value, bool):
                kind = "booleans"
            elif isinstance(value, int):
                value, kind = int(value), "integers"
            elif isinstance(value, float) and math.isfinite(value):
                kind = "numbers"
            else:
                raise ValueError(
                    f"{self.place(row)}: a label must be a name, an index, a finite number or a "
                    f"list of names. Received: {value!r:.80}"
                )
            labels.append(value)
            kinds.setdefault(kind, row)
        if set(kinds) == {"integers", "numbers"}:
            return [float(label) for label in labels]
        if len(kinds) > 1:
            received = "; ".join(
                f"{kind} ({labels[row]!r} at {self.place(row)})" for kind, row in kinds.items()
            )
            raise ValueError(f"Labels must all be of one type. Received: {received}")
        return labels


def as_table(
    data: object,
    labels: Sequence | None = None,
    *,
    triplets: bool = False,
    start: int = 0,
) -> Table:
    """Converts in-memory data of many types to a table.

    The type of the data and the names of its columns decide its meaning, see
    `kbert.core.in_memory`. Two columns with names other than `first` and `second` are not pairs.

    Args:
        data: a `Table`; a mapping of columns; a frame of pandas or polars, a table of pyarrow, a
            `datasets.Dataset` (classes by name) or a NumPy array with fields; a list (array,
            series, generator) of texts, of (first, second) tuples, of lists of words, or of dicts;
            a tuple of one of these and its labels, like Keras' `validation_data`; a
            `tf.data.Dataset` of dicts or of (x, y). Batches of a dataset are unbatched if they can
            be distinguished from rows; a vector of strings alone is one row of words.
        labels: labels, if `data` has none: they become the column `label`, or `labels` (lists of
            names) if the rows are lists of words.
        triplets: whether rows may be tuples of three texts; the third is a negative (`negatives`).
        start: number of the first row in error messages.

    Raises:
        ValueError: `data` is of no supported type, or `Table` raises.

    Example:
        >>> as_table([("A man eats.", "A man is eating.")], labels=[4.8]).columns
        {'first': ['A man eats.'], 'second': ['A man is eating.'], 'label': [4.8]}
    """
    if isinstance(data, tuple):
        if len(data) != 2 or isinstance(data[0], str | bytes) or labels is not None:
            raise ValueError(
                "A tuple must be (data, labels), as in as_table((texts, labels)). Pass texts as "
                "a list ['…', '…'] and pairs as a list [('…', '…')]. Received: a tuple of "
                f"{len(data)}{' and separate labels' if labels is not None else ''}"
            )
        return as_table(*data, triplets=triplets, start=start)
    if not isinstance(data, Table):
        columns = columns_of(data, triplets=triplets, start=start)
        data = Table(_with_answers(columns), start=start)
    if labels is None:
        return data
    name = "labels" if "words" in data else "label"
    if name in data:
        raise ValueError(f"The data already has a column {name!r}: pass the labels once")
    return data.with_column(name, labels)


def _with_answers(columns: dict[str, Any]) -> dict[str, Any]:
    """Converts SQuAD answers in the format of `datasets`, a dict per row, to two columns.

    `answers` then has the texts, `answer_starts` their positions. Other columns stay.
    """
    if "answers" not in columns or "answer_starts" in columns:
        return columns
    answers = [plain(row) for row in values_of(columns["answers"], "answers")]
    if not all(
        isinstance(row, Mapping) and {"text", "answer_start"} <= set(row) for row in answers
    ):
        return {**columns, "answers": answers}
    starts = [plain(row["answer_start"]) for row in answers]
    return {**columns, "answers": [row["text"] for row in answers], "answer_starts": starts}
