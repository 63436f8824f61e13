"""Weights of examples in the loss."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.tasks.columns import Columns

SAMPLE_WEIGHT = "sample_weight"  # the column of weights that come as an array
# Columns that may be meant as such.
_LIKELY = ("weight", "weights", SAMPLE_WEIGHT, "sample_weights")


def split_weights(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Settings of a `fit` with the name of the column of weights, and the array that it gets.

    Example:
        >>> split_weights({"epochs": 1, "sample_weight": [1.0, 0.0]})
        ({'epochs': 1, 'sample_weight': 'sample_weight'}, [1.0, 0.0])
    """
    weights = settings.get(SAMPLE_WEIGHT)
    if weights is None or isinstance(weights, str):
        return dict(settings), None
    return {**settings, SAMPLE_WEIGHT: SAMPLE_WEIGHT}, weights


def check_column(table: Table, name: str | None, columns: Columns) -> None:
    """Raises where a column of weights is missing, or is there and was not asked for.

    Args:
        table: the training data.
        name: the column of weights; None = no weights.
        columns: those of the task.

    Raises:
        ValueError: the table has no such column, or one that looks like weights.
    """
    if name is not None:
        table[name]
        return
    known = {*columns.usual, *(x for names in columns.inputs for x in names)}
    for likely in _LIKELY:
        if likely in table and likely not in known:
            raise ValueError(
                f"A column {likely!r} could be the weights of the examples, or something else: "
                f'fit(…, sample_weight="{likely}") weighs the loss by it; for something else give '
                f"it another name or leave it out. Received: the columns {list(table.columns)}"
            )


def example_weights(table: Table, name: str) -> np.ndarray:
    """(N,) float32, what the rows of a table count.

    Args:
        table: with that column, of numbers, which may be written out as a file has them.
        name: the column's name.

    Raises:
        ValueError: a value that is no finite number of 0 or more, by its row; or all are 0.

    Example:
        >>> example_weights(Table({"text": ["a", "b"], "weight": [1, "0.5"]}), "weight").tolist()
        [1.0, 0.5]
    """
    weights = checked_weights(table, name)
    if not weights.any():
        raise ValueError(
            "Some example must count in the loss. "
            f"Received: {name!r} of {len(weights)} rows, all of them 0"
        )
    return weights


def checked_weights(table: Table, name: str) -> np.ndarray:
    """`example_weights` of a part of a table, where all may be 0."""
    found = [_number(value) for value in table[name]]
    for row, number in enumerate(found):
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(
                f"{table.place(row)}: {name!r} must be a number of 0 or more, what the example "
                f"counts in the loss. Received: {table[name][row]!r:.80}"
            )
    return np.array(found, np.float32)


def weigh_examples(rows: Rows, weights: np.ndarray) -> Rows:
    """The rows with `label_weights` times what their examples count.

    Args:
        rows: those of a table.
        weights: (N,), of the table's rows.
    """
    of_rows = weights[rows.examples]
    if "label_weights" in rows.ragged:  # a weight for each token
        own = rows.ragged["label_weights"]
        of_tokens = np.repeat(of_rows, np.asarray(own.row_lengths()))
        values = tf.cast(own.values, tf.float32) * of_tokens
        ragged = {**rows.ragged, "label_weights": own.with_values(values)}
        return dataclasses.replace(rows, ragged=ragged)
    own = np.asarray(rows.dense.get("label_weights", np.ones(len(rows), np.float32)))
    weighted = own * of_rows.reshape(-1, *[1] * (own.ndim - 1))
    dense = {**rows.dense, "label_weights": weighted.astype(np.float32)}
    return dataclasses.replace(rows, dense=dense)


def _number(value: Any) -> float:
    """NaN for what is none; True and False are none either."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan
