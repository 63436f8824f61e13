"""Curves of a run's values."""

from types import SimpleNamespace

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


def test_a_history_with_values_of_some_epochs():
    """What Keras returns after validation_freq=2."""
    history = SimpleNamespace(history={"loss": [4.0, 3.0, 2.0, 1.0], "val_loss": [3.5, 1.5]})
    thin = learning_curve(history).axes[0].lines[0]
    np.testing.assert_array_equal(thin.get_xydata(), [[1, 4], [2, 3], [3, 2], [4, 1]])
    for values in (["val_loss"], ["loss", "val_loss"]):
        with pytest.raises(ValueError, match=r"each of the 4 epochs .* Received: 2 of 'val_loss'"):
            learning_curve(history, values)
    with pytest.raises(ValueError, match=r"4 epochs, values f1, of which f1 is not in every epoch"):
        learning_curve(history, ["f1"])


def test_what_is_no_run():
    with pytest.raises(ValueError, match=r"at least two steps.* Received: 1 steps, values loss$"):
        learning_curve(STEPS[:1])
    with pytest.raises(ValueError, match="values loss, f1, of which f1 is not in every step"):
        learning_curve(STEPS, ("loss", "f1"))
    with pytest.raises(ValueError, match="values none"):
        learning_curve(STEPS, ())
