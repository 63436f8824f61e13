"""A picture of probes: how well each layer of an encoder shows a property."""

from collections.abc import Mapping
from typing import Any

from kbert.visualization.canvas import (
    COLOURS,
    MARKS,
    add_legend,
    bare,
    new_figure,
    set_title,
    shown,
    style,
)


def probe_curves(probes: Any, *, title: str | None = "What can be read from each layer") -> Any:
    """Draws the accuracies of probes by layer; dashed lines are the most frequent classes.

    The expected layer of a probe with a mix is a dotted vertical line.

    Args:
        probes: name of a property -> `kbert.analysis.Probe`; or a single one.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there are no probes.

    Example:
        >>> import numpy as np
        >>> from kbert.analysis import Probe
        >>> figure = probe_curves({"tags": Probe(np.array([0.8, 0.9, 0.85]), baseline=0.2)})
        >>> figure.axes[0].lines[0].get_ydata().tolist()
        [0.8, 0.9, 0.85]
    """
    named = dict(probes) if isinstance(probes, Mapping) else {"": probes}
    if not named:
        raise ValueError("A picture of probes requires at least one. Received: none")
    figure = new_figure(7.5, 4.4)
    axes = figure.add_subplot()
    for number, (name, probe) in enumerate(named.items()):
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        layers = range(len(probe.scores))
        axes.plot(layers, probe.scores, f"{mark}-", color=colour, label=shown(name))
        axes.axhline(probe.baseline, color=colour, linewidth=1, linestyle="--", alpha=0.6)
        if probe.mix is not None:
            axes.axvline(probe.expected_layer, color=colour, linewidth=1.5, linestyle=":")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("layer (0 = embeddings)", **style())
    axes.set_ylabel("accuracy", **style())
    axes.grid(axis="y", color="#eeeeee")
    bare(axes, "bottom", "left")
    if len(named) > 1:
        add_legend(figure)
    set_title(axes, title)
    return figure
