"""Reads data in memory, from any library: named columns, or rows of texts.

Types and names decide, never shapes: two columns are pairs only if they are named so. Objects of a
library are recognised by their attributes, so that none of the libraries is imported here.
"""

import functools
import json
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Reversible, Sequence, Set
from typing import Any

_ROWS = 1000  # rows of a data set that are read together
TEXT = ("text", "first", "second", "question", "context")
TEXT_LISTS = ("words", "labels", "choices", "answers", "negatives")
KINDS = (
    "a list of texts, pairs or words (strings, tuples or lists; also an array, a series or a "
    "generator of these); columns by name (a kbert.data.Table, a dict of columns, a list of dicts, "
    "a frame of pandas or polars, a table of pyarrow, a datasets.Dataset, a NumPy array with "
    "fields); a tf.data.Dataset"
)


class ClassName(str):
    """Name of a class of `datasets`: a string that also carries the number of the class.

    The reader of a label picks one of the two. A task with named classes reads the name. A task
    that learns numbers, or whose classes have no names, reads the number.

    Example:
        >>> ClassName("spam", 1) == "spam", number_of(ClassName("spam", 1)), number_of("spam")
        (True, 1, 'spam')
    """

    __slots__ = ("number",)
    number: int

    def __new__(cls, name: str, number: int) -> "ClassName":
        instance = super().__new__(cls, name)
        instance.number = number
        return instance

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]  # for copy and pickle
        return str(self), self.number


def number_of(label: Any) -> Any:
    """Returns the number of a class of `datasets`; returns any other label unchanged."""
    return label.number if isinstance(label, ClassName) else label


def columns_of(data: Any, *, triplets: bool = False, start: int = 0) -> dict[str, Any]:
    """Returns the columns of any data, by name.

    Args:
        data: one of `KINDS`, or another iterable of texts.
        triplets: whether a row may be three texts: the third becomes a list in `negatives`.
        start: number of the first row in error messages.

    Returns:
        Name -> values, one per row. The type of rows without names decides the columns: a string
        is a `text`, a tuple is a pair of `first` and `second`, a list is the `words` of a
        sentence. The labels of a `tf.data.Dataset` of (x, y) become the column `label`, or
        `labels` if the rows are words.

    Raises:
        ValueError: the data has none of these forms.

    Example:
        >>> columns_of([("a", "b"), ("c", "d")])
        {'first': ['a', 'c'], 'second': ['b', 'd']}
        >>> columns_of([{"anchor": "a", "positive": "b"}])
        {'anchor': ['a'], 'positive': ['b']}
    """
    readers = _named_columns(data)
    if readers is not None:
        return {name: read_column() for name, read_column in readers.items()}
    if hasattr(data, "element_spec"):
        return _dataset_columns(data, triplets)
    return _row_columns(list(rows_of(data)), triplets, start)


def has_columns(data: Any) -> bool:
    """Returns whether the data has named columns: iterating over it may then give names."""
    return _named_columns(data) is not None


def is_table(data: Any) -> bool:
    """Returns whether rows have names: data with columns, or a stream of such rows.

    Example:
        >>> is_table({"text": ["a"]}), is_table(["a.txt", "b.txt"])
        (True, False)
    """
    return _is_hugging_face(data) or is_dataset(data) or has_columns(data)


def rows_of(data: Any) -> Iterator[Any]:
    """Yields the rows: strings, tuples, lists of words, or dicts by column.

    Args:
        data: rows or columns, as for `columns_of`.

    Example:
        >>> list(rows_of({"first": ["a", "c"], "second": ["b", "d"]}))
        [{'first': 'a', 'second': 'b'}, {'first': 'c', 'second': 'd'}]
    """
    if _is_hugging_face(data) or _is_arrow(data):
        return _rows_of_batches(data)
    if has_columns(data) or hasattr(data, "element_spec"):
        columns = {name: values_of(x, name) for name, x in columns_of(data).items()}
        if len(sizes := {len(values) for values in columns.values()}) > 1:
            raise ValueError(
                f"All columns must have the same number of rows. Received: {sorted(sizes)} rows"
            )
        rows = zip(*columns.values(), strict=True)
        return (dict(zip(columns, row, strict=True)) for row in rows)
    check_order(data, "The data")
    if not _is_several(data):
        raise ValueError(
            f"The data must be one of: {KINDS}. Received: {data!r:.80} ({type(data).__name__})"
        )
    if len(getattr(data, "shape", ())) == 2 and not hasattr(data, "row_splits"):
        # The rows of an array have one length, so they are pairs: sentences differ in length.
        return map(tuple, _without_tensor(data).tolist())
    return map(_row, _values(data))


