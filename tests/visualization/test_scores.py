"""Dots of scores of choices of layers."""

import pytest

from kbert.visualization import glue_scores, layer_scores

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


def test_models_and_tasks_in_another_order():
    plain = {"last": {"linear": 0.1, "BiLSTM": 0.2}, "all": {"linear": 0.3, "BiLSTM": 0.4}}
    mixed = {"last": plain["last"], "all": {"BiLSTM": 0.4, "linear": 0.3}}
    for draw, pair in ((layer_scores, (plain, mixed)), (glue_scores, map(as_glue, (plain, mixed)))):
        figures = [[text.get_text() for text in draw(x).axes[0].texts] for x in pair]
        assert figures[0] == figures[1]


def as_glue(table):
    tasks = {"linear": "cola", "BiLSTM": "rte"}
    return {name: {tasks[x]: score for x, score in row.items()} for name, row in table.items()}


def test_what_is_no_table_of_scores():
    with pytest.raises(ValueError, match="a score for each choice"):
        layer_scores({})
    with pytest.raises(ValueError, match="the same models"):
        layer_scores({"last": {"linear": 0.5}, "sum_all": 0.5})
    with pytest.raises(ValueError, match="finite numbers"):
        layer_scores({"last": float("nan")})


def test_glue_next_to_people(drawn):
    figure = glue_scores({"BERT": {"cola": 0.5, "mrpc": 0.9}, "GPT": {"cola": 0.4, "mrpc": 0.8}})
    lines = [x.get_segments() for x in figure.axes[0].collections]
    marks = next(x for x in lines if x[0][0, 0] == pytest.approx(0.664))
    assert [float(x[0, 0]) for x in marks] == pytest.approx([0.664, 0.863, (0.664 + 0.863) / 2])
    assert {"people", "average", "0.700", "0.600"} <= set(drawn(figure))


@pytest.mark.parametrize(
    ("table", "received"),
    [({}, "{}"), ({"a": {"cola": 0.5}, "b": {"rte": 0.5}}, "'rte'"), ({"a": {"ax": 0.5}}, "'ax'")],
    ids=["empty", "different", "unknown"],
)
def test_what_is_no_table_of_glue(table, received):
    with pytest.raises(ValueError, match=f"same tasks, from cola.*Received: .*{received}"):
        glue_scores(table)
