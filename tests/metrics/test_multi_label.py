"""Multi-label scores equal scikit-learn's; the best threshold equals an exhaustive search."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn import metrics as sklearn_metrics

from kbert.metrics import best_threshold, multi_label


def test_equal_to_scikit_learn():
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, (50, 4))
    predictions = random.integers(0, 2, (50, 4))
    labels[:, 3] = predictions[:, 3] = 0  # a class that never occurs
    assert multi_label(labels, predictions) == pytest.approx(
        {
            "micro_f1": sklearn_metrics.f1_score(labels, predictions, average="micro"),
            "macro_f1": sklearn_metrics.f1_score(
                labels, predictions, average="macro", zero_division=0
            ),
            "subset_accuracy": sklearn_metrics.accuracy_score(labels, predictions),
        }
    )


def test_nothing_labelled_and_nothing_predicted():
    scores = multi_label([[0, 0]], [[False, False]])
    assert scores == {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 1.0]), st.integers(0, 1)),
        min_size=1,
        max_size=12,
    )
)
def test_no_threshold_beats_the_best(rows):
    probabilities, labels = map(np.array, zip(*rows, strict=True))

    def score(threshold: float) -> float:
        return multi_label(labels[:, None], probabilities[:, None] >= threshold)["micro_f1"]

    threshold = best_threshold(probabilities, labels)
    assert 0 <= threshold <= 1
    if labels.any():
        assert score(threshold) == max(score(t) for t in np.linspace(0, 1, 41))


def test_the_threshold_lies_between_the_classes_and_near_a_half():
    assert best_threshold([0.9, 0.8, 0.1], [1, 1, 0]) == pytest.approx(0.45)
    assert best_threshold([0.3, 0.2], [0, 0]) == 0.5


@pytest.mark.parametrize(
    ("labels", "predictions", "match"),
    [
        ([[2, 0]], [[1, 0]], "labels must be 0 or 1 for each class"),
        ([[1, 0]], [[0.4, 0.6]], "predictions must be 0 or 1 for each class"),
        ([[1, 0]], [[1]], r"the same shape.*Received: \(1, 2\) and \(1, 1\)"),
        ([1, 0], [1, 0], r"shape \(rows, classes\). Received: \(2,\)"),
    ],
)
def test_bad_indicators_raise(labels, predictions, match):
    with pytest.raises(ValueError, match=match):
        multi_label(labels, predictions)


@pytest.mark.parametrize(
    ("probabilities", "match"),
    [
        ([1.5, 0.1], "between 0 and 1. Received: 0.1 to 1.5"),
        ([float("nan"), 0.1], "probabilities must be finite"),
        ([0.5], "the same shape"),
    ],
)
def test_bad_probabilities_raise(probabilities, match):
    with pytest.raises(ValueError, match=match):
        best_threshold(probabilities, [1, 0])
