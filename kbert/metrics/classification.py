"""Metrics of single-label classification, equal to those of GLUE's scorers and scikit-learn.

Shapes: N rows, K classes.
"""

from collections.abc import Sequence

import numpy as np

from kbert.core.types import Values
from kbert.metrics.checks import paired


def accuracy(labels: Values, predictions: Values) -> float:
    """Returns the share of predictions that equal their label.

    Args:
        labels: (N,) names or integers.
        predictions: (N,) of the same kind.

    Example:
        >>> accuracy(["ham", "spam", "ham", "ham"], ["ham", "spam", "spam", "ham"])
        0.75
    """
    labels, predictions = _classes(labels, predictions)
    return float(np.mean(labels == predictions))


def matthews(labels: Values, predictions: Values) -> float:
    """Returns Matthews' correlation coefficient for two or more classes: CoLA's metric.

    The coefficient is 0/0 if all labels or all predictions are the same class. It then counts
    as 0, as in scikit-learn.

    Args:
        labels: (N,) names or integers.
        predictions: (N,) of the same kind.

    Example:
        >>> round(matthews([0, 0, 1, 1], [0, 1, 1, 1]), 4)
        0.5774
        >>> matthews([0, 0, 1, 1], [1, 1, 1, 1])
        0.0
    """
    hits, labelled, predicted = _counts(labels, predictions)
    rows = labelled.sum()
    covariance = hits.sum() * rows - labelled @ predicted
    variances = (rows**2 - labelled @ labelled) * (rows**2 - predicted @ predicted)
    return float(covariance / np.sqrt(variances)) if variances else 0.0


def f1(labels: Values, predictions: Values, *, positive: str | int = 1) -> float:
    """Returns the F1 of one class: the metric of MRPC and QQP in addition to accuracy.

    It is 0 if the positive class is neither among the labels nor among the predictions.

    Args:
        labels: (N,) names or integers.
        predictions: (N,) of the same kind.
        positive: the positive class; a name if labels are names, otherwise an integer.

    Example:
        >>> f1([1, 0, 1, 1], [1, 1, 1, 0])
        0.6666666666666666
    """
    labels, predictions = _classes(labels, predictions)
    if isinstance(positive, str) != (labels.dtype.kind == "U"):
        raise ValueError(
            "The positive class must be a name if labels are names, else an integer. Received: "
            f"positive={positive!r} for the classes {np.unique(labels)[:5].tolist()}"
        )
    hits = np.sum((labels == positive) & (predictions == positive))
    total = np.sum(labels == positive) + np.sum(predictions == positive)
    return float(2 * hits / total) if total else 0.0


def macro_f1(labels: Values, predictions: Values) -> float:
    """Returns the mean F1 of all classes that occur among the labels or the predictions.

    Args:
        labels: (N,) names or integers.
        predictions: (N,) of the same kind.

    Example:
        >>> macro_f1(["a", "b", "c", "c"], ["a", "b", "b", "c"])
        0.7777777777777777
    """
    hits, labelled, predicted = _counts(labels, predictions)
    return float(np.mean(2 * hits / (labelled + predicted)))


def exact_groups(labels: Values, predictions: Values, groups: Sequence) -> float:
    """Returns the share of groups whose rows are all predicted correctly: MultiRC's exact match.

    A group of MultiRC is a question, its rows are the candidate answers (Khashabi et al. 2018,
    section 5; SuperGLUE, https://arxiv.org/abs/1905.00537, section 3.1).

    Args:
        labels: (N,) names or integers.
        predictions: (N,) of the same kind.
        groups: (N,) the group of each row.

    Raises:
        ValueError: unequal numbers of rows, or values that are no classes.

    Example:
        >>> exact_groups([1, 0, 1], [1, 0, 0], ["q1", "q1", "q2"])
        0.5
    """
    labels, predictions = _classes(labels, predictions)
    if len(groups) != len(labels):
        raise ValueError(
            f"Every row must have a group. Received: {len(labels)} rows and {len(groups)} groups"
        )
    right: dict = {}
    for group, hit in zip(groups, labels == predictions, strict=True):
        right[group] = right.get(group, True) and bool(hit)
    return sum(right.values()) / len(right)


def _classes(labels: Values, predictions: Values) -> tuple[np.ndarray, np.ndarray]:
    """Returns both as arrays (N,) of names or integers; raises ValueError for other values."""
    labels, predictions = paired(labels, predictions)
    if labels.ndim != 1 or "f" in (labels.dtype.kind, predictions.dtype.kind):
        raise ValueError(
            f"Classes must be one name or integer per row. Received: {labels.dtype} "
            f"{labels.shape} and {predictions.dtype} {predictions.shape}"
        )
    return labels, predictions


def _counts(labels: Values, predictions: Values) -> tuple[np.ndarray, ...]:
    """Returns three counts of rows for each class that occurs, float64 (K,) each.

    These are the rows predicted correctly as the class, labelled with it, and predicted as it.
    """
    labels, predictions = _classes(labels, predictions)
    classes, index = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    labels, predictions = np.split(index, 2)
    groups = labels[labels == predictions], labels, predictions
    # float64: products of counts overflow an int64 from some 50,000 rows on.
    return tuple(np.bincount(x, minlength=len(classes)) * 1.0 for x in groups)
