"""Dots of scores of choices of layers."""

import pytest

from kbert.visualization import layer_scores

SCORES = {"embeddings": 0.75, "last": 0.789, "sum_all": 0.801}


def test_each_score_has_its_number_and_the_best_is_bold(drawn):
    figure = layer_scores(SCORES, metric="accuracy")
    assert {*SCORES, "accuracy", "0.750", "0.789", "0.801"} <= set(drawn(figure))
    weights = {text.get_text(): text.get_weight() for text in figure.axes[0].texts}
    assert weights == {"0.750": "normal", "0.789": "normal", "0.801": "bold"}


def test_several_models_on_top_have_a_legend(drawn, boxes, overlaps):
    table = {name: {"linear": s, "BiLSTM": s + 0.002} for name, s in SCORES.items()}
    figure = layer_scores(table)
    assert {"linear", "BiLSTM"} <= set(drawn(figure))
    assert overlaps(boxes(figure)) == 0


def test_what_is_no_table_of_scores():
    with pytest.raises(ValueError, match="a score for each choice"):
        layer_scores({})
    with pytest.raises(ValueError, match="the same models"):
        layer_scores({"last": {"linear": 0.5}, "sum_all": 0.5})
    with pytest.raises(ValueError, match="finite numbers"):
        layer_scores({"last": float("nan")})
