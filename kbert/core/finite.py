"""Answers that are no numbers: what finite weights give where they are too large."""

from collections.abc import Mapping
from typing import Any

import numpy as np

NOT_FINITE = (
    "Answers must be finite numbers; finite weights that are too large for that come of a learning "
    "rate that is too high, or of a precision with too small a range."
)


def not_finite(outputs: Mapping[str, Any]) -> list[str]:
    """Names of the outputs with NaN or infinity in them.

    Minus infinity beside finite numbers is none: it stands for "never", as among scores of beams.

    Args:
        outputs: name -> numbers, of any number of axes; what are no floats is passed over.

    Example:
        >>> nan, inf = np.nan, np.inf
        >>> not_finite({"a": [1.0, nan], "b": [1.0, -inf], "c": [-inf], "d": [inf, 0.0], "e": [1]})
        ['a', 'c', 'd']
    """
    return [name for name, x in outputs.items() if _is_bad(np.asarray(x))]


def _is_bad(numbers: np.ndarray) -> bool:
    if numbers.dtype.kind == "V":  # bfloat16 is no type of NumPy's own
        numbers = numbers.astype(np.float32)
    if numbers.dtype.kind != "f":
        return False
    finite = np.isfinite(numbers)
    if finite.all():
        return False
    return not (finite | np.isneginf(numbers)).all() or not finite.any()


def refuse_not_finite(outputs: Mapping[str, Any], what: str) -> None:
    """Raises ValueError, by name, where outputs are not finite.

    Args:
        outputs: see `not_finite`.
        what: whose they are, for the message.
    """
    if bad := not_finite(outputs):
        raise ValueError(
            f"{NOT_FINITE} Received: NaN or infinity in {', '.join(map(repr, bad))} of {what}"
        )
