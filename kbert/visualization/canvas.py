"""Figures made as objects, without pyplot: nothing stays open, and no window is needed.

Text is drawn literally (a "$" starts no formula), in an installed font that has its script. A
character that no font has is drawn as a box.
"""

import functools
import io
from collections.abc import Sequence
from typing import Any, cast

# Okabe & Ito, "Color universal design" (2008): distinct for every kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
GREY = "#595959"
# Points of the n-th kind get the n-th colour and the n-th mark.
MARKS = "oDs^vPX*"
# Fonts for scripts that matplotlib's own font lacks; the first installed of each group is used.
_OTHER_FONTS = (
    (
        "Noto Sans CJK JP",
        "Noto Sans CJK SC",
        "Source Han Sans",
        "Microsoft YaHei",
        "PingFang SC",
        "Hiragino Sans",
        "Yu Gothic",
        "Malgun Gothic",
        "WenQuanYi Micro Hei",
    ),
    ("Noto Sans Devanagari", "Nirmala UI", "Kohinoor Devanagari", "Lohit Devanagari"),
    ("Noto Sans Thai", "Leelawadee UI", "Thonburi", "Loma"),
)


@functools.cache
def fonts() -> tuple[str, ...]:
    """Returns the font families in which a character is looked up, in this order."""
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    other_fonts = (
        next((name for name in kind if name in installed), None) for kind in _OTHER_FONTS
    )
    return ("DejaVu Sans", *filter(None, other_fonts))


def new_figure(width: float, height: float, *, layout: str | None = "constrained") -> Any:
    """Returns a matplotlib Figure that a notebook displays as a picture.

    Args:
        width: width in inches.
        height: height in inches.
        layout: matplotlib's layout engine; None for none.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout=cast(Any, layout))
    FigureCanvasAgg(figure)
    if layout == "constrained":
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.1, h_pad=0.1)
    # Notebooks display pyplot's figures by themselves; for others they call this method.
    figure._repr_png_ = functools.partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def shown(text: Any, longest: int = 40) -> str:
    """Returns the text on one line, truncated to `longest` characters.

    >>> shown("two\\nlines, rather long", 12)
    'two lines, …'
    """
    line = " ".join(str(text).encode("utf-8", "replace").decode("utf-8").split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def style(**changes: Any) -> dict[str, Any]:
    """Returns arguments of a matplotlib Text: kbert's fonts, no formulas, and the changes."""
    return {"family": fonts(), "parse_math": False, **changes}


def label_axis(axis: Any, names: Sequence[str], **changes: Any) -> None:
    """Sets one tick per name, at 0, 1, 2, ….

    Args:
        axis: `axes.xaxis` or `axes.yaxis`.
        names: names, in the order of the ticks.
        **changes: arguments of a matplotlib Text.
    """
    axis.set_ticks(range(len(names)), [shown(name) for name in names])
    for label in axis.get_ticklabels():
        label.set(**style(**changes))


def bare(axes: Any, *sides: str) -> None:
    """Removes the tick marks, and the lines around the axes except on `sides` ("left", "top" …)."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
    axes.tick_params(length=0)


def add_legend(figure: Any, columns: int = 6) -> None:
    """Adds a legend below the axes of a figure, for everything drawn that has a label."""
    legend = figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    for text in legend.get_texts():
        text.set(**style())


def set_title(axes: Any, title: str | None) -> None:
    """Writes a title above the axes, at the left; None writes none."""
    if title is not None:
        axes.set_title(shown(title, 90), loc="left", fontsize=12, pad=12, **style())


def set_figure_title(figure: Any, title: str | None) -> None:
    """Writes a title above all axes of a figure, at the left; None writes none."""
    if title is not None:
        figure.suptitle(shown(title, 90), fontsize=12, x=0.01, ha="left", **style())
        figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.15 / figure.get_figheight()))
