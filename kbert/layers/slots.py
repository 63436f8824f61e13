"""Slots of built layers, for what is done to them from outside (`kbert.edit`).

An edit never changes a weight of the layer that it is put into: it acts on what the layer
multiplies, looks up or gives. Those of one sort are there for good, and act in the order in which
they came. Of the others, which have a switch, many lie beside each other on one base, and of each
forward part one acts or none.

Which one is said once for all slots of a model, by its `Switch`, and read where a forward part is
computed or traced: a graph that was traced keeps the edit that was chosen then.
"""

import contextlib
import contextvars
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from kbert.core.types import Shape

# Switch -> the edit that is chosen in this context in the place of the switch's.
_CHOSEN: contextvars.ContextVar[Mapping["Switch", str | None]] = contextvars.ContextVar(
    "chosen", default=types.MappingProxyType({})
)


class Switch:
    """Which edit of a model is chosen; a plain object, which all slots of the model share.

    Attributes:
        active: its name; None = none, the base as it is.
    """

    def __init__(self) -> None:
        self.active: str | None = None

    @property
    def current(self) -> str | None:
        """The name of the edit that is chosen here."""
        return _CHOSEN.get().get(self, self.active)

    @contextlib.contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """In this context that edit is chosen, or none."""
        token = _CHOSEN.set({**_CHOSEN.get(), self: name})
        try:
            yield
        finally:
            _CHOSEN.reset(token)


def choosing_as_now() -> Callable[[], contextlib.AbstractContextManager]:
    """A function whose contexts choose the edits of here, for what is computed again elsewhere."""
    now = _CHOSEN.get()

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        token = _CHOSEN.set(now)
        try:
            yield
        finally:
            _CHOSEN.reset(token)

    return again


class Editable(keras.layers.Layer):
    """A layer with a slot for edits; without any it is what it was.

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
        """Puts an edit into the slot, behind those that are there, and builds it.

        Args:
            edit: What this layer calls; its name is that of the attribute that holds it.
            shape: What it is built with.
            switch: The model's, the same for all of its slots, by which the edit is chosen; None =
                it always acts.
        """
        with contextlib.ExitStack() as scopes:  # weights are saved by their paths
            for part in self.path.split("/"):
                scopes.enter_context(keras.name_scope(part))
            if not edit.built:  # it may lie in several slots
                edit.build(shape)
        with self._unlocked():
            setattr(self, edit.name, edit)
        if switch is None:
            self._edit_names = (*self._edit_names, edit.name)
        else:
            self._switch = switch

    def remove_edit(self, name: str) -> None:
        """Takes an edit out of the slot, if it is there."""
        layer = getattr(self, name, None)
        if layer is None:
            return
        with self._unlocked():
            delattr(self, name)
            # By the tracker: it keeps ids, and where that of a layer which is gone is left,
            # the next one at its address in memory is taken for tracked, and never trained.
            self._tracker.untrack(layer)
        self._edit_names = tuple(x for x in self._edit_names if x != name)

    @property
    def edits(self) -> list[keras.layers.Layer]:
        """Those that always act, in their order."""
        return [getattr(self, name) for name in self._edit_names]

    @property
    def chosen(self) -> Any:
        """The one that is chosen here, or None."""
        current = None if self._switch is None else self._switch.current
        return None if current is None else getattr(self, current, None)

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Keras forbids new layers in a built one; its own LoRA opens it like this."""
        self._tracker.unlock()
        try:
            yield
        finally:
            self._tracker.lock()
