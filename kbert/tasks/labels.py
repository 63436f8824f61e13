"""Labels by name: what a table calls a class, and its place among the task's classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.data.table import Table


class Labels:
    """The names of a task's classes, in the order of its logits.

    Args:
        names: distinct strings.

    Raises:
        ValueError: if there are fewer than one, or one comes twice.

    Example:
        >>> labels = Labels(["ham", "spam"])
        >>> labels.ids(Table({"label": ["spam", "ham", "spam"]})).tolist()
        [1, 0, 1]
    """

    def __init__(self, names: Sequence[str]):
        if isinstance(names, str) or not names or not all(isinstance(x, str) for x in names):
            raise ValueError(
                f"labels must be a list of names of classes, strings. Received: {names!r:.200}"
            )
        self.names = list(names)
        self._ids = {name: i for i, name in enumerate(self.names)}
        if len(self._ids) < len(self.names):
            twice = sorted({x for x in self.names if self.names.count(x) > 1})
            raise ValueError(f"Every class must have a name of its own. Received: {twice} twice")

    def __len__(self) -> int:
        return len(self.names)

    def ids(self, table: Table, column: str = "label") -> np.ndarray:
        """(N,) int32, the class of each row.

        Args:
            table: with a column of names, or of indices into the names.
            column: its name.

        Raises:
            ValueError: a label that is no class, by its row.
        """
        return np.array([self._id(table, row, x) for row, x in enumerate(table[column])], np.int32)

    def indicators(self, table: Table, column: str = "label") -> np.ndarray:
        """(N, C) float32, 1 where a row's list of labels names the class.

        Raises:
            ValueError: a row that holds no list, or a label that is no class.
        """
        found = np.zeros((len(table), len(self)), np.float32)
        for row, labels in enumerate(table[column]):
            if not isinstance(labels, list | tuple):
                raise ValueError(
                    f"{table.place(row)}: with multi_label=True a row has a list of labels, which "
                    f"may be empty. Received: {labels!r:.80}"
                )
            found[row, [self._id(table, row, label) for label in labels]] = 1
        return found

    def _id(self, table: Table, row: int, label: Any) -> int:
        if isinstance(label, str) and label in self._ids:
            return self._ids[label]
        if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(self):
            return label
        raise ValueError(
            f"{table.place(row)}: a label must be one of the task's {len(self)} classes, by name "
            f"({shown(self.names)}) or by index from 0. Received: {label!r:.80}"
        )


def shown(names: Sequence[str], most: int = 10) -> str:
    """The first names, quoted, for a message.

    >>> shown(["a", "b", "c"], most=2)
    "'a', 'b', …"
    """
    return ", ".join([*map(repr, names[:most]), *(["…"] if len(names) > most else [])])
