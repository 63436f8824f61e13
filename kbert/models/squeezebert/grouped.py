"""SqueezeBERT's dense layers: separate kernels for groups of columns.

(Iandola et al. 2020, "SqueezeBERT", https://arxiv.org/abs/2006.11316, section 3.)

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `D` width of a head, `G` groups.
"""

from typing import Any

import keras

from kbert.configs.encoder import EncoderConfig
from kbert.core.options import option
from kbert.core.types import Shape, Tensor
from kbert.layers import SelfAttention
from kbert.models.convbert.convolution import GroupedDense, GroupedFeedForward
from kbert.models.parts import Part

_PROJECTIONS = ("query", "key", "value")


class GroupedAttention(SelfAttention):
    """Attention with grouped dense layers for queries, keys and values, but not for the output.

    Args:
        num_heads: number of heads; divides the input width.
        num_groups: number of groups, G; divides the input width.
        **options: further arguments of `SelfAttention`; the dense layers have biases.

    Example:
        >>> outputs, made = GroupedAttention(2, num_groups=2)(keras.ops.ones((1, 3, 8)))
        >>> tuple(outputs.shape), tuple(made["query"].shape)
        ((1, 3, 8), (1, 2, 3, 4))
    """

    def __init__(self, num_heads: int, *, num_groups: int, **options: Any) -> None:
        super().__init__(num_heads, **options)
        self.num_groups = num_groups

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        self.head_size = width // self.num_heads
        common = {"initializer_range": self.initializer_range, "dtype": self.dtype_policy}
        for name in _PROJECTIONS:
            layer = GroupedDense(width, self.num_groups, name=name, **common)
            layer.build(input_shape)
            setattr(self, name, layer)
        self.output_dense = self._add_dense(width, input_shape, "output")

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = (self._split_heads(getattr(self, name)(x)) for name in _PROJECTIONS)
        return tuple(heads)  # each (B, N, T, D)


class Grouped(Part):
    """SqueezeBERT's grouped dense layers: all but the attention's output.

    {options}

    Example:
        >>> import kbert
        >>> kbert.family("squeezebert/squeezebert-uncased").part
        {'name': 'grouped'}
    """

    kind = "grouped"

    num_groups: int = option(
        4,
        help="Groups of the grouped linear layers (queries, keys, values and feed-forward part).",
        at_least=1,
        at_most=1 << 10,
    )

    def check_config(self, config: EncoderConfig) -> None:
        self.check_ungrouped(config)
        if config.feed_forward != "dense" or not config.use_bias or config.bias_exceptions:
            raise ValueError(
                "Grouped layers require a dense feed-forward part and all biases. Received: "
                f"feed_forward={config.feed_forward!r}, use_bias={config.use_bias}, "
                f"bias_exceptions={config.bias_exceptions}"
            )
        if config.positions_in_attention:
            raise ValueError(
                "Grouped layers require `positions` that are 'none' or added to the embeddings. "
                f"Received: positions={config.positions!r}"
            )
        if config.hidden_size % self.num_groups or config.intermediate_size % self.num_groups:
            raise ValueError(
                "`num_groups` must divide `hidden_size` and `intermediate_size`. Received: "
                f"num_groups={self.num_groups}, hidden_size={config.hidden_size}, "
                f"intermediate_size={config.intermediate_size}"
            )
        if config.edits:
            raise ValueError(
                "Grouped layers do not support `edits`, which change layers with one kernel: they "
                f"have one kernel per group. Received: edits={list(config.edits)}"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        width = config.hidden_size
        kernels = 3 * width**2 + 2 * width * config.intermediate_size
        return config.num_blocks * (kernels // self.num_groups - kernels)

    def kernels(self, config: EncoderConfig, layer: int) -> list[tuple[int, int]]:
        width, inner, groups = config.hidden_size, config.intermediate_size, self.num_groups
        attention = [(width // groups, 3 * width), (width, width)]
        return [*attention, (width // groups, inner), (inner // groups, width)]

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return GroupedAttention(
            config.num_heads,
            num_groups=self.num_groups,
            dropout=config.attention_dropout,
            max_length=config.max_positions,
            initializer_range=config.initializer_range,
            **kwargs,
        )

    def make_feed_forward(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return GroupedFeedForward(
            config.intermediate_size,
            num_groups=self.num_groups,
            activation=config.activation,
            initializer_range=config.initializer_range,
            **kwargs,
        )
