"""Files of a named task as tables; in the generic tasks the user maps the columns.

`columns` maps our name of a column (see `kbert.data.Table`) to the file's:

    {"text": "review", "label": "stars"}                    one text, any kind of label
    {"first": "question1", "second": "question2"}           a pair
    {"label": ["toxic", "insult"]}                          "multilabel", a 0/1 column a label
    {"choices": ["ending0", "ending1"], "label": "gold"}    "choose", a column a choice
    {"labels": 3}                                           columns of tags, counted from 0
"""

import os
from collections.abc import Sequence
from typing import Any

from kbert.catalog.named_tasks import NamedTask
from kbert.data import Table, as_table
from kbert.experiments.readers import READERS, Columns, Files


def read(
    named: NamedTask,
    data: Any,
    *,
    split: str | None = None,
    columns: Columns | None = None,
    label_separator: str = ",",
    others: Sequence[str] = (),
) -> Table:
    """The table of a path, or of data in memory.

    Args:
        named: the task.
        data: a path, a pattern or `tfds:` name as the task's reader takes it, or what
            `kbert.data.as_table` takes.
        split: "train", "dev" or "test", of a folder of GLUE's.
        columns: our name of a column -> the file's, see above; not for benchmarks, whose files
            are known.
        label_separator: stands between the labels of a text in a file, for "multilabel".
        others: columns of the file that are wanted besides, such as the examples' weights.

    Returns:
        A table whose classes are names: integers are written out.

    Raises:
        ValueError: a file or a row is not as it must be, by file and line.
    """
    columns = dict(columns or {})
    task = named.task_class
    if "label" in columns:  # by whatever name the task has it
        columns[task.columns.label] = columns.pop("label")
    if isinstance(data, str | os.PathLike):
        if columns and named.is_benchmark:
            raise ValueError(
                f"The columns of {named.name}'s files are known; files with others are read by the "
                f"tasks classify, multilabel, regress, tag, answer and choose. Received: {columns}"
            )
        files = Files(
            path=os.fspath(data),
            name=named.name,
            task=task,
            settings=named.fixed,
            columns=columns,
            split=split,
            label_separator=label_separator,
            others=others,
        )
        table = READERS[named.reader](files)
    else:
        table = _rename(as_table(data), columns)
    return task.adapt_table(table, columns, named.fixed)


def labels_of(table: Table, named: NamedTask) -> list[str] | None:
    """The classes that occur in training data, sorted, "O" first; None for tasks without."""
    if not named.has_classes:
        return None
    if named.task_class.columns.label not in table:
        return []  # a test set
    found = {label for labels in _labels(table, named) for label in labels}
    return sorted(found, key=lambda name: (name != "O", *_natural(name)))


def first_place(table: Table, label: str, named: NamedTask) -> str:
    """File and line of the first row that has a label."""
    rows = (row for row, labels in enumerate(_labels(table, named)) if label in labels)
    return table.place(next(rows))


def _labels(table: Table, named: NamedTask) -> list[Sequence[str]]:
    """The labels of every row, one or many."""
    labels = table[named.task_class.columns.label]
    return [label if isinstance(label, list) else [label] for label in labels]


def _natural(name: str) -> tuple:
    """Numbers by their value, before all other names."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def _rename(table: Table, columns: dict) -> Table:
    """Data in memory may have our names already, next to files with others."""
    names = {theirs: ours for ours, theirs in columns.items() if isinstance(theirs, str)}
    return table.rename({theirs: x for theirs, x in names.items() if x not in table})
