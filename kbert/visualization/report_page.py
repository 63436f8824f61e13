"""Reports as one HTML file that any browser opens: pictures, tables and text, no network."""

import base64
import io
from collections.abc import Iterable, Sequence
from typing import Any

from kbert.core.types import PathLike
from kbert.visualization.attention_page import AttentionPage
from kbert.visualization.token_scores import escaped, scores_html

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 16px; max-width: 860px; line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; } h2 { font-size: 19px; margin-top: 32px; }
figure { margin: 0; } img { max-width: 100%; height: auto; background: #fff; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 4px 16px 4px 0; border-bottom: 1px solid #8886;
  vertical-align: top; white-space: pre-wrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-size: 14px; }
"""


class ReportPage:
    """A page of sections, one below the other; `save` writes it.

    Args:
        title: title of the page.
        introduction: a sentence or two below the title.

    Example:
        >>> report = ReportPage("A run", "Two minutes on two cores.")
        >>> report.table("Times", ["stage", "seconds"], [("training", 120.04)])
        >>> "<td>training</td><td class=\\"number\\">120.04</td>" in report.html()
        True
    """

    def __init__(self, title: str, introduction: str = "") -> None:
        self.title = title
        self._parts = [f"<h1>{escaped(title)}</h1>"]
        if introduction:
            self.text(introduction)

    def text(self, text: str) -> None:
        """Adds a paragraph."""
        self._parts.append(f"<p>{escaped(text)}</p>")

    def command(self, line: str) -> None:
        """Adds a shell command."""
        self._parts.append(f"<pre><code>{escaped(line)}</code></pre>")

    def heading(self, text: str) -> None:
        """Adds the heading of a section."""
        self._parts.append(f"<h2>{escaped(text)}</h2>")

    def table(self, heading: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Adds a section with a table.

        Args:
            heading: heading of the section.
            names: names of the columns.
            rows: values of each row: text, and numbers, which are aligned to the right.
        """
        self.heading(heading)
        head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in names)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
        self._parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>'
            "</table></div>"
        )

    def picture(self, heading: str, figure: Any, description: str) -> None:
        """Adds a section with a picture.

        Args:
            heading: heading of the section.
            figure: matplotlib Figure.
            description: alternative text, for readers who cannot see the picture.
        """
        self.heading(heading)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=150)
        content = base64.b64encode(file.getvalue()).decode()
        self._parts.append(
            f'<figure><img alt="{escaped(description)}" src="data:image/png;base64,{content}">'
            "</figure>"
        )

    def attention(self, heading: str, page: AttentionPage) -> None:
        """Adds a section with a heading and an interactive picture of attention."""
        self.heading(heading)
        self._parts.append(f'<div class="wide">{page.fragment}</div>')

    def token_scores(self, tokens: Sequence[str], scores: Any, caption: str = "") -> None:
        """Adds tokens coloured by their scores, see `kbert.visualization.token_scores`."""
        self._parts.append(scores_html(tokens, scores, caption=caption))

    def html(self) -> str:
        """Returns the page as HTML."""
        return (
            '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<link rel="icon" href="data:,"><title>{escaped(self.title)}</title>'
            f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(self._parts) + "\n</body>\n"
            "</html>\n"
        )

    def save(self, path: PathLike) -> None:
        """Writes the page to a file; an existing file is replaced."""
        from kbert.io import atomic

        atomic.write(path, self.html().encode())


def _cell(value: Any) -> str:
    """Returns a table cell as HTML: a text, or a number with two digits unless it is whole."""
    if isinstance(value, str):
        return f"<td>{escaped(value)}</td>"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return f'<td class="number">{text}</td>'
