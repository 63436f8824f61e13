"""Metrics of multi-label classification, and the choice of the decision threshold.

Shapes: N rows, K classes.
"""

from collections.abc import Sequence

import numpy as np

from kbert.core.text_table import text_table
from kbert.core.types import Values
from kbert.metrics.checks import array, indicators, paired
from kbert.metrics.report import classification_report
from kbert.metrics.thresholds import cuts


def multi_label(labels: Values, predictions: Values) -> dict[str, float]:
    """Returns F1 and accuracy of 0/1 predictions of several classes per row.

    Args:
        labels: (N, K), 1 where the row has the class.
        predictions: (N, K), 1 where the class is predicted for the row.

    Returns:
        `micro_f1` over all N × K decisions; `macro_f1`, the mean F1 of the K classes (0 for a class
        that is neither labelled nor predicted anywhere); `subset_accuracy`, the share of rows with
        every class right. The micro F1 is 0 if there are no positives at all.

    Example:
        >>> multi_label([[1, 0], [1, 1]], [[1, 0], [1, 0]])
        {'micro_f1': 0.8, 'macro_f1': 0.5, 'subset_accuracy': 0.5}
    """
    labels, predictions = indicators("labels", labels), indicators("predictions", predictions)
    paired(labels, predictions)
    if labels.ndim != 2:
        raise ValueError(
            f"Indicators must have the shape (rows, classes). Received: {labels.shape}"
        )
    hits = (labels & predictions).sum(axis=0)  # (K,)
    totals = labels.sum(axis=0) + predictions.sum(axis=0)  # (K,)
    return {
        "micro_f1": float(2 * hits.sum() / max(totals.sum(), 1)),
        "macro_f1": float(np.mean(2 * hits / np.maximum(totals, 1))),
        "subset_accuracy": float(np.mean((labels == predictions).all(axis=1))),
    }


def multi_label_report(labels: Values, predictions: Values, names: Sequence[str]) -> str:
    """Returns a text table with precision, recall and F1 of each label.

    Args:
        labels: (N, C) indicators, 1 where the row has the label.
        predictions: (N, C) indicators, 1 where the label is predicted.
        names: names of the C labels.

    Raises:
        ValueError: an indicator is neither 0 nor 1, or shapes and names do not match.

    Example:
        >>> print(multi_label_report([[1, 0], [1, 1]], [[1, 0], [0, 1]], ["red", "round"]))
        label  precision  recall      f1  support
        red       1.0000  0.5000  0.6667        2
        round     1.0000  1.0000  1.0000        1
    """
    labels, predictions = indicators("labels", labels), indicators("predictions", predictions)
    paired(labels, predictions)
    if labels.ndim != 2 or labels.shape[1] != len(names):
        raise ValueError(
            "Labels and predictions must have a column for each name. "
            f"Received: shape {labels.shape}, {len(names)} names"
        )
    rows = []
    for column, name in enumerate(names):
        report = classification_report(
            labels[:, column], predictions[:, column], ["without", "with"]
        )
        scores = (float(values[1]) for values in (report.precision, report.recall, report.f1))
        rows.append([name, *scores, int(labels[:, column].sum())])
    return text_table(["label", "precision", "recall", "f1", "support"], rows)


def best_threshold(probabilities: Values, labels: Values) -> float:
    """Returns the threshold with the highest micro F1 (`probability >= threshold` is positive).

    It lies halfway between two neighbouring probabilities of the data (or the lowest and 0). Among
    equally good thresholds it is the one nearest to 0.5. For one threshold per class, call this
    with one column at a time.

    Args:
        probabilities: (N, K) or (N,), in [0, 1].
        labels: 0/1 indicators of the same shape.

    Returns:
        The threshold; 0.5 if no row has any label.

    Example:
        >>> best_threshold([[0.9, 0.2], [0.4, 0.1]], [[1, 0], [1, 0]])
        0.30000000000000004
    """
    probabilities = array("probabilities", probabilities).astype(np.float64).ravel()
    labels = indicators("labels", labels).ravel()
    paired(labels, probabilities)
    if probabilities.min() < 0 or probabilities.max() > 1:
        raise ValueError(
            f"Probabilities must be between 0 and 1. Received: {probabilities.min()} to "
            f"{probabilities.max()}"
        )
    above, hits, lowest = cuts(labels, probabilities)
    if not hits[-1]:
        return 0.5
    scores = 2 * hits / (above + hits[-1])
    thresholds = (lowest + np.append(lowest[1:], 0.0)) / 2
    best = np.flatnonzero(scores >= scores.max() - 1e-12)
    return float(thresholds[best[np.argmin(np.abs(thresholds[best] - 0.5))]])
