"""Pictures of scores: of choices of layers, and of models on GLUE next to people's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.catalog.glue import HUMAN, human_score
from kbert.visualization.canvas import (
    COLOURS,
    GREY,
    MARKS,
    add_legend,
    bare,
    label_axis,
    new_figure,
    set_title,
    shown,
    style,
)


def layer_scores(
    table: Mapping[str, float | Mapping[str, float]],
    *,
    metric: str = "score",
    title: str | None = "Which layers make the best features",
) -> Any:
    """Draws the scores of choices of layers as dots on lines, with numbers; the best is bold.

    Dots instead of bars, because the scores are close together and a bar must begin at 0.

    Args:
        table: choice -> score, or choice -> {model on top: score}, in the order to be shown.
        metric: name of the score.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: the table is empty, choices have different models, or a score is not a finite
            number.

    Example:
        >>> figure = layer_scores({"last": 0.789, "sum_all": 0.801}, metric="accuracy")
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['0.789', '0.801']
    """
    rows = {str(name): _models(scores) for name, scores in table.items()}
    models = list(next(iter(rows.values()), {}))
    if not models or any(set(scores) != set(models) for scores in rows.values()):
        raise ValueError(
            "The table must have a score for each choice of layers, or the scores of the same "
            f"models for each. Received: {dict(table)!r}"
        )
    values = np.array([[scores[model] for model in models] for scores in rows.values()], "float64")
    if not np.isfinite(values).all():
        raise ValueError(f"Scores must be finite numbers. Received: {dict(table)!r}")
    row = 0.38 if len(models) == 1 else 0.55  # inches
    figure = new_figure(7.5, 1.1 + row * len(rows) + 0.4 * (len(models) > 1))
    axes = figure.add_subplot()
    positions = np.arange(len(rows))
    spread = max(np.ptp(values), 0.01)
    for number, model in enumerate(models):
        colour = COLOURS[number % len(COLOURS)]
        column = values[:, number]
        mark = MARKS[number % len(MARKS)]
        axes.plot(column, positions, mark, color=colour, markersize=8, label=shown(model), zorder=3)
        # Alternately above and below, so that the numbers of two models do not overlap.
        for position, score in zip(positions, column, strict=True):
            best = score == column.max()
            axes.annotate(
                f"{score:.3f}",
                (score, position),
                (0, 7) if number % 2 == 0 else (0, -15),
                textcoords="offset points",
                ha="center",
                **style(fontsize=9, color=GREY, weight="bold" if best else "normal"),
            )
    axes.set_xlim(values.min() - 0.12 * spread, values.max() + 0.12 * spread)
    axes.set_ylim(len(rows) - 0.4, -0.65)
    axes.set_xlabel(shown(metric), **style())
    label_axis(axes.yaxis, list(rows), fontsize=10)
    axes.hlines(positions, 0, 1, color="#dddddd", transform=axes.get_yaxis_transform(), zorder=1)
    bare(axes, "bottom")
    if len(models) > 1:
        add_legend(figure)
    set_title(axes, title)
    return figure


def glue_scores(
    table: Mapping[str, Mapping[str, float]], *, title: str | None = "GLUE, and people"
) -> Any:
    """Draws the scores of models on tasks of GLUE, with people's scores as vertical lines.

    People's scores are those of `kbert.catalog.glue.HUMAN` (Nangia and Bowman 2019). The last row
    is the average of these scores; the leaderboard's average, over all metrics, is 0.871.

    Args:
        table: model -> {task: score from 0 to 1}, the same tasks for each model, such as "cola".
            The score is the first metric of the task in `kbert.catalog.glue.GLUE`.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: the table is empty, models have different tasks, or people's score of a task is
            not known.

    Example:
        >>> figure = glue_scores({"BERT": {"cola": 0.52, "rte": 0.66}})
        >>> [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
        ['cola', 'rte', 'average']
        >>> [text.get_text() for text in figure.axes[0].texts][-1]
        'people'
    """
    tasks = [*next(iter(table.values()), {})]
    unknown = [task for task in tasks if task not in HUMAN]
    if not tasks or unknown or any(set(scores) != set(tasks) for scores in table.values()):
        raise ValueError(
            f"Each model must have scores of the same tasks, from {', '.join(HUMAN)}. Received: "
            f"{ {name: [*scores] for name, scores in table.items()} }"
        )
    rows = {task: {name: scores[task] for name, scores in table.items()} for task in tasks}
    rows["average"] = {name: float(np.mean([*x.values()])) for name, x in table.items()}
    human = np.array([human_score(task) for task in tasks])
    human = np.append(human, human.mean())
    figure = layer_scores(rows, metric="score", title=title)
    axes = figure.axes[0]
    for text in axes.texts:
        text.set_weight("normal")  # rows are tasks, none of which is best
    places = np.arange(len(rows))
    axes.vlines(human, places - 0.3, places + 0.3, color="black", linewidth=2, zorder=2)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, human.min() - 0.02), max(high, human.max() + 0.02))
    axes.annotate(
        "people",
        (human[0], -0.3),
        (0, 3),
        textcoords="offset points",
        ha="center",
        **style(fontsize=9),
    )
    return figure


def _models(scores: Any) -> dict[str, float]:
    return dict(scores) if isinstance(scores, Mapping) else {"": scores}
