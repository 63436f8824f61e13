"""Labels by name: the labels of a table as indices of the task's classes."""

import collections
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from kbert import metrics
from kbert.core.in_memory import ClassName, values_of
from kbert.data.tables.table import Table

_WHOLE = "0|-?[1-9][0-9]*"  # a whole number, written out


class Labels:
    """The names of a task's classes, in the order of its logits.

    If all names are whole numbers, or "True" and "False", a number in the data is a name; else it
    is an index. True and False are valid only for two classes: those with these names, or the
    second and the first. A class of `datasets` is matched by its name, or by its number if the
    task's names are LABEL_0, LABEL_1, …. Digits, as in a CSV file, are read as a number if no class
    has this name.

    Args:
        names: distinct strings; whole numbers and booleans are converted to strings. A number of
            classes names them LABEL_0, LABEL_1, …, as in Hugging Face.

    Raises:
        ValueError: there are no names, or a name is not unique.

    Example:
        >>> labels = Labels(["ham", "spam"])
        >>> labels.ids(Table({"label": ["spam", "ham", "spam"]})).tolist()
        [1, 0, 1]
        >>> Labels([1, 2, 3]).ids(Table({"label": [3, 1]})).tolist()
        [2, 0]
        >>> Labels(2).names
        ['LABEL_0', 'LABEL_1']
        >>> Labels(2).ids(Table({"label": ["1", "0"]})).tolist()
        [1, 0]
    """

    def __init__(self, names: Sequence[str | int | bool] | int | None) -> None:
        self.names = _written_out(names)
        self._ids = {name: i for i, name in enumerate(self.names)}
        self._numbers = class_numbers(self.names)
        if len(self._ids) < len(self.names):
            counts = collections.Counter(self.names)
            duplicate_names = sorted(name for name, count in counts.items() if count > 1)[:10]
            raise ValueError(
                f"The names of classes must be unique. Received: {duplicate_names} twice"
            )

    def __len__(self) -> int:
        return len(self.names)

    def ids(self, table: Table) -> np.ndarray:
        """Returns the index of each row's class, (N,) int32.

        Args:
            table: table with a column `label` of names, or of numbers; see the class.

        Raises:
            ValueError: a label is not a class; the message names its row.
        """
        return np.array([self._id(table, row, x) for row, x in enumerate(table["label"])], np.int32)

    def indicators(self, table: Table) -> np.ndarray:
        """Returns indicators (N, C) float32: 1 if a row's list of labels has the class.

        Raises:
            ValueError: a row has no list, or a label is not a class.
        """
        indicators = np.zeros((len(table), len(self)), np.float32)
        for row, labels in enumerate(table["label"]):
            if not isinstance(labels, list | tuple):
                raise ValueError(
                    f"{table.place(row)}: with multi_label=True each row must have a list of "
                    f"labels, which may be empty. Received: {labels!r:.80}"
                )
            indicators[row, [self._id(table, row, label) for label in labels]] = 1
        return indicators

    def indices(self, names: Sequence[str]) -> np.ndarray:
        """Returns the index of each name among the classes, (N,) int32, for predicted names."""
        return np.array([self._ids[name] for name in names], np.int32)

    def check_seen(self, table: Table, held_out: Table, column: str = "label") -> None:
        """Raises ValueError if a held-out label is not in the training data, or of another form.

        Args:
            table: training data, with labels or lists of labels.
            held_out: held-out data, which is evaluated between epochs.
            column: name of the column of labels.
        """
        training_ids: set[Any] = set()
        for row, labels in enumerate(table[column]):
            training_ids |= {self._id(table, row, x) for x in _as_list(labels)}
        training_form = _form(_first(table[column]))
        for row, labels in enumerate(held_out[column]):
            for label in _as_list(labels):
                if _form(label) != training_form:
                    raise ValueError(
                        f"{held_out.place(row)}: held-out labels must have the type of the "
                        f"training labels, {training_form}. Received: {label!r:.80}"
                    )
                if self._id(held_out, row, label) not in training_ids:
                    raise ValueError(
                        f"{held_out.place(row)}: a held-out label must occur in the training "
                        f"data. Received: {label!r:.80}, which none of its {len(table)} rows has"
                    )

    def _id(self, table: Table, row: int, label: Any) -> int:
        """Returns the index of a label's class; raises ValueError if the label is not a class.

        `table` and `row` locate the label in the error message.
        """
        received = label = in_terms_of(label, self.names)
        if isinstance(label, str) and label in self._ids:
            return self._ids[label]
        if isinstance(label, str) and re.fullmatch(_WHOLE, label):
            label = int(label)
        # pandas turns whole numbers to floats if one is missing; 1.0 equals 1, also as a key.
        is_number = isinstance(label, int | float) and label in self._numbers
        if is_number and not (isinstance(label, bool) and set(self._numbers) != {0, 1}):
            return self._numbers[int(label)]
        is_index = all(number == index for number, index in self._numbers.items())
        by_index = " or by index from 0" if is_index else ""
        raise ValueError(
            f"{table.place(row)}: a label must be one of the task's {len(self)} classes, by name "
            f"({shown(self.names)}){by_index}. Received: {received!r:.80}"
        )


