"""Pearson and Spearman: SciPy's numbers, ties and extremes included; no warning let out."""

import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from kbert.metrics import pearson, spearman


def check_equal_to_scipy(labels, predictions):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = pearson(labels, predictions), spearman(labels, predictions)
        warnings.simplefilter("ignore")  # SciPy's of constants
        theirs = [f(labels, predictions)[0] for f in (stats.pearsonr, stats.spearmanr)]
    np.testing.assert_allclose(ours, np.nan_to_num(theirs), rtol=0, atol=1e-14)


def test_equal_to_scipy_with_ties():
    random = np.random.default_rng(3)
    labels = random.integers(0, 11, 400) / 2
    check_equal_to_scipy(labels, labels + random.normal(size=400))


NUMBERS = st.one_of(st.integers(-3, 3), st.integers(-1000, 1000).map(lambda x: x / 8))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=30))
def test_equal_to_scipy_whatever_the_numbers(rows):
    check_equal_to_scipy(*np.array(rows, np.float64).T)


@pytest.mark.parametrize("scale", [1e-310, 1e-160, 0.1, 1e160, 1e307])
def test_equal_to_scipy_at_the_ends_of_the_range(scale):
    labels = np.array([1.0, 5.0, -2.0, 0.5, 1.0])
    check_equal_to_scipy(labels, scale * np.array([1, 2, -3, 3, -3]))
    check_equal_to_scipy(labels, np.full(5, scale))


def test_pearson_is_its_formula_in_float64():
    labels = np.array([0.0, 1.0, 2.0, 4.0], np.float32)
    predictions = np.array([1e4, 1e4 + 1, 1e4 + 3, 1e4 + 3], np.float32)
    a, b = (x.astype(np.float64) - x.astype(np.float64).mean() for x in (labels, predictions))
    assert pearson(labels, predictions) == pytest.approx((a @ b) / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize(
    ("labels", "predictions"),
    [([1.0, 2.0], [3.0, 3.0]), ([2.0, 2.0], [1.0, 3.0]), ([1.0], [1.0]), ([1, 1], [1, 1])],
)
def test_a_constant_correlates_with_nothing(metric, labels, predictions):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metric(labels, predictions) == 0.0


def test_nearly_constant_predictions_stay_silent_and_in_range():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = pearson([0.0, 1.0, 2.0, 3.0], 1.0 + np.array([0, 1, 2, 2]) * 2.2e-16)
    assert -1.0 <= value <= 1.0


def test_half_precision_predictions_are_taken():
    predictions = np.array([1.0, 2.0, 3.5], ml_dtypes.bfloat16)
    assert pearson([1.0, 2.0, 3.5], predictions) == pytest.approx(1.0)


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize(
    ("predictions", "match"),
    [
        ([1.0, float("nan")], "predictions must be finite. Received: nan at row 1"),
        ([float("-inf"), 1.0], "predictions must be finite. Received: -inf at row 0"),
        ([1.0], r"the same shape.*Received: \(2,\) and \(1,\)"),
        (["a", "b"], "numbers and names"),
        ([[1.0], [2.0]], "the same shape"),
    ],
)
def test_bad_input_raises(metric, predictions, match):
    with pytest.raises(ValueError, match=match):
        metric([0.0, 5.0], predictions)
