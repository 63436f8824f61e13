"""Labels by name: what a table calls a class, and its place among the task's classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbert.data.tables.table import Table


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

    def __init__(self, names: Sequence[str]) -> None:
        if isinstance(names, str) or not len(names) or not all(isinstance(x, str) for x in names):
            raise ValueError(
                f"labels must be a list of names of classes, strings. Received: {names!r:.200}"
            )
        self.names = [str(name) for name in names]  # also of an array's strings
        self._ids = {name: i for i, name in enumerate(self.names)}
        if len(self._ids) < len(self.names):
            twice = sorted({x for x in self.names if self.names.count(x) > 1})
            raise ValueError(f"Every class must have a name of its own. Received: {twice} twice")

    def __len__(self) -> int:
        return len(self.names)

    def ids(self, table: Table) -> np.ndarray:
        """(N,) int32, the class of each row.

        Args:
            table: with a column `label` of names, or of indices into the names.

        Raises:
            ValueError: a label that is no class, by its row.
        """
        return np.array([self._id(table, row, x) for row, x in enumerate(table["label"])], np.int32)

    def indicators(self, table: Table) -> np.ndarray:
        """(N, C) float32, 1 where a row's list of labels names the class.

        Raises:
            ValueError: a row that holds no list, or a label that is no class.
        """
        found = np.zeros((len(table), len(self)), np.float32)
        for row, labels in enumerate(table["label"]):
            if not isinstance(labels, list | tuple):
                raise ValueError(
                    f"{table.place(row)}: with multi_label=True a row has a list of labels, which "
                    f"may be empty. Received: {labels!r:.80}"
                )
            found[row, [self._id(table, row, label) for label in labels]] = 1
        return found

    def indices(self, names: Sequence[str]) -> np.ndarray:
        """(N,) int32, the classes of predicted names."""
        return np.array([self._ids[name] for name in names], np.int32)

    def check_seen(self, table: Table, held_out: Table, column: str = "label") -> None:
        """Raises ValueError for a held-out label that training data has never, or in other form.

        Args:
            table: the training data, of labels or lists of labels.
            held_out: what is evaluated on between epochs.
            column: of the labels.
        """
        seen: set[Any] = set()
        for row, labels in enumerate(table[column]):
            seen |= {self._id(table, row, x) for x in _as_list(labels)}
        form = type(_first(table[column]))
        for row, labels in enumerate(held_out[column]):
            for label in _as_list(labels):
                if not isinstance(label, form):
                    raise ValueError(
                        f"{held_out.place(row)}: held-out labels must be of the kind of the "
                        f"training data's, {form.__name__}. Received: {label!r:.80}"
                    )
                if self._id(held_out, row, label) not in seen:
                    raise ValueError(
                        f"{held_out.place(row)}: a held-out label must occur in the training "
                        f"data. Received: {label!r:.80}, which none of its {len(table)} rows has"
                    )

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


def class_weights_of(
    names: Sequence[str], weights: str | Mapping[str, float], labels: np.ndarray
) -> np.ndarray:
    """(C,) float32, what the examples of each class count in the loss.

    Args:
        names: of the classes, C.
        weights: by name, 1 for those left out; or "balanced", under which all classes count alike
            and the mean weight of an example is 1. With indicators: the positives of each class
            count as much as its negatives.
        labels: of the training data: (N,) classes, or (N, C) indicators.

    Raises:
        ValueError: for an unknown class, or a weight that is negative.

    Example:
        >>> class_weights_of(["a", "b"], "balanced", np.array([0, 0, 0, 1, 1, 0])).tolist()
        [0.75, 1.5]
    """
    if isinstance(weights, str):
        if weights != "balanced":
            raise ValueError(
                f'class_weights must be "balanced" or label -> weight. Received: {weights!r}'
            )
        if labels.ndim == 2:
            positives = labels.sum(0)
            return ((len(labels) - positives) / np.maximum(positives, 1)).astype(np.float32)
        counts = np.bincount(labels, minlength=len(names))
        present = np.count_nonzero(counts)
        return (len(labels) / (present * np.maximum(counts, 1))).astype(np.float32)
    _check_names(names, weights, "class_weights")
    found = np.array([float(weights.get(name, 1.0)) for name in names], np.float32)
    if not (np.isfinite(found).all() and (found >= 0).all() and found.any()):
        raise ValueError(
            f"class_weights must be 0 or more, and some above 0. Received: {dict(weights)}"
        )
    return found


def thresholds_of(names: Sequence[str], threshold: float | Mapping[str, float]) -> np.ndarray:
    """(C,) float64, the probability from which on each label is given.

    Raises:
        ValueError: for a class that is unknown or missing, or a number outside of [0, 1].

    Example:
        >>> thresholds_of(["a", "b"], {"b": 0.25, "a": 0.5}).tolist()
        [0.5, 0.25]
    """
    if not isinstance(threshold, Mapping):
        threshold = dict.fromkeys(names, threshold)
    _check_names(names, threshold, "threshold")
    found = np.array([float(threshold.get(name, np.nan)) for name in names])
    if not ((found >= 0) & (found <= 1)).all():
        raise ValueError(
            "threshold must be a number from 0 to 1, or one for every label by name. "
            f"Received: {dict(threshold)}"
        )
    return found


def _check_names(names, given, what) -> None:
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(
            f"{what} must name the task's classes, {shown(names)}. Received: {shown(unknown)}"
        )


def _as_list(labels):
    return labels if isinstance(labels, list | tuple) else [labels]


def _first(column):
    """The first label of all, of rows that may have several or none."""
    return next((label for labels in column for label in _as_list(labels)), "")
