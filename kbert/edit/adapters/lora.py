"""LoRA, low-rank updates of some kernels, and BitFit, updates of the biases only.

Shapes: `N` rows, `I` width in, `O` width out, `R` rank.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.options import option
from kbert.core.types import Shape, Tensor
from kbert.edit.adapters.base import Adapter, Filled, slot
from kbert.edit.adapters.deltas import DenseDelta, NormDelta
from kbert.edit.adapters.sites import sites
from kbert.layers import Dense, Dropout

# Name of a dense layer -> what the columns of its kernel are for, in their order.
_COLUMNS = {
    **{"qkv": ("query", "key", "value"), "query_key": ("query", "key")},
    **{"key_value": ("key", "value"), "query": ("query",), "key": ("key",), "value": ("value",)},
}
TARGETS = ("query", "key", "value", "attention_output", "intermediate", "output")


class Lora(Adapter):
    """Adds `x @ A @ B` to the outputs of some kernels (Hu et al. 2021).

    See https://arxiv.org/abs/2106.09685. B is initialised with zeros, so that outputs do not change
    at the start.
    """

    kind = "lora"
    learning_rate = 5e-4  # the paper's value on GLUE, table 9

    rank: int = option(8, help="Rank: columns of A, rows of B.", at_least=1)
    alpha: float | None = option(
        None, help="Scale: the update is A @ B times alpha / rank; none = the rank.", above=0
    )
    dropout: float = option(0.0, help="Dropout rate on the input of A.", at_least=0, below=1)
    targets: tuple[str, ...] = option(
        ("query", "value"),
        help="Kernels of each block that are adapted: query, key, value, attention_output, "
        "intermediate, output.",
    )

    def check(self) -> None:
        if not self.targets or set(self.targets) - set(TARGETS):
            raise ValueError(
                f"`targets` must be some of {', '.join(TARGETS)}. Received: {self.targets}"
            )

    def check_encoder(self, encoder: Any) -> None:
        available_targets = {
            target for dense in sites(encoder, "product") for target, *_ in columns(dense)
        }
        if missing_targets := set(self.targets) - available_targets:
            raise ValueError(
                "The encoder must have the kernels in `targets`; it has "
                f"{sorted(available_targets)}. Received: targets that it lacks: "
                f"{sorted(missing_targets)}"
            )

    @property
    def scale(self) -> float:
        """The factor of `A @ B`."""
        return (self.rank if self.alpha is None else self.alpha) / self.rank

    def slots(self, encoder: Any, **kwargs: Any) -> Iterator[Filled]:
        for dense in sites(encoder, "product"):
            chosen_parts = [part for part in columns(dense) if part[0] in self.targets]
            if chosen_parts:
                low_rank = LowRank(
                    *(chosen_parts, dense.units),
                    rank=self.rank,
                    scale=self.scale,
                    dropout=self.dropout,
                    **kwargs,
                )
                yield dense, low_rank, (None, dense.kernel.shape[0])

    def merge(self, encoder: Any, name: str) -> None:
        for dense in sites(encoder, "product"):
            if (low_rank := slot(dense, name)) is not None:
                dense.kernel.assign_add(low_rank.difference())


def columns(dense: Dense) -> list[tuple[str, int, int]]:
    """Returns (target, first column, end) for each target in the kernel of a block's dense layer.

    A target is one of `TARGETS`; a layer without any gives []. Keys and values may have fewer heads
    than queries; then the layer has an attribute `widths`.
    """
    *_, parent, name = dense.path.split("/")
    if name in _COLUMNS:
        targets = _COLUMNS[name]
        even = [dense.units // len(targets)] * len(targets)
        widths = getattr(dense, "widths", even)
        ends = itertools.accumulate(widths)
        parts = zip(targets, widths, ends, strict=True)
        return [(target, end - width, end) for target, width, end in parts]
    if name == "output" and parent == "attention":
        return [("attention_output", 0, dense.units)]
    if re.fullmatch(r"feed_forward|stacked_\d+", parent) and name in ("intermediate", "output"):
        return [(name, 0, dense.units)]
    return []


class LowRank(keras.layers.Layer):
    """`x @ A @ B` for some columns of a dense layer's kernel.

    Args:
        chosen: name, first column and end of each adapted part of the kernel.
        units: width O of the dense layer's output.
        rank: rank R.
        scale: factor of the product.
        dropout: dropout rate on x.
    """

    def __init__(
        self,
        chosen: Sequence[tuple[str, int, int]],
        units: int,
        *,
        rank: int,
        scale: float,
        dropout: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.chosen, self.units = chosen, units
        self.rank, self.scale = rank, scale
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        # Like peft: uniform with variance 1 / (3 I).
        uniform = keras.initializers.RandomUniform(-(width**-0.5), width**-0.5)
        self.pairs = []
        for target, begin, end in self.chosen:
            a = self.add_weight(name=f"{target}_a", shape=(width, self.rank), initializer=uniform)
            b = self.add_weight(
                name=f"{target}_b", shape=(self.rank, end - begin), initializer="zeros"
            )
            self.pairs.append((a, b))

    def call(self, rows: Tensor, training: bool = False) -> Tensor:
        """(N, I) -> (N, O), zeros where no columns are adapted."""
        rows = self.dropout(rows, training=training)
        a, b = self._joined()
        return ops.matmul(ops.matmul(rows, ops.cast(a, rows.dtype)), ops.cast(b, rows.dtype))

    def difference(self) -> Tensor:
        """Returns the equivalent difference of the kernel, (I, O) in float32."""
        a, b = (ops.cast(x, "float32") for x in self._joined())
        return ops.matmul(a, b)

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Joins all A side by side and all B at their columns, so that two products suffice.

        Returns (I, P · R) and (P · R, O) for P adapted parts of the kernel; the second is
        multiplied by the scale.
        """
        a = ops.concatenate([a for a, _ in self.pairs], axis=1)
        rows = [
            ops.pad(b * ops.cast(self.scale, b.dtype), ((0, 0), (begin, self.units - end)))
            for (_, b), (_, begin, end) in zip(self.pairs, self.chosen, strict=True)
        ]
        return a, ops.concatenate(rows, axis=0)


class BitFit(Adapter):
    """Trains only the biases (Ben Zaken et al. 2021, https://arxiv.org/abs/2106.10199).

    It trains differences to the biases of all dense layers and norms of the encoder, except those
    of the pooler.
    """

    kind = "bitfit"

    def check_encoder(self, encoder: Any) -> None:
        if not list(self.slots(encoder)):
            raise ValueError(
                "Adapters of kind 'bitfit' require biases, and the encoder has none. Received: "
                f"{encoder.config!r}"
            )

    def slots(self, encoder: Any, **kwargs: Any) -> Iterator[Filled]:
        for layer in sites(encoder, "product", "scale_and_shift"):
            if hasattr(layer, "scale_and_shift"):
                if layer.beta is not None:
                    shape = tuple(layer.beta.shape)
                    yield layer, NormDelta(gamma=False, beta=True, **kwargs), shape
            elif layer.bias is not None:
                delta = DenseDelta(layer.units, kernel=False, bias=True, **kwargs)
                yield layer, delta, (None, layer.kernel.shape[0])

    def merge(self, encoder: Any, name: str) -> None:
        for layer in sites(encoder, "product", "scale_and_shift"):
            if (delta := slot(layer, name)) is not None:
                delta.merge_into(layer)
