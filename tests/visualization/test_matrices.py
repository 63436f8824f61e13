"""Confusion matrices and heat maps of similarities."""

import numpy as np
import pytest

from kbert.visualization import confusion_matrix, similarity_heatmap


def test_rows_are_true_and_columns_predicted(drawn):
    figure = confusion_matrix([[4327, 12], [0, 8]], ["ham", "spam"], title="Messages")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["4,327", "12", "·", "8"]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("true", "predicted")
    assert [text.get_text() for text in axes.get_yticklabels()] == ["ham", "spam"]
    # The picture's first row is its highest.
    assert axes.texts[0].get_position() == (0, 0)
    assert axes.yaxis.get_inverted()
    assert "Messages" in drawn(figure)


def test_names_in_an_array(drawn):
    assert {"ham", "spam"} <= set(drawn(confusion_matrix(np.eye(2), np.array(["ham", "spam"]))))


def test_colours_are_shares_of_the_row():
    figure = confusion_matrix([[30, 10], [0, 0]], ["a", "b"])
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), [[0.75, 0.25], [0, 0]])


@pytest.mark.parametrize("classes", [1, 2, 7, 24])
def test_numbers_do_not_meet(classes, boxes, overlaps):
    matrix = np.full((classes, classes), 1234)
    names = [f"a class with a name {i}" for i in range(classes)]
    assert overlaps(boxes(confusion_matrix(matrix, names))) == 0


def test_numbers_are_read_on_their_colour():
    figure = similarity_heatmap([[1.0, 0.0]], ["a"], columns=["b", "c"])
    assert [text.get_color() for text in figure.axes[0].texts] == ["white", "black"]


def test_a_heat_map_of_other_columns_than_rows(drawn):
    texts = drawn(similarity_heatmap([[0.5, -0.25]], ["row"], columns=["left", "right"]))
    assert {"0.50", "-0.25", "row", "left", "right", "cosine"} <= set(texts)


@pytest.mark.parametrize(
    ("matrix", "names", "message"),
    [
        ([[1, 2]], ["a"], r"shape \(1, 2\) and 1 names"),
        ([[1, 2], [3, 4]], ["a"], "a row and a column for each name"),
        ([[1, -2], [3, 4]], ["a", "b"], "counts of at least 0. Received: -2"),
    ],
)
def test_what_is_no_confusion_matrix(matrix, names, message):
    with pytest.raises(ValueError, match=message):
        confusion_matrix(matrix, names)


def test_what_is_no_matrix_of_similarities():
    with pytest.raises(ValueError, match=r"Received: a matrix of shape \(1, 2\), 1 labels"):
        similarity_heatmap([[1.0, 0.0]], ["a"])
    with pytest.raises(ValueError, match="finite numbers"):
        similarity_heatmap([[np.nan]], ["a"])
