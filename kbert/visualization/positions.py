"""Pictures of position embeddings: the table, and the cosines between its rows.

Shapes: M positions, H width.
"""

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kbert.core.types import Values
from kbert.visualization.canvas import GREY, bare, new_figure, set_figure_title, set_title, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def positions(table: Any, count: int | None = None, *, title: str | None = None) -> Any:
    """Draws a table of position embeddings as a heat map, next to the cosines between its rows.

    Sinusoids (Vaswani et al. 2017, section 3.5) appear as stripes that grow longer from column to
    column, and their cosines depend only on the distance. A trained table shows how much of that
    structure it has learned.

    Args:
        table: (M, H); or a layer, model or task that has such a table. For a `kbert.Seq2Seq` it is
            the encoder's table (`model.decoder_positions` has the decoder's).
        count: number of positions to show, from the first; None = all.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure with two axes and their scales.

    Raises:
        TypeError: `table` has no position table.
        ValueError: the table is not a matrix of finite numbers, or has fewer positions than
            `count`.

    Example:
        >>> from kbert.layers.positions import sinusoids
        >>> figure = positions(sinusoids(50, 32), title="Sines and cosines")
        >>> figure.axes[0].images[0].get_array().shape, figure.axes[1].images[0].get_array().shape
        ((50, 32), (50, 50))
    """
    values = np.asarray(_find(table), "float64")
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ValueError(
            "A position table must be a matrix (positions, width) of finite numbers. Received: an "
            f"array of shape {values.shape}"
        )
    if count is not None:
        if not 0 < count <= len(values):
            raise ValueError(
                f"count must be a number from 1 to the table's {len(values)} positions. "
                f"Received: {count!r}"
            )
        values = values[:count]
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    unit = values / np.maximum(lengths, 1e-12)
    figure = new_figure(11, 4.8 + 0.4 * (title is not None))
    left, right = figure.subplots(1, 2)
    largest = np.abs(values).max() or 1.0
    _draw(figure, left, values, "RdBu_r", (-largest, largest), ("dimension", "position"), "value")
    set_title(left, "The table")
    cosines = unit @ unit.T
    scale = (min(0.0, cosines.min()), 1.0)
    _draw(figure, right, cosines, "viridis", scale, ("position", "position"), "cosine")
    set_title(right, "How alike two positions are")
    set_figure_title(figure, title)
    return figure


def _draw(
    figure: "Figure",
    axes: "Axes",
    values: np.ndarray,
    colours: str,
    scale: tuple[float, float],
    names: tuple[str, str],
    what: str,
) -> None:
    """Draws a matrix as a heat map with a colour scale.

    Args:
        figure: figure of the axes.
        axes: axes to draw in.
        values: the matrix.
        colours: name of a matplotlib colour map.
        scale: values of the first and the last colour.
        names: names of the horizontal and of the vertical axis.
        what: name of the colour scale.
    """
    image = axes.imshow(
        values, cmap=colours, vmin=scale[0], vmax=scale[1], aspect="auto", interpolation="nearest"
    )
    axes.set_xlabel(names[0], **style(color=GREY))
    axes.set_ylabel(names[1], **style(color=GREY))
    bare(axes)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label(what, fontsize=9, **style(color=GREY))


def _find(table: Any) -> Values:
    """Returns the position table of a layer, model or task, or the given array itself.

    TypeError if a layer or model has no table.
    """
    import keras

    from kbert.layers.positions import SinusoidalPositions, sinusoids
    from kbert.tasks.task import Task

    if isinstance(table, Task):
        table = table.model
    for name in ("encoder_positions", "positions", "embeddings"):  # Seq2Seq, Decoder, Encoder
        if isinstance(table, keras.Model) and hasattr(table, name):
            table = getattr(table, name)
    if isinstance(table, SinusoidalPositions):
        return sinusoids(table.max_positions, table.hidden_size, table.halves)
    if table is None or isinstance(table, keras.layers.Layer):
        if getattr(table, "position", None) is None:
            received = (
                "model without position embeddings" if table is None else type(table).__name__
            )
            raise TypeError(
                "A picture of positions requires a table, or a layer, model or task that has one. "
                f"Received: a {received}"
            )
        table = cast(Any, table).position.value
    if isinstance(table, np.ndarray | list | tuple):
        return table
    return keras.ops.convert_to_numpy(table)
