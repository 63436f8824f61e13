"""Possible decision thresholds between scores."""

import numpy as np


def cuts(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts the rows above each cut, a border between distinct scores, from the highest down.

    Args:
        labels: (N,) of 0 and 1.
        scores: (N,) float64.

    Returns:
        For each cut: the number of rows above it, how many of these have label 1, and the lowest
        score above it. The last cut is below all rows.

    Example:
        >>> above, hits, lowest = cuts(np.array([1, 0, 1]), np.array([0.9, 0.2, 0.2]))
        >>> above.tolist(), hits.tolist(), lowest.tolist()
        ([1, 3], [1, 2], [0.9, 0.2])
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    # The first n rows can be separated from the rest only if scores n and n + 1 differ.
    ends = np.flatnonzero(np.append(ordered[:-1] > ordered[1:], True))
    return ends + 1, np.cumsum(labels[order])[ends], ordered[ends]
