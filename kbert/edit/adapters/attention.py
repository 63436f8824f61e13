"""Prefix tuning and projected attention layers.

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `D` width of a head, `G` tokens of a
prefix, `M` width of the projected attention.
"""

from collections.abc import Iterator
from typing import Any

import keras

from kbert.core.options import option
from kbert.core.types import Shape, Tensor
from kbert.edit.adapters.base import Adapter, Filled
from kbert.edit.adapters.sites import plain_attentions, plain_blocks
from kbert.layers import Dense, SelfAttention


class Prefix(Adapter):
    """Prefix tuning: additional keys and values that every token attends to, in each layer.

    (Li & Liang 2021, https://arxiv.org/abs/2101.00190; Liu et al. 2021, "P-Tuning v2",
    https://arxiv.org/abs/2110.07602, for encoders. The reparameterisation layers of the first paper
    are not used.)
    """

    kind = "prefix"
    learning_rate = 1e-2
    takes_decoders = False

    length: int = option(20, help="Number of prefix keys and values.", at_least=1)
    initializer_range: float = option(
        0.02, help="Standard deviation of their initial values.", above=0
    )

    def check_encoder(self, encoder: Any) -> None:
        plain_attentions(encoder, self.kind)

    def slots(self, encoder: Any, **kwargs: Any) -> Iterator[Filled]:
        for attention in plain_attentions(encoder, self.kind):
            shape = (1, attention.num_heads, self.length, attention.head_size)
            yield attention, KeysValues(self.initializer_range, **kwargs), shape


class KeysValues(keras.layers.Layer):
    """Trainable keys and values (1, N, G, D); `build` gets that shape.

    Args:
        initializer_range: standard deviation of the normal that initialises both.
    """

    def __init__(self, initializer_range: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape) -> None:
        normal = keras.initializers.RandomNormal(stddev=self.initializer_range)
        for name in ("key", "value"):
            setattr(self, name, self.add_weight(name=name, shape=input_shape, initializer=normal))

    def keys_values(self) -> tuple[Tensor, Tensor]:
        """Returns the keys and the values, both (1, N, G, D)."""
        return self.key, self.value


class ProjectedAttention(Adapter):
    """Projected attention layers (PALs): a small attention in parallel to each block.

    (Stickland & Murray 2019, https://arxiv.org/abs/1902.02671: all layers share the projections to
    the small width and back. Each layer has its own attention, without an output layer.)
    The projection back is initialised with zeros, so that outputs do not change at the start.
    """

    kind = "pal"
    takes_decoders = False

    size: int = option(204, help="Width of the attention.", at_least=1)
    num_heads: int | None = option(
        None, help="Number of its heads; none = the encoder's.", at_least=1
    )
    initializer_range: float = option(
        0.02, help="Standard deviation of its initial kernels.", above=0
    )

    def check_encoder(self, encoder: Any) -> None:
        plain_blocks(encoder, self.kind)
        heads = self.num_heads or encoder.config.num_heads
        if self.size % heads:
            raise ValueError(
                f"`size` must be a multiple of the number of heads. Received: size={self.size}, "
                f"{heads} heads"
            )

    def slots(self, encoder: Any, **kwargs: Any) -> Iterator[Filled]:
        config, name = encoder.config, kwargs["name"]
        common: dict[str, Any] = {
            **{"initializer_range": self.initializer_range, "dtype": kwargs["dtype"]},
            "use_bias": False,
        }
        # All blocks share these two layers; each block contains all layers that it uses.
        into = Dense(self.size, name="into", **common)
        back = Dense(config.hidden_size, name="back", **{**common, "initializer_range": 0.0})
        for block in plain_blocks(encoder, self.kind):
            attention = SmallAttention(
                self.num_heads or config.num_heads,
                dropout=config.attention_dropout,
                name="attention",
                **common,
            )
            parallel_layer = ParallelAttention(
                into, attention, back, name=name, dtype=kwargs["dtype"]
            )
            yield block, parallel_layer, (None, None, config.hidden_size)


class SmallAttention(SelfAttention):
    """Attention without an output layer."""

    def build(self, input_shape: Shape) -> None:
        self.head_size = input_shape[-1] // self.num_heads
        self.qkv = self._add_dense(3 * input_shape[-1], input_shape, "qkv")
        self.output_dense: Any = lambda x: x


class ParallelAttention(keras.layers.Layer):
    """`back(attention(into(x)))`, the `parallel` edit of a `kbert.layers.Block`.

    Args:
        into: dense layer (B, T, H) -> (B, T, M).
        attention: attention layer on the output of `into`.
        back: dense layer (B, T, M) -> (B, T, H).
    """

    def __init__(
        self,
        into: keras.layers.Layer,
        attention: keras.layers.Layer,
        back: keras.layers.Layer,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.into, self.small, self.back = into, attention, back

    def build(self, input_shape: Shape) -> None:
        narrow = (*input_shape[:-1], self.into.units)
        for layer, shape in ((self.into, input_shape), (self.back, narrow)):
            if not layer.built:
                layer.build(shape)
        self.small.build(narrow)

    def parallel(
        self, x: Tensor, bias: Tensor | None, training: bool, positions: Tensor | None
    ) -> Tensor:
        """(B, T, H) -> (B, T, H), or the outputs at `positions` only.

        `bias` is the block's attention bias, which is added to the scores.
        """
        outputs, _ = self.small(self.into(x), bias, training=training, positions=positions)
        return self.back(outputs)
