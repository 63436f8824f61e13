"""Pictures of loss surfaces: losses on lines in one chart, planes as contours next to each other.

Shapes: A and B points of the axes, P points of a path.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.visualization.canvas import (
    COLOURS,
    GREY,
    add_legend,
    bare,
    new_figure,
    set_figure_title,
    set_title,
    shown,
    style,
)

_LEVELS = 12


def loss_curves(surfaces: Any, *, title: str | None = "The loss between two weights") -> Any:
    """Draws losses on lines, e.g. of fine-tuning from pretrained weights and from scratch.

    Args:
        surfaces: name -> `kbert.analysis.LossSurface` on a line; or a single one.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there are no surfaces, or one is of a plane.

    Example:
        >>> from kbert.analysis import LossSurface
        >>> alphas = np.linspace(0, 1, 3)
        >>> curve = LossSurface(alphas, None, (alphas - 1) ** 2, np.zeros((0, 1)))
        >>> figure = loss_curves({"fine-tuned": curve, "from scratch": curve})
        >>> figure.axes[0].get_xlabel()
        'start (0) to end (1)'
    """
    named = _named(surfaces, axes=1)
    figure = new_figure(7.5, 4.4)
    axes = figure.add_subplot()
    for number, (name, surface) in enumerate(named.items()):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(surface.alphas, surface.losses, color=colour, linewidth=2, label=shown(name))
    for edge in (0, 1):
        axes.axvline(edge, color="#999999", linewidth=1, linestyle=(0, (4, 4)), zorder=1)
    axes.set_xlabel("start (0) to end (1)", **style())
    axes.set_ylabel("loss", **style())
    axes.grid(axis="y", color="#eeeeee")
    bare(axes, "bottom", "left")
    if len(named) > 1:
        add_legend(figure, columns=2)
    set_title(axes, title)
    return figure


def loss_contours(surfaces: Any, *, title: str | None = "The loss around two weights") -> Any:
    """Draws losses on planes as contours on one scale, with start, end and path of training.

    The levels of the contours are logarithmic. A path is drawn where it is projected on the plane:
    the losses of its checkpoints may be lower or higher than those of the plane.

    Args:
        surfaces: name -> `kbert.analysis.LossSurface` on a plane; or a single one.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure with an axes for each surface, then the scale.

    Raises:
        ValueError: there are no surfaces, one is of a line, or no loss is finite.

    Example:
        >>> from kbert.analysis import LossSurface
        >>> alphas, betas = np.linspace(-1, 2, 7), np.linspace(-1, 1, 5)
        >>> losses = (alphas[:, None] - 1) ** 2 + betas**2
        >>> plane = LossSurface(alphas, betas, losses, np.array([[0, 0], [0.6, 0.1], [1, 0]]))
        >>> figure = loss_contours({"fine-tuned": plane, "from scratch": plane})
        >>> [axes.get_title(loc="left") for axes in figure.axes[:2]]
        ['fine-tuned', 'from scratch']
    """
    named = _named(surfaces, axes=2)
    losses = np.concatenate([np.ravel(surface.losses) for surface in named.values()])
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        raise ValueError("A picture of losses requires finite ones. Received: none")
    lowest = max(finite.min(), 1e-3 * finite.max(), 1e-6)  # below it all is one colour
    levels = np.geomspace(lowest, 1.01 * max(finite.max(), lowest), _LEVELS)
    figure = new_figure(1.5 + 4.2 * len(named), 4.6)
    panels = figure.subplots(1, len(named), squeeze=False)[0]
    for axes, (name, surface) in zip(panels, named.items(), strict=True):
        values = np.ma.masked_invalid(np.clip(surface.losses.T, lowest, None))  # (B, A)
        image = axes.contourf(surface.alphas, surface.betas, values, levels, cmap="viridis_r")
        axes.contour(surface.alphas, surface.betas, values, levels, colors="white", linewidths=0.5)
        path = np.concatenate([[[0.0, 0.0]], surface.path, [[1.0, 0.0]]])
        if len(surface.path):
            axes.plot(*path.T, "o-", color="black", linewidth=1.2, markersize=3)
        axes.plot(0, 0, "o", color=COLOURS[1], markeredgecolor="black", markersize=9, zorder=4)
        axes.plot(1, 0, "*", color=COLOURS[1], markeredgecolor="black", markersize=14, zorder=4)
        for place, word in ((0, "start"), (1, "end")):
            axes.annotate(
                word,
                (place, 0),
                (6, 8),
                textcoords="offset points",
                **style(fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}),
            )
        axes.set_xlabel("first direction", **style(color=GREY))
        axes.set_ylabel("second direction", **style(color=GREY))
        bare(axes)
        set_title(axes, name or None)
    bar = figure.colorbar(image, ax=[*panels], pad=0.02, aspect=30, format="%.2g")
    bar.outline.set_visible(False)
    bar.set_label("loss", fontsize=9, **style(color=GREY))
    set_figure_title(figure, title)
    return figure


def _named(surfaces: Any, axes: int) -> dict[str, Any]:
    """Returns name -> surface; ValueError unless each has this number of axes."""
    named = dict(surfaces) if isinstance(surfaces, Mapping) else {"": surfaces}
    dimensions = [np.ndim(surface.losses) for surface in named.values()]
    if not named or set(dimensions) != {axes}:
        raise ValueError(
            "loss_curves requires surfaces on lines (one axis), loss_contours surfaces on planes "
            f"(two). Received: axes {', '.join(map(str, dimensions)) or 'of no surface'}"
        )
    return named
