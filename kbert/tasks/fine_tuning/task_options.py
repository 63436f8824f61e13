"""Settings of fine-tuned tasks: those that several have, and how a class bears its own."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from kbert.core.options import Options, with_options

# What every constructor passes on besides the settings.
_NAME = inspect.Parameter(
    "name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None
)


def options_of(task: type[Any], given: Mapping[str, Any]) -> Options:
    """The settings of a task, of what its constructor was given.

    Args:
        task: the class.
        given: by name.

    Raises:
        TypeError: a setting that the class has not.
        ValueError: a value out of its range.
    """
    return task.options.from_arguments(given, task.__name__)


def expose_options(task: type[Any]) -> None:
    """Makes the settings of a class of tasks attributes of its objects, and shows them in `help`.

    Args:
        task: the class; its `options` are those of the constructor, and where its docstring says
            `{options}`, they are described.

    Raises:
        TypeError: a setting has the name of something that every Keras model has.
    """
    for name in task.options.names():
        if hasattr(keras.Model, name):
            raise TypeError(
                "A setting of a task needs a name that no Keras model has. "
                f"Received: {name!r} of {task.__name__}"
            )
        if not isinstance(inspect.getattr_static(task, name, None), property):
            setattr(task, name, _attribute(name, task.options))
    own = list(inspect.signature(task.__init__).parameters.values())[1:]
    own = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
    named = {parameter.name for parameter in own}
    passed_on = [_NAME, *task.options.parameters()]
    fields = [field for field in passed_on if field.name not in named]
    task.__signature__ = _ClassSignature(inspect.Signature([*own, *fields]))
    task.__doc__ = with_options(task.__doc__, task.options)


class _ClassSignature:
    """What `inspect.signature` says of a class, and not of its objects, which are called otherwise.

    A graph of a task binds its arguments by the signature of the object.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature

    def __get__(self, instance: Any, owner: type[Any]) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return self.signature


def _attribute(name: str, options: Any) -> property:
    """Reads a field of `chosen`, and sets it by way of its checks."""

    def read(task: Any) -> Any:
        return getattr(task.chosen, name)

    def write(task: Any, value: Any) -> None:
        task.chosen = task.chosen.replace(**{name: value})

    return property(read, write, doc=options.details(name).help)