def check_several(names: Sequence[str], task: str) -> None:
    """Raises ValueError for a single class, whose probability would always be 1.

    Args:
        names: names of the classes.
        task: class name of the task, for the message.
    """
    if len(names) < 2:
        raise ValueError(
            "labels must name at least two classes; the probability of a single one is always 1. "
            "To predict a number, use a TextRegressor; to predict whether a text has a label, a "
            "TextClassifier with multi_label=True. "
            f"Received: the one label {names[0]!r} for a {task}"
        )


def _written_out(names: object) -> list[str]:
    """Returns the names of classes as strings; a number n gives LABEL_0 to LABEL_(n - 1).

    Raises ValueError unless `names` are a list of strings and integers, or a positive number.
    """
    if isinstance(names, int | np.integer) and not isinstance(names, bool) and names > 0:
        return [f"LABEL_{i}" for i in range(names)]
    if names is None:
        raise ValueError(
            "A new classifier needs labels: the names of the classes, their number, or "
            "kbert.class_names(labels) for the classes of labelled data. Received: labels=None"
        )
    values = [] if isinstance(names, str | bytes) or not isinstance(names, Iterable) else names
    values = [x.item() if isinstance(x, np.generic) else x for x in values]
    class_names = [_as_name(x) for x in values]
    if not class_names or None in class_names or isinstance(names, Set | Mapping):
        raise ValueError(
            "labels must be a list of class names, in the order of the logits, or the number of "
            f"classes. Received: {names!r:.200}"
        )
    return [name for name in class_names if name is not None]


def _as_name(value: object) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, str | int) else None


def class_names(labels: Any) -> list[str]:
    """Returns the distinct classes of labelled data, as the `labels` of a classifier or tagger.

    Whole numbers are sorted by value, then names alphabetically; "O" is first. Classes of a
    `ClassLabel` of `datasets` keep its order.

    Args:
        labels: one label per example, a string, integer or boolean; or a list of names per example
            (tags, several classes). A list, an array, a series, or a column of `datasets`.

    Raises:
        ValueError: there are no labels, they are one-hot or of several kinds, or a label is a
            number that is not whole.

    Example:
        >>> class_names(["spam", "ham", "spam"]), class_names([10, 9, 10])
        (['ham', 'spam'], ['9', '10'])
        >>> class_names([["B-PER", "O"], ["O"]])
        ['O', 'B-PER']
    """
    found: dict[str, Any] = {}
    for given in Table({"label": values_of(labels, "label")})["label"]:
        for label in _as_list(given):
            name = _as_name(label)
            if name is None:
                raise ValueError(
                    "Labels of classes must be names, integers or booleans; use a TextRegressor "
                    f"for other numbers. Received: {label!r:.80}"
                )
            found.setdefault(name, label)
    if not found:
        raise ValueError("class_names requires labels. Received: none")
    if all(isinstance(label, ClassName) for label in found.values()):
        return sorted(found, key=lambda name: found[name].number)
    return sorted(found, key=lambda name: (name != "O", *_natural(name)))


def _natural(name: str) -> tuple[int, int, str]:
    """Sort key: whole numbers by their value, before all other names."""
    return (0, int(name), name) if re.fullmatch(_WHOLE, name) else (1, 0, name)


