"""Readers of the files of named tasks: benchmarks by their layouts, other files by columns."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kbert.catalog.glue import GLUE
from kbert.data import Table
from kbert.data.readers import (
    read_choices,
    read_conll,
    read_conllu,
    read_glue,
    read_squad,
    read_super_glue,
    read_table as read_named_columns,
    read_tfds,
    table_parts,
)
from kbert.data.readers.tfds import find_data_set
from kbert.io.paths import is_dir
from kbert.tasks import TableTask
from kbert.text.files import COLUMNAR

Columns = Mapping[str, str | int | Sequence[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
    """Files of a task.

    Attributes:
        path: a file, a pattern, a folder or a `tfds:` name, as the reader takes it.
        name: name of the named task.
        task: class of the task.
        settings: arguments of the task's constructor, as far as they are known.
        columns: kbert's name of a column -> the file's name.
        split: "train", "dev" or "test", for a folder of a benchmark, or a data set.
        label_separator: separator between the labels of a row, for tasks with any number of labels.
        others: columns to read in addition to the task's, by the file's name.
    """

    path: str
    name: str
    task: type[TableTask]
    settings: Mapping[str, Any]
    columns: dict[str, Any]
    split: str | None = None
    label_separator: str = ","
    others: Sequence[str] = ()


def by_columns(files: Files) -> Table:
    """Reads CSV, TSV, JSON lines, lines of text, Parquet, Arrow or a TensorFlow data set."""
    options, names = _reading(files)
    return read_named_columns(files.path, **options).rename(names)


def parts_by_columns(files: Files) -> Iterator[Table]:
    """Yields the rows that `by_columns` reads, as tables of some thousand rows."""
    options, names = _reading(files)
    return (table.rename(names) for table in table_parts(files.path, **options))


def _reading(files: Files) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the arguments of `read_table`, and the columns to rename in the table it returns."""
    task, label = files.task, files.task.columns.label
    columns = _complete(files)
    optional = set(task.columns.optional) - set(files.columns)
    several = task.takes_label_lists(files.settings)
    separated = several and not isinstance(files.columns.get(label), list | tuple)
    converted = label != "label" and (separated or task.columns.numeric)
    if converted and columns is not None:  # readers convert labels only under the name "label"
        columns = {("label" if name == label else name): x for name, x in columns.items()}
    elif converted:
        named = (*task.columns.inputs[0], *files.others)
        columns = {"label": label, **{name: name for name in named}}
    options = {
        "columns": columns,
        "optional": optional,
        "numeric_labels": task.columns.numeric,
        "label_separator": files.label_separator if separated else None,
    }
    return options, {"label": label} if converted else {}


def glue(files: Files) -> Table:
    """Reads a file or the folder of a GLUE task."""
    split = files.split if is_dir(files.path) else None
    on_error = "count" if GLUE[files.name].has_malformed_rows else "raise"
    return read_glue(files.name, files.path, split=split, on_error=on_error)


def super_glue(files: Files) -> Table:
    """Reads a file or the folder of a SuperGLUE task."""
    split = files.split if is_dir(files.path) else None
    return read_super_glue(files.name, files.path, split=split)


def data_set(files: Files) -> Table:
    """Reads a data set of TensorFlow Datasets: by its layout, or by the names of its features."""
    split = None if ":" in files.path.removeprefix("tfds:") else files.split
    columns = files.columns | {name: name for name in files.others}
    path, _, layout = find_data_set(files.path, split=split, task=files.name, columns=columns)
    if layout is not None:
        return read_tfds(path, task=files.name, columns=columns)
    table = by_columns(dataclasses.replace(files, path=path))
    if files.task.columns.found_in(table.columns) is None:
        raise ValueError(
            f"{path} has no known layout: name the features with the {files.task.columns.rule} of "
            f"{files.name}. Received: the features {list(table.columns)}"
        )
    return table


def choices(files: Files) -> Table:
    """Reads a multiple-choice benchmark, in its own format."""
    return read_choices(files.path, format=files.name)


def squad(files: Files) -> Table:
    """Reads SQuAD's JSON."""
    return read_squad(files.path)


def squad_or_columns(files: Files) -> Table:
    """Reads SQuAD's JSON, or JSON lines, Parquet and Arrow by columns."""
    if _has_columns(files.path):
        return by_columns(files)
    _check_names(files.columns, (), "SQuAD's JSON")
    return read_squad(files.path)


def tagged(files: Files, column: int = -1) -> Table:
    """Reads files of tagged words.

    A name with `.jsonl` means JSON lines, one with `.parquet`, `.arrow` or `.feather` a file of
    columns, one with `.conllu` CoNLL-U, any other columns of CoNLL.

    Args:
        files: the files; `columns["labels"]` names the column of the tags.
        column: column of the tags in a CoNLL file, if the user names none; negative numbers count
            from the last.
    """
    if _has_columns(files.path):
        return by_columns(files)
    _check_names(files.columns, ("labels",), "a file of tagged words")
    if ".conllu" in files.path:
        return read_conllu(files.path, column=files.columns.get("labels", "upos"))
    name = str(files.columns.get("labels", column))
    if not name.removeprefix("-").isdecimal():
        raise ValueError(
            "The column of the tags must be a number from 0, or -1 for the last. Received: "
            f"{name!r}"
        )
    return read_conll(files.path, column=int(name))


# Readers by the names that named tasks use (`kbert.catalog.named_tasks`).
READERS: dict[str, Callable[[Files], Table]] = {
    "columns": by_columns,
    "glue": glue,
    "super_glue": super_glue,
    "choices": choices,
    "squad": squad,
    "squad_or_columns": squad_or_columns,
    "tagged": tagged,
    "tagged_second": functools.partial(tagged, column=1),
}


def _has_columns(path: str) -> bool:
    """Returns whether a path or pattern is that of files with a task's columns."""
    return any(suffix in path for suffix in (".jsonl", *COLUMNAR))


def _complete(files: Files) -> dict[str, Any] | None:
    """Returns all columns to read: kbert's name -> the file's name; None = all columns.

    Columns that the user does not name keep their own names. Several columns that become one are
    read under the file's names.
    """
    if not files.columns:
        return None
    columns = files.task.columns
    file_names = {name: name for name in (*columns.usual, *columns.optional)}
    for names in columns.inputs[1:]:
        if set(names) & set(files.columns):  # the file has another set of input columns
            file_names = {
                name: x for name, x in file_names.items() if name not in columns.inputs[0]
            }
            file_names |= {name: name for name in names}
    file_names = {name: name for name in files.others} | file_names | files.columns
    # Several columns that become one are read under their own names.
    several = {n: x for n, x in file_names.items() if isinstance(x, list | tuple)}
    single = {n: x for n, x in file_names.items() if n not in several}
    return single | {name: name for names in several.values() for name in names}


def _check_names(columns: dict, names: Sequence[str], what: str) -> None:
    """Raises ValueError for named columns that the file format does not have.

    Args:
        columns: kbert's name of a column -> the file's name, as the user names them.
        names: names of columns that the format supports.
        what: name of the format, for the message.
    """
    if unknown := {name: x for name, x in columns.items() if name not in names}:
        raise ValueError(
            f"The only columns that can be named for {what} are {list(names)}. Received: {unknown}"
        )
