"""Tokens coloured by their scores."""

import pytest

from kbert.visualization import token_scores
from kbert.visualization.report_page import ReportPage
from kbert.visualization.token_scores import scores_html


def test_scores_are_colours_and_numbers(drawn):
    figure = token_scores(["good", "[SEP]", "bad"], [0.5, 0.0, -1.0], title="a $film$")
    assert "a $film$" in drawn(figure)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["good", "0.5", "[SEP]", "bad", "-1"]
    blue, orange = figure.axes[0].patches
    assert blue.get_facecolor()[2] > blue.get_facecolor()[0]
    assert orange.get_facecolor()[0] > orange.get_facecolor()[2]
    assert orange.get_facecolor()[3] == pytest.approx(2 * blue.get_facecolor()[3])


def test_html_is_escaped_and_has_the_scores():
    page = ReportPage("Scores")
    page.token_scores(["<b>", "it"], [1.0, -0.25], caption="a < b")
    html = page.html()
    assert "<b>" not in html
    assert "a &lt; b" in html
    assert 'title="-0.25" style="background: rgba(213, 94, 0, 0.19)' in html
    assert scores_html(["a"], [0.0]).count("0.00)") == 1  # no division by zero
    assert token_scores([], []) is not None


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")], [[1.0, 2.0]]])
def test_scores_that_do_not_fit(scores):
    with pytest.raises(ValueError, match=r"one score, a finite number. Received: 2 tokens"):
        token_scores(["a", "b"], scores)
