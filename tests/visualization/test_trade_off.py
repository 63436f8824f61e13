"""What students cost and what they keep."""

import numpy as np
import pytest

from kbert.visualization import trade_off

TABLE = {
    "the teacher": {"time": 9.0, "parameters": 22_700_000, "score": 0.92},
    "3 layers": {"time": [5.0, 5.2], "parameters": 17_400_000, "score": [0.90, 0.89, 0.91]},
    "2 layers": {"time": 3.4, "parameters": 15_600_000, "score": 0.85},
}


def _marks(figure):
    """(x, y) of each model, and the two bars of those that have several values."""
    points = [bars.lines[0].get_xydata()[0] for bars in figure.axes[0].containers]
    return np.array(points), [len(bars.lines[2]) for bars in figure.axes[0].containers]


def test_models_stand_at_cost_and_score_with_bars_over_seeds(drawn):
    figure = trade_off(TABLE, metric="accuracy")
    points, bars = _marks(figure)
    np.testing.assert_allclose(points, [(9.0, 0.92), (5.1, 0.90), (3.4, 0.85)])
    assert bars == [0, 2, 0]
    (whole,) = figure.axes[0].containers[1].lines[2][1].get_segments()
    np.testing.assert_allclose(whole, [(5.1, 0.89), (5.1, 0.91)])  # a standard deviation of 0.01
    texts = {"the teacher: 0.920", "3 layers: 0.900 ± 0.010", "accuracy", "forward time (ms)"}
    assert texts <= set(drawn(figure))
    assert figure.axes[0].get_xlim()[0] == 0


def test_parameters_in_a_unit_that_fits_them(drawn):
    figure = trade_off(TABLE, cost="parameters")
    np.testing.assert_allclose(_marks(figure)[0][:, 0], [22.7, 17.4, 15.6])
    assert "parameters (millions)" in drawn(figure)
    sizes = {"whole": {"size": 90_900_000, "score": 0.9}, "int8": {"size": 23e6, "score": 0.9}}
    assert "size on the disk (MB)" in drawn(trade_off(sizes, cost="size"))
    small = trade_off({"tiny": {"parameters": 4_000, "score": 1}}, cost="parameters")
    assert "parameters (thousands)" in drawn(small)


def test_lines_are_shares_of_the_teacher(drawn):
    figure = trade_off(TABLE, teacher="the teacher", kept=(1.0, 0.975))
    lines = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(lines, [0.92, 0.897])
    assert {"100 % of the teacher", "97.5 %"} <= set(drawn(figure))


def test_names_do_not_meet_one_another_nor_a_bar(boxes, overlaps):
    table = {
        f"student {i}": {"time": 5 + 0.02 * i, "score": [0.8, 0.9 + 0.01 * i]} for i in range(4)
    }
    figure = trade_off(table | TABLE, teacher="the teacher")
    texts = boxes(figure)
    assert overlaps(texts) == 0
    axes = figure.axes[0]
    (x, low), (_, high) = axes.transData.transform([(5.1, 0.89), (5.1, 0.91)])
    assert overlaps([texts[-2], (x, low, x, high)]) == 0


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({}, {}, "Received: no rows"),
        (TABLE, {"teacher": "BERT"}, "Received: the teacher, 3 layers, 2 layers; teacher='BERT'"),
        (TABLE, {"cost": "bytes"}, "one of time, parameters, size. Received: 'bytes'"),
        ({"a": {"time": 1.0}}, {}, "must have a 'score'. Received: {'time': 1.0} for 'a'"),
        ({"a": {"score": 1.0}}, {}, "must have a 'time'. Received: {'score': 1.0} for 'a'"),
        ({"a": 1.0}, {}, "must have a 'score'. Received: 1.0 for 'a'"),
        ({"a": {"time": 1.0, "score": []}}, {}, r"'score' must be numbers, finite. Received: \[\]"),
        ({"a": {"time": 1.0, "score": [0.5, float("nan")]}}, {}, r"Received: \[0.5, nan\] for 'a'"),
        ({"a": {"time": 0, "score": 0.5}}, {}, "'time' must be numbers, finite and above 0"),
    ],
)
def test_what_is_no_table_of_models(table, options, message):
    with pytest.raises(ValueError, match=message):
        trade_off(table, **options)
