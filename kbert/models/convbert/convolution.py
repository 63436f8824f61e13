"""ConvBERT's mixed attention: half of a layer's width is attention, half is convolution.

The convolution weights of a token are computed from the token and its neighbours (Jiang et al.
2020, "ConvBERT", https://arxiv.org/abs/2008.02496, sections 3.2 and 3.3; model/modeling.py of
yitu-opensource/ConvBert).

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `D` width of a head, which is H / 2 N,
`K` tokens of a convolution, `G` groups, `I` input width, `O` output width.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL
from kbert.core.options import option
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import FeedForward, SelfAttention
from kbert.layers.activations import get_activation
from kbert.layers.chunked_attention import ScoreBias
from kbert.layers.dense import Dense, kernel_initializer
from kbert.models.parts import Part


class OwnNeighbours(keras.layers.Layer):
    """Finds which neighbours of a token belong to its own example, in packed rows.

    Args:
        kernel_size: number of tokens of a convolution, K.

    Example:
        >>> ids = ops.convert_to_tensor([[1, 1, 2]])
        >>> shared = OwnNeighbours(3)(ops.ones((1, 3, 4)), example_ids=ids)
        >>> ops.convert_to_numpy(shared["own"])[0].astype(int).tolist()
        [[0, 1, 1], [1, 1, 0], [0, 1, 0]]
    """

    def __init__(self, kernel_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kernel_size = kernel_size

    def build(self, input_shape: Shape) -> None:
        """Does nothing: the layer has no weights."""

    def call(self, x: Tensor, training: bool = False, example_ids: Tensor | None = None) -> Tensors:
        """Returns "own" (B, T, K) bool, whether each neighbour is in the example of its token.

        `example_ids` (B, T) number the examples of packed rows; None = an empty dict is returned.
        `x` is not used.
        """
        if example_ids is None:
            return {}
        ids = ops.cast(example_ids, "int32")[..., None]
        shifted_ids = neighbours(ids, self.kernel_size)
        return {
            "own": ops.concatenate([neighbour_ids == ids for neighbour_ids in shifted_ids], axis=-1)
        }


def neighbours(x: Tensor, kernel_size: int) -> list:
    """Returns the neighbours of each token in x, from K // 2 before to K // 2 after it, in order.

    They are K tensors of the shape (B, T, …) of x; beyond the ends of x are zeros. `kernel_size`
    is K, odd.

    Example:
        >>> found = neighbours(ops.array([[[1], [2], [3]]]), 3)
        >>> ops.convert_to_numpy(ops.stack(found))[:, 0, :, 0].tolist()
        [[0, 1, 2], [1, 2, 3], [2, 3, 0]]
    """
    side, length = kernel_size // 2, ops.shape(x)[1]
    padded = ops.pad(x, [(0, 0), (side, side)] + [(0, 0)] * (len(x.shape) - 2))
    return [padded[:, n : n + length] for n in range(kernel_size)]


class SeparableConvolution(keras.layers.Layer):
    """Convolves every column by itself, and applies a dense layer to all columns.

    Args:
        units: output width, O.
        kernel_size: number of tokens of the convolution, K.
        initializer_range: standard deviation of the kernels' initial values, see `Dense`.

    Example:
        >>> tuple(SeparableConvolution(2, 3)(ops.ones((1, 5, 4))).shape)
        (1, 5, 2)
    """

    def __init__(
        self,
        units: int,
        kernel_size: int,
        *,
        initializer_range: float | None = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.kernel_size = kernel_size
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape) -> None:
        self.depthwise = self.add_weight(
            name="depthwise",
            shape=(self.kernel_size, input_shape[-1]),
            initializer=kernel_initializer(self.initializer_range),
        )
        self.pointwise = Dense(
            self.units,
            initializer_range=self.initializer_range,
            dtype=self.dtype_policy,
            name="pointwise",
        )
        self.pointwise.build(input_shape)

    def call(self, x: Tensor, own: Tensor | None = None) -> Tensor:
        """Convolves x: (B, T, I) -> (B, T, O).

        `own` (B, T, K) is 1 for the neighbours of each token that are read; None = all.
        """
        weights = ops.unstack(ops.convert_to_tensor(self.depthwise))  # JAX cannot slice variables
        return self.pointwise(weighted_neighbours(x, weights, own))


def weighted_neighbours(x: Tensor, weights: list, own: Tensor | None) -> Any:
    """Returns the weighted sum of each token's K neighbours, itself included, (B, T, …).

    Args:
        x: (B, T, …), tokens.
        weights: K tensors that broadcast to x, one for each neighbour from first to last.
        own: (B, T, K), 1 for neighbours that are read, 0 for others; None = all are read.
    """
    parts = neighbours(x, len(weights))
    if own is not None:
        own = ops.cast(own, x.dtype)
        own = ops.reshape(own, (*ops.shape(own)[:2], *[1] * (len(x.shape) - 3), len(parts)))
        parts = [part * own[..., n : n + 1] for n, part in enumerate(parts)]
    total = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = total + part * weight
    return total


class MixedAttention(SelfAttention):
    """N attention heads of half the usual width, and N heads that convolve.

    A head that convolves averages its values over a token's K nearest tokens. The weights are
    computed from the token's query times the output of a separable convolution. Beyond both ends of
    a row there are zeros. Padding is read like any other token, as in the original.

    Args:
        num_heads: number of attention heads, N; twice that number divides the input width.
        kernel_size: number of tokens of the convolution, K.
        **options: further arguments of `SelfAttention`.

    Example:
        >>> outputs, made = MixedAttention(2, kernel_size=3)(ops.ones((1, 3, 8)))
        >>> tuple(outputs.shape), tuple(made["probabilities"].shape)
        ((1, 3, 8), (1, 2, 3, 3))
    """

    def __init__(self, num_heads: int, *, kernel_size: int, **options: Any) -> None:
        super().__init__(num_heads, **options)
        self.kernel_size = kernel_size

    def build(self, input_shape: Shape) -> None:
        hidden_size = input_shape[-1]
        width = hidden_size // 2
        self.head_size = width // self.num_heads
        # Queries, keys, values, and the values of the convolution.
        self.qkv = self._add_dense(4 * width, input_shape, "qkv")
        self.qkv.widths = (width, width, width)
        self.key_convolution = SeparableConvolution(
            width,
            self.kernel_size,
            initializer_range=self.initializer_range,
            dtype=self.dtype_policy,
            name="key_convolution",
        )
        self.key_convolution.build(input_shape)
        self.weights_dense = self._add_dense(
            self.num_heads * self.kernel_size, (*input_shape[:-1], width), "weights"
        )
        self.output_dense = self._add_dense(hidden_size, input_shape, "output")

    # Has no `positions`: neighbours are read, so all tokens are computed.
    def call(  # type: ignore[override]
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool = False,
        shared: Tensors | None = None,
    ) -> Any:
        """Attends and convolves.

        Returns the outputs (B, T, H), and the dict of `SelfAttention` for the attention heads.

        Args:
            x: (B, T, H).
            bias: tensor added to the scores; broadcasts to (B, N, T, T).
            training: whether dropout is active.
            shared: output of `OwnNeighbours` for x, or None.
        """
        own_neighbours = (shared or {}).get("own")
        batch, length, _ = ops.shape(x)
        heads = (batch, length, self.num_heads, self.head_size)
        projected: Any = ops.split(self.qkv(x), 4, axis=-1)
        by_head = [ops.reshape(part, heads) for part in projected]
        query, key, value = (ops.transpose(part, (0, 2, 1, 3)) for part in by_head[:3])
        scores = self._scaled_scores(query, key)
        attended, internals = self._weighed(scores, value, ScoreBias(bias), training)
        attended = self._merge_heads(attended)

        spans = self.weights_dense(self.key_convolution(x, own_neighbours) * projected[0])
        spans = ops.reshape(spans, (*heads[:3], self.kernel_size))
        # (B, T, N, K); neighbours of other examples get the weight 0.
        weights = ops.softmax(ops.cast(spans, "float32"), axis=-1)
        weights = ops.split(ops.cast(weights, self.compute_dtype), self.kernel_size, axis=-1)
        convolved = ops.reshape(
            weighted_neighbours(by_head[3], weights, own_neighbours), ops.shape(projected[3])
        )
        outputs = self.output_dense(ops.concatenate([attended, convolved], axis=-1))
        return outputs, {**internals, "query": query, "key": key, "value": value}


class GroupedDense(keras.layers.Layer):
    """Dense layer with a separate kernel for each group of columns.

    Args:
        units: output width of all groups together, O.
        num_groups: number of groups, G; divides I and O.
        activation: name of an activation, see `get_activation`; None = the identity.
        initializer_range: standard deviation of the kernels' initial values, see `Dense`.

    Example:
        >>> layer = GroupedDense(6, 2)
        >>> tuple(layer(ops.ones((1, 3, 4))).shape), tuple(layer.kernel.shape)
        ((1, 3, 6), (2, 2, 3))
    """

    def __init__(
        self,
        units: int,
        num_groups: int,
        *,
        activation: str | None = None,
        initializer_range: float | None = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.num_groups = num_groups
        self.activation = None if activation is None else get_activation(activation)
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape) -> None:
        groups = self.num_groups
        self.kernel = self.add_weight(
            name="kernel",
            shape=(groups, input_shape[-1] // groups, self.units // groups),
            initializer=kernel_initializer(self.initializer_range),
        )
        self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Applies each group's kernel, the bias and the activation: (B, T, I) -> (B, T, O)."""
        parts = ops.split(x, self.num_groups, axis=-1)
        products = [ops.matmul(part, self.kernel[n]) for n, part in enumerate(parts)]
        outputs = ops.concatenate(products, axis=-1) + self.bias
        return outputs if self.activation is None else self.activation(outputs, training)


