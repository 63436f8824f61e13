"""What `kbert.edit` does to built models, as far as models and tasks need to know it.

Of one sort a config names, in `edits`: they are applied when the model is made. The others have
names, and of a model's one runs or none, its variant.
"""

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kbert.core import late, registry


class Variants:
    """The named edits of a model, of which one or none runs; a plain object, unknown to Keras.

    This one is that of a model without any; `kbert.edit.adapters` puts another in its place.

    Attributes:
        added: Name -> options.
        key: What a graph is traced for besides its inputs: which of them runs.
    """

    added: Mapping[str, Any] = MappingProxyType({})
    key: Any = None

    def using(self, name: str | None) -> contextlib.AbstractContextManager:
        """A context in which that one runs, or none.

        Raises:
            ValueError: It is not there.
        """
        if name is not None:
            raise ValueError(
                f"A named edit runs where it was added (`kbert.edit`). Received: {name!r}"
            )
        return contextlib.nullcontext()

    def train(self, names: Sequence[str | None], base: bool = False) -> None:
        """Makes the weights of those trainable, with `base` also the model's own, and no others.

        Nothing is changed where no name is given.
        """

    def record(self, name: str | None = None) -> dict[str, Any]:
        """What presets and runs keep, by its key; empty where there are none.

        Args:
            name: The one that runs; None = which the model has chosen.
        """
        return {}

    def fit_settings(self, name: str | None = None) -> dict[str, Any]:
        """Settings of `fit` with which the one that runs is trained, where none are given."""
        return {}

    def refuse_config(self) -> None:
        """Raises ValueError where a config alone would not describe the model."""


NONE = Variants()


def variants_of(model: Any) -> Variants:
    """The named edits of a model; also of one that is not kbert's, which has none."""
    return getattr(model, "variants", NONE)


def edits_of(config: Any) -> list[Any]:
    """The edits that a config names, see `kbert.edit.Edit`.

    Raises:
        ValueError: A kind or an option that is not known, or an order that is none.
    """
    found: list[Any] = []
    for said in config.edits:
        cls: Any = registry.get("edit", said["kind"])
        edit = cls.from_dict({name: value for name, value in said.items() if name != "kind"})
        if others := [x.kind for x in found if x.kind not in edit.after]:
            raise ValueError(
                f"{edit.kind!r} comes behind {' and '.join(map(repr, edit.after)) or 'no edit'}. "
                f"Received: it, behind {', '.join(map(repr, others))}"
            )
        edit.check_config(config)
        found.append(edit)
    return found


def count_edits(config: Any, kernels: Any) -> int:
    """Weights that edits have added, those that they have taken away off.

    Args:
        config: The model's.
        kernels: Of each block the shapes of its kernels, without edits.
    """
    total = 0
    for edit in edits_of(config):
        total += edit.count_parameters(config, kernels)
        kernels = edit.kernels(config, kernels)
    return total


def restore_edits(model: Any, edits: Mapping[str, Any], source: str) -> None:
    """Does to a model what its preset says besides its config, the new weights drawn.

    Args:
        model: A built one.
        edits: As `kbert.checkpoints.Checkpoint` has them.
        source: The preset, for messages.

    Raises:
        ValueError: They are not understood; the message names `source`.
    """
    for key, content in edits.items():
        late.load("edits of a preset", key)(model, content, source)
