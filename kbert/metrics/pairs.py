"""Metrics of scored pairs: how well a score separates matching pairs from others."""

import numpy as np

from kbert.core.types import Values
from kbert.metrics.checks import array, indicators, paired
from kbert.metrics.thresholds import cuts


def pair_scores(labels: Values, scores: Values) -> dict[str, float]:
    """Measures how well a score, such as a cosine, separates pairs of label 1 from label 0.

    A pair counts as positive if `score >= threshold`. A threshold lies halfway between two
    neighbouring scores of the data; at the ends it is the lowest score or just above the highest.
    Among equally good thresholds the highest is returned. Thresholds are chosen on these same
    pairs, so accuracy and F1 are optimistic: a threshold chosen on other data may reach less.
    (The measures of sentence-transformers' `BinaryClassificationEvaluator`.)

    Args:
        labels: (N,) of 0 and 1, with at least one 1.
        scores: (N,) numbers, higher for matching pairs.

    Returns:
        `average_precision` (as in scikit-learn: the area under the stepwise precision-recall
        curve); `accuracy` and `accuracy_threshold`; `f1` and `f1_threshold`, with the `precision`
        and `recall` at that threshold.

    Raises:
        ValueError: labels other than 0 and 1, no label 1, scores that are not finite, or unequal
            lengths.

    Example:
        >>> found = pair_scores([1, 1, 0, 0], [0.9, 0.4, 0.6, 0.1])
        >>> found["accuracy"], found["accuracy_threshold"], round(found["average_precision"], 4)
        (0.75, 0.75, 0.8333)
    """
    labels, scores = indicators("labels", labels), array("scores", scores)
    paired(labels, scores)
    if labels.ndim != 1 or not labels.any():
        raise ValueError(
            "Pairs must have one label each, and at least one label must be 1. Received: labels "
            f"of shape {labels.shape}, {int(labels.sum())} of them 1"
        )
    scores = scores.astype(np.float64)
    above, hits, lowest = cuts(labels, scores)
    positives = labels.sum()
    below = np.append(lowest[1:], lowest[-1])
    thresholds = (lowest + below) / 2
    precision, recall = hits / above, hits / positives
    gained = np.diff(recall, prepend=0.0)
    f1 = 2 * hits / (above + positives)
    best = int(f1.argmax())
    # The best accuracy may call no pair positive: then the threshold is above all scores.
    right = np.append(len(labels) - positives, hits + len(labels) - positives - (above - hits))
    highest = np.nextafter(lowest[0], np.inf)
    most_accurate = int(right.argmax())
    return {
        "average_precision": float((gained * precision)[::-1].sum()),
        "accuracy": float(right[most_accurate] / len(labels)),
        "accuracy_threshold": float(np.append(highest, thresholds)[most_accurate]),
        "f1": float(f1[best]),
        "f1_threshold": float(thresholds[best]),
        "precision": float(precision[best]),
        "recall": float(recall[best]),
    }
