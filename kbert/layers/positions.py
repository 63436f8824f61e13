"""Position encodings: embeddings added to those of tokens, or terms within the attention.

Shapes: `B` batch, `T` tokens, `H` hidden width, `M` positions, `N` heads, `D` width of a head.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers import fused
from kbert.layers.ids import take_rows, whole_numbers


def sinusoids(max_positions: int, hidden_size: int, halves: bool = False) -> np.ndarray:
    """Returns sines and cosines of wavelengths from 2 pi to 10,000 times that.

    (Vaswani et al. 2017, section 3.5.)

    Args:
        max_positions: number of positions, M.
        hidden_size: width, H; columns 2i have the sine and columns 2i + 1 the cosine of
            position / 10000**(2i/H).
        halves: whether all sines come before all cosines instead.

    Returns:
        (M, H) float32.

    Example:
        >>> sinusoids(2, 4).round(2).tolist()
        [[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]]
    """
    column = np.arange(hidden_size)
    angles = np.arange(max_positions)[:, None] / 10000.0 ** (column // 2 * 2 / hidden_size)
    table = np.where(column % 2, np.cos(angles), np.sin(angles)).astype(np.float32)
    return np.concatenate([table[:, ::2], table[:, 1::2]], axis=1) if halves else table


class _Positions(keras.layers.Layer):
    """Base of both position layers: adds rows of a table (M, H) to embeddings (B, T, H)."""

    def __init__(self, max_positions: int, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_positions = max_positions
        self.hidden_size = hidden_size

    def call(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        """Adds the position embeddings.

        Args:
            x: (B, T, H).
            places: (B, T), positions of the tokens, integers below M; None = 0, 1, 2 …

        Returns:
            (B, T, H).

        Raises:
            ValueError: a sequence longer than M, without `places`.
        """
        table = self._table()
        if places is None:
            rows = table[: check_length(ops.shape(x)[1], self.max_positions)]
        else:
            rows = take_rows(table, whole_numbers(places, "places"))
        return x + ops.cast(rows, x.dtype)


class LearnedPositions(_Positions):
    """A trained embedding for each position.

    Args:
        max_positions: number of positions, M.
        hidden_size: width, H.
        initializer_range: standard deviation of the initial table.

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
    """Fixed position embeddings, `sinusoids`; the layer has no weights.

    Args:
        max_positions: number of positions, M.
        hidden_size: width, H.
        halves: whether all sines come before all cosines.

    Example:
        >>> layer = SinusoidalPositions(5, 4)
        >>> ops.convert_to_numpy(layer(ops.zeros((1, 1, 4)))).tolist(), len(layer.weights)
        ([[[0.0, 1.0, 0.0, 1.0]]], 0)
    """

    def __init__(
        self, max_positions: int, hidden_size: int, *, halves: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(max_positions, hidden_size, **kwargs)
        self.halves = halves

    def build(self, input_shape: Shape | None = None) -> None:
        """Does nothing: there are no weights."""

    def _table(self) -> Tensor:
        return ops.convert_to_tensor(sinusoids(self.max_positions, self.hidden_size, self.halves))


def number_tokens(token_ids: Tensor, padding_id: int, places: Tensor | None = None) -> Tensor:
    """Numbers the tokens that are not padding, from 0.

    Args:
        token_ids: (B, T).
        padding_id: id of padding tokens. They are not counted, and each gets the number of the next
            counted token.
        places: (B, T), positions of tokens in their example of a packed row; None = one example.

    Returns:
        (B, T) int32.

    Example:
        >>> ids = ops.array([[1, 1, 7, 1, 8, 9]])
        >>> ops.convert_to_numpy(number_tokens(ids, 1)).tolist()
        [[0, 0, 0, 1, 1, 2]]
        >>> places = ops.array([[0, 1, 2, 0, 1, 2]])
        >>> ops.convert_to_numpy(number_tokens(ids, 1, places)).tolist()
        [[0, 0, 0, 0, 0, 1]]
    """
    counted = ops.cast(ops.not_equal(token_ids, padding_id), "int32")
    numbers = ops.cumsum(counted, axis=1) - counted
    if places is None:
        return numbers
    first = ops.arange(ops.shape(token_ids)[1], dtype="int32") - ops.cast(places, "int32")
    return numbers - ops.take_along_axis(numbers, first, axis=1)


def rotation(places: Tensor, head_size: int, base: float) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines of the angles of rotary positions, for `rotate`.

    (Su et al. 2021, https://arxiv.org/abs/2104.09864.)

    Args:
        places: (T,) or (B, T) integers, positions of the tokens.
        head_size: width of a head, D, even; pair i is rotated by the angle
            place / base ** (2 i / D).
        base: base of the geometric series of wavelengths.

    Returns:
        Cosines and sines, (T, D / 2) or (B, 1, T, D / 2), float32: in bfloat16 distant tokens would
        get the same position.

    Example:
        >>> cos, sin = rotation(ops.arange(3), 4, base=10_000.0)
        >>> tuple(cos.shape), round(float(sin[1, 0]), 3)
        ((3, 2), 0.841)
    """
    frequencies = (base ** -(np.arange(0, head_size, 2) / head_size)).astype("float32")
    angles = ops.cast(places, "float32")[..., None] * ops.convert_to_tensor(frequencies)
    if len(angles.shape) == 3:
        angles = angles[:, None]
    return ops.cos(angles), ops.sin(angles)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, training: bool = False) -> Tensor:
    """Rotates heads x (B, N, T, D) by the angles of `rotation`, in float32; the dtype stays.

    Entry i is paired with entry i + D / 2. `training` allows the fused operation.

    Example:
        >>> cos, sin = rotation(ops.arange(2), 2, base=10_000.0)
        >>> turned = rotate(ops.ones((1, 1, 2, 2)), cos, sin)
        >>> ops.convert_to_numpy(turned)[0, 0].round(2).tolist()
        [[1.0, 1.0], [-0.30000001192092896, 1.3799999952316284]]
    """
    if fused.fuses(x.shape[1] * x.shape[3], training):
        return fused.rotate(x, cos, sin)
    left, right = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    turned = ops.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return ops.cast(turned, x.dtype)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns the slope (N,) by which the scores of each head fall off with the distance.

    The slopes are powers of 2 ** (-8 / N). If N is not a power of two, they are those of the next
    lower power, then every other slope of the next higher (Press et al. 2021, section 3,
    https://arxiv.org/abs/2108.12409; attention_with_linear_biases).

    Example:
        >>> alibi_slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    lower = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8.0 / lower * np.arange(1, lower + 1))
    between = 2.0 ** (-4.0 / lower * np.arange(1, 2 * lower + 1, 2))
    return np.concatenate([slopes, between[: num_heads - lower]]).astype("float32")


def alibi_bias(queries: Tensor, keys: Tensor, num_heads: int) -> Tensor:
    """Returns the ALiBi attention bias: minus the distance, times the slope of the head.

    Args:
        queries: (..., Q) integers, positions of the tokens that attend.
        keys: (..., K) integers, positions of the tokens attended to.
        num_heads: number of heads, N.

    Returns:
        (..., N, Q, K) float32; (1, N, Q, K) if there are no leading axes.

    Example:
        >>> bias = alibi_bias(ops.arange(2), ops.arange(3), 2)
        >>> ops.convert_to_numpy(bias)[0, 0].tolist()
        [[-0.0, -0.0625, -0.125], [-0.0625, -0.0, -0.0625]]
    """
    # `expand_dims`, because tf2onnx cannot convert an ellipsis over an unknown number of axes.
    distances = ops.abs(ops.expand_dims(queries, -1) - ops.expand_dims(keys, -2))
    slopes = ops.convert_to_tensor(-alibi_slopes(num_heads)[:, None, None])
    falls = ops.expand_dims(ops.cast(distances, "float32"), -3) * slopes
    return falls[None] if len(falls.shape) == 3 else falls


def distance_products(x: Tensor, vectors: Tensor) -> Tensor:
    """Multiplies the heads of tokens by embeddings of distances that all rows of a batch share.

    A single head uses a 2-D product: TensorFlow's oneDNN kernel (2.21) multiplies (B, 1, T, D) by
    (1, 1, D, R) wrongly and writes outside of its memory.

    Args:
        x: (B, N, T, D).
        vectors: (N, R, D).

    Returns:
        (B, N, T, R).

    Example:
        >>> tuple(distance_products(ops.ones((2, 1, 3, 4)), ops.ones((1, 5, 4))).shape)
        (2, 1, 3, 5)
    """
    by_number = ops.transpose(vectors, (0, 2, 1))  # (N, D, R)
    if vectors.shape[0] != 1:
        return ops.matmul(x, by_number[None])
    batch, heads, length, width = ops.shape(x)
    products = ops.matmul(ops.reshape(x, (-1, width)), by_number[0])
    return ops.reshape(products, (batch, heads, length, ops.shape(vectors)[1]))


def relative_shift(x: Tensor) -> Tensor:
    """Turns scores by distance into scores by token: row i from its column T - 1 - i on.

    The flattened scores are split into rows that are one column shorter, so each row is shifted by
    one relative to the row before. (As in Music Transformer, Huang et al. 2018.) A gather from all
    distances does the same, but its gradient adds numbers one by one. Times for scores and
    gradients of 12 heads on two busy cores: for 8 rows of 128 tokens 138 ms, with gathers 216 ms
    (under XLA 87 and 133 ms). For 2 rows of 512 tokens 270 to 530 ms, with gathers 350 to 410 ms
    (under XLA 290 to 370 and 210 to 230 ms).

    Args:
        x: (B, N, T, S + T), scores of T tokens for the distances from S - 1 down to -T. The T
            tokens are the last of the S tokens attended to.

    Returns:
        (B, N, T, S).

    Example:
        >>> x = ops.reshape(ops.array([1, 0, -1, -2]), (1, 1, 1, 4))
        >>> ops.convert_to_numpy(relative_shift(ops.repeat(x, 2, axis=2)))[0, 0].tolist()
        [[0, -1], [1, 0]]
    """
    batch, heads, length, width = ops.shape(x)
    flat = ops.reshape(x, (batch, heads, length * width))
    flat = flat[..., length - 1 : length - 1 + length * (width - 1)]
    return ops.reshape(flat, (batch, heads, length, width - 1))[..., : width - length]


def relative_shift_rows(x: Tensor, positions: Tensor, length: Tensor) -> Tensor:
    """Applies `relative_shift` to selected rows only.

    Args:
        x: (B, N, P, S + T), scores by distance of the selected tokens.
        positions: (B, P) integers in [0, T), positions of the selected tokens.
        length: sequence length, T.

    Returns:
        (B, N, P, S).

    Example:
        >>> x = ops.reshape(ops.array([1, 0, -1, -2]), (1, 1, 1, 4))
        >>> ops.convert_to_numpy(relative_shift_rows(x, ops.array([[1]]), 2))[0, 0].tolist()
        [[1, 0]]
    """
    batch, heads, number, width = ops.shape(x)
    columns = ops.arange(width - length, dtype="int32")
    columns = length - 1 - ops.cast(positions, "int32")[:, :, None] + columns
    rows = ops.reshape(ops.arange(batch * heads * number), (batch, heads, number, 1))
    return ops.take(ops.reshape(x, (-1,)), rows * width + columns[:, None])


def scores_by_distance(
    products: Callable[[Tensor], Tensor],
    vectors: Tensor,
    number: Tensor,
    length: Tensor,
    start: Tensor = 0,
    positions: Tensor | None = None,
) -> Tensor:
    """Computes scores by distance of a chunk of tokens, and turns them into scores by token.

    Args:
        products: function from the vectors of M distances (N, M, W) to scores by distance (B, N, C,
            M).
        vectors: (N, S + T, W), for the distances from S - 1 down to -T, see `relative_shift`.
        number: number of tokens of the chunk, C.
        length: number of tokens that attend if all do, T.
        start: first token of the chunk; the integer 0 = all tokens. The chunk may end after the
            last token.
        positions: (B, P), the tokens that attend, of which the chunk is a part; None = all.

    Returns:
        (B, N, C, S).

    Example:
        >>> bias = ops.reshape(ops.arange(1, -3, -1), (1, 4, 1))  # the distances
        >>> def products(x):
        ...     return ops.broadcast_to(ops.transpose(x, (0, 2, 1))[None], (1, 1, 1, x.shape[1]))
        >>> scores = scores_by_distance(products, bias, 1, 2, start=ops.array(1))
        >>> ops.convert_to_numpy(scores)[0, 0].tolist()
        [[1, 0]]
    """
    if positions is not None:
        if not isinstance(start, int):
            rows = ops.minimum(start + ops.arange(number), ops.shape(positions)[1] - 1)
            positions = ops.take(positions, rows, axis=1)
        return relative_shift_rows(products(vectors), positions, length)
    if not isinstance(start, int):
        # Rows that are closer to the last token need later columns.
        heads, columns, width = ops.shape(vectors)
        padded = ops.pad(vectors, ((0, 0), (number, 0), (0, 0)))
        begin = [0, ops.cast(length - start, "int32"), 0]
        vectors = ops.slice(padded, begin, (heads, columns - length + number, width))
    return relative_shift(products(vectors))


def check_length(length: Tensor, max_positions: int) -> Tensor:
    """Returns the length of a sequence; raises if it is above `max_positions`.

    A known length raises ValueError at once. An unknown length is checked in the graph, on
    TensorFlow only.
    """
    rule = f"A sequence must not be longer than max_positions={max_positions}."
    if isinstance(length, int):
        if length > max_positions:
            raise ValueError(f"{rule} Received: {length} tokens")
    elif keras.backend.backend() == "tensorflow":
        # A graph for any length: without this the sum fails with "incompatible shapes".
        import tensorflow as tf

        passed = tf.debugging.Assert(length <= max_positions, [f"{rule} Received: tokens", length])
        with tf.control_dependencies([] if passed is None else [passed]):
            return tf.identity(length)
    return length
