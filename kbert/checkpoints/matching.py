"""Full account of a load: what is missing, left over or of another shape is listed."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from kbert.core.types import Arrays

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Differences:
    """What a load that is not strict leaves.

    Attributes:
        missing: names that nothing was found for; they keep their values.
        unexpected: names that were found and are not used.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected)


def check_arrays(
    expected: Mapping[str, tuple[int, ...]],
    found: Arrays,
    source: str,
    strict: bool = True,
) -> Differences:
    """Refuses arrays that are not exactly the expected ones.

    Args:
        expected: name -> shape.
        found: name -> array.
        source: where the arrays are from, for the message.
        strict: False lets missing and unexpected names pass, as long as one is expected.

    Returns:
        The missing and unexpected names: none where it is strict.

    Raises:
        ValueError: listing every missing (-) and unexpected (+) name, every shape that differs
            (!), and every array that holds NaN or infinity.

    Example:
        >>> bool(check_arrays({"a": (2,)}, {"a": np.zeros(2)}, "memory"))
        False
        >>> check_arrays({"a": (2,)}, {"b": np.zeros(2)}, "memory")
        Traceback (most recent call last):
        ...
        ValueError: The weights do not fit the model. Received: memory
          - missing a (2,)
          + unexpected b (2,)
    """
    missing = tuple(name for name in expected if name not in found)
    unexpected = tuple(name for name in found if name not in expected)
    lines = []
    if strict or len(missing) == len(expected):
        lines += [f"- missing {name} {tuple(expected[name])}" for name in missing]
        lines += [f"+ unexpected {name} {found[name].shape}" for name in unexpected]
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
    return Differences(missing, unexpected)


def check_finite(arrays: Arrays, what: str) -> None:
    """Refuses weights that hold NaN or infinity: no file of them would be of use.

    Args:
        arrays: name -> array.
        what: what was to be written, for the message.

    Raises:
        ValueError: naming the weights.

    Example:
        >>> try:
        ...     check_finite({"a": np.zeros(2), "b": np.array([1.0, np.nan])}, "a preset")
        ... except ValueError as error:
        ...     print(str(error)[-35:])
        a preset, with NaN or infinity in b
    """
    bad = [name for name, x in arrays.items() if x.dtype.kind == "f" and not np.isfinite(x).all()]
    if bad:
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise ValueError(
            "Weights must be finite to be written: nothing is. "
            f"Received: {what}, with NaN or infinity in {', '.join(bad[:_SHOWN])}{more}"
        )
