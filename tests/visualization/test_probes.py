"""Pictures of probes."""

import numpy as np
import pytest

from kbert.analysis import Probe
from kbert.visualization import probe_curves


def test_scores_baselines_and_expected_layers(drawn):
    tags = Probe(np.array([0.7, 0.9, 0.8]), baseline=0.3, mix=np.array([0.25, 0.25, 0.5]))
    figure = probe_curves({"tags": tags, "relations": Probe(np.array([0.4, 0.5, 0.6]), 0.2)})
    scores, baseline, expected = figure.axes[0].lines[:3]
    np.testing.assert_allclose(scores.get_xydata(), [(0, 0.7), (1, 0.9), (2, 0.8)])
    assert baseline.get_ydata()[0] == 0.3
    assert expected.get_xdata()[0] == 1.25
    assert {"tags", "relations", "accuracy"} <= set(drawn(figure))


def test_no_probes():
    with pytest.raises(ValueError, match=r"at least one. Received: none"):
        probe_curves({})