class GroupedFeedForward(FeedForward):
    """`FeedForward` with two grouped dense layers.

    Args:
        intermediate_size: width between the two layers.
        num_groups: number of groups, G.
        **options: further arguments of `FeedForward`; the layers have biases and are not gated.

    Example:
        >>> tuple(GroupedFeedForward(8, num_groups=2, activation="gelu")(ops.ones((1, 3, 4))).shape)
        (1, 3, 4)
    """

    def __init__(self, intermediate_size: int, *, num_groups: int, **options: Any) -> None:
        super().__init__(intermediate_size, **options)
        self.num_groups = num_groups

    def build(self, input_shape: Shape) -> None:
        common = {"initializer_range": self.initializer_range, "dtype": self.dtype_policy}
        width, groups = self.intermediate_size, self.num_groups
        self.intermediate = GroupedDense(
            width, groups, activation=self.activation, name="intermediate", **common
        )
        self.output_dense = GroupedDense(input_shape[-1], groups, name="output", **common)
        self.intermediate.build(input_shape)
        self.output_dense.build((*input_shape[:-1], width))


class DynamicConvolution(Part):
    """ConvBERT's mixed attention; `num_heads` of the config is the number of attention heads.

    {options}

    Example:
        >>> import kbert
        >>> config = kbert.family("YituTech/conv-bert-base")
        >>> config.part, config.num_heads
        ({'name': 'dynamic_convolution'}, 6)
    """

    kind = "dynamic_convolution"
    takes_causal_mask = False
    inputs = ("example_ids",)

    kernel_size: int = option(
        9, help="Kernel size of the convolution in tokens; odd.", at_least=1, at_most=511
    )
    num_groups: int = option(
        1,
        help="Groups of the grouped linear layers in the feed-forward part.",
        at_least=1,
        at_most=1 << 10,
    )

    def check(self) -> None:
        if self.kernel_size % 2 == 0:
            raise ValueError(
                "`kernel_size` must be odd: a token, and as many on each side. "
                f"Received: kernel_size={self.kernel_size}"
            )

    def check_config(self, config: EncoderConfig) -> None:
        if (
            config.positions_in_attention
            or set(config.attention_pattern) != {GLOBAL}
            or config.num_key_value_heads is not None
            or config.feed_forward != "dense"
            or not config.use_bias
            or config.bias_exceptions
        ):
            raise ValueError(
                "Dynamic convolutions require global attention, num_key_value_heads=None, a dense "
                "feed-forward part, all biases, and `positions` that are 'none' or added to the "
                f"embeddings. Received: positions={config.positions!r}, "
                f"attention_pattern={config.attention_pattern}, "
                f"num_key_value_heads={config.num_key_value_heads}, "
                f"feed_forward={config.feed_forward!r}, use_bias={config.use_bias}, "
                f"bias_exceptions={config.bias_exceptions}"
            )
        if config.hidden_size % (2 * config.num_heads):
            raise ValueError(
                "`hidden_size` must be a multiple of twice `num_heads`: there are as many heads "
                "of the convolution as of the attention. Received: "
                f"hidden_size={config.hidden_size}, num_heads={config.num_heads}"
            )
        if config.hidden_size % self.num_groups or config.intermediate_size % self.num_groups:
            raise ValueError(
                "`num_groups` must divide `hidden_size` and `intermediate_size`. Received: "
                f"num_groups={self.num_groups}, hidden_size={config.hidden_size}, "
                f"intermediate_size={config.intermediate_size}"
            )
        if config.edits and self.num_groups > 1:
            raise ValueError(
                "`edits` require num_groups=1: they change layers with one kernel, and grouped "
                f"layers have one kernel per group. Received: num_groups={self.num_groups}, "
                f"edits={list(config.edits)}"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        hidden, half = config.hidden_size, config.hidden_size // 2
        taps = config.num_heads * self.kernel_size
        separable = self.kernel_size * hidden + (hidden + 1) * half
        weights = (half + 1) * taps
        projections = (hidden + 1) * (4 * half - 3 * hidden)
        kernels = 2 * hidden * config.intermediate_size
        saved = kernels - kernels // self.num_groups
        return config.num_blocks * (separable + weights + projections - saved)

    def kernels(self, config: EncoderConfig, layer: int) -> list[tuple[int, int]]:
        hidden, half = config.hidden_size, config.hidden_size // 2
        attention = [
            (hidden, 4 * half),
            (hidden, half),
            (half, config.num_heads * self.kernel_size),
        ]
        return [*attention, (hidden, hidden), *super().kernels(config, layer)[2:]]

    def head_size(self, config: EncoderConfig) -> int:
        return config.hidden_size // 2 // config.num_heads

    def make_shared(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer:
        return OwnNeighbours(self.kernel_size, **kwargs)

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return MixedAttention(
            config.num_heads,
            kernel_size=self.kernel_size,
            dropout=config.attention_dropout,
            max_length=config.max_positions,
            initializer_range=config.initializer_range,
            **kwargs,
        )

    def make_feed_forward(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer | None:
        if self.num_groups == 1:
            return None
        return GroupedFeedForward(
            config.intermediate_size,
            num_groups=self.num_groups,
            activation=config.activation,
            initializer_range=config.initializer_range,
            **kwargs,
        )
