"""Attention weights as arrays, drawn: heat maps, lines, or a page to click through."""

from collections.abc import Sequence
from typing import Any

from kbert.visualization.attention_heat import heat_maps
from kbert.visualization.attention_lines import line_maps
from kbert.visualization.attention_page import AttentionPage
from kbert.visualization.attention_weights import Weights, as_weights

VIEWS = ("heatmap", "lines", "html")


def attention_map(
    weights: Any,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    view: str = "heatmap",
    titles: tuple[str, str] = ("token", "attends to"),
    title: str | None = None,
) -> Any:
    """Who looks at whom: weights of any attention, e.g. the alignment of two sentences.

    Args:
        weights: from 0 to 1. (T, S): one picture. (N, T, S): one for each head. (L, N, T, S): all
            heads of all layers, small and without names; `view="html"` has them large as well.
        rows: T names of what looks, e.g. the words that were written.
        columns: S names of what is looked at, e.g. the words that were read; None = the rows' own.
        view: "heatmap", a cell for each pair (Bahdanau et al. 2015, figure 3); "lines", two
            columns of names with lines between them, the stronger the darker (after Vig 2019,
            https://arxiv.org/abs/1906.05714); "html", an interactive page.
        titles: what the rows and the columns are.
        title: above the picture; None for none.

    Returns:
        A matplotlib Figure; for "html" an `AttentionPage`, which a notebook shows and `save` writes
        to a file.

    Raises:
        ValueError: an unknown view, names that are more or fewer than rows or columns, more than
            128 of them, or weights outside 0..1.

    Example:
        >>> figure = attention_map([[0.1, 0.9], [0.8, 0.2]], ["rouge", "maison"], ["house", "red"])
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['rouge', 'maison']
    """
    check_view(view)
    return draw(as_weights(weights, rows, columns, titles), view, title)


def draw(weights: Weights, view: str, title: str | None) -> Any:
    """The picture of checked weights."""
    if view == "html":
        return AttentionPage({"": weights}, title=title)
    return (heat_maps if view == "heatmap" else line_maps)(weights, title)


def check_view(view: str) -> None:
    """Raises ValueError for a view that there is not."""
    if view not in VIEWS:
        raise ValueError(f"view must be one of {VIEWS}. Received: {view!r}")
