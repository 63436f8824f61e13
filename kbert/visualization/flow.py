"""Draws boxes of text in lines, like the words of a paragraph."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbert.visualization.canvas import GREY, fonts, new_figure, set_title, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FONT, _SMALL = 13, 9  # points
_LINE, _GAP, _PAD = 0.58, 0.09, 0.05  # inches


@dataclass(frozen=True)
class Box:
    """A piece of text in a paragraph.

    Args:
        text: the text in the box.
        label: the name below the box, "" for none.
        colour: colour of the box, None for no box.
        opacity: opacity of the colour inside the box, 0 to 1.
    """

    text: str
    label: str
    colour: str | None
    opacity: float = 0.3


def flow(boxes: Sequence[Box], width: float, title: str | None) -> Any:
    """Draws boxes in lines from left to right, and returns a matplotlib Figure.

    Args:
        boxes: boxes in reading order.
        width: width of the figure in inches; its height follows from the number of lines.
        title: title above the boxes; None for none.
    """
    placed = []  # (box, x, width, line), in inches
    x, line = 0.0, 0
    for box in boxes:
        box_width = max(_width(box.text, _FONT), _width(box.label, _SMALL)) + 2 * _PAD
        if x and x + box_width > width - 0.3:
            x, line = 0.0, line + 1
        placed.append((box, x, box_width, line))
        x += box_width + _GAP
    height = (line + 1) * _LINE
    figure = new_figure(width, height + 0.2 + 0.4 * (title is not None), layout=None)
    total = figure.get_figheight()
    axes = figure.add_axes((0.15 / width, 0.1 / total, 1 - 0.3 / width, height / total))
    axes.set(xlim=(0, width - 0.3), ylim=(height, 0))
    axes.axis("off")
    for box, left, box_width, number in placed:
        _draw(axes, box, left, box_width, number * _LINE)
    set_title(axes, title)
    return figure


def _draw(axes: "Axes", box: Box, left: float, width: float, top: float) -> None:
    """Draws a box with its text and label; left edge, width and top edge are in inches."""
    from matplotlib.patches import FancyBboxPatch

    centre = left + width / 2
    if box.colour is not None:
        axes.add_patch(
            FancyBboxPatch(
                (left + 0.02, top + 0.04),
                width - 0.04,
                0.27,
                boxstyle="round,pad=0.02,rounding_size=0.05",
                facecolor=(box.colour, box.opacity),
                edgecolor=box.colour,
            )
        )
    alignment = {"ha": "center", "va": "center"}
    axes.text(centre, top + 0.18, box.text, **style(fontsize=_FONT, **alignment))
    if box.label:
        axes.text(centre, top + 0.43, box.label, **style(fontsize=_SMALL, color=GREY, **alignment))


def _width(text: str, size: float) -> float:
    """Returns the width of a text in inches at a font size in points; 0 if nothing is visible."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    # The path of a text without visible characters is empty and has no extents.
    if not text.strip():
        return 0.0
    return (
        TextPath((0, 0), text, prop=FontProperties(family=fonts(), size=size)).get_extents().width
        / 72
    )
