"""A picture of the cost of students, and of the share of the teacher's score that they keep."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kbert.visualization.canvas import (
    COLOURS,
    GREY,
    MARKS,
    bare,
    new_figure,
    set_title,
    shown,
    style,
)
from kbert.visualization.names import name_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COSTS = ("time", "parameters", "size")


def trade_off(
    table: Mapping[str, Mapping[str, Any]],
    *,
    cost: str = "time",
    teacher: str | None = None,
    kept: Sequence[float] = (1.0, 0.97),
    metric: str = "score",
    title: str | None = "What a student costs and what it keeps",
) -> Any:
    """Draws models by cost and score, each with its name and its score.

    Several values of a model, such as a score per seed, are one mark at their mean, with a bar of
    one sample standard deviation to each side. The axis of costs begins at 0, so that half the
    distance is half the cost; the axis of scores does not.

    Args:
        table: name -> {"time": milliseconds, one or several; "parameters": their number; "size":
            bytes on the disk; "score": one or several}. Only the cost that is shown is required.
        cost: cost on the horizontal axis: "time", "parameters" or "size".
        teacher: name of the model that the others are compared with; None for none.
        kept: shares of the teacher's score, each drawn as a dashed line.
        metric: name of the score.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: the table is empty, a model has no score or cost, a value is not a finite
            number, a cost is not above 0, `cost` has an unknown name, or the teacher is not in the
            table.

    Example:
        >>> figure = trade_off(
        ...     {"teacher": {"time": 9.0, "score": 0.92},
        ...      "3 layers": {"time": [5.1, 4.9], "score": [0.90, 0.89, 0.91]}},
        ...     teacher="teacher", metric="accuracy")
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['100 % of the teacher', '97 %', 'teacher: 0.920', '3 layers: 0.900 ± 0.010']
    """
    if cost not in COSTS:
        raise ValueError(f"`cost` must be one of {', '.join(COSTS)}. Received: {cost!r}")
    if not table or (teacher is not None and teacher not in table):
        raise ValueError(
            "The table must have a row for each model, including the teacher. Received: "
            f"{', '.join(map(str, table)) or 'no rows'}; teacher={teacher!r}"
        )
    scores = [_values(name, row, "score") for name, row in table.items()]
    costs = [_values(name, row, cost) for name, row in table.items()]
    label = "forward time (ms)"
    if cost == "parameters":
        unit, word = (1e6, "millions") if max(map(np.max, costs)) >= 1e6 else (1e3, "thousands")
        costs, label = [values / unit for values in costs], f"parameters ({word})"
    elif cost == "size":
        costs, label = [values / 1e6 for values in costs], "size on the disk (MB)"
    points = np.array([(x.mean(), y.mean()) for x, y in zip(costs, scores, strict=True)])
    spreads = np.array([(_spread(x), _spread(y)) for x, y in zip(costs, scores, strict=True)])
    best = None if teacher is None else points[list(table).index(teacher), 1]
    lines = [] if best is None else [share * best for share in kept]

    figure = new_figure(7.5, 4.8)
    axes = figure.add_subplot()
    _set_limits(axes, points, spreads, lines)
    axes.set_xlabel(label, **style())
    axes.set_ylabel(shown(metric), **style())
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#eeeeee")
    bare(axes, "bottom", "left")
    set_title(axes, title)
    _draw_lines(axes, lines, kept)
    for number, (point, spread) in enumerate(zip(points, spreads, strict=True)):
        axes.errorbar(
            *point,
            xerr=spread[0] or None,
            yerr=spread[1] or None,
            fmt=MARKS[number % len(MARKS)],
            color=COLOURS[number % len(COLOURS)],
            markersize=9,
            capsize=4,
            zorder=3,
        )
    names = [
        f"{shown(name, 30)}: {_number(values)}" for name, values in zip(table, scores, strict=True)
    ]
    crosses = [
        (x, y - tall, x, y + tall) for (x, y), (_, tall) in zip(points, spreads, strict=True)
    ]
    crosses += [
        (x - wide, y, x + wide, y) for (x, y), (wide, _) in zip(points, spreads, strict=True)
    ]
    crosses += [(0, line, axes.get_xlim()[1], line) for line in lines]
    name_points(figure, axes, points, names, crosses)
    return figure


def _values(name: str, row: Mapping[str, Any], key: str) -> np.ndarray:
    """Returns the K values of a model for `key`, (K,) float64.

    Raises:
        ValueError: there are none, or a value is not a finite number; a cost must be above 0.
    """
    if not isinstance(row, Mapping) or key not in row:
        raise ValueError(
            f"Each model of the table must have a {key!r}. Received: {row!r} for {name!r}"
        )
    values = np.atleast_1d(np.asarray(row[key], "float64"))
    good = values.ndim == 1 and values.size and np.isfinite(values).all()
    if not good or (key != "score" and (values <= 0).any()):
        rule = "finite" if key == "score" else "finite and above 0"
        raise ValueError(
            f"Values of {key!r} must be numbers, {rule}. Received: {row[key]!r} for {name!r}"
        )
    return values


def _spread(values: np.ndarray) -> float:
    return values.std(ddof=1) if len(values) > 1 else 0.0


def _number(values: np.ndarray) -> str:
    spread = f" ± {_spread(values):.3f}" if len(values) > 1 else ""
    return f"{values.mean():.3f}{spread}"


def _set_limits(
    axes: "Axes", points: np.ndarray, spreads: np.ndarray, lines: Sequence[float]
) -> None:
    """Sets the limits of the axes: costs from 0, scores around all points and lines.

    Args:
        axes: axes to set.
        points: mean cost and score of each model, (N, 2).
        spreads: standard deviations, (N, 2).
        lines: scores of the dashed lines.
    """
    heights = [*(points - spreads)[:, 1], *(points + spreads)[:, 1], *lines]
    extent = max(np.ptp(heights), 0.01)
    axes.set_ylim(min(heights) - 0.12 * extent, max(heights) + 0.12 * extent)
    axes.set_xlim(0, 1.08 * (points + spreads)[:, 0].max())


def _draw_lines(axes: "Axes", lines: Sequence[float], kept: Sequence[float]) -> None:
    """Draws shares of the teacher's score as dashed lines, named to the right of the axes.

    Args:
        axes: axes to draw in.
        lines: score of each line; empty without a teacher.
        kept: share of the teacher's score of each line.
    """
    for number, (line, share) in enumerate(zip(lines, kept, strict=bool(lines))):
        axes.axhline(line, color="#999999", linewidth=1, linestyle=(0, (5, 4)), zorder=1)
        axes.annotate(
            f"{100 * share:g} %" + ("" if number else " of the teacher"),
            (1, line),
            (4, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
            **style(fontsize=9, color=GREY),
        )
