"""Whether vectors lie in clusters that are the labels'."""

import numpy as np

from kbert.core.late import optional
from kbert.core.types import Values
from kbert.metrics.checks import array


def v_measure(labels: Values, vectors: Values, *, seed: int = 0) -> float:
    """The v-measure of k-means over vectors, with as many clusters as there are labels.

    Both are scikit-learn's (`pip install 'kbert[sklearn]'`): k-means++ from ten starts, of which
    the one with the least spread counts, and the harmonic mean of homogeneity and completeness
    (Rosenberg & Hirschberg, 2007, https://aclanthology.org/D07-1043). The vectors are taken as they
    are: where cosines are meant, give them at length 1. Where all labels are one it is 1.

    Args:
        labels: (N,) names or integers.
        vectors: (N, D) finite numbers.
        seed: of the starts.

    Returns:
        From 0 (clusters say nothing about labels) to 1 (they are the labels).

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: no vectors, other lengths, or NaN and infinity.

    Example:
        >>> v_measure(["x", "x", "y", "y"], [[0, 1], [0, 0.9], [5, 5], [5, 5.1]])
        1.0
    """
    labels, vectors = array("labels", labels), array("vectors", vectors)
    if labels.ndim != 1 or vectors.ndim != 2 or len(labels) != len(vectors) or not vectors.size:
        raise ValueError(
            "Each label, one or more, has a vector. Received: labels of shape "
            f"{labels.shape} and vectors of shape {vectors.shape}"
        )
    if labels.dtype.kind == "f":
        raise ValueError(f"Labels are names or integers. Received: {labels.dtype}")
    clusters = len(np.unique(labels))
    cluster = optional("sklearn.cluster", "sklearn", "The v-measure")
    metrics = optional("sklearn.metrics", "sklearn", "The v-measure")
    means = cluster.KMeans(clusters, n_init=10, random_state=seed)
    return float(metrics.v_measure_score(labels, means.fit_predict(vectors)))
