"""Attention as lines between two columns of names, the stronger the darker.

Shapes: L layers, N heads, T rows, S columns, P panels, K lines.
"""

from typing import Any

import numpy as np

from kbert.visualization.attention_heat import LONGEST_NAME
from kbert.visualization.attention_weights import Weights, panel_names
from kbert.visualization.canvas import (
    COLOURS,
    GREY,
    bare,
    label_axis,
    new_figure,
    set_figure_title,
    set_title,
    shown,
    style,
)

_FAINTEST = 0.02  # of the strongest: what is fainter cannot be seen
_READABLE = 5.0  # points


def line_maps(weights: Weights, title: str | None) -> Any:
    """The figure of (L, N, T, S) weights: its form follows from L and N."""
    layers, heads, *_ = weights.values.shape
    if layers > 1 and heads > 1:
        return _overview(weights, title)
    panels = weights.values.reshape(layers * heads, *weights.values.shape[2:])
    names = panel_names(layers, heads) if len(panels) > 1 else [None]
    return _panels(panels, names, weights, title)


def _panels(panels, names, weights, title):
    rows, columns = panels.shape[1:]
    count = max(rows, columns)
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    line = float(np.clip((9 if len(panels) == 1 else 4.5) / count, 0.07, 0.3))  # inches
    font = min(10.0 if len(panels) == 1 else 9.0, line * 72 * 0.62)
    named = len(panels) == 1 or font >= _READABLE
    beside = 0.0085 * font * sum(_longest(x) for x in (weights.rows, weights.columns))
    wide = (2.2 if len(panels) == 1 else 1.3) + (beside + 0.3 if named else 0.2)
    figure = new_figure(
        max(3.4, across * wide), down * (line * count + 0.55) + 0.4 * (title is not None)
    )
    grid = figure.subplots(down, across, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        segments, strengths = _lines(panels[number], panels.max())
        _add(axes, segments, strengths, 2.0)
        axes.set(xlim=(0, 1), ylim=(count - 0.5, -0.5))
        _name_sides(axes, weights, font, named, len(panels) == 1)
        if names[number] is not None:
            axes.set_title(names[number], fontsize=9, pad=4, **style(color=GREY))
    set_figure_title(figure, title)
    return figure


def _name_sides(axes, weights, font, named, alone) -> None:
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    sides = (
        (axes, weights.rows, weights.row_title),
        (right, weights.columns, weights.column_title),
    )
    for side, names, what in sides:
        if named:
            label_axis(side.yaxis, [shown(x, LONGEST_NAME) for x in names], fontsize=font)
        else:
            side.set_yticks([])
        if alone:
            side.set_ylabel(what, **style(color=GREY))
        side.set_xticks([])
        side.set_facecolor("none")
        bare(side)


def _overview(weights, title):
    """All panels in one, without names."""
    layers, heads, rows, columns = weights.values.shape
    count = max(rows, columns)
    panel = float(np.clip(11 / heads, 0.5, 1.5))  # inches
    figure = new_figure(panel * heads + 0.7, panel * layers + 0.7)
    axes = figure.add_subplot()
    for layer, head in np.ndindex(layers, heads):
        segments, strengths = _lines(weights.values[layer, head], weights.values.max())
        segments = segments * [0.8, 0.85 / count] + [head - 0.4, layer - 0.425]
        segments[..., 1] += 0.425 / count
        _add(axes, segments, strengths, float(np.clip(20 / count, 0.5, 1.2)))
    axes.set(xlim=(-0.5, heads - 0.5), ylim=(layers - 0.5, -0.5))
    axes.set_xticks(range(heads))
    axes.set_yticks(range(layers))
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("head", **style(color=GREY))
    axes.set_ylabel("layer", **style(color=GREY))
    edges = {"color": "#dddddd", "linewidth": 0.8, "clip_on": False}
    axes.hlines(np.arange(layers + 1) - 0.5, -0.5, heads - 0.5, **edges)
    axes.vlines(np.arange(heads + 1) - 0.5, -0.5, layers - 0.5, **edges)
    bare(axes)
    set_title(axes, title)
    return figure


def _lines(values, largest):
    """Ends of the lines that can be seen (K, 2, 2), and strengths (K,), the faintest first."""
    shares = values / (largest or 1)
    row, column = np.nonzero(shares >= _FAINTEST)
    strengths = shares[row, column]
    order = np.argsort(strengths, kind="stable")
    ends = np.stack([np.zeros_like(row), row, np.ones_like(column), column], 1)
    return ends.reshape(-1, 2, 2)[order].astype("float64"), strengths[order]


def _add(axes, segments, strengths, width) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgb

    colours = np.empty((len(strengths), 4))
    colours[:, :3] = to_rgb(COLOURS[0])
    colours[:, 3] = strengths
    axes.add_collection(LineCollection(list(segments), colors=colours, linewidths=width))


def _longest(names):
    return max(len(shown(name, LONGEST_NAME)) for name in names)
