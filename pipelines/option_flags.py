"""Flags that are fields of `kbert.core.options.Options`: name, type, range, default and help."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from kbert.core import registry
from kbert.core.options import Options


def define(options: type[Options], **defaults: Any) -> None:
    """Defines a flag for each field of an options class that has none yet.

    The flag of a field whose default depends on the task has no default.

    Args:
        options: the options class.
        **defaults: default values of flags, where they differ from the field's.
    """
    for name in flag_names(options):
        if name not in flags.FLAGS:
            _define(options, name, defaults)


def define_former() -> None:
    """Defines aliases of the defined flags, with their names in former versions."""
    for former, name in registry.FORMER_SETTINGS.items():
        if name in flags.FLAGS and former not in flags.FLAGS:
            flags.DEFINE_alias(former, name)
            alias, flag = flags.FLAGS[former], flags.FLAGS[name]
            alias.parse = functools.partial(_parse_former, alias.parse, flag)


def _parse_former(parse: Callable[[Any], None], flag: flags.Flag, argument: Any) -> None:
    """Parses a flag given by its former name, so that no recipe overrides the value.

    Args:
        parse: `parse` method of the alias.
        flag: the flag; it is marked as given.
        argument: text on the command line.
    """
    parse(argument)
    flag.using_default_value = False


def flag_names(*options: type[Options]) -> list[str]:
    """Returns the fields of options classes that programs have a flag for, each name once."""
    names = (
        name
        for options_class in options
        for name in options_class.names()
        if options_class.details(name).flag
    )
    return list(dict.fromkeys(names))


def given(options: type[Options], parsed: flags.FlagValues) -> dict[str, Any]:
    """Returns the fields whose flags the user gave: name -> value as the class accepts it.

    Args:
        options: the options class.
        parsed: the parsed flags.
    """
    names = (name for name in flag_names(options) if parsed[name].present)
    return {name: parse(options, name, parsed[name].value) for name in names}


def read(options: type[Options], parsed: flags.FlagValues) -> Options:
    """Makes an instance of an options class from all of its flags, given or not.

    Args:
        options: the options class.
        parsed: the parsed flags.
    """
    names = flag_names(options)
    return options(**{name: parse(options, name, parsed[name].value) for name in names})


def parse(options: type[Options], name: str, value: Any) -> Any:
    """Converts the value of a flag to the type of its field.

    Args:
        options: the options class.
        name: name of the field and its flag.
        value: value that absl parsed.
    """
    kind, item, _ = _kind(options, name)
    if kind is Mapping and value is not None:
        return parse_weights(name, value)
    if kind is tuple and item is not str and value is not None:
        return parse_numbers(name, value, item)
    return value


def parse_weights(name: str, items: list[str]) -> dict[str, float] | str:
    """Parses `label=weight` items, or the single item "balanced".

    Args:
        name: name of the flag, for the message.
        items: the items.

    Raises:
        ValueError: an item has another form.

    Example:
        >>> parse_weights("class_weights", ["spam=3", "ham=1"])
        {'spam': 3.0, 'ham': 1.0}
    """
    if items == ["balanced"]:
        return "balanced"
    weights = {}
    for item in items:
        label, _, weight = item.rpartition("=")
        try:
            weights[label] = float(weight)
        except ValueError:
            label = ""
        if not label:
            raise ValueError(
                f"--{name} must be label=weight, separated by commas, or balanced. Received: "
                f"--{name}={','.join(items)}"
            )
    return weights


def parse_numbers(
    name: str, value: str | list[str], kind: type[int | float] = float
) -> tuple[float, ...]:
    """Parses numbers, as a text separated by commas or as a list of texts.

    Args:
        name: name of the flag, for the message.
        value: the numbers.
        kind: type of the numbers.

    Raises:
        ValueError: an item is not such a number.

    Example:
        >>> parse_numbers("replacement", "0.8,0.1")
        (0.8, 0.1)
    """
    items = value.split(",") if isinstance(value, str) else value
    try:
        return tuple(kind(item) for item in items)
    except ValueError:
        raise ValueError(
            f"--{name} must be numbers, separated by commas. Received: --{name}={','.join(items)}"
        ) from None


def _define(options: type[Options], name: str, defaults: Mapping[str, Any]) -> None:
    """Defines the flag of a field, with the kind of flag that fits the field's type.

    Args:
        options: the options class.
        name: name of the field and its flag.
        defaults: name -> default value, where it differs from the field's.
    """
    details, default = options.details(name), options.field_of(name).default
    text, default = details.help, None if default is dataclasses.MISSING else default
    if details.by_task and default is not None:
        if "Default" not in text:
            text += f" Default: {default:g}."
        default = None
    default = defaults.get(name, default)
    if isinstance(default, tuple):
        default = [x if isinstance(x, str) else f"{x:g}" for x in default]
    kind, inner, other_arguments = _kind(options, name)
    if kind is bool:
        flags.DEFINE_boolean(name, default, text)
    elif kind is int:
        flags.DEFINE_integer(name, default, text, details.at_least, details.at_most)
    elif kind is float:
        bounds = (details.at_least, details.at_most)
        flags.DEFINE_float(name, default, text, *(x if x is None else float(x) for x in bounds))
    elif kind is str and details.choices is not None:
        flags.DEFINE_enum(name, default, list(details.choices), text)
    elif kind is tuple and inner is str and details.repeated:
        flags.DEFINE_multi_string(name, default, text)
    elif kind is Mapping or (kind is tuple and other_arguments == [...]):
        flags.DEFINE_list(name, default, text)
    else:
        default = ",".join(default) if isinstance(default, list) else default
        flags.DEFINE_string(name, default, text)
    if details.above is not None or details.below is not None:
        flags.register_validator(name, functools.partial(_is_taken, options, name))


def _is_taken(options: type[Options], name: str, value: Any) -> bool:
    """Returns True if the value of a flag is in the field's range, else raises absl's error."""
    try:
        if value is not None:
            options.checked(name, value)
    except ValueError as error:
        raise flags.ValidationError(str(error)) from error
    return True


def _kind(options: type[Options], name: str) -> tuple[Any, Any, list[Any]]:
    """Returns the first type of a field, without its arguments, and these arguments.

    Returns:
        The type, such as tuple; its first argument, None without one; the list of its other
        arguments.
    """
    first = options.kinds(name)[0]
    item, *other_arguments = typing.get_args(first) or (None,)
    return typing.get_origin(first) or first, item, other_arguments


def refuse(options: flags.FlagValues, names: Sequence[str], where: str) -> None:
    """Raises ValueError if a flag is given that the program does not read here.

    Args:
        options: the parsed flags.
        names: names of the flags.
        where: why not, for the message, such as "on a task (--task)".
    """
    given_flags = [f"--{n}={shown(options[n].value)}" for n in names if options[n].present]
    if given_flags:
        raise ValueError(
            f"These flags are not supported {where}. Received: {', '.join(given_flags)}"
        )


def shown(value: Any) -> str:
    """Returns the value of a flag as on the command line."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
