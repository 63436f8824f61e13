"""Tables from rows that may lack a label, or that no task can learn from."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from kbert.data.tables.table import Table

# Name of a column -> value, None for a missing label; or why the row is left out.
Row = dict[str, Any] | str
NO_LABEL = "they have no label"


def table_of_rows(rows: Iterable[tuple[int | None, Row]], source: str) -> Table:
    """Returns a table; leaves out rows without a label if others have one, and counts them.

    Args:
        rows: line in the source (None for a source without lines), and the row. A row is a dict of
            columns, the same in every row, where None stands for a missing label; or the reason
            why the row is left out, as the end of "3 rows are left out: ".
        source: origin of the rows, for messages.

    Returns:
        The table. A column without any value is left out. The number of rows left out, and why, is
        logged.

    Raises:
        ValueError: no row is left.

    Example:
        >>> rows = [(1, {"text": "Good", "label": "pos"}), (2, "no text"), (3, {"text": "Broke",
        ...         "label": None})]
        >>> table_of_rows(rows, "reviews").columns
        {'text': ['Good'], 'label': ['pos']}
    """
    reasons: collections.Counter[str] = collections.Counter()
    lines, complete = [], []
    for line, row in rows:
        if isinstance(row, str):
            reasons[row] += 1
        else:
            lines.append(line)
            complete.append(row)
    columns = complete[0] if complete else {}
    names = [name for name in columns if any(row[name] is not None for row in complete)]
    labelled = [i for i, row in enumerate(complete) if all(row[name] is not None for name in names)]
    if len(labelled) < len(complete):
        reasons[NO_LABEL] += len(complete) - len(labelled)
    note_left_out(source, reasons)
    if not labelled:
        raise ValueError(f"{source} holds no rows that a task can read. Received: {dict(reasons)}")
    numbers = [number for i in labelled if (number := lines[i]) is not None]
    return Table(
        {name: [complete[i][name] for i in labelled] for name in names},
        source=source,
        lines=numbers or None,
    )


def note_left_out(source: str, reasons: Mapping[str, int]) -> None:
    """Logs a warning for each reason why rows of `source` are left out, with their number."""
    for reason, count in reasons.items():
        logging.warning("%s: %d rows are left out: %s", source, count, reason)
