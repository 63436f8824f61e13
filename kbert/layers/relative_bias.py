"""Relative biases: a learned bias of the scores for each head and bucket of distances.

(Raffel et al. 2020, "T5", https://arxiv.org/abs/1910.10683, section 2.1.)

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `P` tokens that attend, `R` decoded
rows, `G` new tokens at most.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers.attention import SelfAttention
from kbert.layers.chunked_attention import Scores
from kbert.layers.dense import kernel_initializer
from kbert.layers.positions import scores_by_distance


def bias_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance from 0 to `max_distance`, on one side.

    Half of a side's buckets have one distance each. After that the buckets are logarithmic, and the
    last one includes all longer distances. Computed in float32 like the original, because a
    rounding error in a logarithm would move a distance to the next bucket.

    Args:
        num_buckets: number of buckets of the side; even.
        max_distance: first distance beyond the logarithmic buckets.

    Returns:
        (max_distance + 1,) int32.

    Example:
        >>> bias_buckets(8, 16).tolist()
        [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7]
    """
    exact = num_buckets // 2
    distances = np.arange(max_distance + 1)
    logarithms = np.log(np.maximum(distances, exact).astype("float32") / np.float32(exact))
    share = (
        logarithms / np.float32(math.log(max_distance / exact)) * np.float32(num_buckets - exact)
    )
    far = np.minimum(exact + share.astype("int32"), num_buckets - 1)
    return np.where(distances < exact, distances, far).astype("int32")


class RelativeBiases(keras.layers.Layer):
    """Learned bias of each head and bucket, and the lookup for a sequence.

    Args:
        num_heads: number of heads, N.
        num_buckets: number of buckets of a head.
        max_distance: first distance beyond the logarithmic buckets, see `bias_buckets`.
        causal: whether all buckets are for distances to earlier tokens. Otherwise half of them are
            for later tokens.
        initializer_range: standard deviation of the truncated normal that initialises them; None =
            Glorot's uniform distribution.

    Example:
        >>> layer = RelativeBiases(2, 8, 16)
        >>> {name: tuple(x.shape) for name, x in layer(ops.ones((1, 3, 4))).items()}
        {'by_distance': (2, 6)}
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int,
        max_distance: int,
        *,
        causal: bool = False,
        initializer_range: float | None = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.causal = causal
        self.initializer_range = initializer_range
        self._buckets = bias_buckets(num_buckets if causal else num_buckets // 2, max_distance)

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_weight(
            name="table",
            shape=(self.num_buckets, self.num_heads),
            initializer=kernel_initializer(self.initializer_range),
        )

    def call(self, x: Tensor, training: bool = False) -> Tensors:
        """Returns "by_distance" (N, 2 T) for a batch (B, T, H), of which only T matters.

        They are the biases of the distances from T - 1 down to -T, i - j for tokens i and j.
        """
        length = ops.shape(x)[1]
        return {"by_distance": self._biases(ops.flip(ops.arange(-length, length, dtype="int32")))}

    def row(self, place: Tensor, length: Tensor) -> Tensor:
        """Returns the biases (1, N, 1, length) of the token at `place`, a scalar.

        They are those of its scores with the first `length` tokens.
        """
        distances = ops.cast(place, "int32") - ops.arange(length, dtype="int32")
        return self._biases(distances)[None, :, None]

    def _biases(self, distances: Tensor) -> Tensor:
        """Returns the biases (N, M) of distances (M,): tokens before another are above 0."""
        sizes = ops.maximum(distances, 0) if self.causal else ops.abs(distances)
        nearest = ops.minimum(sizes, len(self._buckets) - 1)
        buckets = ops.take(ops.convert_to_tensor(self._buckets), nearest)
        if not self.causal:
            buckets = buckets + ops.where(distances < 0, self.num_buckets // 2, 0)
        return ops.transpose(ops.take(self.table, buckets, axis=0))


class BiasedAttention(SelfAttention):
    """Attention with the biases of `RelativeBiases` added to the scores.

    The distance of two tokens is that of their positions in the row. In a packed row the tokens of
    one example are adjacent, so their distances do not change, and the bias masks other examples.

    Args:
        num_heads: number of heads; divides the input width.
        **options: further arguments of `SelfAttention`.

    Example:
        >>> x = ops.ones((1, 3, 4))
        >>> outputs, made = BiasedAttention(2)(x, shared=RelativeBiases(2, 8, 16)(x))
        >>> tuple(outputs.shape), tuple(made["probabilities"].shape)
        ((1, 3, 4), (1, 2, 3, 3))
    """

    def scores(
        self,
        query: Tensor,
        key: Tensor,
        positions: Tensor | None,
        shared: Tensors | None,
        training: bool,
    ) -> Scores:
        """Returns the scores with the biases of `shared`, the output of `RelativeBiases`.

        Arguments are those of `SelfAttention.scores`.

        Raises:
            ValueError: `shared` is None.
        """
        if shared is None:
            raise ValueError("`shared` must contain the distance biases. Received: None")
        plain, length = self._scaled_scores(query, key), ops.shape(key)[2]

        def products(start: Any, rows: list[Any], tensors: list[Any]) -> Tensor:
            *keys, biases = tensors
            batch, _, number, _ = ops.shape(rows[0])
            batch = 1 if positions is None else batch

            def rows_of(biases: Tensor) -> Tensor:  # (N, M, 1) -> (B or 1, N, C, M)
                heads, columns, _ = ops.shape(biases)
                biases = ops.reshape(biases, (1, heads, 1, columns))
                return ops.broadcast_to(biases, (batch, heads, number, columns))

            by_distance = scores_by_distance(rows_of, biases, number, length, start, positions)
            return plain.products(start, rows, keys) + by_distance

        biases = ops.cast(shared["by_distance"], self.compute_dtype)[..., None]
        return Scores(products, plain.rows, [*plain.tensors, biases])

    def step(  # type: ignore[override]  # the biases besides
        self,
        x: Tensor,
        prompt: dict[str, Any],
        bias: Tensor,
        decoded: dict[str, Any],
        t: Tensor,
        shared: Tensors,
        **options: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Computes the attention of one more token of each row; see `SelfAttention.step`.

        `shared` has the token's biases in "bias" (1, N, 1, P + G): those of the prompt, then those
        of the decoded tokens.
        """
        length = ops.shape(decoded["key"])[2]
        biases = ops.cast(shared["bias"], "float32")
        near, new = biases[..., :-length], biases[..., -length:]
        return super().step(x, prompt, bias + near, decoded, t, new_bias=new, **options)
