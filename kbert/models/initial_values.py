"""Loads models without computing random initial values first.

Keras computes a weight's initial value when it creates the weight, which takes longer than reading
a file of the model. This module alone depends on how Keras defers that: in a `StatelessScope`, at
the end of which Keras calls the `_initializer` of each new variable.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import keras

from kbert.core.types import Shape, Tensor


class without_drawing(keras.StatelessScope):
    """Context in which new variables have no value until one is assigned.

    At its end, variables that were assigned to have the last assigned value. The others are then
    initialised, with the values that they would have had without this context: the seed of an
    initializer is fixed at its construction. A value that is read earlier is computed for that read
    only.

    Contexts can be nested: the outermost one sets the values. After an error, variables that
    existed before the context are unchanged.

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny")
        >>> with without_drawing():
        ...     encoder = kbert.Encoder(config)
        ...     _ = encoder.pooler.bias.assign(keras.ops.ones(config.hidden_size))
        >>> float(encoder.pooler.bias[0])
        1.0
    """

    state_mapping: dict[int, Any]

    def __init__(self) -> None:
        super().__init__()
        self._assigned: dict[int, keras.Variable] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        outer = self.original_scope
        if isinstance(outer, without_drawing):
            self.state_mapping: dict[int, Any] = outer.state_mapping
            self._assigned = outer._assigned
        return self

    def add_update(self, update: tuple[keras.Variable, Tensor]) -> None:
        super().add_update(update)
        self._assigned[id(update[0])] = update[0]

    def __exit__(self, kind: Any = None, *error: Any) -> None:
        if isinstance(self.original_scope, without_drawing):
            super().__exit__(kind, *error)
            return
        existing = []
        for variable in self._assigned.values():
            value = self.get_current_value(variable)
            if variable._initializer is None:  # it had a value
                existing.append((variable, value))
            else:
                variable._initializer = _Given(value)
        with _named_by_paths():
            super().__exit__(kind, *error)
        if kind is None:
            for variable, value in existing:
                variable.assign(value)


@contextlib.contextmanager
def _named_by_paths() -> Iterator[None]:
    """Context in which variables that await initialisation have their paths as names.

    TensorFlow otherwise takes a variable's path from name scopes, which have ended by then.
    """
    from keras.src.backend.common import global_state

    waiting = global_state.get_global_attribute("uninitialized_variables") or []
    names = [(variable, variable._name) for variable in waiting]
    for variable, _ in names:
        variable._name = variable.path
    try:
        yield
    finally:
        for variable, name in names:
            variable._name = name


class _Given(keras.initializers.Initializer):
    """Initializer that returns one given tensor, whatever the shape and dtype."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __call__(self, shape: Shape, dtype: Any = None) -> Tensor:
        return self.value
