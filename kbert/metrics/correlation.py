"""Correlations of predicted with true scores: STS-B's metrics."""

from collections.abc import Callable

import numpy as np

from kbert.core.types import Values
from kbert.metrics.checks import paired


def pearson(labels: Values, predictions: Values) -> float:
    """Returns Pearson's correlation coefficient.

    The coefficient is 0/0 if all labels or all predictions are equal; it then counts as 0.

    Args:
        labels: (N,) numbers.
        predictions: (N,) numbers.

    Example:
        >>> round(pearson([0.0, 2.5, 5.0], [1.0, 2.0, 4.0]), 4)
        0.982
        >>> pearson([0.0, 2.5, 5.0], [3.0, 3.0, 3.0])
        0.0
    """
    return _correlation(_pearson, labels, predictions)


def spearman(labels: Values, predictions: Values) -> float:
    """Returns Spearman's rank correlation; equal values share their mean rank.

    The coefficient is 0/0 if all labels or all predictions are equal; it then counts as 0.

    Args:
        labels: (N,) numbers.
        predictions: (N,) numbers.

    Example:
        >>> spearman([0.0, 2.5, 5.0], [1.0, 2.0, 400.0])
        1.0
    """
    return _correlation(_spearman, labels, predictions)


def _correlation(statistic: Callable[..., float], labels: Values, predictions: Values) -> float:
    """Returns a correlation of N numbers, in [-1, 1]; 0.0 if a column is constant.

    Args:
        statistic: function (labels, predictions) -> correlation.
        labels: true numbers.
        predictions: predicted numbers.

    Raises:
        ValueError: there is not one number per row.
    """
    labels, predictions = paired(labels, predictions)
    if labels.ndim != 1 or labels.dtype.kind == "U":
        raise ValueError(
            f"A correlation requires one number per row. Received: {labels.dtype} {labels.shape} "
            f"and {predictions.dtype} {predictions.shape}"
        )
    columns = labels.astype(np.float64), predictions.astype(np.float64)
    if any((column == column[0]).all() for column in columns):
        return 0.0
    with np.errstate(all="ignore"):  # values at the ends of float64's range overflow
        value = float(statistic(*columns))
    return min(max(value, -1.0), 1.0) if np.isfinite(value) else 0.0


# Both follow SciPy step by step, so that the last digits agree too.
def _pearson(*columns: np.ndarray) -> float:
    """Returns Pearson's correlation of two float64 columns (N,), neither of them constant."""
    units = []
    for column in columns:
        deviations = column - column.mean()
        largest = np.abs(deviations).max()  # divided by it, deviations have finite squares
        units.append(deviations / (largest * np.linalg.norm(deviations / largest, axis=0)))
    value = units[0] @ units[1]
    return np.round(value) if len(columns[0]) == 2 else value  # two points lie on a line


def _spearman(*columns: np.ndarray) -> float:
    ranks = []
    for column in columns:
        _, index, counts = np.unique(column, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[index])
    return np.asarray(np.corrcoef(np.column_stack(ranks), rowvar=False))[1, 0]
