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
        key: Key of the active edit; a model is traced again for each key.
    """

    added: Mapping[str, Any] = MappingProxyType({})
    key: Any = None

    def using(self, name: str | None) -> contextlib.AbstractContextManager:
        """Returns a context in which the edit called `name` is active; None = no edit is active.

        Raises:
            ValueError: The model has no edit of that name.
        """
        if name is not None:
            raise ValueError(
                f"The model has no edit of this name; `kbert.edit` adds one. Received: {name!r}"
            )
        return contextlib.nullcontext()

    def train(self, names: Sequence[str | None], base: bool = False) -> None:
        """Makes the weights of the named edits trainable, and all other weights not.

        Changes nothing if `names` is empty or has only None.

        Args:
            names: Names of edits; None in the list is ignored.
            base: Whether the model's weights outside of edits are trainable too.
        """

    def record(self, name: str | None = None) -> dict[str, Any]:
        """Returns the data about the edits that presets and runs store, by key; {} without edits.

        Args:
            name: Name of the edit to store as active; None = the model's active one.
        """
        return {}

    def fit_settings(self, name: str | None = None) -> dict[str, Any]:
        """Returns the default settings of `fit`, such as a learning rate, to train the edit `name`.

        None = the active edit. The result is empty if no edit is active.
        """
        return {}

    def refuse_config(self) -> None:
        """Raises ValueError if the model has edits that its config does not contain."""


NONE = Variants()


def variants_of(model: Any) -> Variants:
    """Returns the named edits of a model; a model that is not kbert's has none."""
    return getattr(model, "variants", NONE)


def active_record(model: Any) -> dict[str, Any]:
    """Returns the data about the named edits that outputs depend on, by key; {} without edits.

    Which edit is active is not in the weights. So it belongs to the identity of everything that is
    computed once and resumed or read later, next to a checksum of the weights.

    Args:
        model: A model, a task, or an ensemble of tasks.
    """
    members = getattr(model, "members", None)
    if members is not None:
        records = [active_record(member) for member in members]
        return {"members": records} if any(records) else {}
    edited_model = getattr(model, "model", model)
    return variants_of(edited_model).record(getattr(model, "variant", None))


def edits_of(config: Any) -> list[Any]:
    """Returns the edits in a config's `edits` as objects, in order, see `kbert.edit.Edit`.

    Raises:
        ValueError: A kind or an option is unknown, an edit cannot follow an earlier one, or it
            does not fit the config.
    """
    edits: list[Any] = []
    for fields in config.edits:
        cls: Any = registry.get("edit", fields["kind"])
        edit = cls.from_dict({name: value for name, value in fields.items() if name != "kind"})
        if wrong_kinds := [x.kind for x in edits if x.kind not in edit.after]:
            raise ValueError(
                f"The edit {edit.kind!r} can follow only "
                f"{' and '.join(map(repr, edit.after)) or 'no edit'}. Received: it follows "
                f"{', '.join(map(repr, wrong_kinds))}"
            )
        edit.check_config(config)
        edits.append(edit)
    return edits


def count_edits(config: Any, kernels: Any) -> int:
    """Returns how many weights a config's edits add, minus those that they remove.

    Args:
        config: Config of the model.
        kernels: For each block, the list of its kernels' shapes (inputs, outputs) before the edits.
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