def each_text(data: Any, what: str | None = None, start: int = 0) -> Iterator[str | bytes]:
    """Yields the texts of any data: its rows, or its column `text`.

    Args:
        data: rows or columns, as for `columns_of`.
        what: name of the texts in error messages; None = texts.
        start: number of the first text in error messages.

    Raises:
        TypeError: `data` is one string, or a row is not a string.
        ValueError: the data has columns, but no column `text`, or a text has half a surrogate pair.

    Example:
        >>> list(each_text(["one", b"two"])), list(each_text({"text": ["one"], "label": [0]}))
        (['one', b'two'], ['one'])
    """
    if isinstance(data, str | bytes):
        raise TypeError(
            f"{what or 'texts'} must be an iterable of str or bytes. Received: one "
            f"{type(data).__name__} of {len(data)} characters; put it in a list."
        )
    check_order(data, f"The value of {what or 'texts'}")
    rule = "A text must be a str or bytes" if what is None else f"{what} must be strings"
    for number, row in enumerate(column_or_rows(data), start):
        row = plain(row)
        if not isinstance(row, str | bytes):
            raise TypeError(f"{rule}. Received: {row!r:.80} as number {number}")
        if isinstance(row, str):
            check_utf8(row, f"Number {number} of {what or 'the texts'}")
        yield row


