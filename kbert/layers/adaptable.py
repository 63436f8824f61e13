"""Slots of built layers: for adapters, few weights beside many that stay, and for edits.

An adapter never changes a weight of the layer that it is put into. It adds to what the layer gives,
so that many adapters lie beside each other on one base, and of each forward part one runs or none.

Which one is said once for all slots of a model, by its `Switch`, and read where a forward part is
computed or traced: a graph that was traced keeps the adapter that ran then.

An edit (`kbert.edit`) is there for good: it changes what the layer multiplies or looks up.
"""

import contextlib
import contextvars
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from kbert.core.types import Shape

# Switch -> the adapter that runs in this context in the place of the switch's.
_CHOSEN: contextvars.ContextVar[Mapping["Switch", str | None]] = contextvars.ContextVar(
    "chosen", default=types.MappingProxyType({})
)


class Switch:
    """Which adapter of a model runs; a plain object, which all slots of the model share.

    Attributes:
        active: its name; None = none, the base as it is.
    """

    def __init__(self) -> None:
        self.active: str | None = None

    @property
    def current(self) -> str | None:
        """The name of the adapter that runs here."""
        return _CHOSEN.get().get(self, self.active)

    @contextlib.contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """In this context that adapter runs, or none."""
        token = _CHOSEN.set({**_CHOSEN.get(), self: name})
        try:
            yield
        finally:
            _CHOSEN.reset(token)


def choosing_as_now() -> Callable[[], contextlib.AbstractContextManager]:
    """A function whose contexts run the adapters of here, for what is computed again elsewhere."""
    now = _CHOSEN.get()

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        token = _CHOSEN.set(now)
        try:
            yield
        finally:
            _CHOSEN.reset(token)

    return again


class Adaptable(keras.layers.Layer):
    """A layer with a slot for adapters; without any it is what it was.

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
        >>> dense.add_adapter(switch, "shifted", Shifted(name="shifted"), (None, 3))
        >>> switch.active = "shifted"
        >>> ops.convert_to_numpy(dense(ops.zeros((1, 3)))).tolist()
        [[1.0, 1.0]]
        >>> dense.remove_adapter("shifted")
        >>> len(dense.weights)
        2
    """

    _switch: Switch | None = None
    _edit_names: tuple[str, ...] = ()

    def add_adapter(
        self, switch: Switch, name: str, adapter: keras.layers.Layer, input_shape: Shape
    ) -> None:
        """Puts an adapter into the slot and builds it.

        Args:
            switch: the model's, the same for all of its slots.
            name: of the adapter, likewise.
            adapter: what this layer calls where the adapter runs.
            input_shape: what it is built with.
        """
        self._build_inside(adapter, input_shape)
        self._switch = switch
        with self._unlocked():
            setattr(self, _attribute(name), adapter)

    def add_edit(self, edit: keras.layers.Layer, shape: Shape) -> None:
        """Puts an edit into the slot, behind those that are there, and builds it.

        Args:
            edit: what this layer calls; its name is that of the attribute that holds it.
            shape: (I, O) of the kernel that is edited.
        """
        self._build_inside(edit, shape)
        with self._unlocked():
            setattr(self, edit.name, edit)
        self._edit_names = (*self._edit_names, edit.name)

    def remove_edit(self, name: str) -> None:
        """Takes an edit out of the slot, if it is there."""
        self._take_out(name)
        self._edit_names = tuple(x for x in self._edit_names if x != name)

    def _take_out(self, attribute: str) -> None:
        layer = getattr(self, attribute, None)
        if layer is not None:
            with self._unlocked():
                delattr(self, attribute)
                # By the tracker: it keeps ids, and where that of a layer which is gone is left,
                # the next one at its address in memory is taken for tracked, and never trained.
                self._tracker.untrack(layer)

    @property
    def edits(self) -> list[keras.layers.Layer]:
        """In the order in which they act."""
        return [getattr(self, name) for name in self._edit_names]

    def _build_inside(self, layer: keras.layers.Layer, shape: Shape) -> None:
        with contextlib.ExitStack() as scopes:  # weights are saved by their paths
            for part in self.path.split("/"):
                scopes.enter_context(keras.name_scope(part))
            if not layer.built:  # it may lie in several slots
                layer.build(shape)

    def remove_adapter(self, name: str) -> None:
        """Takes an adapter out of the slot, if it is there."""
        self._take_out(_attribute(name))

    @property
    def adapter(self) -> Any:
        """The one that runs here, or None."""
        current = None if self._switch is None else self._switch.current
        return None if current is None else getattr(self, _attribute(current), None)

    @contextlib.contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Keras forbids new layers in a built one; its own LoRA opens it like this."""
        self._tracker.unlock()
        try:
            yield
        finally:
            self._tracker.lock()


def _attribute(name: str) -> str:
    return f"adapter_{name}"
