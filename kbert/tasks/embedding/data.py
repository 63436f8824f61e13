"""Training targets and retrieval scores of an embedder, from tables.

Shapes: N examples, B rows of a batch, A negatives (of the row with the most), D embedding width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbert import metrics
from kbert.core.in_memory import has_columns, number_of
from kbert.core.late import tf
from kbert.data.tables.table import Table
from kbert.search.exact import unit
from kbert.search.index import Index

NUMBERS = "_number"  # suffix of the columns with the number of each text
TARGETS = "vector"  # column of a teacher's embeddings
RETRIEVAL = ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10")


def number_texts(columns: Mapping[str, Sequence]) -> dict[str, Any]:
    """Numbers the texts of all columns from 0; equal texts get the same number.

    Returns NAME_number -> (N,) int32 for each column, (N, ragged) for one of lists of texts.
    """
    numbers: dict[str, int] = {}
    numbered: dict[str, Any] = {}
    for name, column in columns.items():
        key = name + NUMBERS
        if not column or isinstance(column[0], str):
            numbered[key] = np.array(
                [numbers.setdefault(x, len(numbers)) for x in column], np.int32
            )
        else:
            rows = [[numbers.setdefault(x, len(numbers)) for x in texts] for texts in column]
            numbered[key] = tf.ragged.constant(rows, tf.int32, row_splits_dtype=tf.int64)
    return numbered


def padded_numbers(numbers: tf.RaggedTensor) -> tf.Tensor:
    """Pads numbers (B, ragged) with -1 to (B, A), with at least one column."""
    dense = numbers.to_tensor(-1)
    padding = [[0, 0], [0, tf.cast(tf.shape(dense)[1] == 0, tf.int32)]]
    return tf.pad(dense, padding, constant_values=-1)


def scores_of(table: Table, objective: str) -> np.ndarray:
    """Returns the labels of pairs, their similarities, (N,) float32.

    Raises ValueError for a label that is no number or, if `objective` is "cosine", outside [-1, 1].
    """
    labels = list(map(number_of, table["label"]))
    for row, label in enumerate(labels):
        if not isinstance(label, int | float):
            raise ValueError(
                f"{table.place(row)}: the label of a pair must be a number, their similarity. "
                f"Received: {label!r:.80}"
            )
        if objective == "cosine" and not -1 <= label <= 1:
            raise ValueError(
                f"{table.place(row)}: labels must be between -1 and 1 for the objective cosine, "
                "which compares them with cosines: divide scores by the largest, or use cosent, "
                f"which compares only their order. Received: {label!r:.80}"
            )
    return np.array(labels, np.float32)


def teacher_vectors(table: Table, width: int) -> np.ndarray:
    """Returns a teacher's embeddings, the column `vector`, (N, D) float32.

    Raises ValueError unless each is a list of D = `width` finite numbers.
    """
    for row, vector in enumerate(table[TARGETS]):
        numbers = isinstance(vector, list) and all(isinstance(x, int | float) for x in vector)
        if not numbers or len(vector) != width or not np.isfinite(vector).all():
            raise ValueError(
                f"{table.place(row)}: a teacher's embedding must be a list of {width} finite "
                "numbers, the width of the task's embeddings (set by `projection`). "
                f"Received: {vector!r:.80}"
            )
    return np.array(table[TARGETS], np.float32)


def retrieval(first: np.ndarray, second: np.ndarray, table: Table) -> dict[str, float]:
    """Returns scores of retrieving each row's second text among all distinct second texts.

    `first` and `second` are the embeddings of the table's texts, (N, D). If equal first texts have
    several second texts, all of these are relevant.
    """
    numbers: dict[str, int] = {}
    second_numbers = np.array([numbers.setdefault(text, len(numbers)) for text in table["second"]])
    _, distinct_rows = np.unique(second_numbers, return_index=True)
    relevant_by_text: dict[str, set[int]] = {}
    for text, number in zip(table["first"], second_numbers.tolist(), strict=True):
        relevant_by_text.setdefault(text, set()).add(number)
    relevant = [relevant_by_text[text] for text in table["first"]]
    retrieved = Index(second[distinct_rows]).search(first, k=min(10, len(distinct_rows))).ids
    return {
        "ndcg_at_10": metrics.ndcg(relevant, retrieved),
        "mrr_at_10": metrics.mrr(relevant, retrieved),
        "recall_at_1": metrics.recall(relevant, retrieved, k=1),
        "recall_at_10": metrics.recall(relevant, retrieved),
    }


def cosines_of(first: Any, second: Any) -> np.ndarray:
    """Returns the cosines (…,) of embeddings (…, D)."""
    return (unit(first) * unit(second)).sum(-1)


def are_vectors(data: Any) -> bool:
    """Returns whether data is embeddings, (N, D) numbers in an array or lists, and not texts.

    >>> are_vectors([[0.5, 1.0]]), are_vectors([("a", "b")]), are_vectors({"text": ["a"]})
    (True, False, False)
    """
    if has_columns(data) or isinstance(data, str | bytes):
        return False
    if isinstance(data, list | tuple):
        data = data[:1]
    elif not hasattr(data, "shape"):
        return False
    array = np.asarray(data)
    return array.ndim == 2 and array.dtype.kind in "fiu"
