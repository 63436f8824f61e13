"""Loading is all or nothing: what is missing, left over or of another shape is listed."""

from collections.abc import Mapping

import numpy as np


def check_arrays(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, np.ndarray], source: str
) -> None:
    """Refuses arrays that are not exactly the expected ones.

    Args:
        expected: name -> shape.
        found: name -> array.
        source: where the arrays are from, for the message.

    Raises:
        ValueError: listing every missing (-) and unexpected (+) name, every shape that differs
            (!), and every array that holds NaN or infinity.

    Example:
        >>> check_arrays({"a": (2,)}, {"a": np.zeros(2)}, "memory")
        >>> check_arrays({"a": (2,)}, {"b": np.zeros(2)}, "memory")
        Traceback (most recent call last):
        ...
        ValueError: The weights do not fit the model. Received: memory
          - missing a (2,)
          + unexpected b (2,)
    """
    lines = [f"- missing {name} {tuple(expected[name])}" for name in expected if name not in found]
    lines += [f"+ unexpected {name} {found[name].shape}" for name in found if name not in expected]
    for name in expected:
        if name not in found:
            continue
        if tuple(expected[name]) != found[name].shape:
            lines.append(
                f"! shape of {name}: expected {tuple(expected[name])}, is {found[name].shape}"
            )
        elif found[name].dtype.kind == "f" and not np.isfinite(found[name]).all():
            lines.append(f"! {name} holds NaN or infinity")
    if lines:
        listing = "".join(f"\n  {line}" for line in lines)
        raise ValueError(f"The weights do not fit the model. Received: {source}{listing}")
