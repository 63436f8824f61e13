"""Pictures of models by size."""

import numpy as np
import pytest

import kbert
from kbert.visualization import model_sizes
from tests.harness import tiny_config


def test_models_by_size(drawn):
    figure = model_sizes()
    counts = figure.axes[0].lines[0].get_xdata()
    assert (np.diff(counts) > 0).all()
    assert kbert.describe("roberta-large").parameters in counts
    assert {"roberta-large", "355 M", "elmo-original", "94 M"} <= set(drawn(figure))


def test_a_config_and_no_model(drawn):
    assert "custom" in drawn(model_sizes([tiny_config()]))
    with pytest.raises(ValueError, match=r"at least one model. Received: none"):
        model_sizes([])
