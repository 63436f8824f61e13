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

SAMPLE_WEIGHT = "sample_weight"  # column for weights that are given as an array
# Names of columns that are probably weights.
_LIKELY = ("weight", "weights", SAMPLE_WEIGHT, "sample_weights")


def split_weights(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns the settings of `fit`, and the array of weights if `sample_weight` is one, else None.

    In the settings the array is replaced by the name of a column, to which the caller adds it.

    Example:
        >>> split_weights({"epochs": 1, "sample_weight": [1.0, 0.0]})
        ({'epochs': 1, 'sample_weight': 'sample_weight'}, [1.0, 0.0])
    """
    weights = settings.get(SAMPLE_WEIGHT)
    if weights is None or isinstance(weights, str):
        return dict(settings), None
    return {**settings, SAMPLE_WEIGHT: SAMPLE_WEIGHT}, weights


def check_column(table: Table, name: str | None, columns: Columns) -> None:
    """Checks that a requested column of weights exists, and that there is no unused one.

    Args:
        table: training data.
        name: column of weights; None = no weights.
        columns: columns of the task.

    Raises:
        ValueError: the table lacks the column; or, without a name, has one that looks like weights.
    """
    if name is not None:
        table[name]
        return
    used_columns = {*columns.usual, *(x for names in columns.inputs for x in names)}
    for column in _LIKELY:
        if column in table and column not in used_columns:
            raise ValueError(
                f"The column {column!r} is ambiguous: to use it as the weights of the examples, "
                f'pass fit(…, sample_weight="{column}"); otherwise rename it or leave it out. '
                f"Received: the columns {list(table.columns)}"
            )


def example_weights(table: Table, name: str) -> np.ndarray:
    """Returns the weights of a table's rows in the loss, (N,) float32.

    Args:
        table: table with the column, of numbers or strings of numbers.
        name: name of the column.

    Raises:
        ValueError: a value is not a finite number of 0 or more (the message names its row), or all
            are 0.

    Example:
        >>> example_weights(Table({"text": ["a", "b"], "weight": [1, "0.5"]}), "weight").tolist()
        [1.0, 0.5]
    """
    weights = checked_weights(table, name)
    if not weights.any():
        raise ValueError(
            "At least one example must have a weight above 0. "
            f"Received: {name!r} of {len(weights)} rows, all of them 0"
        )
    return weights


def checked_weights(table: Table, name: str) -> np.ndarray:
    """Returns the weights of rows like `example_weights`, for a part of a table: all may be 0.

    Raises ValueError if a value is not a finite number of 0 or more.
    """
    weights = [_number(value) for value in table[name]]
    for row, number in enumerate(weights):
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(
                f"{table.place(row)}: {name!r} must be a finite number of 0 or more, the weight of "
                f"the example in the loss. Received: {table[name][row]!r:.80}"
            )
    return np.array(weights, np.float32)


def weigh_examples(rows: Rows, weights: np.ndarray) -> Rows:
    """Returns rows whose `label_weights` are multiplied by the weights of their examples.

    Args:
        rows: rows made from a table.
        weights: (N,), weights of the table's rows.
    """
    row_weights = weights[rows.examples]
    if "label_weights" in rows.ragged:  # a weight for each token
        label_weights = rows.ragged["label_weights"]
        token_weights = np.repeat(row_weights, np.asarray(label_weights.row_lengths()))
        values = tf.cast(label_weights.values, tf.float32) * token_weights
        ragged = {**rows.ragged, "label_weights": label_weights.with_values(values)}
        return dataclasses.replace(rows, ragged=ragged)
    label_weights = np.asarray(rows.dense.get("label_weights", np.ones(len(rows), np.float32)))
    weighted = label_weights * row_weights.reshape(-1, *[1] * (label_weights.ndim - 1))
    dense = {**rows.dense, "label_weights": weighted.astype(np.float32)}
    return dataclasses.replace(rows, dense=dense)


def _number(value: Any) -> float:
    """Converts a value to a float; NaN for what is not a number, also for True and False."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return math.nan
