"""Slots for edits of built layers (`kbert.edit`).

An edit never changes a weight of its layer: it acts on what the layer multiplies, looks up or
returns. There are two kinds. Permanent edits always act, in the order in which they were added.
Switched edits share one base model, and at most one of them is active in a forward pass.

All slots of a model share one `Switch` that names the active edit. It is read when a forward pass
is computed or traced, so a traced graph keeps the edit that was active then.
"""

import contextlib
import contextvars
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from kbert.core.types import Shape

# Switch -> the edit that is chosen in this context instead of `Switch.active`.
_CHOSEN: contextvars.ContextVar[Mapping["Switch", str | None]] = contextvars.ContextVar(
    "chosen", default=types.MappingProxyType({})
)


class Switch:
    """Names the chosen edit of a model; a plain object that all slots of the model share.

    Attributes:
        active: name of the chosen edit; None = the unmodified base model.
    """

    def __init__(self) -> None:
        self.active: str | None = None

    @property
    def current(self) -> str | None:
        """Name of the edit chosen by the innermost `using`, or else `active`; None = no edit."""
        return _CHOSEN.get().get(self, self.active)

    @contextlib.contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Chooses the edit `name` instead of `active` within a context; None = the base model."""
        token = _CHOSEN.set({**_CHOSEN.get(), self: name})
        try:
            yield
        finally:
            _CHOSEN.reset(token)


def choosing_as_now() -> Callable[[], contextlib.AbstractContextManager]:
    """Returns a function that creates a context with the edits that are chosen now.

    Recomputation enters it in the backward pass, when other edits may be chosen.
    """
    chosen = _CHOSEN.get()

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        token = _CHOSEN.set(chosen)
        try:
            yield
        finally:
            _CHOSEN.reset(token)

    return again


class Editable(keras.layers.Layer):
    """A layer with a slot for edits; without edits it computes the same as before.

    Example:
        >>> from keras import ops
        >>> from kbert.layers import Dense
        >>> class Shifted(keras.layers.Layer):
        ...     def build(self, input_shape):
        ...         self.shift = self.add_weight(name="shift", shape=(2,), initializer="ones")
        ...     def call(self, x, training=False):
        ...         return self.shift
        >>> dense, switch = Dense(2), Switch()
        >>> before = dense(ops.zeros((1, 3)))
        >>> dense.add_edit(Shifted(name="shifted"), (None, 3), switch)
        >>> switch.active = "shifted"
        >>> ops.convert_to_numpy(dense(ops.zeros((1, 3)))).tolist()
        [[1.0, 1.0]]
        >>> dense.remove_edit("shifted")
        >>> len(dense.weights)
        2
    """

    _switch: Switch | None = None
    _edit_names: tuple[str, ...] = ()

    def add_edit(
        self, edit: keras.layers.Layer, shape: Shape, switch: Switch | None = None
    ) -> None:
        """Adds an edit after the existing ones and builds it.

        Args:
            edit: layer that this layer calls; its name becomes the name of its attribute here.
            shape: shape that the edit is built with.
            switch: switch of the model, shared by all of its slots, that activates the edit;
                None = the edit always acts.
        """
        with contextlib.ExitStack() as scopes:  # weights are saved by their paths
            for part in self.path.split("/"):
                scopes.enter_context(keras.name_scope(part))
            if not edit.built:  # one edit may be in several slots
                edit.build(shape)
        with self._unlocked():
            setattr(self, edit.name, edit)
        if switch is None:
            self._edit_names = (*self._edit_names, edit.name)
        else:
            self._switch = switch

    def remove_edit(self, name: str) -> None:
        """Removes the edit called `name` from this layer; does nothing if there is none."""
        layer = getattr(self, name, None)
        if layer is None:
            return
        with self._unlocked():
            delattr(self, name)
            # Untrack explicitly: the tracker stores ids. With a stale id, a new layer at the same
            # memory address would count as tracked already and would never be trained.
            self._tracker.untrack(layer)
        self._edit_names = tuple(x for x in self._edit_names if x != name)

    @property
    def edits(self) -> list[keras.layers.Layer]:
        """The permanent edits, which always act, in the order in which they were added."""
        return [getattr(self, name) for name in self._edit_names]

    @property
    def chosen(self) -> Any:
        """The switched edit of this layer that the model's `Switch` names now; None = no edit."""
        current = None if self._switch is None else self._switch.current
        return None if current is None else getattr(self, current, None)

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Allows to add and remove sublayers within a context, which Keras forbids once built.

        Keras' own LoRA unlocks the tracker in the same way.
        """
        self._tracker.unlock()
        try:
            yield
        finally:
            self._tracker.lock()
