"""Shapes of cached outputs.

A row is one text, or several that the encoder reads as separate sequences: the windows of a long
text, or the choices of a question. Padding is not cached.

Shapes: n rows, W texts of a row, T tokens of the longest of them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

TEXTS, TOKENS = "texts", "tokens"
HEADS = "predictions"
FILL = -1e9  # padding of logits: 0 after a softmax


@dataclasses.dataclass(frozen=True)
class Layout:
    """Shape and type of one cached output of a row.

    Args:
        axes: sizes of the axes; "texts" stands for W and "tokens" for T.
        dtype: type of the numbers.
        fill: padding value for rows that are shorter than others in a batch.

    Example:
        >>> layout = Layout((TEXTS, TOKENS, 8), "float16")
        >>> layout.shape(1, 5), layout.counts(np.array([[1, 5], [2, 3]])).tolist()
        ((1, 5, 8), [40, 48])
    """

    axes: tuple[int | str, ...]
    dtype: str
    fill: float = 0.0

    def shape(self, texts: int, tokens: int) -> tuple[int, ...]:
        """Returns the shape of the output for a row with W texts and T tokens."""
        sizes: dict[Any, Any] = {TEXTS: texts, TOKENS: tokens}
        return tuple(sizes.get(axis, axis) for axis in self.axes)

    def static_shape(self) -> list[int | None]:
        """Returns the shape of any row, with None for axes that vary."""
        return [None if isinstance(axis, str) else axis for axis in self.axes]

    def counts(self, sizes: np.ndarray) -> np.ndarray:
        """Returns the number of values of each row, (n,) int64; `sizes` (n, 2) are W and T."""
        texts, tokens = np.asarray(sizes, np.int64).T
        lengths: dict[Any, Any] = {TEXTS: texts, TOKENS: tokens}
        count = np.ones(len(sizes), np.int64)
        for axis in self.axes:
            count *= lengths.get(axis, axis)
        return count

    def bytes_of(self, sizes: np.ndarray) -> np.ndarray:
        """Returns the bytes of each row, (n,) int64; `sizes` (n, 2) are W and T of the rows."""
        return self.counts(sizes) * np.dtype(self.dtype).itemsize

    def trim(self, values: np.ndarray, texts: int, tokens: int) -> np.ndarray:
        """Returns the first W texts and T tokens of a row's padded output, flattened."""
        return values[tuple(slice(size) for size in self.shape(texts, tokens))].ravel()

    def to_json(self) -> dict[str, Any]:
        """Returns the layout as a dict for JSON, for the manifest."""
        return {**dataclasses.asdict(self), "axes": list(self.axes)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Layout":
        """Creates a layout from the result of `to_json`."""
        return cls(tuple(values["axes"]), values["dtype"], values["fill"])