def check_utf8(text: str, name: str) -> None:
    """Raises ValueError if a text contains half a surrogate pair.

    Args:
        text: the text to check.
        name: name or place of the text, for the message.

    Example:
        >>> check_utf8("naïve", "The text")
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} contains half a surrogate pair at character {error.start}, which UTF-8 cannot "
            f"encode. Received: {text[max(error.start - 20, 0) :]!r:.80}"
        ) from None


def column_or_rows(data: Any, names: Sequence[str] = ("text",)) -> Iterator[Any]:
    """Yields the values of one column, or the rows of data without named columns.

    Args:
        data: rows or columns, as for `columns_of`.
        names: possible names of the column; the first one that the data has is read.

    Raises:
        ValueError: the data has columns, but none of these.

    Example:
        >>> list(column_or_rows({"words": [["a", "b"]], "text": ["a b"]}, ("words", "text")))
        [['a', 'b']]
    """

    def chosen(there: Iterable[str]) -> str:
        for name in names:
            if name in there:
                return name
        raise ValueError(
            f"The data must have the column {' or '.join(map(repr, names))}: pass that column "
            f"alone, or rename it. Received: the columns {', '.join(map(str, there))}"
        )

    readers = _named_columns(data)
    if readers is None:
        for row in rows_of(data):
            yield row[chosen(row)] if isinstance(row, Mapping) else row
    elif _is_hugging_face(data) or _is_arrow(data):
        name = chosen(readers)
        select = data.select_columns if _is_hugging_face(data) else data.select
        yield from (row[name] for row in _rows_of_batches(select([name])))
    else:
        yield from values_of(readers[chosen(readers)](), chosen(readers))


def pair_rows(data: Any) -> Iterator[Any]:
    """Yields pairs: the columns `first` and `second`, or the rows of data without named columns.

    Raises:
        ValueError: the data has columns, but not these two.

    Example:
        >>> list(pair_rows({"first": ["a", "c"], "second": ["b", "d"], "label": [1, 0]}))
        [('a', 'b'), ('c', 'd')]
    """
    for row in rows_of(data):
        if isinstance(row, Mapping):
            if not {"first", "second"} <= set(row):
                raise ValueError(
                    "Pairs must be the columns 'first' and 'second': rename them, or pass "
                    f"tuples. Received: the columns {', '.join(map(str, row))}"
                )
            row = row["first"], row["second"]
        yield row


def values_of(column: Any, name: str) -> list:
    """Returns the values of one column as a list.

    Classes of `datasets` are returned as names (`ClassName`).

    Args:
        column: a list, an array, a series, a tensor or an Arrow column, with one value per row.
        name: the column's name, for messages.

    Raises:
        ValueError: `column` is none of these.
    """
    check_order(column, f"The column {name!r}")
    if not _is_several(column) or has_columns(column):
        raise ValueError(
            f"The column {name!r} must be a sequence with one value per row. Received: "
            f"{column!r:.80} ({type(column).__name__})"
        )
    return list(_values(column))


def plain(value: Any) -> Any:
    """Converts a value of NumPy, TensorFlow, PyTorch or Arrow to Python; keeps anything else."""
    if type(value) in (str, int, float, list, tuple, dict, ClassName):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    for convert in ("as_py", "numpy", "tolist", "to_list"):
        if hasattr(value, convert):
            return plain(getattr(value, convert)())
    return value


def _named_columns(data: Any) -> dict[str, Callable[[], Any]] | None:
    """Returns name -> function that reads the column; None for data without named columns.

    A mapping of splits, a lazy frame, or a column name that occurs twice raises ValueError.
    """
    read_column: Callable[[Any, Any], Any] = operator.getitem
    names: Iterable[Any]
    if isinstance(data, Mapping):
        if splits := [name for name, value in data.items() if _is_hugging_face(value)]:
            raise ValueError(
                "The data must be one data set: choose a split, such as data['train']. Received: "
                f"a {type(data).__name__} of {', '.join(map(str, splits))}"
            )
        names = data
    elif hasattr(type(data), "collect_schema") and hasattr(type(data), "collect"):  # polars
        raise ValueError(
            f"A lazy frame has no rows yet: pass data.collect(). Received: a {type(data).__name__}"
        )
    elif _is_hugging_face(data):
        if not hasattr(type(data), "__len__"):
            return None  # a stream of rows
        names, read_column = data.column_names, _declared_column
    elif fields := _fields(data):
        names = fields if getattr(data, "ndim", 0) else ()
    elif hasattr(data, "columns") and hasattr(data, "dtypes"):  # a frame
        names = data.columns
    elif hasattr(data, "column_names") and hasattr(data, "schema"):  # a table of Arrow
        names, read_column = data.column_names, _declared_column
    elif isinstance(getattr(data, "columns", None), Mapping):  # a kbert.data.Table
        names = data.columns
    else:
        return None
    names = list(names)
    if len(set(names)) < len(names):
        raise ValueError(f"Column names must be unique. Received: {names}")
    return {str(name): functools.partial(read_column, data, name) for name in names}


def _fields(data: Any) -> tuple[str, ...]:
    """Returns the field names of a structured NumPy array or of a row of it, () for other data."""
    names = getattr(getattr(data, "dtype", None), "names", None)
    return names if isinstance(names, tuple) else ()


def _is_hugging_face(data: Any) -> bool:
    """Returns whether `data` is a data set of `datasets`."""
    return hasattr(data, "column_names") and hasattr(data, "features")


def _is_column(data: Any) -> bool:
    """Returns whether `data` is a column of a data set of `datasets`."""
    return hasattr(data, "column_name") and hasattr(data, "source")


def _is_arrow(data: Any) -> bool:
    """Returns whether `data` is a table or a stream of pyarrow, which has batches of rows."""
    return hasattr(data, "read_next_batch") or (
        hasattr(data, "to_batches") and hasattr(data, "column_names")
    )


def arrow_features(schema: Any) -> Mapping[str, Any]:
    """Returns the features that `datasets` notes in the schema of an Arrow table; {} without any.

    Args:
        schema: schema of pyarrow. Files that `datasets` writes have the features as JSON in its
            metadata, under "huggingface".

    Raises:
        ValueError: the note is not valid.
    """
    note = (getattr(schema, "metadata", None) or {}).get(b"huggingface")
    if note is None:
        return {}

    def feature(fields: dict[str, Any]) -> Any:
        # Columns of a struct are a dict without a type.
        has_type = isinstance(fields.get("_type"), str)
        return types.SimpleNamespace(**fields) if has_type else fields

    try:
        return json.loads(note, object_hook=feature)["info"]["features"] or {}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            "The metadata 'huggingface' of an Arrow schema must be JSON with the features of "
            f"datasets under info/features. Received: {note!r:.80} ({error!r})"
        ) from error


def _declared_features(data: Any) -> Mapping[str, Any]:
    """Returns the features that a data set of `datasets` or a table of pyarrow declares."""
    return (data.features or {}) if _is_hugging_face(data) else arrow_features(data.schema)


def _declared_column(data: Any, name: str) -> list:
    """Returns a column of `datasets` or pyarrow as a list, with classes as names."""
    column = data.with_format(None)[name][:] if _is_hugging_face(data) else data[name]
    return by_names(_values(column), _declared_features(data).get(name), name)


def _rows_of_batches(data: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows of `datasets` or pyarrow as dicts, at constant memory."""
    features, start, batches = _declared_features(data), 0, data
    if _is_hugging_face(data):
        batches = data.with_format(None).iter(_ROWS)
    elif hasattr(data, "to_batches"):
        batches = data.to_batches(max_chunksize=_ROWS)
    for batch in batches:
        names = [*batch] if isinstance(batch, Mapping) else batch.schema.names
        place = functools.partial(_row_of_data, start)
        columns = [
            by_names(_values(batch[name]), features.get(name), name, place) for name in names
        ]
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))
            start += 1


