"""Attention weights with the names of their rows and columns, checked.

Shapes: L layers, N heads, T tokens that look, S tokens that are looked at.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# More names beside each other than these cannot be read in a picture.
MOST_TOKENS = 128


class Weights(NamedTuple):
    """Weights of every layer and head, as they are shown.

    Attributes:
        values: (L, N, T, S) float32, from 0 to 1.
        rows: T names of what looks.
        columns: S names of what is looked at.
        row_title, column_title: what the rows and the columns are.
    """

    values: np.ndarray
    rows: list[str]
    columns: list[str]
    row_title: str = "token"
    column_title: str = "attends to"

    def select(self, layer: int | None, head: int | None) -> "Weights":
        """One layer, one head, or both; what is None is kept whole. No axis is dropped."""
        values = self.values
        if layer is not None:
            values = values[[index_of("layer", layer, len(values))]]
        if head is not None:
            values = values[:, [index_of("head", head, values.shape[1])]]
        return self._replace(values=values)


def as_weights(
    weights: Any,
    rows: Sequence[Any],
    columns: Sequence[Any] | None,
    titles: tuple[str, str],
) -> Weights:
    """Arrays of two to four axes as (L, N, T, S), with names that fit.

    Args:
        weights: (T, S), (N, T, S) or (L, N, T, S).
        rows: T names.
        columns: S names; None = the rows' own.
        titles: what rows and columns are.

    Raises:
        ValueError: names that are more or fewer than rows or columns, more than can be read, or
            values outside 0..1.
    """
    values = np.asarray(weights, "float32")
    rows = [str(name) for name in rows]
    columns = rows if columns is None else [str(name) for name in columns]
    if values.ndim not in (2, 3, 4) or values.shape[-2:] != (len(rows), len(columns)):
        raise ValueError(
            "Attention weights are (rows, columns), (heads, rows, columns) or (layers, heads, "
            "rows, columns), with a name for each row and each column (None = the rows' own). "
            f"Received: weights of shape {values.shape}, {len(rows)} names of rows and "
            f"{len(columns)} of columns"
        )
    if not values.size:
        raise ValueError(
            f"There is a weight to be shown. Received: weights of shape {values.shape}"
        )
    if max(len(rows), len(columns)) > MOST_TOKENS:
        raise ValueError(
            f"A picture of attention shows at most {MOST_TOKENS} tokens, so that they can be read. "
            f"Received: {len(rows)} rows and {len(columns)} columns"
        )
    # Rows are sums of rounded numbers: of bfloat16 a little more than 1 may come.
    if not ((values >= 0) & (values <= 1.01)).all():
        raise ValueError(
            "Attention weights lie in 0..1. Received: values from "
            f"{values.min():.3g} to {values.max():.3g}"
        )
    values = values.reshape((1,) * (4 - values.ndim) + values.shape)
    return Weights(np.minimum(values, 1.0), rows, columns, *titles)


def index_of(what: str, number: int, count: int) -> int:
    """The number, counted from the end where it is negative.

    Raises:
        TypeError: no whole number.
        ValueError: there are not so many.

    >>> index_of("layer", -1, 12)
    11
    """
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise TypeError(f"{what} must be a whole number, or None for all. Received: {number!r}")
    if not -count <= number < count:
        raise ValueError(
            f"{what} must be a number from 0 to {count - 1}, or from -{count} to -1 counted from "
            f"the last. Received: {number}"
        )
    return int(number) % count


def panel_names(layers: int, heads: int) -> list[str]:
    """Names of the panels where one of the two is 1.

    >>> panel_names(1, 2), panel_names(2, 1)
    (['head 0', 'head 1'], ['layer 0', 'layer 1'])
    """
    if layers == 1:
        return [f"head {i}" for i in range(heads)]
    return [f"layer {i}" for i in range(layers)]
