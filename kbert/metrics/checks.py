"""Input checks shared by all metrics."""

from collections.abc import Sequence

import numpy as np

from kbert.core.in_memory import check_order
from kbert.core.types import Values

_KINDS = {"b": "integers", "i": "integers", "u": "integers", "f": "numbers", "U": "names"}


def paired(labels: Values, predictions: Values) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and predictions as arrays; raises ValueError if they do not match.

    They must be non-empty, of the same shape, and both names or both finite numbers.
    """
    labels, predictions = array("labels", labels), array("predictions", predictions)
    if labels.shape != predictions.shape or not labels.size:
        raise ValueError(
            "Labels and predictions must have the same shape, with at least one entry. Received: "
            f"{labels.shape} and {predictions.shape}"
        )
    kinds = _KINDS[labels.dtype.kind], _KINDS[predictions.dtype.kind]
    if "names" in kinds and len(set(kinds)) > 1:
        raise ValueError(
            "Labels and predictions must be of one kind: both names or both numbers. "
            f"Received: {kinds[0]} and {kinds[1]}"
        )
    return labels, predictions


def array(what: str, values: Values) -> np.ndarray:
    """Returns names, integers or finite numbers as an array, never converting numbers to text.

    Raises ValueError for a scalar, a mix of names and numbers, NaN or infinity; `what` names the
    values in the message.
    """
    converted = np.asarray(values)
    if converted.ndim == 0:
        raise ValueError(f"The {what} must be a sequence, one entry per row. Received: {values!r}")
    if converted.dtype.kind == "V":  # bfloat16 and other extension types
        converted = converted.astype(np.float32)
    mixed = converted.dtype.kind == "U" and not all(isinstance(value, str) for value in values)
    if converted.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        converted = converted.astype(str)
    if mixed or converted.dtype.kind not in _KINDS:
        types = sorted({type(value).__name__ for value in values})
        raise ValueError(f"The {what} must be all names or all numbers. Received: {types}")
    if converted.dtype.kind == "f" and not np.isfinite(converted).all():
        bad_index = np.argwhere(~np.isfinite(converted))[0]
        raise ValueError(
            f"The {what} must be finite. Received: {converted[tuple(bad_index)]} at row "
            f"{bad_index[0]}"
        )
    return converted


def indicators(what: str, values: Values) -> np.ndarray:
    """Returns values as an int64 array; raises ValueError if one is neither 0 nor 1.

    `what` names the values in the error message.
    """
    converted = array(what, values)
    if not np.isin(converted, (0, 1)).all():
        raise ValueError(
            f"The {what} must be 0 or 1 for each class. Received: {np.unique(converted)[:5]}"
        )
    return converted.astype(np.int64)


def text_rows(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    """Returns the references of each hypothesis, for one reference or a list of them.

    Raises ValueError for no texts, unequal numbers of texts, values that are not strings, or a set,
    which has no order.
    """
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        check_order(texts, f"The value of {name}")
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("Hypotheses and references must be lists of texts. Received: one text")
    if len(hypotheses) != len(references) or not len(hypotheses):
        raise ValueError(
            "There must be as many references as hypotheses, and at least one. "
            f"Received: {len(hypotheses)} hypotheses and {len(references)} references"
        )
    # By position: the index of a pandas Series may be in another order.
    hypotheses, references = list(hypotheses), list(references)
    rows = [[row] if isinstance(row, str) else row for row in references]
    for number, row in enumerate(rows):
        texts = [hypotheses[number], *row] if isinstance(row, Sequence) else [row]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(
                "A hypothesis must be a string, and a reference a string or a list of strings. "
                f"Received: {hypotheses[number]!r:.60} and {references[number]!r:.60} at {number}"
            )
    return rows
