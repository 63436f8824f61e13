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
    steps: Any,
    values: Sequence[str] = ("loss",),
    *,
    changes: Mapping[int, str] | None = None,
    title: str | None = "Learning curve",
) -> Any:
    """Draws values of a run's steps (thin) and their running means (thick), one panel per value.

    Args:
        steps: the history that `fit` returned; or, for each step in order, a dict of its values and
            its number `step`, as in the lines of `steps.jsonl`. A history without a `model_dir`
            has values of epochs only.
        values: names of the values to draw.
        changes: step -> what begins there, such as another sequence length; a vertical line marks
            it.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there are fewer than two steps, `values` is empty, or a step or an epoch lacks a
            value, as after `validation_freq=2`.

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
        unit, steps = _steps_of(steps, values)
    lacking = [name for name in ("step", *values) if any(name not in step for step in steps)]
    if len(steps) < 2 or not values or lacking:
        raise ValueError(
            f"A learning curve requires at least two {unit}s, each with all the drawn values. "
            f"Received: {len(steps)} {unit}s, values {', '.join(values) or 'none'}"
            + (f", of which {', '.join(lacking)} is not in every {unit}" if lacking else "")
        )
    numbers = np.array([step["step"] for step in steps], "int64")
    figure = new_figure(7.5, 0.8 + 2.2 * len(values))
    panels = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
    for number, (axes, name) in enumerate(zip(panels, values, strict=True)):
        curve = np.array([step[name] for step in steps], "float64")
        smooth = _running_mean(curve, max(1, round(_SPAN * len(curve))))
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(numbers, curve, color=colour, alpha=0.3, linewidth=0.8)
        axes.plot(numbers, smooth, color=colour, linewidth=2)
        for step, change in (changes or {}).items():
            axes.axvline(step, color="#999999", linewidth=1, linestyle=(0, (4, 4)))
            if number == 0:
                axes.annotate(
                    shown(change, 24),
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


def _steps_of(history: Any, values: Sequence[str]) -> tuple[str, Sequence[Mapping[str, float]]]:
    """Returns "step" or "epoch", and for each step or epoch of a history its number and values.

    Values that are not drawn may be left out.
    """
    if getattr(history, "steps", None):
        return "step", history.steps
    count = max(map(len, history.history.values()), default=0)
    columns = {name: history.history[name] for name in values if name in history.history}
    # Keras does not note which epochs a validation_freq chose, so the values have no place.
    if lengths := {name: len(x) for name, x in columns.items() if len(x) != count}:
        raise ValueError(
            f"A drawn value must have a number for each of the {count} epochs (with Keras, "
            "validation_freq=1). Received: "
            + ", ".join(f"{size} of {name!r}" for name, size in lengths.items())
        )
    epochs = [{name: column[epoch] for name, column in columns.items()} for epoch in range(count)]
    return "epoch", [{"step": number, **values} for number, values in enumerate(epochs, 1)]


def _running_mean(values: np.ndarray, span: int) -> np.ndarray:
    """Returns running means (S,) of `values` over `span` values to each side.

    NaN and infinity are skipped; a mean of none is NaN.
    """
    is_finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(is_finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(is_finite)])
    positions = np.arange(len(values))
    first, last = np.maximum(positions - span, 0), np.minimum(positions + span + 1, len(values))
    count = counts[last] - counts[first]
    return np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), np.nan)
