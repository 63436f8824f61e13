"""Rows of a task on disk: a table larger than memory, tokenised once for training."""

import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any

from kbert.core.in_memory import rows_of
from kbert.core.types import PathLike
from kbert.data.readers.tables import PART_ROWS, table_parts
from kbert.data.tables.rows import Rows
from kbert.data.tables.shards import StoredRows, read_rows, write_rows
from kbert.data.tables.table import Table, as_table
from kbert.io.paths import is_dir
from kbert.io.progress import Progress
from kbert.tasks.fine_tuning.sample_weights import check_column, checked_weights, weigh_examples


def prepare_rows(
    task: Any,
    data: Any,
    folder: PathLike,
    *,
    sample_weight: str | None = None,
    class_weights: Mapping[str, float] | None = None,
    verbose: str | int = "auto",
) -> StoredRows:
    """Tokenises labelled examples into shards on disk, which `task.fit(folder)` trains on.

    For tables larger than memory: only some thousand examples are in memory at a time. After an
    interruption, the same call reads the data again and writes the missing shards. For a finished
    folder it checks that the data is the same.

    Args:
        task: task to train. Only its tokenizer and the settings that rows depend on matter, such
            as `max_length` and `labels`; encoder and head do not.
        data: a file that `kbert.data.read_table` reads, or a pattern of files; an iterator of
            tables (for a file with other column names use `kbert.data.table_parts`); or
            examples in the form of `fit`, also as an iterator. A repeated call needs the same data.
        folder: folder for the shards.
        sample_weight: column with the weight of each example in the loss.
        class_weights: weight of the examples of each class, by name.
        verbose: "auto" = progress if it takes longer than a moment, 0 = none.

    Returns:
        The rows, opened as by `kbert.data.read_rows`.

    Raises:
        ValueError: data or settings do not fit (bad data is named by file and line); the folder
            has rows of other data or settings; or the task's rows depend on the whole table.

    Example:
        >>> import tempfile, kbert
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=9))
        >>> tokenizer = kbert.WordPieceTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] a b c d".split())
        >>> task = kbert.tasks.TextClassifier(encoder, tokenizer, labels=["no", "yes"])
        >>> examples = ({"text": "a b " * (i % 3), "label": "yes"} for i in range(10_000))
        >>> rows = prepare_rows(task, examples, tempfile.mkdtemp())
        >>> len(rows), rows.first(2).ragged["first"].to_list()
        (10000, [[], [5, 6]])
        >>> history = task.fit(rows.folder, epochs=1, batch_size=5000, verbose=0)
    """
    if not task.prepares_rows:
        raise ValueError(
            "prepare_rows() is not supported by this task, which requires the whole table at "
            f"once: train it on a table in memory. Received: a {type(task).__name__}"
        )
    if isinstance(class_weights, str):
        raise ValueError(
            "class_weights of rows on disk must be a dict of weights by label: the balance of the "
            "classes is unknown until all rows are written. Received: "
            f"class_weights={class_weights!r}"
        )

    def tokenize(table: Table) -> Rows:
        check_column(table, sample_weight, task.columns)
        rows = task.tokenize(table, labelled=True)
        if class_weights is not None:
            rows = task.weigh_classes(rows, class_weights)
        if sample_weight is not None:
            rows = weigh_examples(rows, checked_weights(table, sample_weight))
        return rows

    weights = {"sample_weight": sample_weight, "class_weights": class_weights}
    identity = {**_identity(task), "weights": weights}
    with Progress("tokenising", None, " examples", verbose=verbose) as progress:
        return write_rows(folder, _counted(_parts(task, data), progress), tokenize, identity)


def stored_rows(task: Any, data: Any) -> StoredRows | None:
    """Opens rows on disk if `data` is a folder of rows; returns None for all other data.

    Raises:
        ValueError: the rows were prepared for another task or tokenizer.
    """
    if isinstance(data, str | os.PathLike) and is_dir(data):
        data = read_rows(data)
    if not isinstance(data, StoredRows):
        return None
    data.check(_identity(task))
    return data


def _identity(task: Any) -> dict[str, Any]:
    """Returns the settings of task and tokenizer that its tokenised rows depend on, as a dict."""
    hidden = {n for n in task.options.names() if not task.options.details(n).of_rows}
    record = {name: value for name, value in task.record.items() if name not in hidden}
    tokenizer = task.tokenizer
    return {
        "task": {**record, "row_length": task.row_length},
        "tokenizer": {
            "kind": tokenizer.kind,
            "checksum": tokenizer.checksum,
            **tokenizer.settings,
        },
    }


def _counted(parts: Iterator[Table], progress: Progress) -> Iterator[Table]:
    count = 0
    for part in parts:
        yield part
        count += len(part)
        progress.show(count)


def _parts(task: Any, data: Any) -> Iterator[Table]:
    """Yields the argument `data` of `prepare_rows` as tables, in order.

    A `Table`, a tuple of data and labels, and each table of an iterator stay whole. All other data,
    such as a file, are cut into tables of at most 4,096 rows.
    """
    if isinstance(data, str | os.PathLike):
        data = table_parts(data)
    if isinstance(data, tuple):  # of data and labels
        data = task.as_table(data)
    if isinstance(data, Table):
        data = iter([data])
    if isinstance(data, Iterator):
        first = list(itertools.islice(data, 1))
        data = itertools.chain(first, data)
        if first and isinstance(first[0], Table):
            yield from map(task.as_table, data)
            return
    rows, begin = rows_of(data), 0
    while examples := list(itertools.islice(rows, PART_ROWS)):
        yield task.as_table(as_table(examples, start=begin))
        begin += len(examples)
