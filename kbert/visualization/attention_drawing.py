"""Pictures of attention: heat maps, lines between two columns of names, or an interactive page.

Shapes: L layers, N heads, T rows, S columns, P panels, K lines.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kbert.visualization.attention_page import AttentionPage
from kbert.visualization.attention_reading import Weights, as_weights, read_attention
from kbert.visualization.canvas import (
    COLOURS,
    GREY,
    bare,
    label_axis,
    new_figure,
    set_figure_title,
    set_title,
    shown,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from kbert.tokenizers.base import Tokenizer

VIEWS = ("heatmap", "lines", "html")
_COLOUR_MAP = "Blues"
_LONGEST_NAME = 16  # characters
_READABLE = 5.0  # points: small panels omit names below this size
_SMALL, _MOST_NAMES = 24, 40  # tokens: up to 24 fit in small panels, beyond 40 have no names
_FAINTEST = 0.02  # share of the strongest line: fainter lines cannot be seen


def attention_map(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    view: str = "heatmap",
    titles: tuple[str, str] = ("token", "attends to"),
    title: str | None = None,
) -> Any:
    """Draws attention weights from any source, e.g. the alignment of two sentences.

    Args:
        weights: weights from 0 to 1. (T, S): one picture. (N, T, S): one for each head.
            (L, N, T, S): all heads of all layers, small and without names; `view="html"` shows them
            large as well.
        rows: T names of the queries, e.g. the words of a translation.
        columns: S names of the keys, the attended positions, e.g. the words of the source; None =
            the names of the rows.
        view: "heatmap", a cell for each pair (Bahdanau et al. 2015, figure 3); "lines", two
            columns of names with lines between them, darker for larger weights (after Vig 2019,
            https://arxiv.org/abs/1906.05714); "html", an interactive page.
        titles: titles of the rows and of the columns.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure; for "html" an `AttentionPage`, which a notebook displays and whose
        `save` writes a file.

    Raises:
        ValueError: the view is unknown, the number of names is wrong or above 128, or weights are
            outside 0..1.

    Example:
        >>> figure = attention_map([[0.1, 0.9], [0.8, 0.2]], ["rouge", "maison"], ["house", "red"])
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['rouge', 'maison']
    """
    _check_view(view)
    return draw(as_weights(weights, rows, columns, titles), view, title)


def attention(
    model: Any,
    texts: str | Sequence[str],
    layer: int | None = None,
    head: int | None = None,
    *,
    tokenizer: "Tokenizer | None" = None,
    kind: str = "auto",
    view: str = "heatmap",
    title: str | None = None,
) -> Any:
    """Draws the attention of a model, labelled with the tokens of the text.

    A row holds the weights of the positions that a token attends to; it sums to 1. With both
    `layer` and `head` there is one picture. With one of them, all heads of a layer or one head in
    all layers are shown, with names for up to 40 tokens. With neither, all heads of all layers are
    shown, small and without names.

    Args:
        model: a task, or a `kbert.Encoder`, `kbert.Decoder` or `kbert.Seq2Seq` with `tokenizer`.
        texts: one text; or a pair: two segments for an encoder, source and target for a
            `Seq2Seq`. If only a source is given, a Translator generates the target. An encoder's
            text may contain the mask token.
        layer: number of the layer from 0, negative from the last; None = all layers.
        head: number of the head from 0, negative from the last; None = all heads.
        tokenizer: tokenizer of the model; None = the task's.
        kind: kind of attention: "encoder", "decoder", or "cross", from target to source. "auto" is
            the kind that the model has; for a `Seq2Seq` "cross", and with `view="html"` all kinds.
            A row of "cross" is named after the token that is predicted there, not after the input
            token before it.
        view: "heatmap", "lines" (two columns of tokens with lines between them), or "html", an
            interactive page with menus for layers, heads and tokens.
        title: title above the picture; None = a description of what it shows.

    Returns:
        A matplotlib Figure; for "html" an `AttentionPage`, which a notebook displays and whose
        `save` writes a file.

    Raises:
        TypeError: the model is of another kind, or `texts` are not strings.
        ValueError: a layer, head, kind or view does not exist, the model reads another number of
            texts, or there are more tokens than its positions or than a picture shows (128).

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "it", "rains"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=7))
        >>> figure = attention(encoder, "It rains", -1, 0, tokenizer=tokenizer)
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['[CLS]', 'it', 'rains', '[SEP]']
        >>> attention(encoder, "It rains", tokenizer=tokenizer, view="html")
        AttentionPage(encoder: 2 layers, 2 heads, 4 × 4 tokens)
    """
    _check_view(view)
    kinds = read_attention(model, texts, tokenizer=tokenizer)
    if kind != "auto":
        if kind not in kinds:
            raise ValueError(
                f'kind must be "auto" or one of {", ".join(kinds)}. Received: {kind!r}'
            )
        kinds = {kind: kinds[kind]}
    first = next(iter(kinds))
    if view == "html":
        return AttentionPage(kinds, layer=layer, head=head, title=title)
    chosen = kinds[first].select(layer, head)
    if title is None:
        layers, heads, *_ = kinds[first].values.shape
        title = f"{first.capitalize()} attention"
        title += "" if layer is None else f", layer {layer % layers}"
        title += "" if head is None else f", head {head % heads}"
    return draw(chosen, view, title)


def _check_view(view: str) -> None:
    if view not in VIEWS:
        raise ValueError(f"view must be one of {VIEWS}. Received: {view!r}")


def draw(weights: Weights, view: str, title: str | None) -> Any:
    """Draws checked weights as a Figure, or as an `AttentionPage` for the view "html".

    Args:
        weights: weights; several layers and heads are drawn small, without names.
        view: one of `VIEWS`.
        title: title above the picture; None for none.
    """
    if view == "html":
        return AttentionPage({"": weights}, title=title)
    layers, heads, *size = weights.values.shape
    if layers > 1 and heads > 1:
        overview = _all_heat_maps if view == "heatmap" else _all_lines
        figure, axes = overview(weights)
        set_title(axes, title)
        return figure
    panels = weights.values.reshape(layers * heads, *size)
    names = [f"head {i}" for i in range(heads)] if layers == 1 else []
    names = names or [f"layer {i}" for i in range(layers)]
    if view == "lines":
        return _line_panels(panels, names, weights, title)
    if len(panels) == 1:
        return _heat_map(panels[0], weights, title)
    return _heat_maps(panels, names, weights, title)


def _across(panels: np.ndarray, most: int = 4) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a grid of panels, at most `most` columns."""
    across = min(len(panels), most)
    return -(-len(panels) // across), across


def _number_panels(axes: "Axes", across: np.ndarray, down: np.ndarray) -> None:
    """Labels axes with the numbers of heads, at `across`, and of layers, at `down`."""
    axes.set_xticks(across, [str(i) for i in range(len(across))])
    axes.set_yticks(down, [str(i) for i in range(len(down))])
    _at_the_top(axes)
    axes.set_xlabel("head", **style(color=GREY))
    axes.set_ylabel("layer", **style(color=GREY))
    bare(axes)


def _at_the_top(axes: "Axes") -> None:
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")


def _shorter(names: Sequence[str]) -> list[str]:
    return [shown(name, _LONGEST_NAME) for name in names]


def _heat_map(values: np.ndarray, weights: Weights, title: str | None) -> "Figure":
    """Draws one map of `values` (T, S), with the names of `weights`."""
    rows, columns = values.shape
    cell = float(np.clip(9 / max(rows, columns), 0.085, 0.36))  # inches
    font = min(10.0, cell * 72 * 0.62)
    turned = _turned(weights.columns, cell, font)
    width = cell * columns + _name_width(weights.rows, font) + 1.3
    above = 0.87 * _name_width(weights.columns, font) if turned else 0.3
    figure = new_figure(
        max(3.6, width), max(2.2, cell * rows + above + 0.6 + 0.3 * (title is not None))
    )
    axes = figure.add_subplot()
    image = _cells(axes, values, values.max())
    _name_columns(axes, weights, font, turned)
    label_axis(axes.yaxis, _shorter(weights.rows), fontsize=font)
    axes.set_xlabel(weights.column_title, **style(color=GREY))
    axes.set_ylabel(weights.row_title, **style(color=GREY))
    _scale(figure, image, axes, 0.9)
    set_title(axes, title)
    return figure


def _heat_maps(
    panels: np.ndarray, names: Sequence[str], weights: Weights, title: str | None
) -> "Figure":
    """Draws small maps in a grid on one scale; token names are at the left and at the top.

    Args:
        panels: weights (P, T, S).
        names: name of each panel.
        weights: names of the tokens.
        title: title above the picture; None for none.
    """
    _, rows, columns = panels.shape
    longest = max(rows, columns)
    # Longer texts get larger panels, fewer side by side, as long as their names can be read.
    is_long = _SMALL < longest <= _MOST_NAMES
    down, across = _across(panels, 3 if is_long else 4)
    cell = 0.108 if is_long else float(np.clip(2.6 / longest, 0.02, 0.34))
    font = min(9.0, cell * 72 * 0.66)
    named = font >= _READABLE
    turned = named and _turned(weights.columns, cell, font)
    margin = _name_width(weights.rows, font) if named else 0.2
    above = (0.87 * _name_width(weights.columns, font) if turned else 0.25) if named else 0.0
    figure = new_figure(
        across * (cell * columns + 0.25) + margin + 1.1,
        down * (cell * rows + 0.38) + above + 0.25 + 0.45 * (title is not None),
    )
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        image = _cells(axes, panels[number], panels.max())
        axes.set_title(names[number], fontsize=9, pad=4, **style(color=GREY))
    for axes in grid.flat:
        # Shared axes have labels in the last row only, and tick_top keeps that.
        axes.tick_params(labelbottom=False, labeltop=axes in grid[0])
        if named:
            _name_columns(axes, weights, font, turned)
        else:
            axes.set_xticks([])
    for row in grid:
        if named:
            label_axis(row[0].yaxis, _shorter(weights.rows), fontsize=font)
        else:
            row[0].set_yticks([])
    _scale(figure, image, grid, min(0.9, 0.6 + 0.1 * down))
    figure.supxlabel(weights.column_title, fontsize=10, **style(color=GREY))
    figure.supylabel(weights.row_title, fontsize=10, **style(color=GREY))
    set_figure_title(figure, title)
    return figure


def _all_heat_maps(weights: Weights) -> tuple["Figure", "Axes"]:
    """Draws the maps of all heads of all layers as one image, a row for each layer.

    Colours follow the square root of the weights, so that small weights are visible.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    layers, heads, rows, columns = weights.values.shape
    mosaic, (high, wide) = tile(weights.values)
    panel = float(np.clip(11 / heads, 0.5, 1.5))  # inches
    ratio = float(np.clip(rows / columns, 0.4, 2.5))
    figure = new_figure(panel * heads + 1.7, panel * ratio * layers + 0.9)
    axes = figure.add_subplot()
    image = axes.imshow(
        mosaic, cmap=_COLOUR_MAP, norm=PowerNorm(0.5, 0, 1), aspect="auto", interpolation="nearest"
    )
    axes.set_facecolor("white")
    across, down = wide * np.arange(heads), high * np.arange(layers)
    _number_panels(axes, across + (columns - 1) / 2, down + (rows - 1) / 2)
    frame: dict[str, Any] = {
        "fill": False,
        "edgecolor": "#bbbbbb",
        "linewidth": 0.6,
        "clip_on": False,
    }
    for layer, head in np.ndindex(layers, heads):
        corner = (float(across[head]) - 0.5, float(down[layer]) - 0.5)
        axes.add_patch(Rectangle(corner, columns, rows, **frame))
    _scale(figure, image, axes, 0.9)
    return figure, axes


def tile(values: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    """Tiles weights (L, N, T, S) to one matrix with gaps of NaN between the panels.

    Returns:
        The matrix, a row of panels for each layer; and the distances in cells from one panel to the
        next, down and across.
    """
    layers, heads, rows, columns = values.shape
    gaps = [max(1, round(0.08 * size)) for size in (rows, columns)]
    padded = np.pad(
        values.astype("float32"),
        [(0, 0), (0, 0), (0, gaps[0]), (0, gaps[1])],
        constant_values=np.nan,
    )
    high, wide = padded.shape[2:]
    mosaic = padded.transpose(0, 2, 1, 3).reshape(layers * high, heads * wide)
    return mosaic[: -gaps[0], : -gaps[1]], (high, wide)


def _cells(axes: "Axes", values: np.ndarray, largest: float) -> "AxesImage":
    """Draws a map of `values` (T, S) in axes; `largest` gets the darkest colour."""
    image = axes.imshow(
        values, cmap=_COLOUR_MAP, vmin=0, vmax=largest or 1, aspect="equal", interpolation="nearest"
    )
    bare(axes, "left", "right", "top", "bottom")
    for spine in axes.spines.values():
        spine.set_color("#bbbbbb")
    return image


def _name_columns(axes: "Axes", weights: Weights, font: float, turned: bool) -> None:
    rotation = {"rotation": 60, "ha": "left", "rotation_mode": "anchor"} if turned else {}
    _at_the_top(axes)
    label_axis(axes.xaxis, _shorter(weights.columns), fontsize=font, **rotation)


def _longest(names: Sequence[str]) -> int:
    return max(map(len, _shorter(names)))


def _turned(names: Sequence[str], cell: float, font: float) -> bool:
    """Whether names must be turned: the widest, at `font` points, exceeds `cell` inches."""
    return _longest(names) * 0.0088 * font > cell


def _name_width(names: Sequence[str], font: float) -> float:
    """Returns the estimated width of the longest name in inches, at a font size in points."""
    return 0.0080 * font * _longest(names) + 0.1


def _scale(figure: "Figure", image: "AxesImage", axes: Any, shrink: float) -> None:
    """Adds the colour scale of an image, `shrink` times as high as its axes."""
    bar = figure.colorbar(image, ax=axes, shrink=shrink, pad=0.02, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label("weight", fontsize=9, **style(color=GREY))


def _line_panels(
    panels: np.ndarray, names: Sequence[str], weights: Weights, title: str | None
) -> "Figure":
    """Draws lines between two columns of tokens, a panel for each of `panels` (P, T, S).

    Args:
        panels: weights (P, T, S).
        names: name of each panel, if there are several.
        weights: names of the tokens, which are left out if panels are too small.
        title: title above the picture; None for none.
    """
    rows, columns = panels.shape[1:]
    count = max(rows, columns)
    down, across = _across(panels)
    line = float(np.clip((9 if len(panels) == 1 else 4.5) / count, 0.07, 0.3))  # inches
    font = min(10.0 if len(panels) == 1 else 9.0, line * 72 * 0.62)
    named = len(panels) == 1 or font >= _READABLE
    margin = 0.0085 * font * sum(_longest(x) for x in (weights.rows, weights.columns))
    wide = (2.2 if len(panels) == 1 else 1.3) + (margin + 0.3 if named else 0.2)
    figure = new_figure(
        max(3.4, across * wide), down * (line * count + 0.55) + 0.4 * (title is not None)
    )
    grid = figure.subplots(down, across, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        segments, strengths = _lines(panels[number], panels.max())
        _add(axes, segments, strengths, 2.0)
        axes.set(xlim=(0, 1), ylim=(count - 0.5, -0.5))
        _name_sides(axes, weights, font, named, len(panels) == 1)
        if len(panels) > 1:
            axes.set_title(names[number], fontsize=9, pad=4, **style(color=GREY))
    set_figure_title(figure, title)
    return figure


def _name_sides(axes: "Axes", weights: Weights, font: float, named: bool, alone: bool) -> None:
    """Writes the names of rows at the left and of columns at the right of a panel of lines.

    Args:
        axes: axes of the panel.
        weights: names of the tokens, and titles of the two sides.
        font: font size in points.
        named: whether tokens are named.
        alone: whether there is only one panel, whose sides get their titles.
    """
    right = axes.twinx()
    right.set_ylim(axes.get_ylim())
    sides = (
        (axes, weights.rows, weights.row_title),
        (right, weights.columns, weights.column_title),
    )
    for side, names, side_title in sides:
        if named:
            label_axis(side.yaxis, _shorter(names), fontsize=font)
        else:
            side.set_yticks([])
        if alone:
            side.set_ylabel(side_title, **style(color=GREY))
        side.set_xticks([])
        side.set_facecolor("none")
        bare(side)


def _all_lines(weights: Weights) -> tuple["Figure", "Axes"]:
    """Draws the lines of all heads of all layers in one axes, without names of tokens."""
    layers, heads, rows, columns = weights.values.shape
    count = max(rows, columns)
    panel = float(np.clip(11 / heads, 0.5, 1.5))  # inches
    figure = new_figure(panel * heads + 0.7, panel * layers + 0.7)
    axes = figure.add_subplot()
    for layer, head in np.ndindex(layers, heads):
        segments, strengths = _lines(weights.values[layer, head], weights.values.max())
        segments = segments * [0.8, 0.85 / count] + [head - 0.4, layer - 0.425]
        segments[..., 1] += 0.425 / count
        _add(axes, segments, strengths, float(np.clip(20 / count, 0.5, 1.2)))
    axes.set(xlim=(-0.5, heads - 0.5), ylim=(layers - 0.5, -0.5))
    edges = {"color": "#dddddd", "linewidth": 0.8, "clip_on": False}
    axes.hlines(np.arange(layers + 1) - 0.5, -0.5, heads - 0.5, **edges)
    axes.vlines(np.arange(heads + 1) - 0.5, -0.5, layers - 0.5, **edges)
    _number_panels(axes, np.arange(heads), np.arange(layers))
    return figure, axes


def _lines(values: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the visible lines between rows and columns, the faintest first.

    Args:
        values: weights (T, S).
        largest: weight of a line of full strength.

    Returns:
        Ends (K, 2, 2): (0, row) and (1, column) of each line; strengths (K,) from 0 to 1.
    """
    shares = values / (largest or 1)
    row, column = np.nonzero(shares >= _FAINTEST)
    strengths = shares[row, column]
    order = np.argsort(strengths, kind="stable")
    ends = np.stack([np.zeros_like(row), row, np.ones_like(column), column], 1)
    return ends.reshape(-1, 2, 2)[order].astype("float64"), strengths[order]


def _add(axes: "Axes", segments: np.ndarray, strengths: np.ndarray, width: float) -> None:
    """Draws K lines (K, 2, 2) with opacities `strengths` (K,) and a width in points."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgb

    colours = np.empty((len(strengths), 4))
    colours[:, :3] = to_rgb(COLOURS[0])
    colours[:, 3] = strengths
    axes.add_collection(LineCollection(list(segments), colors=colours, linewidths=width))
