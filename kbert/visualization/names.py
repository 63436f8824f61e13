"""Writes names next to points, placed to avoid overlaps."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbert.core.types import Values
from kbert.visualization.canvas import GREY, style

if TYPE_CHECKING:
    from matplotlib.text import Text

_SIDES = ((0, "center"), (12, "left"), (-12, "right"), (24, "left"), (-24, "right"))
# Possible offsets of a name from its point, in typographic points, the best first.
_PLACES = (
    [(8, 0, "left"), (-8, 0, "right"), (0, 11, "center"), (0, -11, "center")]
    + [(8, 11, "left"), (8, -11, "left"), (-8, 11, "right"), (-8, -11, "right")]
    + [(8, 22, "left"), (8, -22, "left"), (-8, 22, "right"), (-8, -22, "right")]
    + [(x, y, side) for y in (24, -24, 36, -36, 48, -48) for x, side in _SIDES]
)


def name_points(
    figure: Any,
    axes: Any,
    points: Any,
    names: Sequence[str],
    obstacles: Sequence[tuple[float, float, float, float]] = (),
) -> None:
    """Writes each name next to its point, with a thin line between them.

    Limits, and everything else that changes the size of the axes, must be set before.

    Args:
        figure: figure that contains the axes.
        axes: axes that the points are drawn in.
        points: (N, 2) in the units of the axes.
        names: N texts.
        obstacles: other boxes that names avoid, (x0, y0, x1, y1) in the axes' units.
    """
    figure.draw_without_rendering()  # positions are known only once the axes have their size
    renderer = figure.canvas.get_renderer()
    frame = axes.get_window_extent(renderer).extents
    occupied = [(x - 5, y - 5, x + 5, y + 5) for x, y in axes.transData.transform(points)]
    for x0, y0, x1, y1 in obstacles:
        corners = axes.transData.transform([(x0, y0), (x1, y1)])
        occupied.append((*(corners[0] - 2), *(corners[1] + 2)))
    written: list[Any] = []
    for point, name in zip(points, names, strict=True):
        text = axes.annotate(
            name,
            point,
            (0, 0),
            textcoords="offset points",
            va="center",
            arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6, "shrinkB": 3},
            **style(fontsize=9, color=GREY),
        )
        text.set_in_layout(False)  # so that the axes keep their size
        cost = {}
        for offset in _PLACES:
            box = _box_at(text, offset, renderer)
            cost[offset] = (
                3 * sum(_meet(box, other_box) for other_box in written)
                + sum(_meet(box, other_box) for other_box in occupied)
                + 10 * _outside(box, frame)
            )
            if not cost[offset]:
                break
        written.append(_box_at(text, min(cost, key=cost.__getitem__), renderer))


def _box_at(text: "Text", place: tuple[float, float, str], renderer: Any) -> Values:
    """Moves a name to an offset of `_PLACES`; returns its box (x0, y0, x1, y1) in pixels."""
    from matplotlib.text import Text

    x, y, side = place
    text.set(position=(x, y), ha=side)
    text.update_positions(renderer)  # type: ignore[attr-defined]  # an Annotation's
    return Text.get_window_extent(text, renderer).extents  # without the line to the point


def _meet(a: Values, b: Values) -> bool:
    """Whether two boxes (x0, y0, x1, y1) overlap."""
    return bool(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3])


def _outside(box: Values, frame: Values) -> bool:
    """Whether a box (x0, y0, x1, y1) extends beyond a frame."""
    return bool(box[0] < frame[0] or box[1] < frame[1] or box[2] > frame[2] or box[3] > frame[3])
