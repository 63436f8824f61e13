"""An interactive page of attention, self-contained: no network, no library, no torch.

Shapes: L layers, N heads, T rows, S columns.
"""

import base64
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kbert.core.types import PathLike
from kbert.io import fingerprints
from kbert.visualization.attention_reading import Weights, index_of

# Style and script are in attention_page.css and .js, next to this file; they fetch nothing.
# Token names reach the page only as text (`textContent`), never as HTML.
_TEMPLATE = """<style>
{style}</style>
<div class="kbert-attention" data-of="{key}">This picture needs its script: trust the notebook, or \
write it to a file with save().</div>
<script>
(function () {{
"use strict";
const data = {data};
{script}
for (const root of document.querySelectorAll(".kbert-attention[data-of='{key}']"))
  if (!root.dataset.ready) {{
    root.dataset.ready = "yes";
    drawAttention(root, data);
  }}
}})();
</script>"""

# Limited, because a notebook stores the page as text in its output.
MOST_BYTES = 20_000_000


class AttentionPage:
    """Two columns of tokens with lines between them, and menus for the layer and the head.

    Pointing at a token shows its weights, as lines and in percent. Small pictures of all heads are
    next to the columns; a click selects a head. A notebook displays the object by itself.

    Args:
        parts: name -> weights, e.g. of the encoder and of the cross attention; a menu selects the
            part if there are several.
        layer, head: initial selection, negative from the last. None is the mean of all heads for
            `head`, and the first layer for `layer`.
        title: title above the page; None for none.

    Attributes:
        data: data that the script draws, as JSON can hold them.
        fragment: the HTML as a string, to be put into any page.

    Raises:
        ValueError: a layer or head does not exist, or there are too many weights for a page.

    Example:
        >>> from kbert.visualization.attention_reading import as_weights
        >>> weights = as_weights([[0.9, 0.1], [0.5, 0.5]], ["a", "b"], None, ("token", "to"))
        >>> page = AttentionPage({"encoder": weights})
        >>> page
        AttentionPage(encoder: 1 layer, 1 head, 2 × 2 tokens)
        >>> "<script" in page.fragment, "http" in page.fragment
        (True, False)
    """

    def __init__(
        self,
        parts: Mapping[str, Weights],
        *,
        layer: int | None = None,
        head: int | None = None,
        title: str | None = None,
    ) -> None:
        self.parts = dict(parts)
        first = next(iter(self.parts.values())).values
        start = {
            "part": 0,
            "layer": 0 if layer is None else index_of("layer", layer, first.shape[0]),
            "head": -1 if head is None else index_of("head", head, first.shape[1]),
        }
        if first.shape[1] == 1:
            start["head"] = 0
        size = sum(4 * part.values.size // 3 for part in self.parts.values())
        if size > MOST_BYTES:
            raise ValueError(
                f"An interactive page must have at most {MOST_BYTES / 1e6:.0f} MB: use a shorter "
                f"text, or one layer or head. Received: {size / 1e6:.0f} MB of weights"
            )
        self.data = {
            "title": "" if title is None else title,
            "start": start,
            "parts": [_part(name, part) for name, part in self.parts.items()],
        }
        self.title = title
        self.fragment = _fragment(self.data)

    def _repr_html_(self) -> str:
        return self.fragment

    def __repr__(self) -> str:
        sizes = []
        for name, part in self.parts.items():
            layers, heads, rows, columns = part.values.shape
            size = f"{_count(layers, 'layer')}, {_count(heads, 'head')}, {rows} × {columns} tokens"
            sizes.append(f"{name}: {size}" if name else size)
        return f"AttentionPage({'; '.join(sizes)})"

    def save(self, path: PathLike) -> None:
        """Writes the page to a file that any browser opens, also without a network.

        Args:
            path: path of the file, e.g. "attention.html"; an existing file is replaced.
        """
        from kbert.io import atomic

        title = html.escape("Attention" if self.title is None else _text(self.title))
        page = (
            f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
            f"</head>\n<body>\n{self.fragment}\n</body>\n</html>\n"
        )
        atomic.write(path, page.encode())


def _part(name: str, part: Weights) -> dict[str, Any]:
    """Returns the weights as the script reads them, as values for JSON; weights are rounded."""
    layers, heads, *_ = part.values.shape
    steps = np.round(part.values * 255).astype("uint8")  # a browser shows whole percents
    return {
        "name": name,
        "titles": [part.row_title, part.column_title],
        "rows": [_text(token) for token in part.rows],
        "columns": [_text(token) for token in part.columns],
        "layers": layers,
        "heads": heads,
        "weights": base64.b64encode(steps.tobytes()).decode(),
    }


def _fragment(data: dict[str, Any]) -> str:
    """Returns HTML with style, script and data, to be put into any page."""
    # Inside <script> a browser looks only for "</script" and "<!--", even within quotes.
    text = json.dumps(data)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    key = fingerprints.sha256(text)[:16]
    return _TEMPLATE.format(key=key, data=text, style=page_file("css"), script=page_file("js"))


def page_file(kind: str) -> str:
    """Returns the page's style ("css") or its script ("js"), which defines `drawAttention`.

    >>> "function drawAttention(root, data)" in page_file("js")
    True
    """
    return Path(__file__).with_suffix(f".{kind}").read_text(encoding="utf-8")


def _text(name: object) -> str:
    """Returns the name with characters that UTF-8 cannot encode replaced."""
    return str(name).encode("utf-8", "replace").decode("utf-8")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
