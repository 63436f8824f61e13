"""Pictures of loss surfaces."""

import numpy as np
import pytest

from kbert.analysis import LossSurface
from kbert.visualization import loss_contours, loss_curves

ALPHAS, BETAS = np.linspace(-1, 2, 7), np.linspace(-1, 1, 5)
LINE = LossSurface(ALPHAS, None, (ALPHAS - 1) ** 2, np.zeros((0, 1)))
PATH = np.array([[0.2, 0.1], [0.7, -0.2]])
PLANE = LossSurface(ALPHAS, BETAS, (ALPHAS[:, None] - 1) ** 2 + BETAS**2 + 0.1, PATH)


def test_curves_of_two_models(drawn):
    figure = loss_curves({"fine-tuned": LINE, "from scratch": LINE})
    first = figure.axes[0].lines[0]
    np.testing.assert_allclose(first.get_ydata(), LINE.losses)
    assert {"fine-tuned", "from scratch", "loss"} <= set(drawn(figure))
    assert loss_curves(LINE, title=None).axes[0].get_legend() is None


def test_contours_share_their_scale_and_show_the_path(drawn):
    holes = np.where(PLANE.losses > 4, np.inf, 2 * PLANE.losses)
    figure = loss_contours(
        {"fine-tuned": PLANE, "from scratch": LossSurface(ALPHAS, BETAS, holes, PATH[:0])}
    )
    left, right, _ = figure.axes
    limits = [axes.collections[0].get_clim() for axes in (left, right)]
    assert limits[0] == limits[1]
    assert limits[0][1] >= PLANE.losses.max()
    np.testing.assert_allclose(left.lines[0].get_xydata(), [[0, 0], *PATH, [1, 0]])
    assert len(right.lines) == 2  # start and end, and no path
    assert {"start", "end", "fine-tuned", "from scratch"} <= set(drawn(figure))


@pytest.mark.parametrize(
    ("draw", "surfaces", "message"),
    [
        (loss_curves, PLANE, "Received: axes 2"),
        (loss_contours, {"a": PLANE, "b": LINE}, "Received: axes 2, 1"),
        (loss_curves, {}, "Received: axes of no surface"),
        (
            loss_contours,
            LossSurface(ALPHAS, BETAS, np.full((7, 5), np.nan), PATH),
            "requires finite ones. Received: none",
        ),
    ],
    ids=["plane", "line", "none", "not finite"],
)
def test_what_is_no_surface(draw, surfaces, message):
    with pytest.raises(ValueError, match=message):
        draw(surfaces)
