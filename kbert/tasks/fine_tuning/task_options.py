"""Settings of fine-tuned tasks as constructor arguments and attributes."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from kbert.core.options import Options, with_options

# The argument that every constructor passes on in addition to the settings.
_NAME = inspect.Parameter(
    "name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None
)


def options_of(task: type[Any], given: Mapping[str, Any]) -> Options:
    """Returns the settings of a task from the arguments of its constructor.

    Args:
        task: class of the task.
        given: arguments by name.

    Raises:
        TypeError: the class has no such setting.
        ValueError: a value is out of range.
    """
    return task.options.from_arguments(given, task.__name__)


def expose_options(task: type[Any]) -> None:
    """Makes the settings of a task class attributes of its instances, and shows them in `help`.

    Args:
        task: the class; its `options` become arguments of the constructor, and are described where
            its docstring has `{options}`.

    Raises:
        TypeError: a setting has the name of an attribute of every Keras model.
    """
    for name in task.options.names():
        if hasattr(keras.Model, name):
            raise TypeError(
                "The name of a task's setting must not be an attribute of keras.Model. "
                f"Received: {name!r} of {task.__name__}"
            )
        if not isinstance(inspect.getattr_static(task, name, None), property):
            setattr(task, name, _attribute(name, task.options))
    own_parameters = list(inspect.signature(task.__init__).parameters.values())[1:]
    own_parameters = [
        parameter for parameter in own_parameters if parameter.kind is not parameter.VAR_KEYWORD
    ]
    own_names = {parameter.name for parameter in own_parameters}
    passed_on = [_NAME, *task.options.parameters()]
    fields = [field for field in passed_on if field.name not in own_names]
    task.__signature__ = _ClassSignature(inspect.Signature([*own_parameters, *fields]))
    task.__doc__ = with_options(task.__doc__, task.options)


class _ClassSignature:
    """A signature that `inspect.signature` finds for a class but not for its instances.

    Instances are called with other arguments: a graph of a task binds them by the signature of the
    instance.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        self.signature = signature

    def __get__(self, instance: Any, owner: type[Any]) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        return self.signature


def _attribute(name: str, options: Any) -> property:
    """Returns a property of tasks for the setting `name`.

    Writing it checks the value first, and then the task's graphs are traced again. A task that is
    built keeps the settings that its layers follow from.
    """
    details = options.details(name)

    def read(task: Any) -> Any:
        return getattr(task.chosen, name)

    def write(task: Any, value: Any) -> None:
        before, chosen = task.chosen, task.chosen.replace(**{name: value})
        if not task.built or chosen == before:
            task.chosen = chosen
            return
        if details.fixed:
            raise AttributeError(
                f"`{name}` cannot be changed, since the task was made for it: make another with "
                f"{type(task).__name__}(…, {name}=…) or from_preset(…, {name}=…). "
                f"Received: {name}={value!r} in the place of {read(task)!r}"
            )
        task.chosen = chosen
        try:
            task._settings_changed()
        except Exception:
            task.chosen = before
            raise

    return property(read, write, doc=details.help)
