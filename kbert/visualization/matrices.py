"""Pictures of matrices, with a number in each cell.

Shapes: C classes, R rows, S columns.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kbert.visualization.canvas import bare, label_axis, new_figure, set_title, shown, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Relative luminance (WCAG 2) below which white is more legible than black.
_DARK = 0.18


def confusion_matrix(
    matrix: Any,
    names: Sequence[str] | None = None,
    *,
    title: str | None = "Confusion matrix",
) -> Any:
    """Draws a confusion matrix: which classes a classifier confuses.

    The number in a cell is the count. The colour is the share of the cell in its row, so that rare
    classes are as easy to read as frequent ones.

    Args:
        matrix: the result of `task.report`, or (C, C) counts, `matrix[true, predicted]`, as
            `kbert.metrics` returns them.
        names: C names of classes; None with a report, which has them.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: the matrix is not square, has negative counts, or has another size than the
            names.

    Example:
        >>> figure = confusion_matrix([[9, 1], [2, 8]], ["ham", "spam"])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['9', '1', '2', '8']
    """
    if hasattr(matrix, "confusion"):
        names = matrix.names if names is None else names
        matrix = matrix.confusion
    counts = np.asarray(matrix)
    names = [] if names is None else list(names)
    if counts.shape != (len(names), len(names)) or not names:
        raise ValueError(
            "A confusion matrix must have a row and a column for each name. Received: a matrix of "
            f"shape {counts.shape} and {len(names)} names"
        )
    if (counts < 0).any():
        raise ValueError(
            f"A confusion matrix must have counts of at least 0. Received: {counts.min()} in it"
        )
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    numbers = [[f"{count:,}" if count else "·" for count in row] for row in counts.tolist()]
    figure, axes = _cells(shares, numbers, names, names, "Blues", (0.0, 1.0), "share of the row")
    axes.set_xlabel("predicted", **style())
    axes.set_ylabel("true", **style())
    set_title(axes, title)
    return figure


def similarity_heatmap(
    matrix: Any,
    labels: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    title: str | None = "Cosine similarity",
) -> Any:
    """Draws cosine similarities of texts, or of one word in several contexts.

    Args:
        matrix: (R, S) cosines, as `kbert.extraction.similarity` returns them.
        labels: R names of the rows.
        columns: S names of the columns; None = the names of the rows.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: the names do not fit the matrix, or it contains NaN or infinity.

    Example:
        >>> figure = similarity_heatmap([[1.0, 0.42], [0.42, 1.0]], ["a river bank", "a bank note"])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['1.00', '0.42', '0.42', '1.00']
    """
    values = np.asarray(matrix, "float64")
    labels = list(labels)
    columns = labels if columns is None else list(columns)
    if values.shape != (len(labels), len(columns)) or not values.size:
        raise ValueError(
            "A matrix of similarities must have a row for each label and a column for each of "
            f"`columns` (None = the labels). Received: a matrix of shape {values.shape}, "
            f"{len(labels)} labels and {len(columns)} columns"
        )
    if not np.isfinite(values).all():
        raise ValueError(
            "Similarities must be finite numbers. Received: a matrix with NaN or infinity"
        )
    numbers = [[f"{value:.2f}" for value in row] for row in values]
    lowest = min(np.floor(values.min() * 10) / 10, 0.9)
    scale = (lowest, max(1.0, values.max()))
    figure, axes = _cells(values, numbers, labels, columns, "GnBu", scale, "cosine")
    set_title(axes, title)
    return figure


def _cells(
    values: np.ndarray,
    numbers: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    colours: str,
    scale: tuple[float, float],
    what: str,
) -> tuple["Figure", "Axes"]:
    """Draws a grid of coloured cells with a text in each, and the colour scale next to it.

    Args:
        values: values (R, S) for the colours.
        numbers: text of each cell.
        rows: names of the rows.
        columns: names of the columns.
        colours: name of a matplotlib colour map.
        scale: values of the first and the last colour.
        what: name of the colour scale.
    """
    longest = max(len(number) for row in numbers for number in row)
    count = max(len(rows), len(columns))
    font = 10 if count <= 20 else 7
    cell = max(0.5, 0.11 * longest) * font / 10  # inches
    turned = max(len(shown(name)) for name in columns) * 0.085 * font / 10 > cell
    margin = 0.075 * font / 10 * max(len(shown(name)) for name in rows) + 1.6
    below = (
        0.6 if not turned else 0.055 * font / 10 * max(len(shown(name)) for name in columns) + 0.7
    )
    figure = new_figure(
        max(3.2, cell * len(columns) + margin), max(2.4, cell * len(rows) + below + 0.6)
    )
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap=colours, vmin=scale[0], vmax=scale[1], aspect="equal")
    rotation = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    label_axis(axes.xaxis, columns, fontsize=font, **rotation)
    label_axis(axes.yaxis, rows, fontsize=font)
    for row, column in np.ndindex(values.shape):
        dark = _luminance(image.to_rgba(values[row, column])) < _DARK
        colour = "white" if dark else "black"
        text_style = {"ha": "center", "va": "center", "color": colour, "fontsize": font}
        axes.text(column, row, numbers[row][column], **style(**text_style))
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    bare(axes)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.03, aspect=25)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label(what, fontsize=9, **style())
    return figure, axes


def _luminance(colour: Sequence[float]) -> float:
    """Returns the relative luminance (WCAG 2) of red, green and blue in 0..1."""
    rgb = np.asarray(colour[:3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
