"""Correlations of predicted with true scores: STS-B's metrics (by SciPy)."""

import warnings
from collections.abc import Callable

import numpy as np

from kbert.core.types import Values
from kbert.metrics.checks import paired


def pearson(labels: Values, predictions: Values) -> float:
    """Pearson's correlation coefficient.

    It is 0/0 where all labels or all predictions are equal; that counts as 0.

    Args:
        labels: (N,) numbers.
        predictions: (N,) numbers.

    Example:
        >>> round(pearson([0.0, 2.5, 5.0], [1.0, 2.0, 4.0]), 4)
        0.982
        >>> pearson([0.0, 2.5, 5.0], [3.0, 3.0, 3.0])
        0.0
    """
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predictions)


def spearman(labels: Values, predictions: Values) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank.

    It is 0/0 where all labels or all predictions are equal; that counts as 0.

    Args:
        labels: (N,) numbers.
        predictions: (N,) numbers.

    Example:
        >>> spearman([0.0, 2.5, 5.0], [1.0, 2.0, 400.0])
        1.0
    """
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predictions)


def _correlation(statistic: Callable, labels: Values, predictions: Values) -> float:
    labels, predictions = paired(labels, predictions)
    if labels.ndim != 1 or labels.dtype.kind == "U":
        raise ValueError(
            "A correlation is of one number a row. Received: "
            f"{labels.dtype} {labels.shape} and {predictions.dtype} {predictions.shape}"
        )
    # In float64: SciPy works in its input's type.
    labels, predictions = labels.astype(np.float64), predictions.astype(np.float64)
    if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    with warnings.catch_warnings():  # of values that differ in their last digits alone
        warnings.simplefilter("ignore")
        value = float(statistic(labels, predictions).statistic)
    return min(max(value, -1.0), 1.0) if np.isfinite(value) else 0.0
