"""Metrics of scored pairs: whether a score tells pairs that belong together from others."""

import numpy as np

from kbert.core.types import Values
from kbert.metrics.checks import array, indicators, paired
from kbert.metrics.thresholds import cuts


def pair_scores(labels: Values, scores: Values) -> dict[str, float]:
    """How well one score, such as a cosine, separates pairs of label 1 from those of label 0.

    A pair counts as positive where `score >= threshold`. Each threshold lies halfway between two
    scores of the data, and is the highest of those that are equally good; thresholds are chosen on
    these same pairs, so accuracy and F1 are what a good threshold reaches, not what one from other
    data does. (The measures of sentence-transformers' `BinaryClassificationEvaluator`.)

    Args:
        labels: (N,) of 0 and 1, with at least one 1.
        scores: (N,) numbers, higher for pairs that belong together.

    Returns:
        `average_precision` (scikit-learn's: the area under precision over recall, in steps);
        `accuracy`, `accuracy_threshold`; `f1`, `f1_threshold`, and there `precision` and `recall`.

    Raises:
        ValueError: labels other than 0 and 1, no label 1, scores that are not finite, or other
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
            "Pairs have one label each, and there is a pair of label 1. Received: labels of shape "
            f"{labels.shape}, {int(labels.sum())} of them 1"
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
    # Nothing may be positive, too: then the threshold is above all scores.
    right = np.append(len(labels) - positives, hits + len(labels) - positives - (above - hits))
    highest = np.nextafter(lowest[0], np.inf)
    most = int(right.argmax())
    return {
        "average_precision": float((gained * precision)[::-1].sum()),
        "accuracy": float(right[most] / len(labels)),
        "accuracy_threshold": float(np.append(highest, thresholds)[most]),
        "f1": float(f1[best]),
        "f1_threshold": float(thresholds[best]),
        "precision": float(precision[best]),
        "recall": float(recall[best]),
    }
