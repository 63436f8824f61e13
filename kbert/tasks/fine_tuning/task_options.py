"""Settings of fine-tuned tasks: those that several have, and how a class bears its own."""

import inspect
from collections.abc import Mapping
from typing import Any

import keras

from kbert.core.options import Options, option, with_options

# What every constructor passes on besides the settings.
_NAME = inspect.Parameter(
    "name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None
)
# Settings of tasks on decoders; on other encoders they are in no preset.
DECODER_OPTIONS = ("both_orders", "auxiliary_lm_weight")


class RowOptions(Options):
    """What every task on a table of texts is set to.

    Args:
        {options}
    """

    max_length: int | None = option(
        None,
        help="Tokens of a row, special tokens included. None: all that the encoder takes.",
        at_least=4,
    )


class HeadOptions(RowOptions):
    """Of a task with dropout before its head.

    Args:
        {options}
    """

    dropout: float | None = option(
        None,
        help="Rate before the head. None: the encoder's.",
        at_least=0,
        at_most=1,
        of_rows=False,
    )


class WindowOptions(HeadOptions):
    """Of a task that reads long texts in windows.

    Args:
        {options}
    """

    doc_stride: int | None = option(
        None,
        help="Tokens from the start of a window to that of the next, in texts that are longer than "
        "a row (run_squad's meaning; what Hugging Face's tokenizers call stride is the overlap).",
        at_least=1,
    )
    pooling: str = option(
        "mean",
        help="How what several windows say becomes one answer.",
        choices=("mean", "max"),
        of_rows=False,
    )


class AuxiliaryOptions(Options):
    """Of a task that fine-tunes decoders too.

    Args:
        {options}
    """

    auxiliary_lm_weight: float | None = option(
        None,
        help="Of a decoder: weight of its own loss on the texts. None: 0.5.",
        at_least=0,
        of_rows=False,
    )


class TextOptions(WindowOptions, AuxiliaryOptions):
    """Of a task on whole texts and pairs.

    Args:
        {options}
    """

    both_orders: bool | None = option(
        None,
        help="Whether a decoder, which reads from left to right, reads pairs in both orders, as "
        "GPT does to tell whether texts are alike. None: for numbers of pairs.",
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