def class_numbers(names: Sequence[str]) -> dict[int, int]:
    """Returns {number in the data: index of the class that it stands for}.

    If all names are integers, or "True" and "False", the numbers are the names; else the indices.

    Example:
        >>> class_numbers(["no", "yes"]), class_numbers(["3", "5"])
        ({0: 0, 1: 1}, {3: 0, 5: 1})
    """
    truths = {"False": 0, "True": 1}
    if set(names) <= set(truths):
        return {truths[name]: i for i, name in enumerate(names)}
    if all(re.fullmatch(_WHOLE, name) for name in names):
        return {int(name): i for i, name in enumerate(names)}
    return {i: i for i in range(len(names))}


def in_terms_of(label: Any, names: Sequence[str]) -> Any:
    """Replaces a class of `datasets` by its number if the task's classes have no real names.

    Other labels are returned unchanged.

    Example:
        >>> in_terms_of(ClassName("spam", 1), ["LABEL_0", "LABEL_1"])
        1
        >>> in_terms_of(ClassName("spam", 1), ["ham", "spam"])
        'spam'
    """
    if isinstance(label, ClassName) and list(names) == _written_out(len(names)):
        return label if label in names else label.number
    return label


def _form(label: Any) -> str:
    return "names" if isinstance(label, str) else "numbers"


def names_of_classes(table: Table) -> list[str]:
    """Returns the column `label` of a file as names of classes; integers become strings.

    Raises:
        ValueError: a label is a number that is not an integer, or a row has several labels.
    """
    names = []
    for row, label in enumerate(table["label"]):
        # pandas turns integers to floats if a label is missing; True is the class "1" of a file.
        name = _as_name(int(label) if isinstance(label, bool) else label)
        if name is None:
            raise ValueError(
                f"{table.place(row)}: a class must be a name or an integer; use the task regress "
                f"for numbers, multilabel for lists of names. Received: {label!r:.80}"
            )
        names.append(name)
    return names


def indicator_columns(table: Table, names: Any) -> Table:
    """Merges columns of 0 and 1, one per label, into one column `label` of lists of names.

    Args:
        table: table read from a file.
        names: list of the columns' names, which are the labels' names. If it is not a list, the
            table is returned unchanged.

    Raises:
        ValueError: a value is neither 0 nor 1.
    """
    if not isinstance(names, list | tuple):
        return table
    label_lists = []
    for row in range(len(table)):
        values = {name: str(table[name][row]).strip() for name in names}
        invalid = {name: value for name, value in values.items() if value not in ("0", "1")}
        if invalid:
            raise ValueError(
                f"{table.place(row)}: the column of a label must be 0 or 1. Received: {invalid}"
            )
        label_lists.append([name for name, value in values.items() if value == "1"])
    return table.with_column("label", label_lists)


def shown(names: Sequence[str], most: int = 10) -> str:
    """Formats the first `most` names, quoted, for a message.

    >>> shown(["a", "b", "c"], most=2)
    "'a', 'b', …"
    """
    return ", ".join([*map(repr, names[:most]), *(["…"] if len(names) > most else [])])


