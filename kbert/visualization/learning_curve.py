"""A picture of how a run learnt: values of its steps, and where its phases change.

Shapes: S steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbert.visualization.canvas import (
    COLOURS,
    GREY,
    bare,
    new_figure,
    set_title,
    shown,
    style,
)

_SPAN = 0.03  # of the run: how far the thick line averages to each side


def learning_curve(
    steps: Sequence[Mapping[str, float]],
    values: Sequence[str] = ("loss",),
    *,
    changes: Mapping[int, str] | None = None,
    title: str | None = "Learning curve",
) -> Any:
    """Values of the steps of a run, thin, and their running means, thick; one panel a value.

    Args:
        steps: of each step its values and its number, `step`, in order, such as the history of a
            run has (`history.steps`) or `steps.jsonl` holds.
        values: names of those that are drawn.
        changes: step -> what begins there, such as another length of the rows; a line is drawn.
        title: above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: fewer than two steps, none of `values`, or a step that lacks one of them.

    Example:
        >>> steps = [{"step": n, "loss": 9 / n} for n in range(1, 5)]
        >>> figure = learning_curve(steps, changes={3: "longer rows"})
        >>> figure.axes[0].get_ylabel(), [text.get_text() for text in figure.axes[0].texts]
        ('loss', ['longer rows', '2.62'])
    """
    lacking = [name for name in ("step", *values) if any(name not in step for step in steps)]
    if len(steps) < 2 or not values or lacking:
        raise ValueError(
            "A learning curve has two steps or more, and in each the values that are drawn. "
            f"Received: {len(steps)} steps, values {', '.join(values) or 'none'}"
            + (f", of which {', '.join(lacking)} is not in every step" if lacking else "")
        )
    numbers = np.array([step["step"] for step in steps], "int64")
    figure = new_figure(7.5, 0.8 + 2.2 * len(values))
    panels = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
    for place, (axes, name) in enumerate(zip(panels, values, strict=True)):
        found = np.array([step[name] for step in steps], "float64")
        smooth = _running_mean(found, max(1, round(_SPAN * len(found))))
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(numbers, found, color=colour, alpha=0.3, linewidth=0.8)
        axes.plot(numbers, smooth, color=colour, linewidth=2)
        for step, what in (changes or {}).items():
            axes.axvline(step, color="#999999", linewidth=1, linestyle=(0, (4, 4)))
            if place == 0:
                axes.annotate(
                    shown(what, 24),
                    (step, 1),
                    (4, -4),
                    xycoords=axes.get_xaxis_transform(),
                    textcoords="offset points",
                    va="top",
                    **style(fontsize=9, color=GREY),
                )
        axes.annotate(
            f"{smooth[-1]:.3g}",
            (numbers[-1], smooth[-1]),
            (6, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
            **style(fontsize=9, color=GREY),
        )
        axes.set_ylabel(shown(name.replace("_", " ")), **style())
        axes.grid(axis="y", color="#eeeeee")
        bare(axes, "bottom", "left")
    panels[-1].set_xlabel("step", **style())
    set_title(panels[0], title)
    return figure


def _running_mean(values: np.ndarray, span: int) -> np.ndarray:
    """(S,): of each value and `span` to each side, as far as there are such; NaN is left out."""
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    places = np.arange(len(values))
    first, last = np.maximum(places - span, 0), np.minimum(places + span + 1, len(values))
    count = counts[last] - counts[first]
    return np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), np.nan)
