"""Where scores can be cut in two."""

import numpy as np


def cuts(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cuts between scores that differ, in the order of falling scores.

    Args:
        labels: (N,) of 0 and 1.
        scores: (N,) float64.

    Returns:
        Of each cut how many rows lie above it, how many of these are of label 1, and the lowest
        score above it. The last cut lies below all rows.

    Example:
        >>> above, hits, lowest = cuts(np.array([1, 0, 1]), np.array([0.9, 0.2, 0.2]))
        >>> above.tolist(), hits.tolist(), lowest.tolist()
        ([1, 3], [1, 2], [0.9, 0.2])
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    # Taking the first n as positive is a cut only where the n-th and the next differ.
    ends = np.flatnonzero(np.append(ordered[:-1] > ordered[1:], True))
    return ends + 1, np.cumsum(labels[order])[ends], ordered[ends]
