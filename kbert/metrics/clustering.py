"""Agreement between clusters of embeddings and labels."""

import numpy as np

from kbert.core.late import optional
from kbert.core.types import Values
from kbert.metrics.checks import array


def v_measure(labels: Values, vectors: Values, *, seed: int = 0) -> float:
    """Returns the v-measure of k-means clusters, with as many clusters as distinct labels.

    Both are computed by scikit-learn (`pip install 'kbert[sklearn]'`). K-means++ runs from ten
    initialisations, and the run with the lowest inertia counts. The v-measure is the harmonic mean
    of homogeneity and completeness (Rosenberg & Hirschberg, 2007,
    https://aclanthology.org/D07-1043). The vectors are not normalised: pass unit vectors to cluster
    by cosine. If all labels are equal, the result is 1.

    Args:
        labels: (N,) names or integers.
        vectors: (N, D) finite numbers.
        seed: random seed of the initialisations.

    Returns:
        A score from 0 (clusters are independent of the labels) to 1 (clusters match the labels).

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: no vectors, unequal numbers of labels and vectors, or NaN or infinity.

    Example:
        >>> v_measure(["x", "x", "y", "y"], [[0, 1], [0, 0.9], [5, 5], [5, 5.1]])
        1.0
    """
    labels, vectors = array("labels", labels), array("vectors", vectors)
    if labels.ndim != 1 or vectors.ndim != 2 or len(labels) != len(vectors) or not vectors.size:
        raise ValueError(
            "There must be one vector for each label, and at least one label. Received: labels "
            f"of shape {labels.shape} and vectors of shape {vectors.shape}"
        )
    if labels.dtype.kind == "f":
        raise ValueError(f"Labels must be names or integers. Received: {labels.dtype}")
    clusters = len(np.unique(labels))
    cluster = optional("sklearn.cluster", "sklearn", "The v-measure")
    metrics = optional("sklearn.metrics", "sklearn", "The v-measure")
    kmeans = cluster.KMeans(clusters, n_init=10, random_state=seed)
    return float(metrics.v_measure_score(labels, kmeans.fit_predict(vectors)))
