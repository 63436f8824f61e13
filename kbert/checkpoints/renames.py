"""Tables of renames that go both ways.

A table is a list of `Rule`s, one for each of kbert's weights: its name here, its name or names
there, and how the arrays differ. The same rule reads and writes, so the two directions cannot
drift apart.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.core.types import Arrays


@dataclasses.dataclass(frozen=True)
class Rule:
    """One weight of kbert and where it comes from.

    Args:
        name: here.
        sources: there; several are joined along the last axis (query, key and value).
        transpose: whether matrices lie the other way round there, as in PyTorch's `Linear`.
        aliases: copies of the source under other names (tied weights): may be there, also in its
            stead, must be equal, and are not written.
        shapes: of each source, here and there, where heads have an axis of their own there; where
            they are transposed too, "here" is as they lie there.
        widths: of several sources, the last axis of each here; None = all the same.
    """

    name: str
    sources: tuple[str, ...]
    transpose: bool = False
    aliases: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    widths: tuple[int, ...] | None = None

    def read(self, arrays: Arrays) -> np.ndarray:
        """There -> here."""
        here, there = self.shapes or (None, None)
        parts = [self._reshaped(arrays[source], there, here) for source in self.sources]
        parts = [part.T if self.transpose else part for part in parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def write(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """Here -> there."""
        here, there = self.shapes or (None, None)
        cuts: Any = len(self.sources)
        if self.widths is not None:
            cuts = np.cumsum(self.widths)[:-1]
        parts = np.split(array, cuts, axis=-1)
        parts = [part.T if self.transpose else part for part in parts]
        parts = [self._reshaped(part, here, there) for part in parts]
        return dict(zip(self.sources, parts, strict=True))

    def _reshaped(
        self, array: np.ndarray, before: tuple[int, ...] | None, after: Any
    ) -> np.ndarray:
        # An array of another shape is passed on as it is: whoever sets the weights names it.
        return array.reshape(after) if array.shape == before else array


def dense(name: str, *sources: str) -> tuple[Rule, ...]:
    """A dense layer that has Keras' names there too; several sources make one layer here.

    Args:
        name: of the layer here.
        *sources: its names there.
    """
    return (
        Rule(f"{name}/kernel", tuple(f"{source}/kernel" for source in sources)),
        Rule(f"{name}/bias", tuple(f"{source}/bias" for source in sources)),
    )


def norm(name: str, source: str) -> tuple[Rule, ...]:
    """A layer normalisation that has Keras' names there too."""
    return Rule(f"{name}/gamma", (f"{source}/gamma",)), Rule(f"{name}/beta", (f"{source}/beta",))


def read_arrays(
    rules: Sequence[Rule], arrays: Arrays
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Renames from there to here, as far as the rules' sources are present.

    Args:
        rules: the table.
        arrays: name there -> array.

    Returns:
        name here -> array, and the arrays that no rule took, under their names there.

    Raises:
        ValueError: a copy of a tied weight is not equal to it.

    Example:
        >>> rules = [Rule("kernel", ("weight",), transpose=True)]
        >>> here, rest = read_arrays(rules, {"weight": np.zeros((2, 3)), "other": np.zeros(1)})
        >>> here["kernel"].shape, list(rest)
        ((3, 2), ['other'])
    """
    rest = dict(arrays)
    here = {}
    for rule in rules:
        copies = [name for name in (rule.sources[0], *rule.aliases) if name in arrays]
        if rule.aliases and copies:  # of tied weights a file may have any copy alone
            rule = dataclasses.replace(rule, sources=(copies[0], *rule.sources[1:]))
        if not all(source in arrays for source in rule.sources):
            continue
        here[rule.name] = rule.read(arrays)
        for source in rule.sources:
            del rest[source]
        for alias in copies[1:]:
            if not np.array_equal(rest.pop(alias), arrays[copies[0]]):
                raise ValueError(
                    f"{alias!r} must be equal to {copies[0]!r}: kbert ties these weights. "
                    "Received: different values"
                )
    return here, rest


def write_arrays(rules: Sequence[Rule], arrays: Arrays) -> dict[str, np.ndarray]:
    """Renames from here to there.

    Args:
        rules: the table.
        arrays: name here -> array.

    Returns:
        name there -> array.

    Raises:
        ValueError: an array has no rule.
    """
    by_name = {rule.name: rule for rule in rules}
    unknown = [name for name in arrays if name not in by_name]
    if unknown:
        raise ValueError(f"These weights have no name there. Received: {', '.join(unknown)}")
    there: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        there.update(by_name[name].write(array))
    return there