def _row_of_data(start: int, row: int) -> str:
    return f"row {start + row} of the data"


def _feature_of(column: Any) -> Any:
    """Returns the feature that `datasets` declares for a column; None if it declares none."""
    features = _feature_of(column.source) if _is_column(column.source) else column.source.features
    return features.get(column.column_name) if isinstance(features, Mapping) else None


def _place_around(place: Callable[[int], str], row: int, _: int) -> str:
    return place(row)


def by_names(
    values: Iterable[Any],
    feature: Any,
    column: str,
    place: Callable[[int], str] | None = None,
) -> list:
    """Returns the values of a column of `datasets`, with classes as names (`ClassName`).

    Class numbers are kept if the names are just these numbers, or if no row has a class (-1, as in
    a test set).

    Args:
        values: values of the column.
        feature: what the data set declares for the column; None for nothing.
        column: name of the column, for messages.
        place: function from the number of a row to its place, for messages; None = rows of the
            data.

    Raises:
        ValueError: a number has no name; the message names the row.
    """
    place = place or functools.partial(_row_of_data, 0)
    names = getattr(feature, "names", None)
    if names is None:
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        if inner is None or isinstance(inner, Mapping):
            return list(values)
        return [
            None
            if entries is None
            else by_names(entries, inner, column, functools.partial(_place_around, place, row))
            for row, entries in enumerate(values)
        ]
    values = list(map(plain, values))
    if list(names) == [str(number) for number in range(len(names))] or set(values) <= {-1, None}:
        return values
    for row, value in enumerate(values):
        if isinstance(value, int) and not 0 <= value < len(names):
            raise ValueError(
                f"{place(row)}: {column!r} must be the number of one of {len(names)} classes, 0 to "
                f"{len(names) - 1}. Received: {value}"
            )
    return [ClassName(names[value], value) if isinstance(value, int) else value for value in values]


def _is_several(data: Any) -> bool:
    """Returns whether iterating over the data gives its values: False for one text or a table."""
    if _is_column(data):
        return True
    # Iterating over a table of an unknown library would give its column names.
    is_table = hasattr(data, "columns") or hasattr(data, "column_names")
    is_single = isinstance(data, str | bytes) or getattr(data, "ndim", 1) == 0 or is_table
    return (isinstance(data, Iterable) or hasattr(data, "to_list")) and not is_single


def _values(data: Any) -> Iterable[Any]:
    """Returns the values of a series, an array, a tensor or a column; keeps anything else."""
    if _is_column(data):
        values = _without_tensor(data[:]) if hasattr(type(data), "__len__") else data
        return by_names(values, _feature_of(data), data.column_name)
    for convert in ("to_pylist", "to_list"):  # Arrow, pandas and polars, ragged tensors
        if hasattr(data, convert):
            return getattr(data, convert)()
    return _without_tensor(data)


def _without_tensor(data: Any) -> Any:
    """Converts a tensor to an array; keeps anything else."""
    return data.numpy() if hasattr(data, "numpy") else data


def _row(value: Any) -> Any:
    """Converts a row of any library to Python: a dict if its fields have names."""
    if type(value) in (str, tuple, list, dict):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if names := _fields(value):
        return {name: value[name] for name in names}
    is_tensor = hasattr(value, "numpy") and not hasattr(value, "to_list")
    return value if isinstance(value, Mapping | tuple) or is_tensor else plain(value)


