"""A picture of a run's learning curve: values of its steps, and changes of its phases.

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

_SPAN = 0.03  # share of the run that the thick line averages over to each side


def learning_curve(
    steps: Sequence[Mapping[str, float]],
    values: Sequence[str] = ("loss",),
    *,
    changes: Mapping[int, str] | None = None,
    title: str | None = "Learning curve",
) -> Any:
    """Draws values of a run's steps (thin) and their running means (thick), one panel per value.

    Args:
        steps: values of each step and its number `step`, in order, as in `history.steps` of a run
            or in `steps.jsonl`.
        values: names of the values to draw.
        changes: step -> what begins there, such as another sequence length; a vertical line marks
            it.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there are fewer than two steps, `values` is empty, or a step lacks a value.

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
    """Returns running means (S,) over `span` values to each side; NaN and infinity are skipped."""
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    places = np.arange(len(values))
    first, last = np.maximum(places - span, 0), np.minimum(places + span + 1, len(values))
    count = counts[last] - counts[first]
    return np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), np.nan)
