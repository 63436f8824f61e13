import math

import pytest

from kbert.training.run.values import NonFiniteLoss, StepValues


def test_of_a_step_that_float16_skipped_what_is_finite_is_logged():
    values = StepValues(None)
    values.add(1, {"loss": 0.5, "loss_scale": 8.0, "skipped_steps": 0.0})
    values.add(2, {"loss": math.nan, "loss_scale": 4.0, "skipped_steps": 1.0})
    assert values.fetch(derived=()) == [
        {"step": 1, "loss": 0.5, "loss_scale": 8.0, "skipped_steps": 0.0},
        {"step": 2, "loss_scale": 4.0, "skipped_steps": 1.0},
    ]


def test_where_nothing_is_left_to_halve_it_is_an_error():
    """A loss scale of 1: the step does not call itself skipped."""
    values = StepValues(None)
    values.add(3, {"loss": math.inf, "loss_scale": 1.0, "skipped_steps": 0.0})
    with pytest.raises(NonFiniteLoss, match="loss is inf at step 3"):
        values.fetch(derived=())


def test_derived_values_may_overflow():
    values = StepValues(None)
    values.add(1, {"loss": 100.0, "perplexity": math.inf})
    assert values.fetch(derived=("perplexity",)) == [
        {"step": 1, "loss": 100.0, "perplexity": math.inf}
    ]
