"""Edits: changes to a built model from outside, for any family.

A config lists them in `edits`. So an edited model is saved, loaded, trained, resumed and exported
like any other. An edit acts where a layer multiplies (`kbert.layers.Dense.product`) or looks up
embeddings. The weights of the edit are part of that layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras

from kbert.core.options import Options
from kbert.core.registry import Registered

# Kernel shapes of each block.
Kernels = Sequence[Sequence[tuple[int, int]]]


class Edit(Registered, Options, sort="edit"):
    """Base class of edits: a frozen dataclass of options that changes a built model.

    Attributes:
        kind: name of the edit in configs.
        after: kinds of edits that may precede this one in a config.
        takes_adapters: whether adapters may be trained on a model with this edit.
        mergeable: whether adapters may be merged into the weights of such a model.

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
        """Adds the layers of the edit to the layers of the model."""
        raise NotImplementedError(f"{type(self).__name__} must define `apply`.")

    def check_config(self, config: Any) -> None:
        """Raises ValueError if a config does not fit these options."""

    def layer_heads(self, config: Any, heads: Sequence[int]) -> Sequence[int]:
        """Returns the number of attention heads of each layer with this edit.

        `heads` are the numbers without it.
        """
        return heads

    def kernels(self, config: Any, kernels: Kernels) -> Kernels:
        """Returns the kernel shapes (I, O) of each block with this edit.

        `kernels` are those without it.
        """
        return kernels

    def count_parameters(self, config: Any, kernels: Kernels) -> int:
        """Returns how many weights the edit adds; negative if it removes weights.

        Args:
            config: Config of the model.
            kernels: Kernel shapes of each block without this edit.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `count_parameters`.")


def products(model: Any) -> list[Any]:
    """Returns the layers in a model's blocks that multiply by a kernel, each once.

    Raises:
        ValueError: there are none, as in blocks of layers that are not kbert's.
    """
    layers = [layer for block in model.blocks for layer in block._flatten_layers()]
    dense_layers = [layer for layer in layers if hasattr(layer, "product")]
    if not dense_layers:
        raise ValueError(
            "An edit requires kbert.layers.Dense layers in the model's blocks. Received: blocks "
            f"of {type(model.blocks[0]).__name__} without one"
        )
    return dense_layers


def check_single(model: Any) -> None:
    """Raises ValueError if a model is an ensemble, of which an edit would change one member."""
    if members := getattr(model, "members", None):
        raise ValueError(
            "An ensemble cannot be changed by an edit: change its members, then make a new one. "
            f"Received: an ensemble of {len(members)} {type(members[0]).__name__}s"
        )


def check_edit(edits: Sequence[Mapping[str, Any]], kind: str, maker: str) -> None:
    """Raises ValueError unless a model has an edit.

    Args:
        edits: `edits` of the model's config.
        kind: name of the edit in configs.
        maker: name of the function that adds this edit, for the message.
    """
    if kind not in [edit["kind"] for edit in edits]:
        raise ValueError(
            f"The model must have the edit {kind!r}, which {maker} adds. Received: "
            f"edits={list(map(dict, edits))}"
        )
