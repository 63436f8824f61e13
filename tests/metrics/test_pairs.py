"""Scored pairs: scikit-learn's average precision, the best of all thresholds, ties."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import average_precision_score

from kbert.metrics import f1, pair_scores

RNG = np.random.default_rng(0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=1, max_size=30))
def test_the_best_of_all_thresholds(rows):
    labels, scores = np.array([(1, rows[0][1]), *rows]).T
    found = pair_scores(labels, scores)
    candidates = np.arange(-4, 5, 0.25)
    predictions = [scores >= x for x in candidates]
    accuracies = [np.mean(labels == x) for x in predictions]
    f1s = [2 * labels[x].sum() / (x.sum() + labels.sum()) for x in predictions]
    assert found["accuracy"] == pytest.approx(max(accuracies))
    assert found["f1"] == pytest.approx(max(f1s))
    assert found["average_precision"] == pytest.approx(
        average_precision_score(labels, scores), rel=1e-12
    )
    chosen = scores >= found["f1_threshold"]
    assert f1(labels, chosen.astype(int)) == pytest.approx(found["f1"])
    assert found["precision"] == pytest.approx(labels[chosen].mean())
    assert found["recall"] == pytest.approx(chosen[labels == 1].mean())
    chosen = scores >= found["accuracy_threshold"]
    assert (labels == chosen).mean() == pytest.approx(found["accuracy"])


def test_a_threshold_lies_halfway():
    found = pair_scores([1, 1, 0, 0], [0.9, 0.7, 0.3, 0.1])
    assert found["accuracy"] == found["f1"] == found["average_precision"] == 1
    assert found["accuracy_threshold"] == found["f1_threshold"] == 0.5


def test_nothing_may_be_positive():
    found = pair_scores([0, 0, 0, 1], [4, 3, 2, 1])
    assert found["accuracy"] == 0.75
    assert found["accuracy_threshold"] > 4
    assert (found["f1"], found["f1_threshold"]) == (0.4, 1)


@pytest.mark.slow
def test_as_sentence_transformers_evaluates():
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.evaluation import BinaryClassificationEvaluator as Evaluator

    labels = RNG.integers(0, 2, 200)
    scores = labels + RNG.normal(size=200)
    found = pair_scores(labels, scores)
    accuracy, threshold = Evaluator.find_best_acc_and_threshold(scores, labels, True)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["accuracy_threshold"] == pytest.approx(threshold)
    best, precision, recall, threshold = Evaluator.find_best_f1_and_threshold(scores, labels, True)
    assert [found[x] for x in ("f1", "precision", "recall")] == pytest.approx(
        [best, precision, recall]
    )
    assert found["f1_threshold"] == pytest.approx(threshold)


@pytest.mark.parametrize(
    ("labels", "scores", "match"),
    [
        (
            [0, 0],
            [1, 2],
            r"at least one label must be 1. Received: labels of shape \(2,\), 0 of them 1",
        ),
        ([0, 2], [1, 2], "must be 0 or 1"),
        ([0, 1], [1], "the same shape"),
        ([0, 1], [1, np.nan], "scores must be finite"),
        ([[0, 1]], [[1, 2]], r"one label each.*shape \(1, 2\)"),
    ],
)
def test_what_is_refused(labels, scores, match):
    with pytest.raises(ValueError, match=match):
        pair_scores(labels, scores)
