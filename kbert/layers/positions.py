"""Where a token stands, as a vector that is added to its own: learned, or of sines.

Shapes: `B` batch, `T` tokens, `H` hidden width, `M` positions.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.types import Shape, Tensor


def sinusoids(max_positions: int, hidden_size: int) -> np.ndarray:
    """Sines and cosines, of wavelengths from 2 pi to 10,000 times that (Vaswani et al. 2017, 3.5).

    Args:
        max_positions: M.
        hidden_size: H; columns 2i have the sine and 2i + 1 the cosine of position / 10000**(2i/H).

    Returns:
        (M, H) float32.

    Example:
        >>> sinusoids(2, 4).round(2).tolist()
        [[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]]
    """
    column = np.arange(hidden_size)
    angles = np.arange(max_positions)[:, None] / 10000.0 ** (column // 2 * 2 / hidden_size)
    return np.where(column % 2, np.cos(angles), np.sin(angles)).astype(np.float32)


class _Positions(keras.layers.Layer):
    """What both kinds share: rows of a table (M, H), by number or from the first on."""

    def __init__(self, max_positions: int, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_positions = max_positions
        self.hidden_size = hidden_size

    def call(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        """Adds to vectors where they stand.

        Args:
            x: (B, T, H).
            places: (B, T) integers below M; None = 0, 1, 2 …

        Returns:
            (B, T, H).

        Raises:
            ValueError: a sequence longer than M, without `places`.
        """
        table = self._table()
        if places is None:
            length = ops.shape(x)[1]
            check_length(length, self.max_positions)
            rows = table[:length]
        else:
            rows = ops.take(table, places, axis=0)
        return x + ops.cast(rows, x.dtype)


class LearnedPositions(_Positions):
    """A trained vector for each position.

    Args:
        max_positions: M.
        hidden_size: H.
        initializer_range: sigma the table starts from.

    Example:
        >>> layer = LearnedPositions(5, 4)
        >>> tuple(layer(ops.ones((2, 3, 4))).shape), tuple(layer.position.shape)
        ((2, 3, 4), (5, 4))
    """

    def __init__(
        self,
        max_positions: int,
        hidden_size: int,
        *,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_positions, hidden_size, **kwargs)
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape | None = None) -> None:
        self.position = self.add_weight(
            name="position",
            shape=(self.max_positions, self.hidden_size),
            initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_range),
            autocast=False,
        )

    def _table(self) -> Tensor:
        return self.position


class SinusoidalPositions(_Positions):
    """`sinusoids`, which are no weights.

    Args:
        max_positions: M.
        hidden_size: H.

    Example:
        >>> layer = SinusoidalPositions(5, 4)
        >>> ops.convert_to_numpy(layer(ops.zeros((1, 1, 4)))).tolist(), len(layer.weights)
        ([[[0.0, 1.0, 0.0, 1.0]]], 0)
    """

    def build(self, input_shape: Shape | None = None) -> None:
        """There is nothing to build."""

    def _table(self) -> Tensor:
        return ops.convert_to_tensor(sinusoids(self.max_positions, self.hidden_size))


def check_length(length: Tensor, max_positions: int) -> None:
    """Raises where a sequence is too long: at once if its length is known, else in the graph."""
    rule = f"A sequence must not be longer than max_positions={max_positions}."
    if isinstance(length, int):
        if length > max_positions:
            raise ValueError(f"{rule} Received: {length} tokens")
    elif keras.backend.backend() == "tensorflow":
        # A graph for any length: without this the sum fails with "incompatible shapes".
        import tensorflow as tf

        tf.debugging.Assert(length <= max_positions, [f"{rule} Received: tokens", length])
