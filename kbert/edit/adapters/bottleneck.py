"""Bottleneck adapters after the parts of each block: Houlsby's two, Pfeiffer's one.

Shapes: `...` any leading axes, `H` hidden width, `M` size of the bottleneck.
"""

from collections.abc import Iterator
from typing import Any

import keras

from kbert.core.options import option
from kbert.core.types import Shape, Tensor
from kbert.edit.adapters.base import Adapter, Filled
from kbert.edit.adapters.deltas import NormDelta
from kbert.edit.adapters.sites import plain_blocks, sites
from kbert.layers import Dense
from kbert.layers.activations import get_activation


class Bottleneck(keras.layers.Layer):
    """`up(activation(down(x)))`, with outputs near zero at initialisation.

    Args:
        size: width M of the bottleneck.
        activation: name of the activation, see `kbert.layers.get_activation`.
        initializer_range: standard deviation of the initial values of both kernels.
    """

    def __init__(
        self, size: int, *, activation: str, initializer_range: float, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.size, self.activation = size, get_activation(activation)
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape) -> None:
        common: dict[str, Any] = {
            "initializer_range": self.initializer_range,
            "dtype": self.dtype_policy,
        }
        self.down = Dense(self.size, name="down", **common)
        self.up = Dense(input_shape[-1], name="up", **common)
        self.down.build(input_shape)
        self.up.build((*input_shape[:-1], self.size))

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """(..., H) -> (..., H)."""
        return self.up(self.activation(self.down(x), training))


class BlockBottlenecks(keras.layers.Layer):
    """The bottlenecks after the parts of a block, see `kbert.layers.Block`.

    Args:
        parts: parts with a bottleneck: "attention", "feed_forward" or both.
        normed: whether the bottleneck reads the norm of the residual instead of the part's output
            (Pfeiffer).
        **options: arguments of `Bottleneck`.
    """

    def __init__(
        self,
        *parts: str,
        normed: bool,
        size: int,
        activation: str,
        initializer_range: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.normed = normed
        options: dict[str, Any] = {"activation": activation, "initializer_range": initializer_range}
        bottlenecks = {
            part: Bottleneck(size, **options, dtype=self.dtype_policy, name=part) for part in parts
        }
        self.bottlenecks = [bottlenecks.get(part) for part in ("attention", "feed_forward")]

    def build(self, input_shape: Shape) -> None:
        for bottleneck in self.bottlenecks:
            if bottleneck is not None:
                bottleneck.build(input_shape)

    @property
    def attention(self) -> Any:
        """The function applied after the attention's dropout, or None; see `_behind`."""
        return self._behind(self.bottlenecks[0])

    @property
    def feed_forward(self) -> Any:
        """The function applied after the feed-forward part's dropout, or None; see `_behind`."""
        return self._behind(self.bottlenecks[1])

    def _behind(self, bottleneck: Bottleneck | None) -> Any:
        """Returns a function (outputs of the part, its residual x, its norm) -> outputs, or None.

        It adds the bottleneck's output to the part's: (..., H) -> (..., H).
        """
        if bottleneck is None:
            return None

        def behind(outputs: Tensor, x: Tensor, norm: keras.layers.Layer) -> Tensor:
            return outputs + bottleneck(norm(x + outputs) if self.normed else outputs)

        return behind


class _Bottlenecks(Adapter):
    size: int = option(64, help="Width of the bottlenecks.", at_least=1)
    activation: str = option("gelu", help="Activation between their two layers.")

    def check(self) -> None:
        get_activation(self.activation)

    def check_encoder(self, encoder: Any) -> None:
        plain_blocks(encoder, self.kind)


class Houlsby(_Bottlenecks):
    """Two bottlenecks per block, after each part and before its residual; norms are trained too.

    (Houlsby et al. 2019, https://arxiv.org/abs/1902.00751; google-research/adapter-bert.)
    """

    kind = "houlsby"
    learning_rate = 3e-4  # as in google-research/adapter-bert

    initializer_range: float = option(
        1e-3, help="Standard deviation of their initial kernels.", above=0
    )
    norms: bool = option(True, help="Whether scale and shift of the norms are trained too.")

    def slots(self, encoder: Any, **kwargs: Any) -> Iterator[Filled]:
        options: dict[str, Any] = {"size": self.size, "activation": self.activation}
        options |= {"initializer_range": self.initializer_range}
        width = encoder.config.hidden_size
        for block in plain_blocks(encoder, self.kind):
            bottlenecks = BlockBottlenecks(
                "attention", "feed_forward", normed=False, **options, **kwargs
            )
            yield block, bottlenecks, (None, None, width)
        for norm in sites(encoder, "scale_and_shift") if self.norms else ():
            beta = norm.beta is not None
            yield norm, NormDelta(gamma=True, beta=beta, **kwargs), tuple(norm.gamma.shape)


class Pfeiffer(_Bottlenecks):
    """One bottleneck per block, after the feed-forward part, on the norm of its residual.

    (Pfeiffer et al. 2021, https://arxiv.org/abs/2005.00247; "seq_bn" of the `adapters` package.)
    """

    kind = "pfeiffer"

    size: int = option(
        48, help="Width of the bottlenecks; 48 is a sixteenth of BERT-base's.", at_least=1
    )
    activation: str = option("relu", help="Activation between their two layers.")
    initializer_range: float = option(
        0.02, help="Standard deviation of the initial kernels of their first layers.", above=0
    )

    def slots(self, encoder: Any, **kwargs: Any) -> Iterator[Filled]:
        options: dict[str, Any] = {"size": self.size, "activation": self.activation}
        options |= {"initializer_range": self.initializer_range}
        for block in plain_blocks(encoder, self.kind):
            bottlenecks = BlockBottlenecks("feed_forward", normed=True, **options, **kwargs)
            yield block, bottlenecks, (None, None, encoder.config.hidden_size)
