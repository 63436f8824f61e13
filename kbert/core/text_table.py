"""Tables of results as plain text, for terminals and logs."""

import unicodedata
from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence]) -> str:
    """Aligns columns under a header: text to the left, numbers to the right.

    Args:
        header: names of the columns.
        rows: cells of each row: strings, integers, floats (four decimals) or None (shown as -).

    Raises:
        ValueError: a row has more or fewer cells than the header.

    Example:
        >>> print(text_table(["run", "accuracy"], [["seed 0", 0.8876], ["mean", 0.88]]))
        run     accuracy
        seed 0    0.8876
        mean      0.8800
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"A row must have one cell for each of the {len(header)} columns. Received: "
                f"{list(row)}"
            )
    lines = [list(header), *([_cell(value) for value in row] for row in rows)]
    # A column is numeric if it has a number and no text.
    numeric = [
        any(isinstance(row[column], int | float) for row in rows)
        and not any(isinstance(row[column], str) for row in rows)
        for column in range(len(header))
    ]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            " " * (width - _width(cell)) + cell if right else cell + " " * (width - _width(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _width(text: str) -> int:
    """Returns the width in terminal columns: Chinese, Japanese and Korean characters take two."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )
