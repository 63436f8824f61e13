"""The v-measure of k-means."""

import sys

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import v_measure_score

from kbert.metrics import v_measure

RNG = np.random.default_rng(0)


def test_clusters_that_are_the_labels_and_clusters_that_are_not():
    centres = 10 * np.eye(4)
    names = np.array(["a", "b", "c", "d"]).repeat(30)
    vectors = centres.repeat(30, 0) + RNG.normal(size=(120, 4))
    assert v_measure(names, vectors) == 1
    assert v_measure(RNG.permutation(names), vectors) < 0.1
    assert v_measure(["a"] * 120, vectors) == 1


def test_equal_to_scikit_learns():
    labels, vectors = RNG.integers(0, 5, 80), RNG.normal(size=(80, 3)).astype("float32")
    vectors[:, 0] += labels
    clusters = KMeans(5, n_init=10, random_state=3).fit_predict(vectors)
    wanted = v_measure_score(labels, clusters)
    assert 0.1 < wanted < 0.9
    assert v_measure(labels, vectors, seed=3) == v_measure(labels, vectors, seed=3) == wanted


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r"^The v-measure needs the extra: .*kbert\[sklearn\]'"):
        v_measure(["a", "b"], [[0], [1]])


@pytest.mark.parametrize(
    ("labels", "vectors", "match"),
    [
        ([0, 1], [[1.0]], r"shape \(2,\) and vectors of shape \(1, 1\)"),
        ([], np.zeros((0, 2)), "one vector for each label"),
        ([0], [[np.nan]], "vectors must be finite"),
        ([0.5], [[1.0]], "names or integers"),
        ([0], np.array([["a"]]), "all names or all numbers"),
    ],
)
def test_what_is_refused(labels, vectors, match):
    with pytest.raises(ValueError, match=match):
        v_measure(labels, vectors)
