"""The report equals scikit-learn's, by names and by indices, and prints as a table."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from kbert.metrics import classification_report

NAMES = ["entailment", "neutral", "contradiction", "never"]


def test_equal_to_scikit_learn():
    random = np.random.default_rng(0)
    labels, predictions = random.integers(0, 3, 80), random.integers(0, 2, 80)
    report = classification_report(labels, predictions, NAMES)
    precision, recall, f1, support = sklearn_metrics.precision_recall_fscore_support(
        labels, predictions, labels=range(4), zero_division=0
    )
    np.testing.assert_allclose(report.precision, precision)
    np.testing.assert_allclose(report.recall, recall)
    np.testing.assert_allclose(report.f1, f1)
    np.testing.assert_array_equal(report.support, support)
    np.testing.assert_array_equal(
        report.confusion, sklearn_metrics.confusion_matrix(labels, predictions, labels=range(4))
    )
    assert report.accuracy == pytest.approx(sklearn_metrics.accuracy_score(labels, predictions))
    assert report.macro_f1 == pytest.approx(f1.mean())
    named = np.array(NAMES)
    again = classification_report(named[labels], named[predictions].tolist(), NAMES)
    np.testing.assert_array_equal(again.confusion, report.confusion)


def test_every_class_has_its_line():
    lines = str(classification_report([0, 1], [0, 0], NAMES)).splitlines()
    assert [line.split()[0] for line in lines[:7]] == ["class", *NAMES, "macro", "accuracy"]
    assert lines[1].split() == ["entailment", "0.5000", "1.0000", "0.6667", "1"]


def test_the_confusion_matrix_is_printed():
    """A row for each label, a column for each prediction; of many classes it is said where."""
    printed = str(classification_report([0, 0, 1], [0, 1, 1], ["no", "yes, perhaps"]))
    assert printed.split("\n\n")[1].splitlines() == [
        "label \\ prediction  no  yes, perhaps",
        "no                   1             1",
        "yes, perhaps         0             1",
    ]
    many = str(classification_report([0], [0], [f"c{i}" for i in range(21)]))
    assert many.endswith("\n\nsee .confusion for the confusion matrix of 21 classes")


@pytest.mark.parametrize(
    ("labels", "predictions", "names", "match"),
    [
        (["a"], ["c"], ["a", "b"], r"predictions must be among \['a', 'b'\]. Received: \['c'\]"),
        ([0, 2], [0, 1], ["a", "b"], "labels must be names or indices from 0 to 1. Received: int"),
        ([0], [-1], ["a", "b"], "predictions must be names or indices from 0 to 1"),
        ([0.0], [0.0], ["a", "b"], "labels must be names or indices.*float64"),
        ([0], [0], ["a", "a"], "Class names must be unique"),
        ([[0]], [[0]], ["a"], "one label per row"),
        ([], [], ["a"], "at least one entry"),
    ],
)
def test_bad_input_raises(labels, predictions, names, match):
    with pytest.raises(ValueError, match=match):
        classification_report(labels, predictions, names)
