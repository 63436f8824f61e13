"""Edits: what is done to a built model from outside, whatever its family is.

A config names them in `edits`, so that an edited model is saved, loaded, trained, resumed and
exported like every other. An edit acts where a layer multiplies (`kbert.layers.Dense.product`) or
looks vectors up, and its weights lie in that layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras

from kbert.core.options import Options
from kbert.core.registry import Registered

# Of each block the shapes of its kernels.
Kernels = Sequence[Sequence[tuple[int, int]]]


class Edit(Registered, Options, sort="edit"):
    """A frozen dataclass of its options, which changes a model that is built.

    Attributes:
        kind: what configs call it.
        after: kinds of edits that may be there before it.
        takes_adapters: whether adapters may be trained on what it leaves.
        mergeable: whether they may be merged into the weights under it.

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny").replace(edits=[{"kind": "rounding"}])
        >>> encoder = kbert.Encoder(config)
        >>> [edit.name for edit in encoder.layer_blocks[0].attention.qkv.edits]
        ['fake_quantization']
    """

    after: ClassVar[tuple[str, ...]] = ()
    takes_adapters: ClassVar[bool] = True
    mergeable: ClassVar[bool] = True

    def apply(self, model: keras.Model) -> None:
        """Puts its layers into those of the model."""
        raise NotImplementedError(f"{type(self).__name__} must define `apply`.")

    def check_config(self, config: Any) -> None:
        """Raises ValueError where a config and these options do not fit."""

    def layer_heads(self, config: Any, heads: Sequence[int]) -> Sequence[int]:
        """Attention heads of each layer, of those that it had before."""
        return heads

    def kernels(self, config: Any, kernels: Kernels) -> Kernels:
        """Shapes of the kernels in each block, of those that it had before."""
        return kernels

    def count_parameters(self, config: Any, kernels: Kernels) -> int:
        """Weights beyond those of the model; negative where it has fewer.

        Args:
            config: The model's.
            kernels: Shapes of the kernels in each block.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `count_parameters`.")


def products(model: Any) -> list[Any]:
    """The layers of the blocks that multiply with a kernel, each once.

    Raises:
        ValueError: there are none, as in blocks of other layers than kbert's.
    """
    layers = [layer for block in model.blocks for layer in block._flatten_layers()]
    found = [layer for layer in layers if hasattr(layer, "product")]
    if not found:
        raise ValueError(
            "An edit acts on the products of kbert.layers.Dense in a model's blocks. "
            f"Received: blocks of {type(model.blocks[0]).__name__} without one"
        )
    return found


def check_edit(edits: Sequence[Mapping[str, Any]], kind: str, maker: str) -> None:
    """Raises ValueError unless a model has an edit.

    Args:
        edits: as the model's config has them.
        kind: what configs call the edit.
        maker: the function that makes such models, for the message.
    """
    if kind not in [edit["kind"] for edit in edits]:
        raise ValueError(
            f"The model must have the edit {kind!r}, see {maker}. "
            f"Received: edits={list(map(dict, edits))}"
        )
