"""Heat maps of attention: one with all names, one for each head, or every head of every layer.

Shapes: L layers, N heads, T rows, S columns, P panels.
"""

from typing import Any

import numpy as np

from kbert.visualization.attention_weights import Weights, panel_names
from kbert.visualization.canvas import (
    GREY,
    bare,
    label_axis,
    new_figure,
    set_figure_title,
    set_title,
    shown,
    style,
)

_COLOURS = "Blues"
LONGEST_NAME = 16  # characters
_READABLE = 5.0  # points: names smaller than that are left out of small panels


def heat_maps(weights: Weights, title: str | None) -> Any:
    """The figure of (L, N, T, S) weights: its form follows from L and N."""
    layers, heads, *_ = weights.values.shape
    if layers > 1 and heads > 1:
        return _overview(weights, title)
    panels = weights.values.reshape(layers * heads, *weights.values.shape[2:])
    if len(panels) == 1:
        return _single(panels[0], weights, title)
    return _multiples(panels, panel_names(layers, heads), weights, title)


def _single(values, weights, title):
    rows, columns = values.shape
    cell = float(np.clip(9 / max(rows, columns), 0.085, 0.36))  # inches
    font = min(10.0, cell * 72 * 0.62)
    turned = _turned(weights.columns, cell, font)
    width = cell * columns + _name_room(weights.rows, font) + 1.3
    above = 0.87 * _name_room(weights.columns, font) if turned else 0.3
    figure = new_figure(
        max(3.6, width), max(2.2, cell * rows + above + 0.6 + 0.3 * (title is not None))
    )
    axes = figure.add_subplot()
    image = _cells(axes, values, values.max())
    _name_columns(axes, weights, font, turned)
    label_axis(axes.yaxis, [shown(x, LONGEST_NAME) for x in weights.rows], fontsize=font)
    axes.set_xlabel(weights.column_title, **style(color=GREY))
    axes.set_ylabel(weights.row_title, **style(color=GREY))
    _scale(figure, image, axes, 0.9)
    set_title(axes, title)
    return figure


def _multiples(panels, names, weights, title):
    """Small maps beside each other on one scale; the names stand at the left and at the top."""
    _, rows, columns = panels.shape
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    cell = float(np.clip(2.6 / max(rows, columns), 0.02, 0.34))
    font = min(9.0, cell * 72 * 0.66)
    named = font >= _READABLE
    turned = named and _turned(weights.columns, cell, font)
    beside = _name_room(weights.rows, font) if named else 0.2
    above = (0.87 * _name_room(weights.columns, font) if turned else 0.25) if named else 0.0
    figure = new_figure(
        across * (cell * columns + 0.25) + beside + 1.1,
        down * (cell * rows + 0.38) + above + 0.25 + 0.45 * (title is not None),
    )
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        image = _cells(axes, panels[number], panels.max())
        axes.set_title(names[number], fontsize=9, pad=4, **style(color=GREY))
    for axes in grid[0]:
        if named and axes.get_visible():
            _name_columns(axes, weights, font, turned)
        else:
            axes.set_xticks([])
    for axes in grid[1:].flat:
        axes.tick_params(labeltop=False, labelbottom=False)
    for row in grid:
        if named:
            label_axis(row[0].yaxis, [shown(x, LONGEST_NAME) for x in weights.rows], fontsize=font)
        else:
            row[0].set_yticks([])
    _scale(figure, image, grid, min(0.9, 0.6 + 0.1 * down))
    figure.supxlabel(weights.column_title, fontsize=10, **style(color=GREY))
    figure.supylabel(weights.row_title, fontsize=10, **style(color=GREY))
    set_figure_title(figure, title)
    return figure


def _overview(weights, title):
    """All panels as one image, layers from top to bottom; the square root lets faint ones show."""
    from matplotlib.colors import PowerNorm

    layers, heads, rows, columns = weights.values.shape
    mosaic, (high, wide) = tile(weights.values)
    panel = float(np.clip(11 / heads, 0.5, 1.5))  # inches
    ratio = float(np.clip(rows / columns, 0.4, 2.5))
    figure = new_figure(panel * heads + 1.7, panel * ratio * layers + 0.9)
    axes = figure.add_subplot()
    image = axes.imshow(
        mosaic, cmap=_COLOURS, norm=PowerNorm(0.5, 0, 1), aspect="auto", interpolation="nearest"
    )
    axes.set_facecolor("white")
    _number_panels(axes, layers, heads, (high, wide), (rows, columns))
    _scale(figure, image, axes, 0.9)
    set_title(axes, title)
    return figure


def tile(values):
    """(L, N, T, S) -> one matrix with frames of NaN between the panels, and a panel's period."""
    layers, heads, rows, columns = values.shape
    gaps = [max(1, round(0.08 * size)) for size in (rows, columns)]
    padded = np.pad(
        values.astype("float32"),
        [(0, 0), (0, 0), (0, gaps[0]), (0, gaps[1])],
        constant_values=np.nan,
    )
    high, wide = padded.shape[2:]
    mosaic = padded.transpose(0, 2, 1, 3).reshape(layers * high, heads * wide)
    return mosaic[: -gaps[0], : -gaps[1]], (high, wide)


def _number_panels(axes, layers, heads, period, size) -> None:
    from matplotlib.patches import Rectangle

    across = [head * period[1] + (size[1] - 1) / 2 for head in range(heads)]
    down = [layer * period[0] + (size[0] - 1) / 2 for layer in range(layers)]
    axes.set_xticks(across, [str(i) for i in range(heads)])
    axes.set_yticks(down, [str(i) for i in range(layers)])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("head", **style(color=GREY))
    axes.set_ylabel("layer", **style(color=GREY))
    bare(axes)
    for layer, head in np.ndindex(layers, heads):
        corner = (head * period[1] - 0.5, layer * period[0] - 0.5)
        frame = {"fill": False, "edgecolor": "#bbbbbb", "linewidth": 0.6, "clip_on": False}
        axes.add_patch(Rectangle(corner, size[1], size[0], **frame))


def _cells(axes, values, largest):
    image = axes.imshow(
        values, cmap=_COLOURS, vmin=0, vmax=largest or 1, aspect="equal", interpolation="nearest"
    )
    bare(axes, "left", "right", "top", "bottom")
    for spine in axes.spines.values():
        spine.set_color("#bbbbbb")
    return image


def _name_columns(axes, weights, font, turned) -> None:
    rotation = {"rotation": 60, "ha": "left", "rotation_mode": "anchor"} if turned else {}
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    names = [shown(name, LONGEST_NAME) for name in weights.columns]
    label_axis(axes.xaxis, names, fontsize=font, **rotation)


def _turned(names, cell, font):
    """Whether the widest name is wider than its cell."""
    return max(len(shown(name, LONGEST_NAME)) for name in names) * 0.0088 * font > cell


def _name_room(names, font):
    """Inches that the longest name takes."""
    return 0.0080 * font * max(len(shown(name, LONGEST_NAME)) for name in names) + 0.1


def _scale(figure, image, axes, shrink) -> None:
    bar = figure.colorbar(image, ax=axes, shrink=shrink, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label("weight", fontsize=9, **style(color=GREY))
