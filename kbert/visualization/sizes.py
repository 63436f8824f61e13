"""A picture of models by their number of parameters."""

from collections.abc import Iterable
from typing import Any

from kbert.visualization.canvas import (
    COLOURS,
    GREY,
    bare,
    label_axis,
    new_figure,
    set_title,
    shown,
    style,
)

# From ELMo to XLM-RoBERTa, in any order: the picture sorts them by size.
MODELS = (
    "elmo-original",
    "openai-gpt",
    "bert-base-uncased",
    "bert-large-uncased",
    "roberta-base",
    "roberta-large",
    "distilbert-base-uncased",
    "albert-base-v2",
    "albert-xxlarge-v2",
    "google/electra-small-discriminator",
    "xlnet-base-cased",
    "xlm-roberta-large",
)


def model_sizes(
    models: Iterable[Any] = MODELS, *, title: str | None = "Ever bigger models, and smaller ones"
) -> Any:
    """Draws the parameters of models on a logarithmic axis, the smallest first.

    Args:
        models: names that `kbert.describe` knows, or configs.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there are no models, or a name is unknown.

    Example:
        >>> figure = model_sizes(["bert-large-uncased", "bert-base-uncased"])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['109 M', '335 M']
    """
    from kbert.models.description import describe

    rows = sorted((x.parameters, str(x.name or "custom")) for x in map(describe, models))
    if not rows:
        raise ValueError("A picture of sizes requires at least one model. Received: none")
    figure = new_figure(7.5, 1.1 + 0.36 * len(rows))
    axes = figure.add_subplot()
    counts = [count for count, _ in rows]
    axes.hlines(range(len(rows)), counts[0] / 2, counts, color="#dddddd", zorder=1)
    axes.plot(counts, range(len(rows)), "o", color=COLOURS[0], markersize=8)
    for number, count in enumerate(counts):
        millions = f"{count / 1e6:.0f} M" if count >= 1e7 else f"{count / 1e6:.1f} M"
        axes.annotate(
            millions,
            (count, number),
            (8, 0),
            textcoords="offset points",
            va="center",
            **style(fontsize=9, color=GREY),
        )
    axes.set_xscale("log")
    axes.set_xlim(counts[0] / 2, counts[-1] * 2)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("parameters, without heads", **style())
    label_axis(axes.yaxis, [shown(name) for _, name in rows], fontsize=10)
    bare(axes, "bottom")
    set_title(axes, title)
    return figure
