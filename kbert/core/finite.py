"""Checks for NaN and infinity in outputs: finite weights give them where they are too large."""

from collections.abc import Mapping
from typing import Any

import numpy as np

NOT_FINITE = (
    "Answers must be finite numbers; NaN or infinity from finite weights is caused by a learning "
    "rate that was too high, or by a precision with too small a range."
)


def not_finite(outputs: Mapping[str, Any]) -> list[str]:
    """Returns the names of the outputs that contain NaN or infinity.

    Minus infinity next to finite numbers is allowed: it means "impossible", as in beam scores.

    Args:
        outputs: name -> numbers, with any number of axes; values that are not floats are skipped.

    Example:
        >>> nan, inf = np.nan, np.inf
        >>> not_finite({"a": [1.0, nan], "b": [1.0, -inf], "c": [-inf], "d": [inf, 0.0], "e": [1]})
        ['a', 'c', 'd']
    """
    return [name for name, x in outputs.items() if _is_bad(np.asarray(x))]


def nan_last(value: float) -> float:
    """Returns a sort key of which larger is better: the value, or minus infinity for NaN.

    Example:
        >>> max([nan_last(np.nan), nan_last(-2.0)])
        -2.0
    """
    return -np.inf if np.isnan(value) else value


def _is_bad(numbers: np.ndarray) -> bool:
    """Whether an array has NaN or +inf, or only -inf; single -inf are allowed (masks)."""
    if numbers.dtype.kind == "V":  # bfloat16 is not one of NumPy's own types
        numbers = numbers.astype(np.float32)
    if numbers.dtype.kind != "f":
        return False
    finite = np.isfinite(numbers)
    if finite.all():
        return False
    return not (finite | np.isneginf(numbers)).all() or not finite.any()


def refuse_not_finite(outputs: Mapping[str, Any], what: str) -> None:
    """Raises ValueError if outputs contain NaN or infinity; the message names them.

    Args:
        outputs: name -> numbers, as for `not_finite`.
        what: what the outputs belong to, for the message.
    """
    if bad_names := not_finite(outputs):
        raise ValueError(
            f"{NOT_FINITE} Received: NaN or infinity in {', '.join(map(repr, bad_names))} of {what}"
        )
