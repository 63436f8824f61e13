"""Interface of models and tasks to `kbert.edit`, which changes built models.

There are two sorts of edits. Those in a config's `edits` are applied when the model is built. The
others, such as adapters, have names; at most one of them is active, which is the model's variant.
"""

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kbert.core import late, registry


class Variants:
    """Named edits of a model, of which at most one is active; Keras does not track this object.

    This class stands for a model without named edits; `kbert.edit.adapters` replaces it.

    Attributes:
        added: Name of an edit -> its options.
        key: Key of the active edit; each key needs a graph of its own.
    """

    added: Mapping[str, Any] = MappingProxyType({})
    key: Any = None

    def using(self, name: str | None) -> contextlib.AbstractContextManager:
        """Returns a context in which the edit of that name is active, or none.

        Raises:
            ValueError: The model has no edit of that name.
        """
        if name is not None:
            raise ValueError(
                f"The model has no edit of this name; `kbert.edit` adds one. Received: {name!r}"
            )
        return contextlib.nullcontext()

    def train(self, names: Sequence[str | None], base: bool = False) -> None:
        """Makes only the weights of these edits trainable, and with `base` those of the model.

        Changes nothing if no name is given.
        """

    def record(self, name: str | None = None) -> dict[str, Any]:
        """Returns what presets and runs store of the edits, by key; empty without any.

        Args:
            name: Name of the active edit; None = the model's current one.
        """
        return {}

    def fit_settings(self, name: str | None = None) -> dict[str, Any]:
        """Returns the default settings of `fit` for training the active edit."""
        return {}

    def refuse_config(self) -> None:
        """Raises ValueError if a config alone would not describe the model."""


NONE = Variants()


def variants_of(model: Any) -> Variants:
    """Returns the named edits of a model; a model that is not kbert's has none."""
    return getattr(model, "variants", NONE)


def edits_of(config: Any) -> list[Any]:
    """Returns the edits that a config lists, see `kbert.edit.Edit`.

    Raises:
        ValueError: A kind or an option is unknown, or the order is not possible.
    """
    found: list[Any] = []
    for said in config.edits:
        cls: Any = registry.get("edit", said["kind"])
        edit = cls.from_dict({name: value for name, value in said.items() if name != "kind"})
        if others := [x.kind for x in found if x.kind not in edit.after]:
            raise ValueError(
                f"The edit {edit.kind!r} can follow only "
                f"{' and '.join(map(repr, edit.after)) or 'no edit'}. Received: it follows "
                f"{', '.join(map(repr, others))}"
            )
        edit.check_config(config)
        found.append(edit)
    return found


def count_edits(config: Any, kernels: Any) -> int:
    """Counts the weights that edits have added, minus those that they have removed.

    Args:
        config: Config of the model.
        kernels: Shapes of the kernels of each block, without edits.
    """
    total = 0
    for edit in edits_of(config):
        total += edit.count_parameters(config, kernels)
        kernels = edit.kernels(config, kernels)
    return total


def restore_edits(model: Any, edits: Mapping[str, Any], source: str) -> None:
    """Applies the edits of a preset to a model; their new weights are randomly initialised.

    Args:
        model: A built model.
        edits: Key -> stored edits, see `kbert.checkpoints.Checkpoint`.
        source: The preset, for messages.

    Raises:
        ValueError: The edits cannot be read; the message names `source`.
    """
    for key, content in edits.items():
        late.load("edits of a preset", key)(model, content, source)
