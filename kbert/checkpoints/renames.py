"""Tables of weight names that translate in both directions.

A table is a list of `Rule`s, one for each of kbert's weights: kbert's name, the name or names in
the other library, and how the arrays differ. The same rule reads and writes, so the two directions
cannot drift apart. In this package "here" means kbert; "there" and "source" mean the other
library.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.core.types import Arrays
from kbert.io.arrays import release


@dataclasses.dataclass(frozen=True)
class Rule:
    """One weight of kbert and its source in another library.

    Args:
        name: kbert's name of the weight.
        sources: names in the other library; several are joined along the last axis (query, key and
            value).
        transpose: whether the other library stores the matrix transposed, like PyTorch's `Linear`.
        aliases: other names of the source (tied weights). A file may have copies under these names,
            also instead of the source. They must be equal to the source, and are not written.
        shapes: (kbert's shape, other library's shape) of each source, if heads are a separate axis
            there; None = equal. With `transpose`, kbert's shape is that before transposing.
        widths: size of the last axis of each source in kbert, if there are several; None = all
            equal.
    """

    name: str
    sources: tuple[str, ...]
    transpose: bool = False
    aliases: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    widths: tuple[int, ...] | None = None

    def read(self, arrays: Arrays) -> np.ndarray:
        """Returns kbert's array from the other library's name -> array, which has all sources."""
        shape, source_shape = self.shapes or (None, None)
        parts = [self._reshaped(arrays[source], source_shape, shape) for source in self.sources]
        parts = [part.T if self.transpose else part for part in parts]
        if len(parts) == 1:
            return parts[0]
        joined = np.concatenate(parts, axis=-1)
        for source in self.sources:
            release(arrays[source])
        return joined

    def write(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the other library's name -> array from kbert's array; reverses `read`."""
        shape, source_shape = self.shapes or (None, None)
        cuts: Any = len(self.sources)
        if self.widths is not None:
            cuts = np.cumsum(self.widths)[:-1]
        parts = np.split(array, cuts, axis=-1)
        parts = [part.T if self.transpose else part for part in parts]
        parts = [self._reshaped(part, shape, source_shape) for part in parts]
        return dict(zip(self.sources, parts, strict=True))

    def _reshaped(
        self, array: np.ndarray, before: tuple[int, ...] | None, after: Any
    ) -> np.ndarray:
        # An array of another shape is passed on unchanged: setting the weights reports it by name.
        return array.reshape(after) if array.shape == before else array


def dense(name: str, *sources: str) -> tuple[Rule, ...]:
    """Returns the rules of a dense layer, whose weights are `kernel` and `bias` in both libraries.

    Args:
        name: kbert's name of the layer.
        *sources: names in the other library; several layers there become one in kbert.
    """
    return (
        Rule(f"{name}/kernel", tuple(f"{source}/kernel" for source in sources)),
        Rule(f"{name}/bias", tuple(f"{source}/bias" for source in sources)),
    )


def norm(name: str, source: str) -> tuple[Rule, ...]:
    """Returns the rules of a layer normalisation, whose weights are `gamma` and `beta` everywhere.

    Args:
        name: kbert's name of the layer.
        source: name of the layer in the other library.
    """
    return Rule(f"{name}/gamma", (f"{source}/gamma",)), Rule(f"{name}/beta", (f"{source}/beta",))


def read_arrays(
    rules: Sequence[Rule], arrays: Arrays
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Renames arrays of another library to kbert's names; skips rules whose sources are missing.

    Args:
        rules: table of weight names.
        arrays: name in the other library -> array.

    Returns:
        kbert's name -> array, and the arrays that no rule used, under their original names.

    Raises:
        ValueError: a copy of a tied weight is not equal to it.

    Example:
        >>> rules = [Rule("kernel", ("weight",), transpose=True)]
        >>> here, rest = read_arrays(rules, {"weight": np.zeros((2, 3)), "other": np.zeros(1)})
        >>> here["kernel"].shape, list(rest)
        ((3, 2), ['other'])
    """
    unused_arrays = dict(arrays)
    renamed_arrays = {}
    for rule in rules:
        copies = [name for name in (rule.sources[0], *rule.aliases) if name in arrays]
        if rule.aliases and copies:  # a file may have any one copy of tied weights
            rule = dataclasses.replace(rule, sources=(copies[0], *rule.sources[1:]))
        if not all(source in arrays for source in rule.sources):
            continue
        renamed_arrays[rule.name] = rule.read(arrays)
        for source in rule.sources:
            del unused_arrays[source]
        for alias in copies[1:]:
            if not np.array_equal(unused_arrays.pop(alias), arrays[copies[0]]):
                raise ValueError(
                    f"{alias!r} must be equal to {copies[0]!r}: kbert ties these weights. "
                    "Received: different values"
                )
    return renamed_arrays, unused_arrays


def write_arrays(rules: Sequence[Rule], arrays: Arrays) -> dict[str, np.ndarray]:
    """Renames kbert's arrays to the names of another library.

    Args:
        rules: table of weight names.
        arrays: kbert's name -> array.

    Returns:
        Name in the other library -> array.

    Raises:
        ValueError: an array has no rule.
    """
    by_name = {rule.name: rule for rule in rules}
    unknown = [name for name in arrays if name not in by_name]
    if unknown:
        raise ValueError(
            f"The other format has no counterpart of these weights. Received: {', '.join(unknown)}"
        )
    renamed_arrays: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        renamed_arrays.update(by_name[name].write(array))
    return renamed_arrays
