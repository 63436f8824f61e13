"""Classification report, class by class.

Shapes: K classes.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from kbert.core.text_table import text_table
from kbert.core.types import Values
from kbert.metrics.checks import paired

# A larger matrix is unreadable in a terminal; `Report.confusion` still has it.
MOST_CLASSES = 20


@dataclasses.dataclass(frozen=True)
class Report:
    """Scores of a classifier by class; `str()` shows the scores and the confusion matrix.

    Attributes:
        names: names of the K classes.
        precision, recall, f1: (K,) float64; 0 where the denominator is 0.
        support: (K,) number of rows with the label.
        confusion: (K, K) counts, a row for each label, a column for each prediction.
    """

    names: tuple[str, ...]
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray
    confusion: np.ndarray

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.confusion) / self.confusion.sum())

    @property
    def macro_f1(self) -> float:
        """The mean F1 of all K classes, including classes that never occur."""
        return float(self.f1.mean())

    def __str__(self) -> str:
        columns = self.precision, self.recall, self.f1, self.support
        rows = [
            [name, *map(float, scores), int(support)]
            for name, *scores, support in zip(self.names, *columns, strict=True)
        ]
        total = int(self.support.sum())
        rows.append(["macro avg", *(float(c.mean()) for c in columns[:3]), total])
        rows.append(["accuracy", None, None, self.accuracy, total])
        scores = text_table(["class", "precision", "recall", "f1", "support"], rows)
        if len(self.names) > MOST_CLASSES:
            return (
                f"{scores}\n\nsee .confusion for the confusion matrix of {len(self.names)} classes"
            )
        counts = zip(self.names, self.confusion.tolist(), strict=True)
        header = ["label \\ prediction", *self.names]
        return f"{scores}\n\n{text_table(header, [[name, *row] for name, row in counts])}"


def classification_report(labels: Values, predictions: Values, names: Sequence[str]) -> Report:
    """Computes precision, recall and F1 of each class, and the confusion matrix.

    Args:
        labels: (N,) names, or indices into `names`.
        predictions: (N,) names, or indices into `names`.
        names: names of the classes, in order.

    Raises:
        ValueError: a label or prediction is not one of the classes, or labels and predictions
            differ in shape or kind.

    Example:
        >>> print(classification_report([0, 0, 1, 1], [0, 1, 1, 1], ["ham", "spam"]))
        class      precision  recall      f1  support
        ham           1.0000  0.5000  0.6667        2
        spam          0.6667  1.0000  0.8000        2
        macro avg     0.8333  0.7500  0.7333        4
        accuracy           -       -  0.7500        4
        <BLANKLINE>
        label \\ prediction  ham  spam
        ham                   1     1
        spam                  0     2
    """
    names = tuple(names)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"Class names must be unique. Received: {list(names)}")
    labels, predictions = paired(labels, predictions)
    if labels.ndim != 1:
        raise ValueError(
            f"A report requires one label per row. Received: labels of shape {labels.shape}"
        )
    size = len(names)
    confusion = np.zeros((size, size), np.int64)
    np.add.at(
        confusion,
        (_indices("labels", labels, names), _indices("predictions", predictions, names)),
        1,
    )
    hits, support = np.diagonal(confusion), confusion.sum(axis=1)
    predicted = confusion.sum(axis=0)
    return Report(
        names=names,
        precision=hits / np.maximum(predicted, 1),
        recall=hits / np.maximum(support, 1),
        f1=2 * hits / np.maximum(support + predicted, 1),
        support=support,
        confusion=confusion,
    )


def _indices(what: str, values: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Returns classes (N,) as indices into `names`.

    `what` are the values, "labels" or "predictions", for the message. Other values than names or
    indices raise ValueError.
    """
    if values.dtype.kind == "U":
        index = {name: number for number, name in enumerate(names)}
        unknown = sorted(set(values.tolist()) - set(names))
        if unknown:
            raise ValueError(f"The {what} must be among {list(names)}. Received: {unknown[:5]}")
        return np.array([index[value] for value in values.tolist()])
    if values.dtype.kind == "f" or values.min() < 0 or values.max() >= len(names):
        raise ValueError(
            f"The {what} must be names or indices from 0 to {len(names) - 1}. "
            f"Received: {values.dtype}, {values.min()} to {values.max()}"
        )
    return values.astype(np.int64)
