"""The bars of the page "Numbers": speeds beside peers', out of the table in BUILD.md."""

import html
import re
from typing import NamedTuple

_NUMBER = r"\d{1,3}(?:,\d{3})*(?:\.\d+)?"
_ROW = re.compile(r"^\| `(?:benchmarks\.)?([^`]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_OURS = re.compile(rf"({_NUMBER})(?: / {_NUMBER})?(?: (MB/s|M/s|ms|s)\b)?(?!,)")
_THEIRS = re.compile(rf"([A-Za-z`][\w`' .]*?) ({_NUMBER})(?: / {_NUMBER})?(?=,|$| )")
_FASTER_IS_LESS = ("ms", "s")
_LABEL, _BAR, _LINE = 190, 470, 22  # widths, and the height of a line


class Speed(NamedTuple):
    """A row of the table.

    Attributes:
        benchmark: the command.
        measured: what, in words.
        speeds: who -> the speed as a share of kbert's, kbert's own first.
    """

    benchmark: str
    measured: str
    speeds: dict[str, float]


def speeds_in(build: str) -> list[Speed]:
    """The rows of BUILD.md's table that give a speed, or a time, beside that of others."""
    table = build[build.index("| command | measured | kbert | peer |") :].partition("\n\n")[0]
    found = []
    for benchmark, measured, ours, theirs in _ROW.findall(table):
        own = _OURS.match(ours)
        unit = own and (own[2] or ("/s" if re.search(r"/s\b|per second", measured) else None))
        peers = _THEIRS.findall(theirs)
        if not own or not unit or not peers:
            continue
        value = _value(own[1])
        speeds = {"kbert": 1.0}
        for name, number in peers:
            ratio = value / _value(number)
            speeds[name.strip("` ")] = ratio if unit in _FASTER_IS_LESS else 1 / ratio
        found.append(Speed(benchmark, measured, speeds))
    return found


def draw(rows: list[Speed]) -> str:
    """A picture of the rows as an `<svg>`, in the colours of the page."""
    parts, y = [], 0
    for row in rows:
        y += _LINE + 12
        parts.append(_text(0, y, row.measured.partition(";")[0], "font-weight: 600"))
        for name, speed in row.speeds.items():
            y += _LINE
            width = max(2.0, _BAR * speed / max(row.speeds.values()))
            ours = name == "kbert"
            color = "--color-brand-primary" if ours else "--color-foreground-muted"
            parts.append(_text(_LABEL - 8, y, name, "text-anchor: end"))
            parts.append(
                f'<rect x="{_LABEL}" y="{y - 13}" width="{width:.1f}" height="16" '
                f'style="fill: var({color})"/>'
            )
            said = "1" if ours else f"{speed:.2f}"
            parts.append(_text(_LABEL + width + 8, y, said, ""))
    told = "; ".join(
        f"{row.measured}: " + ", ".join(f"{name} {speed:.2f}" for name, speed in row.speeds.items())
        for row in rows
    )
    size = f'viewBox="0 0 {_LABEL + _BAR + 60} {y + 12}" style="width: 100%; font-size: 14px"'
    label = html.escape(told, quote=True)
    return f'<svg {size} role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _text(x: float, y: float, words: str, style: str) -> str:
    style = f"fill: var(--color-foreground-primary); {style}"
    return f'<text x="{x:.1f}" y="{y}" style="{style}">{html.escape(words.replace("`", ""))}</text>'
