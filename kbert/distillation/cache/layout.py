"""The shapes of what is kept of a row.

A row is one text, or several that the encoder reads by themselves: the windows of a long text, or
the choices of a question. Only what is no padding is kept.

Shapes: n rows, W texts of a row, T tokens of the longest of them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

TEXTS, TOKENS = "texts", "tokens"
HEADS = "predictions"
FILL = -1e9  # of logits that are not there: no softmax sees them


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one output of a row is kept.

    Args:
        axes: sizes; "texts" stands for W and "tokens" for T.
        dtype: of the numbers.
        fill: what stands in a batch where a row is shorter than others.

    Example:
        >>> layout = Layout((TEXTS, TOKENS, 8), "float16")
        >>> layout.shape(1, 5), layout.counts(np.array([[1, 5], [2, 3]])).tolist()
        ((1, 5, 8), [40, 48])
    """

    axes: tuple[int | str, ...]
    dtype: str
    fill: float = 0.0

    def shape(self, texts: int, tokens: int) -> tuple[int, ...]:
        """Of a row, or of each row of a batch."""
        sizes: dict[Any, Any] = {TEXTS: texts, TOKENS: tokens}
        return tuple(sizes.get(axis, axis) for axis in self.axes)

    def static_shape(self) -> list[int | None]:
        """Of any row."""
        return [None if isinstance(axis, str) else axis for axis in self.axes]

    def counts(self, sizes: np.ndarray) -> np.ndarray:
        """(n, 2) W and T of rows -> (n,) int64, how many numbers each has."""
        texts, tokens = np.asarray(sizes, np.int64).T
        lengths: dict[Any, Any] = {TEXTS: texts, TOKENS: tokens}
        count = np.ones(len(sizes), np.int64)
        for axis in self.axes:
            count *= lengths.get(axis, axis)
        return count

    def bytes_of(self, sizes: np.ndarray) -> np.ndarray:
        """(n, 2) W and T of rows -> (n,) int64."""
        return self.counts(sizes) * np.dtype(self.dtype).itemsize

    def trim(self, values: np.ndarray, texts: int, tokens: int) -> np.ndarray:
        """A row of a batch without its padding, as one long vector."""
        return values[tuple(slice(size) for size in self.shape(texts, tokens))].ravel()

    def to_json(self) -> dict[str, Any]:
        """As a manifest has it."""
        return {**dataclasses.asdict(self), "axes": list(self.axes)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Layout":
        """What `to_json` gave."""
        return cls(tuple(values["axes"]), values["dtype"], values["fill"])
