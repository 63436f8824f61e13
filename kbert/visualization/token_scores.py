"""Tokens coloured by their scores, as a figure and as HTML."""

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.core.types import Values
from kbert.visualization.canvas import COLOURS, shown
from kbert.visualization.flow import Box, flow

_WIDTH = 9.0  # inches
_POSITIVE, _NEGATIVE = COLOURS[0], COLOURS[5]  # blue and vermillion
_STRONGEST = 0.75  # opacity of the largest score; text stays readable


def token_scores(tokens: Sequence[str], scores: Values, *, title: str | None = None) -> Any:
    """Draws tokens in reading order, coloured by their scores: blue above zero, orange below.

    The score is written below each coloured token, so that the picture can be read without colours.

    Args:
        tokens: tokens or words.
        scores: score of each token; the one with the largest absolute value has the full colour.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: the numbers of tokens and scores differ, or a score is not finite.

    Example:
        >>> figure = token_scores(["good", "film"], [1.5, 0.0])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['good', '1.5', 'film']
    """
    opacities = _opacities(tokens, scores)
    boxes = []
    for token, score, opacity in zip(tokens, scores, opacities, strict=True):
        if round(opacity, 2):
            colour = _POSITIVE if score > 0 else _NEGATIVE
            boxes.append(Box(shown(token), f"{score:.3g}", colour, opacity))
        else:
            boxes.append(Box(shown(token), "", None))
    return flow(boxes, _WIDTH, title)


def scores_html(tokens: Sequence[str], scores: Values, *, caption: str = "") -> str:
    """Returns tokens coloured by their scores as HTML, to be put into any page.

    The arguments are those of `token_scores`. Each score is the title of its token, which a browser
    shows when it is pointed at.

    Args:
        tokens: tokens or words.
        scores: score of each token.
        caption: line above the tokens; "" for none.

    Raises:
        ValueError: like `token_scores`.

    Example:
        >>> "<b>" in scores_html(["<b>"], [1.0])
        False
    """
    spans = []
    for token, score, opacity in zip(tokens, scores, _opacities(tokens, scores), strict=True):
        red, green, blue = _rgb(_POSITIVE if score > 0 else _NEGATIVE)
        spans.append(
            f'<span title="{score:.4g}" style="background: rgba({red}, {green}, {blue}, '
            f'{opacity:.2f}); border-radius: 3px; padding: 1px 3px">{escaped(token)}</span>'
        )
    head = f"<figcaption>{escaped(caption)}</figcaption>" if caption else ""
    return (
        f'<figure style="margin: 8px 0; line-height: 1.9">{head}<div>{" ".join(spans)}</div>'
        "</figure>"
    )


def _opacities(tokens: Sequence[str], scores: Values) -> np.ndarray:
    """Returns the opacity of each token's colour, (T,); raises ValueError like `token_scores`."""
    values = np.asarray(scores, "float64")
    if values.shape != (len(tokens),) or not np.isfinite(values).all():
        raise ValueError(
            "Every token must have one score, a finite number. Received: "
            f"{len(tokens)} tokens and scores {np.asarray(scores)!r:.80}"
        )
    return _STRONGEST * abs(values) / abs(values).max(initial=np.finfo("float64").tiny)


def _rgb(colour: str) -> tuple[int, ...]:
    """Returns red, green and blue, 0 to 255, of a colour such as "#0072B2"."""
    return tuple(bytes.fromhex(colour[1:]))


def escaped(text: str) -> str:
    """Returns a text as HTML; characters that UTF-8 cannot encode are replaced."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))