def _row_columns(rows: list, triplets: bool = False, start: int = 0) -> dict[str, list]:
    """Returns name -> values of rows: all texts, all pairs, all lists of words or all dicts.

    With `triplets` all rows may be tuples of three texts. Dicts with different keys, or tuples of
    another length, raise ValueError; `start` is the number of the first row in the message.
    """
    first = rows[0] if rows else ""
    if isinstance(first, Mapping):
        for number, row in enumerate(rows, start):
            if not isinstance(row, Mapping) or set(row) != set(first):
                received = sorted(row) if isinstance(row, Mapping) else f"{row!r:.80}"
                raise ValueError(
                    f"row {number} of the data: every row must have the columns "
                    f"{sorted(first)}. Received: {received}"
                )
        return {name: [row[name] for row in rows] for name in first}
    if not isinstance(first, tuple):
        return {"words" if isinstance(first, list) else "text": rows}
    size = 3 if triplets and len(first) == 3 else 2
    for number, row in enumerate(rows, start):
        if not isinstance(row, tuple) or len(row) != size:
            rule = "a pair must be a tuple of two texts"
            if triplets:
                rule = "rows must be pairs, tuples of two texts, or triplets, tuples of three"
            raise ValueError(f"row {number} of the data: {rule}. Received: {row!r:.80}")
    columns = {"first": [row[0] for row in rows], "second": [row[1] for row in rows]}
    if size == 3:
        columns["negatives"] = [[row[2]] for row in rows]
    return columns


def _dataset_columns(dataset: Any, triplets: bool) -> dict[str, list]:
    """Returns name -> values of a `tf.data.Dataset` of rows x, or of (x, label).

    The rows are those of `_row_columns`, with `triplets` too; batches are unbatched. An infinite
    data set raises ValueError.
    """
    if int(dataset.cardinality()) == -1:  # tf.data.INFINITE_CARDINALITY
        raise ValueError("The data set is infinite: take(n) rows of it, or remove repeat()")
    if _is_batched(dataset.element_spec):
        dataset = dataset.unbatch()
    spec = dataset.element_spec
    labelled = isinstance(spec, tuple)
    if labelled and len(spec) != 2:
        raise ValueError(f"Elements must be x or (x, y). Received: tuples of {len(spec)}")
    rows, labels = [], []
    for element in dataset.as_numpy_iterator():
        rows.append(_row(element[0] if labelled else element))
        if labelled:
            labels.append(element[1])
    columns = _row_columns(rows, triplets)
    if labelled:
        columns["labels" if "words" in columns else "label"] = labels
    return columns


def _is_batched(spec: Any) -> bool:
    """Returns whether the elements of this `element_spec` are batches of rows, not rows."""
    x = spec[0] if isinstance(spec, tuple) else spec
    if isinstance(x, Mapping):
        texts = [name for name in (*TEXT, *TEXT_LISTS) if name in x]
        return any((x[name].shape.rank or 0) > (name in TEXT_LISTS) for name in texts)
    if isinstance(x, tuple):  # a pair
        return any(side.shape.rank for side in x)
    y = spec[1] if isinstance(spec, tuple) and len(spec) == 2 else None
    # A vector of strings may be one row of words, with names or indices as labels. Float labels
    # show that it is a batch of texts.
    return x.shape.rank == 2 or bool(y is not None and y.shape.rank and y.dtype.is_floating)


def check_order(values: object, what: str) -> None:
    """Raises for a set: texts, labels and answers are matched by their order.

    Args:
        values: the values to check. The keys, values and items of a dict have an order; a set and
            a frozenset have none.
        what: name of the values in the error message, in the singular.

    Raises:
        ValueError: the values have no order.

    Example:
        >>> check_order({"a": 1}.keys(), "The column 'text'")
    """
    if isinstance(values, Set) and not isinstance(values, Reversible):
        raise ValueError(
            f"{what} must have an order, as texts, labels and answers are matched by position. "
            f"Received: a {type(values).__name__}, which has none; use sorted(…)"
        )


def is_dataset(data: Any) -> bool:
    """Returns whether `data` is a `tf.data.Dataset`, without importing TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(data, tensorflow.data.Dataset)
