"""MPNet's relative bias: a learned bias of the scores for each bucket of distances.

(Song et al. 2020, "MPNet", https://arxiv.org/abs/2004.09297, section 2.3; the buckets are those of
Raffel et al. 2020, "T5", https://arxiv.org/abs/1910.10683, section 2.1.)

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `P` tokens that attend.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL
from kbert.core.options import option
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import SelfAttention
from kbert.layers.dense import kernel_initializer
from kbert.layers.gather import gather_rows
from kbert.layers.positions import relative_shift
from kbert.models.parts import Part


def bias_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance from 0 to `max_distance`, on one side.

    Half of a side's buckets have one distance each. After that the buckets are logarithmic, and the
    last one includes all longer distances. Computed in float32 like the original, because a
    rounding error in a logarithm would move a distance to the next bucket.

    Args:
        num_buckets: number of buckets of both sides together; a multiple of 4.
        max_distance: first distance beyond the logarithmic buckets.

    Returns:
        (max_distance + 1,) int32.

    Example:
        >>> bias_buckets(16, 16).tolist()
        [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7]
    """
    side = num_buckets // 2
    exact = side // 2
    distances = np.arange(max_distance + 1)
    logarithms = np.log(np.maximum(distances, exact).astype("float32") / np.float32(exact))
    share = logarithms / np.float32(math.log(max_distance / exact)) * np.float32(side - exact)
    far = np.minimum(exact + share.astype("int32"), side - 1)
    return np.where(distances < exact, distances, far).astype("int32")


class RelativeBiases(keras.layers.Layer):
    """Learned bias of each head and bucket, and the lookup for a sequence.

    Args:
        num_heads: number of heads, N.
        num_buckets: number of buckets of both sides together.
        max_distance: first distance beyond the logarithmic buckets, see `bias_buckets`.
        initializer_range: standard deviation of the truncated normal that initialises them.

    Example:
        >>> layer = RelativeBiases(2, 8, 16)
        >>> {name: tuple(x.shape) for name, x in layer(ops.ones((1, 3, 4))).items()}
        {'bias': (1, 2, 3, 3)}
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int,
        max_distance: int,
        *,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.initializer_range = initializer_range
        self._buckets = bias_buckets(num_buckets, max_distance)

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_weight(
            name="table",
            shape=(self.num_buckets, self.num_heads),
            initializer=kernel_initializer(self.initializer_range),
        )

    def call(self, x: Tensor, training: bool = False) -> Tensors:
        """Returns "bias" (1, N, T, T) for a batch (B, T, H), of which only T matters."""
        length = ops.shape(x)[1]
        # i - j for tokens i and j, from T - 1 down to -T.
        distances = ops.flip(ops.arange(-length, length, dtype="int32"))
        nearest = ops.minimum(ops.abs(distances), len(self._buckets) - 1)
        buckets = ops.take(ops.convert_to_tensor(self._buckets), nearest)
        buckets = buckets + ops.where(distances < 0, self.num_buckets // 2, 0)
        rows = ops.transpose(ops.take(self.table, buckets, axis=0))  # (N, 2 T)
        rows = ops.broadcast_to(rows[:, None], (self.num_heads, length, 2 * length))
        return {"bias": relative_shift(rows[None])}


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

    def products(
        self,
        query: Tensor,
        key: Tensor,
        positions: Tensor | None,
        shared: Tensors | None,
        training: bool,
    ) -> Tensor:
        """Returns the scores without the mask's bias, like `SelfAttention.products`.

        `shared` is the output of `RelativeBiases`, which is added to the products.

        The biases are trained, so they are separate from the mask's bias, which needs no gradient.

        Raises:
            ValueError: `shared` is None.
        """
        if shared is None:
            raise ValueError("`shared` must contain the distance biases. Received: None")
        by_distance = ops.cast(shared["bias"], self.compute_dtype)
        if positions is not None:
            by_distance = gather_rows(by_distance, positions)
        return self._scaled_product(query, key) + by_distance


class RelativeBias(Part):
    """MPNet's attention, and the relative biases that all layers share.

    {options}

    Example:
        >>> import kbert
        >>> kbert.family("microsoft/mpnet-base").part
        {'name': 'relative_bias'}
    """

    kind = "relative_bias"

    num_buckets: int = option(
        32,
        help="Distance biases of a head, half of them for tokens to the right; a multiple of 4. "
        "Half of the biases of a side are for one distance each.",
        at_least=4,
        at_most=1 << 14,
    )
    max_distance: int = option(
        128, help="The first distance beyond the buckets.", at_least=2, at_most=1 << 20
    )

    def check(self) -> None:
        if self.num_buckets % 4 or self.max_distance <= self.num_buckets // 4:
            raise ValueError(
                "`num_buckets` must be a multiple of 4, and `max_distance` greater than "
                f"num_buckets / 4. Received: num_buckets={self.num_buckets}, "
                f"max_distance={self.max_distance}"
            )

    def check_config(self, config: EncoderConfig) -> None:
        grouped = config.num_key_value_heads is not None
        turned = config.positions_in_attention
        if turned or grouped or set(config.attention_pattern) != {GLOBAL}:
            raise ValueError(
                "Distance biases require global attention, num_key_value_heads=None, and "
                "`positions` that are 'none' or added to the embeddings. Received: "
                f"positions={config.positions!r}, attention_pattern={config.attention_pattern}, "
                f"num_key_value_heads={config.num_key_value_heads}"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        return self.num_buckets * config.num_heads

    def make_shared(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer:
        return RelativeBiases(
            config.num_heads,
            self.num_buckets,
            self.max_distance,
            initializer_range=config.initializer_range,
            **kwargs,
        )

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return BiasedAttention(
            config.num_heads,
            dropout=config.attention_dropout,
            initializer_range=config.initializer_range,
            use_bias=config.has_bias("attention"),
            **kwargs,
        )
