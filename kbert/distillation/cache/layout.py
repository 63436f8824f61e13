"""The shapes of cached outputs.

A row is one text, or several that the encoder reads separately: the windows of a long text, or the
choices of a question. Padding is not cached.

Shapes: n rows, W texts of a row, T tokens of the longest of them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

TEXTS, TOKENS = "texts", "tokens"
HEADS = "predictions"
FILL = -1e9  # of logits that are absent: 0 after a softmax


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one output of a row is cached.

    Args:
        axes: sizes; "texts" stands for W and "tokens" for T.
        dtype: of the numbers.
        fill: padding in a batch where a row is shorter than others.

    Example:
        >>> layout = Layout((TEXTS, TOKENS, 8), "float16")
        >>> layout.shape(1, 5), layout.counts(np.array([[1, 5], [2, 3]])).tolist()
        ((1, 5, 8), [40, 48])
    """

    axes: tuple[int | str, ...]
    dtype: str
    fill: float = 0.0

    def shape(self, texts: int, tokens: int) -> tuple[int, ...]:
        """The shape of a row, or of each row of a batch."""
        sizes: dict[Any, Any] = {TEXTS: texts, TOKENS: tokens}
        return tuple(sizes.get(axis, axis) for axis in self.axes)

    def static_shape(self) -> list[int | None]:
        """The shape of any row, None for axes that vary."""
        return [None if isinstance(axis, str) else axis for axis in self.axes]

    def counts(self, sizes: np.ndarray) -> np.ndarray:
        """(n, 2) W and T of rows -> (n,) int64, the number of values of each."""
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
        """As JSON, for the manifest."""
        return {**dataclasses.asdict(self), "axes": list(self.axes)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Layout":
        """The reverse of `to_json`."""
        return cls(tuple(values["axes"]), values["dtype"], values["fill"])
