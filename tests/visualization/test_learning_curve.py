"""Curves of a run's values."""

import numpy as np
import pytest

from kbert.visualization import learning_curve

STEPS = [{"step": n, "loss": 10.0 - n / 10, "accuracy": n / 100} for n in range(1, 51)]


def test_each_value_has_a_panel_its_mean_and_its_last_number(drawn):
    figure = learning_curve(STEPS, ("loss", "accuracy"), changes={25: "rows of 64"})
    assert {"loss", "accuracy", "step", "rows of 64", "Learning curve"} <= set(drawn(figure))
    for axes, name in zip(figure.axes, ("loss", "accuracy"), strict=True):
        thin, thick, change = axes.lines
        values = np.array([step[name] for step in STEPS])
        np.testing.assert_array_equal(thin.get_xdata(), np.arange(1, 51))
        np.testing.assert_allclose(thin.get_ydata(), values)
        # Two steps to each side, fewer at the ends.
        smooth = [values[max(0, i - 2) : i + 3].mean() for i in range(50)]
        np.testing.assert_allclose(thick.get_ydata(), smooth)
        assert list(change.get_xdata()) == [25, 25]
        assert axes.texts[-1].get_text() == f"{smooth[-1]:.3g}"


def test_a_value_that_is_none_is_a_gap_and_no_more(drawn):
    steps = [dict(step) for step in STEPS]
    steps[10]["loss"] = float("nan")
    figure = learning_curve(steps)
    assert "loss" in drawn(figure)
    assert np.isfinite(figure.axes[0].lines[1].get_ydata()).all()


def test_what_is_no_run():
    with pytest.raises(ValueError, match=r"at least two steps.* Received: 1 steps, values loss$"):
        learning_curve(STEPS[:1])
    with pytest.raises(ValueError, match="values loss, f1, of which f1 is not in every step"):
        learning_curve(STEPS, ("loss", "f1"))
    with pytest.raises(ValueError, match="values none"):
        learning_curve(STEPS, ())
