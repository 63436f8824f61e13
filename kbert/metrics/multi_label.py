"""Metrics of classification with any number of labels a row, and the threshold between them.

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
    """Scores of 0/1 indicators.

    Args:
        labels: (N, K), 1 where the row has the class.
        predictions: (N, K) likewise.

    Returns:
        `micro_f1` over all N × K decisions, `macro_f1` as the mean of the K classes' (0 for a
        class that is neither labelled nor predicted anywhere), `subset_accuracy` as the share of
        rows with every class right. A micro F1 without any positive is 0.

    Example:
        >>> multi_label([[1, 0], [1, 1]], [[1, 0], [1, 0]])
        {'micro_f1': 0.8, 'macro_f1': 0.5, 'subset_accuracy': 0.5}
    """
    labels, predictions = indicators("labels", labels), indicators("predictions", predictions)
    paired(labels, predictions)
    if labels.ndim != 2:
        raise ValueError(f"Indicators have the shape (rows, classes). Received: {labels.shape}")
    hits = (labels & predictions).sum(axis=0)  # (K,)
    totals = labels.sum(axis=0) + predictions.sum(axis=0)  # (K,)
    return {
        "micro_f1": float(2 * hits.sum() / max(totals.sum(), 1)),
        "macro_f1": float(np.mean(2 * hits / np.maximum(totals, 1))),
        "subset_accuracy": float(np.mean((labels == predictions).all(axis=1))),
    }


def multi_label_report(labels: Values, predictions: Values, names: Sequence[str]) -> str:
    """Precision, recall and F1 of each label by itself, as a table of text.

    Args:
        labels: (N, C) indicators.
        predictions: (N, C) likewise.
        names: of the labels, C.

    Example:
        >>> print(multi_label_report([[1, 0], [1, 1]], [[1, 0], [0, 1]], ["red", "round"]))
        label  precision  recall      f1  rows
        red       1.0000  0.5000  0.6667     2
        round     1.0000  1.0000  1.0000     1
    """
    labels, predictions = (np.asarray(x, np.int64) for x in (labels, predictions))
    rows = []
    for column, name in enumerate(names):
        report = classification_report(
            labels[:, column], predictions[:, column], ["without", "with"]
        )
        scores = (float(values[1]) for values in (report.precision, report.recall, report.f1))
        rows.append([name, *scores, int(labels[:, column].sum())])
    return text_table(["label", "precision", "recall", "f1", "rows"], rows)


def best_threshold(probabilities: Values, labels: Values) -> float:
    """The threshold with the highest micro F1, where `probability >= threshold` gives a label.

    It lies halfway between two probabilities of the data; among equally good ones it is the one
    nearest to 0.5. For one threshold per class, call it with one column at a time.

    Args:
        probabilities: (N, K) or (N,), in [0, 1].
        labels: the indicators, of the same shape.

    Returns:
        The threshold; 0.5 where no row has any label.

    Example:
        >>> best_threshold([[0.9, 0.2], [0.4, 0.1]], [[1, 0], [1, 0]])
        0.30000000000000004
    """
    probabilities = array("probabilities", probabilities).astype(np.float64).ravel()
    labels = indicators("labels", labels).ravel()
    paired(labels, probabilities)
    if probabilities.min() < 0 or probabilities.max() > 1:
        raise ValueError(
            "Probabilities lie between 0 and 1. Received: "
            f"{probabilities.min()} to {probabilities.max()}"
        )
    above, hits, lowest = cuts(labels, probabilities)
    if not hits[-1]:
        return 0.5
    scores = 2 * hits / (above + hits[-1])
    thresholds = (lowest + np.append(lowest[1:], 0.0)) / 2
    best = np.flatnonzero(scores >= scores.max() - 1e-12)
    return float(thresholds[best[np.argmin(np.abs(thresholds[best] - 0.5))]])
