"""Reads GLUE's published files: tab-separated, without quoting, most with a header."""

import os

from absl import logging

from kbert.catalog.glue import GlueTask
from kbert.catalog.super_glue import SuperGlueTask
from kbert.core.types import PathLike
from kbert.data.readers.content import DataFile, warn_of
from kbert.data.readers.glue_tasks import glue_task
from kbert.data.tables.table import Table
from kbert.io.paths import is_dir, is_file

# Other headers in copies of the data.
_PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"))
# Files without a header: number of columns -> (column of the text, column of the label).
# Four is CoLA (source, label, the author's mark, sentence), two is a sentence and its label.
_HEADERLESS = {4: (3, 1), 2: (0, 1)}


def read_glue(
    task: str, path: PathLike, *, split: str | None = None, on_error: str = "raise"
) -> Table:
    """Reads a split of a GLUE task (or SNLI) from the published files.

    The columns are `text`, or `first` and `second`; `label` if the file has labels (names from
    `glue_task(task).labels`, numbers for STS-B); `id` if it has an index. Pairs without a gold
    label (SNLI's "-") are left out, counted and logged.

    Args:
        task: "CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI" (matched), "MNLI-mm" (mismatched),
            "QNLI", "RTE", "WNLI", "AX" or "SNLI"; case and hyphens do not matter.
        path: a file; or the task's folder or the folder of all tasks, together with `split`.
        split: "train", "dev" or "test", if `path` is a folder.
        on_error: "raise" stops at a malformed row; "count" skips malformed rows, and logs their
            number and lines. QQP's published train.tsv has some: rows that a line break splits.

    Raises:
        FileNotFoundError: the folder lacks the file.
        ValueError: a malformed row, an unknown task, or the header of another task.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "dev.tsv")
        >>> with open(path, "w") as file:
        ...     _ = file.write("sentence\\tlabel\\nA gem .\\t1\\n")
        >>> read_glue("SST-2", path).columns
        {'text': ['A gem .'], 'label': ['positive']}
    """
    if on_error not in ("raise", "count"):
        raise ValueError(f"on_error must be 'raise' or 'count'. Received: {on_error!r}")
    described = glue_task(task)
    path = split_file(described, os.fspath(path), split)
    numbered = [(line, text.split("\t")) for line, text in DataFile(path).lines() if text]
    if not numbered:
        raise ValueError(f"{path} holds no rows")
    positions, has_header = _places(described, path, numbered[0][1])
    width = len(numbered[0][1])
    columns: dict[str, list] = {name: [] for name in positions}
    lines = []
    malformed, without_gold = [], 0
    for line, fields in numbered[has_header:]:
        try:
            row = _row(described, fields, positions, width)
        except ValueError as error:
            if on_error == "raise":
                raise ValueError(f"{path}, line {line}: {error}") from None
            malformed.append(line)
            continue
        if row.get("label") == "-":
            without_gold += 1
            continue
        for name, value in row.items():
            columns[name].append(value)
        lines.append(line)
    warn_of(path, "malformed rows are skipped, at the lines", malformed)
    if without_gold:
        logging.warning("%s: %d rows have no gold label and are skipped", path, without_gold)
    if not lines:
        raise ValueError(f"{path} holds no rows below its header")
    return Table(columns, source=path, lines=lines)


def split_file(task: GlueTask | SuperGlueTask, path: str, split: str | None) -> str:
    """Returns the path of a file: `path` itself, or in a folder the file of the split.

    Raises:
        ValueError: `split` is given for a file, or the task has no such split.
        FileNotFoundError: the folder lacks the file, plain and as `.gz`.
    """
    if not is_dir(path):
        if split is not None:
            raise ValueError(
                f"split requires a folder. Received: the file {path} and split={split!r}"
            )
        return path
    if split not in task.files:
        raise ValueError(
            f"{task.name} in a folder has the splits {list(task.files)}. Received: split={split!r}"
        )
    name = task.files[split]
    # The diagnostic set has been published in each of these folders.
    folders = ("", task.name, "MNLI", "diagnostic") if task.name == "AX" else ("", task.name)
    candidates = [os.path.join(path, folder, name) for folder in folders]
    for candidate in (*candidates, *(f"{file}.gz" for file in candidates)):
        if is_file(candidate):
            return candidate
    raise FileNotFoundError(f"None of these files exists (nor with .gz): {candidates}")


def _places(task: GlueTask, path: str, first: list[str]) -> tuple[dict[str, int], bool]:
    """Returns name in the table -> index of the file's column, and whether the file has a header.

    `first` has the fields of the first row of the file at `path`. A file without the task's columns
    raises ValueError.
    """
    header = [name.lower() for name in first]
    columns = ("first", "second") if task.is_pair else ("text",)
    text_headers = (tuple(map(str.lower, task.texts)), *(_PAIRS if task.is_pair else ()))
    for texts in text_headers:
        if set(texts) <= set(header):
            positions = {
                name: header.index(text) for name, text in zip(columns, texts, strict=True)
            }
            for name in ("index", "id"):
                if name in header:
                    positions = {"id": header.index(name), **positions}
            for label in (task.label_header.lower(), "label"):
                if label in header and "label" not in positions:
                    positions["label"] = header.index(label)
            return positions, True
    if not task.is_pair and len(first) in _HEADERLESS:
        text, label = _HEADERLESS[len(first)]
        if first[label] in task.values.values():
            return {"text": text, "label": label}, False
    raise ValueError(
        f"{path}, line 1: the header of a file of {task.name} must have {list(task.texts)} and, "
        f"if the file is labelled, {task.label_header!r}. Received: {first!s:.200}"
    )


def _row(
    task: GlueTask, fields: list[str], places: dict[str, int], width: int
) -> dict[str, str | float]:
    """Returns a row of a task's file as name in the table -> value.

    Args:
        task: the task.
        fields: fields of the row.
        places: name in the table -> position of the field.
        width: number of fields of the file's first row.

    Raises:
        ValueError: the row has another number of fields, or an invalid label.
    """
    # SNLI's train.tsv has the labels of five annotators in some rows, but of one in the other rows
    # and in the header. The gold label is always the last column.
    has_extra_labels = task.name == "SNLI" and len(fields) == width + 4
    if len(fields) != width and not has_extra_labels:
        raise ValueError(
            f"the row has {len(fields)} columns, the first row has {width}. "
            f"Received: {fields!s:.80}"
        )
    row: dict[str, str | float] = {name: fields[position] for name, position in places.items()}
    if has_extra_labels:
        row["label"] = fields[-1]
    if "label" in row and row["label"] != "-":
        row["label"] = _label(task, str(row["label"]))
    return row


def _label(task: GlueTask, value: str) -> str | float:
    """Returns the label in a file as the name of its class, or as a float for regression.

    Raises:
        ValueError: it is not a number, or not a class of the task.
    """
    if task.is_regression:
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"the score must be a number. Received: {value!r:.80}") from None
    for name, file_value in task.values.items():
        if value in (file_value, name):
            return name
    raise ValueError(
        f"the label must be one of {list(task.values.values())}. Received: {value!r:.80}"
    )
