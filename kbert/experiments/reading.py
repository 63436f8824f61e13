"""Files of a named task as tables; in the generic tasks the user says which column is which.

`columns` maps our name of a column (see `kbert.data.Table`) to the file's:

    {"text": "review", "label": "stars"}                    one text, any kind of label
    {"first": "question1", "second": "question2"}           a pair
    {"label": ["toxic", "insult"]}                          "multilabel", a 0/1 column a label
    {"choices": ["ending0", "ending1"], "label": "gold"}    "choose", a column a choice
    {"labels": 3}                                           columns of tags, counted from 0
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kbert.data import Table, as_table
from kbert.data.readers import read_choices, read_conll, read_conllu, read_glue, read_squad
from kbert.data.readers import read_table as read_named_columns
from kbert.experiments.catalogue import CHOICE_FORMATS, NamedTask

_USUAL = {
    "TextClassifier": ("text", "label"),
    "TextRegressor": ("text", "label"),
    "TokenClassifier": ("words", "labels"),
    "QuestionAnswerer": ("question", "context", "answers", "answer_starts"),
    "MultipleChoice": ("context", "choices", "label"),
}

Columns = Mapping[str, str | int | Sequence[str]]


def read(
    named: NamedTask,
    data: Any,
    *,
    split: str | None = None,
    columns: Columns | None = None,
    label_separator: str = ",",
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

    Returns:
        A table whose classes are names: integers are written out.

    Raises:
        ValueError: a file or a row is not as it must be, by file and line.
    """
    columns = dict(columns or {})
    if named.kind == "TokenClassifier" and "label" in columns:
        columns["labels"] = columns.pop("label")
    if isinstance(data, str | os.PathLike):
        table = _read_path(named, os.fspath(data), split, columns, label_separator)
    else:
        table = _rename(as_table(data), columns)
    if named.kind == "MultipleChoice":
        table = _join_choices(table, columns)
    if named.multi_label:
        table = _join_labels(table, columns)
    elif "label" in table and named.kind == "TextClassifier":
        table = _with(table, "label", _names(table))
    return table


def labels_of(table: Table, named: NamedTask) -> list[str] | None:
    """The classes that occur in training data, sorted, "O" first; None for tasks without."""
    if not named.has_classes:
        return None
    if named.label_column not in table:
        return []  # a test set
    found = {label for labels in _labels(table, named) for label in labels}
    return sorted(found, key=lambda name: (name != "O", *_natural(name)))


def first_place(table: Table, label: str, named: NamedTask) -> str:
    """File and line of the first row that has a label."""
    rows = (row for row, labels in enumerate(_labels(table, named)) if label in labels)
    return table.place(next(rows))


def _labels(table: Table, named: NamedTask) -> list[Sequence[str]]:
    """The labels of every row, one or many."""
    labels = table[named.label_column]
    return [label if isinstance(label, list) else [label] for label in labels]


def _natural(name: str) -> tuple:
    """Numbers by their value, before all other names."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def _read_path(
    named: NamedTask, path: str, split: str | None, columns: dict, label_separator: str
) -> Table:
    if columns and named.is_benchmark:
        raise ValueError(
            f"The columns of {named.name}'s files are known; files with others are read by the "
            f"tasks classify, multilabel, regress, tag, answer and choose. Received: {columns}"
        )
    if named.glue:
        return read_glue(named.name, path, split=split if os.path.isdir(path) else None)
    if named.name in CHOICE_FORMATS:
        return read_choices(path, format=named.name)
    if named.name in ("squad", "squad2"):
        return read_squad(path)
    if named.kind == "TokenClassifier":
        return _read_tagged(named, path, columns)
    if named.kind == "QuestionAnswerer" and ".jsonl" not in path:
        _check_names(columns, (), "SQuAD's JSON")
        return read_squad(path)
    separated = named.multi_label and not isinstance(columns.get("label"), list | tuple)
    return read_named_columns(
        path,
        columns=_complete(named, columns),
        numeric_labels=named.kind == "TextRegressor",
        label_separator=label_separator if separated else None,
    )


def _complete(named: NamedTask, columns: dict) -> dict[str, str] | None:
    """All columns to read, the usual ones under their own names; None = whatever there is."""
    if not columns:
        return None
    wanted = {name: name for name in _USUAL[named.kind]}
    if "first" in columns:
        del wanted["text"]
    wanted |= columns
    # Several columns that are to be one are read by their own names.
    several = {n: x for n, x in wanted.items() if isinstance(x, list | tuple)}
    single = {n: x for n, x in wanted.items() if n not in several}
    return single | {name: name for names in several.values() for name in names}


def _read_tagged(named: NamedTask, path: str, columns: dict) -> Table:
    if ".jsonl" in path:
        return read_named_columns(path, columns=_complete(named, columns))
    _check_names(columns, ("labels",), "a file of tagged words")
    if ".conllu" in path:
        return read_conllu(path, column=columns.get("labels", "upos"))
    column = str(columns.get("labels", 1 if named.name == "pos" else -1))
    if not column.removeprefix("-").isdecimal():
        raise ValueError(
            f"The column of the tags is a number, from 0, or -1 for the last. Received: {column!r}"
        )
    return read_conll(path, column=int(column))


def _check_names(columns: dict, names: Sequence[str], what: str) -> None:
    """Names of columns that a file has no place for."""
    if unknown := {name: x for name, x in columns.items() if name not in names}:
        raise ValueError(
            f"Of {what} these columns can be named: {list(names)}. Received: {unknown}"
        )


def _rename(table: Table, columns: dict) -> Table:
    """Data in memory may have our names already, beside files with others."""
    names = {theirs: ours for ours, theirs in columns.items() if isinstance(theirs, str)}
    return table.rename({theirs: x for theirs, x in names.items() if x not in table})


def _join_choices(table: Table, columns: dict) -> Table:
    """A column a choice -> one column of lists; indices of choices as integers."""
    names = columns.get("choices")
    if isinstance(names, list | tuple):
        choices = [list(row) for row in zip(*(table[name] for name in names), strict=True)]
        table = _with(table, "choices", choices)
    if "label" not in table:
        return table
    labels = []
    for row, label in enumerate(table["label"]):
        if not str(label).isdecimal():
            raise ValueError(
                f"{table.place(row)}: the label is the number of the right choice, from 0. "
                f"Received: {label!r:.80}"
            )
        labels.append(int(label))
    return _with(table, "label", labels)


def _join_labels(table: Table, columns: dict) -> Table:
    """A column of 0 and 1 for each label -> one column of lists of names."""
    names = columns.get("label")
    if not isinstance(names, list | tuple):
        return table
    found = []
    for row in range(len(table)):
        values = {name: str(table[name][row]).strip() for name in names}
        bad = {name: value for name, value in values.items() if value not in ("0", "1")}
        if bad:
            raise ValueError(
                f"{table.place(row)}: a column of a label holds 0 or 1. Received: {bad}"
            )
        found.append([name for name, value in values.items() if value == "1"])
    return _with(table, "label", found)


def _names(table: Table) -> list[str]:
    """Classes by name: integers written out."""
    names = []
    for row, label in enumerate(table["label"]):
        if isinstance(label, float) and label.is_integer():  # pandas, beside a missing label
            label = int(label)
        if isinstance(label, float | list):
            raise ValueError(
                f"{table.place(row)}: a class is a name or an integer; numbers are for the task "
                f"regress, lists of names for multilabel. Received: {label!r:.80}"
            )
        names.append(str(label))
    return names


def _with(table: Table, name: str, column: list) -> Table:
    return Table({**table.columns, name: column}, source=table.source, lines=table.lines)