def class_weights_of(
    names: Sequence[str],
    weights: str | Mapping[Any, float],
    labels: np.ndarray,
    shares: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the weight of each class in the loss, (C,) float32.

    Args:
        names: names of the C classes.
        weights: weights by name or, as in Keras, by index, 1 for missing names; or "balanced". That
            gives all classes the same total weight, with a mean of 1 per example. With indicators,
            the positives of each class get the same total weight as its negatives.
        labels: labels of the training data: (N,) classes, or (N, C) indicators.
        shares: (N,), how much each class of `labels` counts; None = 1.

    Raises:
        ValueError: a class is unknown, a weight is negative or not finite, or all are 0.

    Example:
        >>> class_weights_of(["a", "b"], "balanced", np.array([0, 0, 0, 1, 1, 0])).tolist()
        [0.75, 1.5]
        >>> class_weights_of(["a", "b"], {1: 3.0}, np.array([0, 1])).tolist()
        [1.0, 3.0]
    """
    if isinstance(weights, str):
        if weights != "balanced":
            raise ValueError(
                f'class_weights must be "balanced" or a dict of weights. Received: {weights!r}'
            )
        if labels.ndim == 2:
            positives = labels.sum(0)
            return ((len(labels) - positives) / np.maximum(positives, 1)).astype(np.float32)
        counts = np.bincount(labels, shares, minlength=len(names))
        totals = counts.sum() / (np.count_nonzero(counts) * np.where(counts > 0, counts, 1))
        return totals.astype(np.float32)
    numbers = class_numbers(names)
    by_number = [key for key in weights if isinstance(key, int | np.integer) and key in numbers]
    if len(by_number) == len(weights):
        weights = {names[numbers[int(key)]]: weights[key] for key in by_number}
    _check_names(names, weights, "class_weights")
    class_weights = np.array([float(weights.get(name, 1.0)) for name in names], np.float32)
    if not (
        np.isfinite(class_weights).all() and (class_weights >= 0).all() and class_weights.any()
    ):
        raise ValueError(
            "class_weights must be 0 or more, and at least one of them above 0. "
            f"Received: {dict(weights)}"
        )
    return class_weights


def thresholds_of(names: Sequence[str], threshold: float | Mapping[str, float]) -> np.ndarray:
    """Returns the least probability at which each label is assigned, (C,) float64.

    Raises:
        ValueError: a class is unknown or missing, or a number is outside [0, 1].

    Example:
        >>> thresholds_of(["a", "b"], {"b": 0.25, "a": 0.5}).tolist()
        [0.5, 0.25]
    """
    if not isinstance(threshold, Mapping):
        threshold = dict.fromkeys(names, threshold)
    _check_names(names, threshold, "threshold")
    thresholds = np.array([float(threshold.get(name, np.nan)) for name in names])
    if not ((thresholds >= 0) & (thresholds <= 1)).all():
        raise ValueError(
            "threshold must be a number between 0 and 1, or a dict of one for every label. "
            f"Received: {dict(threshold)}"
        )
    return thresholds


def class_answer(
    names: Sequence[str], probabilities: np.ndarray, thresholds: np.ndarray | None
) -> dict[str, Any]:
    """Returns a classifier's answer for a text, a dict with its "label" or "labels".

    Args:
        names: names of the classes, in the order of the logits.
        probabilities: (C,).
        thresholds: (C,), if a text has any number of labels; None = exactly one label.

    Example:
        >>> class_answer(["ham", "spam"], np.array([0.25, 0.75]), None)["label"]
        'spam'
    """
    named_probabilities = dict(zip(names, probabilities.tolist(), strict=True))
    if thresholds is not None:
        chosen_ids = np.flatnonzero(probabilities >= thresholds)
        return {"labels": [names[int(i)] for i in chosen_ids], "probabilities": named_probabilities}
    label = names[int(probabilities.argmax())]
    return {
        "label": label,
        "probability": named_probabilities[label],
        "probabilities": named_probabilities,
    }


def class_scores(labels: Labels, table: Table, answers: Sequence[Any]) -> dict[str, float]:
    """Returns the scores of `TextClassifier.evaluate` for answers with one label each.

    Args:
        labels: the classes.
        table: table with a column `label`; with a column `group`, groups of rows are scored too.
        answers: answers for its rows, as `class_answer` returns them.
    """
    truth = labels.ids(table)
    predictions = labels.indices([answer["label"] for answer in answers])
    scores = {
        "accuracy": metrics.accuracy(truth, predictions),
        "macro_f1": metrics.macro_f1(truth, predictions),
        "matthews": metrics.matthews(truth, predictions),
    }
    if len(labels) == 2:
        scores["f1"] = metrics.f1(truth, predictions)
    if "group" in table:
        scores["exact_match"] = metrics.exact_groups(truth, predictions, table["group"])
    return scores


def _check_names(names: Sequence[str], given: Any, what: str) -> None:
    """Raises ValueError if a name in `given` is not a class, one of `names`.

    `what` is the name of the argument in the error message.
    """
    known_names = set(names)
    unknown = [name for name in given if name not in known_names]
    if unknown:
        raise ValueError(
            f"{what} must name the task's classes, {shown(names)}. Received: {shown(unknown)}"
        )


def _as_list(labels: Any) -> list:
    return list(labels) if isinstance(labels, list | tuple) else [labels]


def _first(column: Any) -> Any:
    """Returns the first label of a column whose rows have labels or lists of them; "" for none."""
    return next((label for labels in column for label in _as_list(labels)), "")
