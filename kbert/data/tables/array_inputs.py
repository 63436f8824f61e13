"""Token ids to the dense batch an encoder reads, in NumPy; see `kbert.data.tables.inputs`.

Shapes: B rows, T columns.
"""

from collections.abc import Sequence

import numpy as np

from kbert.core.ragged import Ragged

Ids = Sequence[int]


def build_arrays(
    texts: Sequence[Ragged],
    budget: int,
    *,
    cls: Ids,
    separators: Ids,
    last: Ids,
    pad: int,
    cls_last: bool,
    width: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Packs one or two texts a row.

    Args:
        texts: ids of the first texts, and of the second ones, B each.
        budget: how many tokens of the texts a row takes.
        cls: [CLS], or nothing.
        separators: what is between two texts.
        last: what is behind the texts.
        pad: what fills a row up.
        cls_last: whether [CLS] is behind `last`.
        width: a multiple of the first, and at most the second.

    Returns:
        `token_ids`, `segment_ids` and `padding_mask` (B, T) int32.

    Example:
        >>> found = build_arrays([Ragged.of([[7, 8], []])], 9, cls=[2], separators=[3], last=[3],
        ...                      pad=0, cls_last=False, width=(4, 12))
        >>> found["token_ids"].tolist()
        [[2, 7, 8, 3], [2, 3, 0, 0]]
    """
    if len({len(ids) for ids in texts}) > 1:
        raise ValueError(
            "Every pair needs both texts: first and second differ in number. "
            f"Received: {' and '.join(str(len(ids)) for ids in texts)}"
        )
    begin, end = ((), (*last, *cls)) if cls_last else (cls, last)
    rows: list[np.ndarray] = []
    starts = []  # of the second text's segment
    for each in zip(*texts, strict=True):
        first = each[0][: _kept(*map(len, each), budget=budget)]
        row = [*begin, *first]
        starts.append(len(row) + len(separators))
        if len(each) > 1:
            second = each[1][: _kept(len(each[1]), len(each[0]), budget=budget, is_second=True)]
            row += [*separators, *second]
        rows.append(np.array([*row, *end], np.int32))
    longest = max([*map(len, rows), len(begin) + len(end), 1])
    columns = min(-(-longest // width[0]) * width[0], width[1])
    found = {
        "token_ids": np.full((len(rows), columns), pad, np.int32),
        "segment_ids": np.zeros((len(rows), columns), np.int32),
        "padding_mask": np.zeros((len(rows), columns), np.int32),
    }
    for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
        found["token_ids"][number, : len(row)] = row
        found["segment_ids"][number, start : len(row)] = 1
        if cls_last and cls:
            found["segment_ids"][number, len(row) - 1] = 2
        found["padding_mask"][number, : len(row)] = 1
    return found


def _kept(own: int, other: int = 0, *, budget: int, is_second: bool = False) -> int:
    """How many tokens of a text stay: the longer one loses tokens first, the second on a tie."""
    half = budget // 2 if is_second else budget - budget // 2
    return min(own, max(budget - other, half)) if other else min(own, budget)
