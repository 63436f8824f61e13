"""Accuracy, Matthews and F1: equal to scikit-learn, defined at the edges, loud on bad input."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn import metrics as sklearn_metrics

from kbert.metrics import accuracy, exact_groups, f1, macro_f1, matthews

PAIRS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30)


@settings(deadline=None, max_examples=60)
@given(PAIRS)
def test_equal_to_scikit_learn_and_silent(pairs):
    labels, predictions = zip(*pairs, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = [
            accuracy(labels, predictions),
            matthews(labels, predictions),
            macro_f1(labels, predictions),
            f1(labels, predictions, positive=1),
        ]
        one = [np.equal(values, 1) for values in (labels, predictions)]
        warnings.simplefilter("ignore")  # scikit-learn's of a single class
        theirs = [
            sklearn_metrics.accuracy_score(labels, predictions),
            sklearn_metrics.matthews_corrcoef(labels, predictions),
            sklearn_metrics.f1_score(labels, predictions, average="macro", zero_division=0),
            sklearn_metrics.f1_score(*one, zero_division=0),
        ]
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 4)), min_size=1))
def test_exact_groups_by_brute_force(rows):
    labels, predictions, groups = zip(*rows, strict=True)
    right = [
        all(label == answer for label, answer, of in rows if of == group) for group in {*groups}
    ]
    assert exact_groups(labels, predictions, groups) == pytest.approx(sum(right) / len(right))


def test_each_row_has_a_group():
    for groups in (["a"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match=rf"Received: 2 rows and {len(groups)} groups"):
            exact_groups([1, 0], [1, 0], groups)


def test_counts_of_many_rows_do_not_overflow():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 200_000)
    predictions = labels ^ (random.random(200_000) < 0.1)
    wanted = sklearn_metrics.matthews_corrcoef(labels, predictions)
    assert matthews(labels, predictions) == pytest.approx(wanted, rel=1e-12)
    assert 0.79 < wanted < 0.81


def test_two_class_matthews_is_its_formula():
    labels = [1] * 60 + [0] * 40
    predictions = [1] * 50 + [0] * 10 + [1] * 5 + [0] * 35
    hits, misses, false, rest = 50, 10, 5, 35
    product = (hits + false) * (hits + misses) * (rest + false) * (rest + misses)
    expected = (hits * rest - false * misses) / product**0.5
    assert matthews(labels, predictions) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "predictions"), [([1, 0], [1, 1]), ([1, 1], [1, 1]), ([0], [1])]
)
def test_one_class_gives_matthews_zero(labels, predictions):
    assert matthews(labels, predictions) == 0.0


def test_names_and_indices_score_alike():
    labels, predictions = [0, 1, 1, 0, 1], [0, 1, 0, 0, 1]
    names = np.array(["ham", "spam"])
    for metric in (accuracy, matthews, macro_f1):
        assert metric(names[labels], names[predictions].tolist()) == metric(labels, predictions)
    assert f1(names[labels], names[predictions], positive="spam") == f1(labels, predictions)
    assert f1(names[labels].astype(object), names[predictions], positive="none") == 0.0


@pytest.mark.parametrize("metric", [accuracy, matthews, f1, macro_f1])
@pytest.mark.parametrize(
    ("labels", "predictions", "match"),
    [
        ([], [], r"at least one entry. Received: \(0,\) and \(0,\)"),
        ([1, 0], [1], r"the same shape.*Received: \(2,\) and \(1,\)"),
        (["1", "0"], [1, 0], "names and integers"),
        (["a", 1], ["a", "a"], r"labels must be all names or all numbers. Received: \['int', 's"),
        ([1, 0], [1, None], "predictions must be all names or all numbers"),
        ([1, 0], [1.0, float("nan")], "predictions must be finite. Received: nan at row 1"),
        ([1, 0], [1.0, 0.0], "one name or integer per row"),
        (1, 1, "labels must be a sequence, one entry per row. Received: 1"),
        ([[1, 0]], [[1, 0]], r"one name or integer per row. Received: int64 \(1, 2\)"),
    ],
)
def test_bad_input_raises(metric, labels, predictions, match):
    with pytest.raises(ValueError, match=match):
        metric(labels, predictions)


@pytest.mark.parametrize(("labels", "positive"), [(["a", "b"], 1), ([0, 1], "b")])
def test_the_positive_class_is_of_the_labels_kind(labels, positive):
    with pytest.raises(ValueError, match="positive class must be a name if labels are names"):
        f1(labels, labels, positive=positive)
