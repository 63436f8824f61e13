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
    steps: Any,
    values: Sequence[str] = ("loss",),
    *,
    changes: Mapping[int, str] | None = None,
    title: str | None = "Learning curve",
) -> Any:
    """Values of the steps of a run, thin, and their running means, thick; one panel a value.

    Args:
        steps: what `fit` returned; or for each step, in order, a dict of its values and its
            number, `step`, as the lines of `steps.jsonl`. A history without a `model_dir` has the
            values of epochs alone.
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
        >>> from types import SimpleNamespace
        >>> history = SimpleNamespace(history={"loss": [3.0, 2.0], "val_loss": [3.5, 3.0]})
        >>> learning_curve(history, ["loss", "val_loss"]).axes[1].get_xlabel()
        'epoch'
    """
    unit = "step"
    if isinstance(getattr(steps, "history", None), Mapping):
        unit, steps = _steps_of(steps)
    lacking = [name for name in ("step", *values) if any(name not in step for step in steps)]
    if len(steps) < 2 or not values or lacking:
        raise ValueError(
            f"A learning curve has two {unit}s or more, and in each the values that are drawn. "
            f"Received: {len(steps)} {unit}s, values {', '.join(values) or 'none'}"
            + (f", of which {', '.join(lacking)} is not in every {unit}" if lacking else "")
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
    panels[-1].set_xlabel(unit, **style())
    set_title(panels[0], title)
    return figure


def _steps_of(history: Any) -> tuple[str, Sequence[Mapping[str, float]]]:
    """The unit and the values of a history: of its steps, or of its epochs."""
    if getattr(history, "steps", None):
        return "step", history.steps
    rows = zip(*history.history.values(), strict=True)
    epochs = [dict(zip(history.history, row, strict=True)) for row in rows]
    return "epoch", [{"step": number, **values} for number, values in enumerate(epochs, 1)]


def _running_mean(values: np.ndarray, span: int) -> np.ndarray:
    """(S,): of each value and `span` to each side, as far as there are such; NaN is left out."""
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    places = np.arange(len(values))
    first, last = np.maximum(places - span, 0), np.minimum(places + span + 1, len(values))
    count = counts[last] - counts[first]
    return np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), np.nan)
