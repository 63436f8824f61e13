"""Reads files of a named task as tables; for generic tasks the user maps the columns.

`columns` maps kbert's name of a column (see `kbert.data.Table`) to the file's name:

    {"text": "review", "label": "stars"}                    one text, any kind of label
    {"first": "question1", "second": "question2"}           a pair
    {"label": ["toxic", "insult"]}                          "multilabel", a 0/1 column a label
    {"choices": ["ending0", "ending1"], "label": "gold"}    "choose", a column a choice
    {"labels": 3}                                           columns of tags, counted from 0
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from kbert.catalog.named_tasks import NamedTask
from kbert.core.types import PathLike
from kbert.data import Table, as_table
from kbert.experiments.readers import READERS, Columns, Files, data_set, parts_by_columns
from kbert.io import fingerprints
from kbert.io.progress import Progress
from kbert.tasks.fine_tuning.labels import class_names


def read(
    named: NamedTask,
    data: Any,
    *,
    split: str | None = None,
    columns: Columns | None = None,
    label_separator: str = ",",
    others: Sequence[str] = (),
) -> Table:
    """Reads the table of a path, or of data in memory.

    Args:
        named: the task.
        data: a path, a pattern or a `tfds:` name for the task's reader, or data for
            `kbert.data.as_table`.
        split: "train", "dev" or "test", for a folder of a benchmark or a `tfds:` name without a
            split.
        columns: kbert's name of a column -> the file's name, see above; not for benchmarks, whose
            layout is fixed.
        label_separator: separator between the labels of a text in a file, for "multilabel".
        others: further columns to read from the file, such as the weights of the examples.

    Returns:
        A table whose classes are names: integers are converted to text.

    Raises:
        ValueError: a file or a row is invalid; the message has file and line.
    """
    task = named.task_class
    if isinstance(data, str | os.PathLike):
        files = _files(named, data, columns, label_separator, others, split)
        reader = data_set if files.path.startswith("tfds:") else READERS[named.reader]
        columns, table = files.columns, reader(files)
    else:
        columns = _own_label(named, columns)
        table = _rename(as_table(data), columns)
    return task.adapt_table(table, columns, named.fixed)


class TableParts:
    """Training data in files that are read in parts, whenever an object is iterated over.

    The constructor reads all files once, to count rows and find classes.

    Args:
        named: the task.
        path: a file or pattern of CSV, TSV, JSON lines, lines of text, Parquet or Arrow.
        columns: kbert's name of a column -> the file's name.
        label_separator: separator between the labels of a text.
        others: further columns to read from the file, such as the weights of the examples.

    Attributes:
        head: the first part, some thousand rows.
        checksum: CRC-32 of all rows.
        places: label -> file and line of the first row with this label.

    Raises:
        ValueError: the files of the task have another layout, or a row is invalid.

    Example:
        >>> import tempfile
        >>> from kbert.experiments import named_task
        >>> path = os.path.join(tempfile.mkdtemp(), "train.csv")
        >>> with open(path, "w") as file:
        ...     _ = file.write("text,label\\nGood,5\\nBroke,1\\n")
        >>> parts = TableParts(named_task("classify"), path)
        >>> len(parts), list(parts.places), [part["text"] for part in parts]
        (2, ['5', '1'], [['Good', 'Broke']])
    """

    def __init__(
        self,
        named: NamedTask,
        path: Any,
        columns: Columns | None = None,
        label_separator: str = ",",
        others: Sequence[str] = (),
    ) -> None:
        if not isinstance(path, str | os.PathLike) or named.reader != "columns":
            raise ValueError(
                "Only CSV, TSV, JSON lines, lines of text, Parquet and Arrow can be read in parts, "
                "for tasks that name their columns, such as classify and regress. Received: "
                f"{path!r:.80} for {named.name}"
            )
        self._named = named
        self._files = _files(named, path, columns, label_separator, others)
        self.places: dict[str, str] = {}
        self._size = self.checksum = 0
        with Progress("reading", None, " rows", verbose="auto") as progress:
            for part in self:  # the reader raises for a file without rows
                if not self._size:
                    self.head = part
                self._size += len(part)
                self.checksum = fingerprints.crc32([str(part.checksum)], self.checksum)
                self.places = {**_places(part, named), **self.places}
                progress.show(self._size)

    def __iter__(self) -> Iterator[Table]:
        adapt = self._named.task_class.adapt_table
        for table in parts_by_columns(self._files):
            yield adapt(table, self._files.columns, self._named.fixed)

    def __len__(self) -> int:
        return self._size


def labels_of(table: Table | TableParts, named: NamedTask) -> list[str] | None:
    """Returns the classes in training data; None for tasks without classes.

    They are sorted: "O" first, then numbers by value, then other names.
    """
    if not named.has_classes:
        return None
    places = label_places(table, named)
    return class_names([*places]) if places else []


def label_places(table: Table | TableParts, named: NamedTask) -> dict[str, str]:
    """Returns class -> file and line of its first row; {} for data without labels."""
    return table.places if isinstance(table, TableParts) else _places(table, named)


def _places(table: Table, named: NamedTask) -> dict[str, str]:
    """Returns class -> file and line of its first row; {} without classes or labels."""
    if not named.has_classes or named.task_class.columns.label not in table:
        return {}
    rows: dict[str, int] = {}
    for row, labels in enumerate(table[named.task_class.columns.label]):
        for label in labels if isinstance(labels, list) else [labels]:
            rows.setdefault(label, row)
    return {label: table.place(row) for label, row in rows.items()}


def _files(
    named: NamedTask,
    path: PathLike,
    columns: Columns | None,
    label_separator: str,
    others: Sequence[str],
    split: str | None = None,
) -> Files:
    """Returns the description of a task's files for its reader.

    Args:
        named: the task.
        path: a file, a pattern, a folder or a `tfds:` name.
        columns: kbert's name of a column -> the file's name, or None.
        label_separator: separator between the labels of a text.
        others: further columns to read.
        split: "train", "dev" or "test", for a folder of a benchmark or a `tfds:` name without a
            split.

    Raises:
        ValueError: columns are named for a benchmark, whose layout is fixed, or a separator of
            labels is given for a task with one label per text.
    """
    columns = _own_label(named, columns)
    if label_separator != "," and not named.task_class.takes_label_lists(named.fixed):
        raise ValueError(
            "`label_separator` requires a task with any number of labels per text, such as "
            f"multilabel. Received: label_separator={label_separator!r} and {named.name}"
        )
    if columns and named.is_benchmark:
        raise ValueError(
            f"The columns of {named.name}'s files are fixed; for files with others use the tasks "
            f"classify, multilabel, regress, tag, answer and choose. Received: {columns}"
        )
    return Files(
        path=os.fspath(path),
        name=named.name,
        task=named.task_class,
        settings=named.fixed,
        columns=columns,
        split=split,
        label_separator=label_separator,
        others=others,
    )


def _own_label(named: NamedTask, columns: Columns | None) -> dict[str, Any]:
    """Returns the columns with the key "label" replaced by the task's name for the label.

    Raises:
        ValueError: the task has no column of a key.
    """
    columns, own = dict(columns or {}), named.task_class.columns
    if "label" in columns:
        columns[own.label] = columns.pop("label")
    own.check_names(columns, named.name)
    return columns


def _rename(table: Table, columns: dict) -> Table:
    """Renames a table's columns to kbert's names; columns that have these names stay."""
    names = {theirs: ours for ours, theirs in columns.items() if isinstance(theirs, str)}
    return table.rename({theirs: x for theirs, x in names.items() if x not in table})
