"""Settings as frozen dataclasses whose fields carry their help and their range.

Checks, messages, the text of `help()`, the flags of the programs and the content of `run.json` are
all derived from the fields: a new option is one line.
"""

import dataclasses
import difflib
import functools
import inspect
import json
import math
import numbers
import os
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import numpy as np

F = typing.TypeVar("F", bound=Callable)
_PLACE = "{options}"  # in a docstring: replaced by the description of the fields
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a string",
    type(None): "None",
    os.PathLike: "a path",
    Mapping: "a mapping",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Details:
    """Metadata of a field, as declared by `option`.

    Attributes:
        help: description of the field, for `help()` and `--help`.
        at_least, above, at_most, below: the range of a number, or of each item of a sequence.
        choices: the allowed strings; None is allowed where the field's type allows it.
        changes_numbers: whether the trained weights depend on the field. If not, a run may be
            resumed with another value.
        compiled: whether the field sets an argument of `compile`. It then has no effect after the
            user's own `compile`.
        by_task: whether a task may have its own default. The flag then has no default.
        flag: whether programs have a flag for the field.
        repeated: whether the flag is repeated for each item; items may then contain commas.
        of_rows: whether the rows that a task makes of a table depend on the field.
        fixed: whether a task keeps the value that it was made with, as its layers follow from it.
    """

    help: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: Collection[str] | None = None
    changes_numbers: bool = True
    compiled: bool = False
    by_task: bool = False
    flag: bool = True
    repeated: bool = False
    of_rows: bool = True
    fixed: bool = False


def option(default: Any = dataclasses.MISSING, *, help: str, **details: Any) -> Any:
    """Declares a field of `Options` with a default, or without one a required field.

    `help` and `details` are the attributes of `Details`: range, choices, ….
    """
    return dataclasses.field(
        default=default, metadata={"details": Details(help=help, **details)}, kw_only=True
    )


@typing.dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(option, dataclasses.field)
)
class Options:
    """Base of all settings: a subclass is a frozen dataclass of `option`s, without a decorator.

    The constructor checks each value against the type and range of its field and converts it to
    plain Python: NumPy numbers to Python numbers, a sequence to a tuple. For a field that takes a
    tuple, a lone string becomes a tuple of one. A subclass checks relations between fields in
    `check`. `{options}` in a subclass's docstring is replaced by the description of the fields.

    Example:
        >>> class Baking(Options):
        ...     degrees: int = option(200, help="Of the oven.", at_least=1)
        ...     fan: bool = option(True, help="Whether air moves.", changes_numbers=False)
        >>> Baking(degrees=180).replace(fan=False).to_dict()
        {'degrees': 180, 'fan': False}
        >>> Baking(degrees=0)
        Traceback (most recent call last):
        ValueError: `degrees` must be a whole number of at least 1. Received: 0
    """

    # `__init_subclass__` makes every subclass a dataclass.
    __dataclass_fields__: typing.ClassVar[dict[str, dataclasses.Field]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if reserved := [name for name in cls.__annotations__ if hasattr(Options, name)]:
            raise TypeError(
                f"Options must not have the names of their methods. Received: {', '.join(reserved)}"
            )
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        cls.__doc__ = with_options(cls.__doc__, cls)

    def __post_init__(self) -> None:
        for name in self.names():
            object.__setattr__(self, name, self.checked(name, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """Raises ValueError if values do not fit together; subclasses override it."""

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the fields, in order."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def field_of(cls, name: str) -> dataclasses.Field:
        """Returns the field with this name."""
        cls._refuse_unknown([name], ValueError, f"{cls.__name__} has no such field")
        return cls.__dataclass_fields__[name]

    @classmethod
    def details(cls, name: str) -> Details:
        """Returns the metadata of a field, as declared by `option`."""
        return cls.field_of(name).metadata["details"]

    @classmethod
    def kinds(cls, name: str) -> tuple[Any, ...]:
        """Returns the types that a field accepts: (int, NoneType) for `int | None`."""
        hint = _hints(cls)[name]  # type: ignore[arg-type]  # mypy takes an instance's hash for it
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        return typing.get_args(hint) if is_union else (hint,)

    @classmethod
    def with_default(cls, name: str, default: Any, **details: Any) -> Any:
        """Returns a copy of the field `name` with another default, for a subclass or another class.

        `details` are attributes of `Details` to change.
        """
        metadata = {"details": dataclasses.replace(cls.details(name), **details)}
        return dataclasses.field(default=default, metadata=metadata, kw_only=True)

    @classmethod
    def checked(cls, name: str, value: Any) -> Any:
        """Returns a value for the field `name` in plain Python.

        A value that the field does not accept raises ValueError.
        """
        details = cls.details(name)
        for kind in cls.kinds(name):
            fits, plain_value = _take(value, kind, details)
            if fits:
                return plain_value
        raise ValueError(f"`{name}` must be {cls.rule(name)}. Received: {value!r}")

    @classmethod
    def rule(cls, name: str) -> str:
        """Returns what a field accepts, in words, such as "a whole number of at least 1"."""
        details = cls.details(name)
        words = [_rule(kind, details) for kind in cls.kinds(name)]
        return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, as JSON can hold them."""
        return {name: _plain(getattr(self, name)) for name in self.names()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Makes the settings from the result of `to_dict`.

        An unknown key raises ValueError, which names similar keys.
        """
        cls._refuse_unknown(fields, ValueError, f"{cls.__name__} has no such field")
        return cls(**fields)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], function: str) -> Self:
        """Makes the settings from the `**settings` of a function, which is named in errors.

        An unknown name raises TypeError, a value out of range ValueError.
        """
        cls._refuse_unknown(arguments, TypeError, f"{function} has no such argument")
        return cls(**arguments)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some values changed."""
        self._refuse_unknown(changes, TypeError, f"{type(self).__name__} has no such field")
        return dataclasses.replace(self, **changes)

    def arguments(self, of: type["Options"] | None = None) -> dict[str, Any]:
        """Returns all fields, or only those of the base class `of`, as keyword arguments."""
        return {name: getattr(self, name) for name in (of or self).names()}

    def identity(self) -> dict[str, Any]:
        """Returns the fields that the trained weights depend on, as JSON can hold them."""
        return {k: v for k, v in self.to_dict().items() if k not in self.unchecked()}

    @classmethod
    def unchecked(cls) -> list[str]:
        """Returns the names of the fields that may differ when a run is resumed."""
        return [name for name in cls.names() if not cls.details(name).changes_numbers]

    @classmethod
    def describe(cls) -> str:
        """Returns a line for each field: name, help, default."""
        return "\n".join(_described(field) for field in dataclasses.fields(cls))

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """Returns the fields as keyword-only parameters of a function's signature."""
        hints = _hints(cls)  # type: ignore[arg-type]  # as above
        kind = inspect.Parameter.KEYWORD_ONLY
        empty = inspect.Parameter.empty
        return [
            inspect.Parameter(
                field.name,
                kind,
                default=empty if field.default is dataclasses.MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in dataclasses.fields(cls)
        ]

    @classmethod
    def _refuse_unknown(cls, given: Collection[str], error: type[Exception], text: str) -> None:
        """Raises an error if one of the names is not a field.

        Args:
            given: names to check.
            error: class of the error.
            text: beginning of the message, a sentence without its full stop.
        """
        known = cls.names()
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=3)
                hint = f" Did you mean: {', '.join(near)}?" if near else ""
                raise error(f"{text}.{hint} Known: {', '.join(known)}. Received: {name!r}")


def takes(options: type[Options]) -> Callable[[F], F]:
    """Shows the fields in `help()` as arguments of a function that takes them as `**settings`.

    The line `{options}` in the function's docstring is replaced by the description of the fields.

    Example:
        >>> class Baking(Options):
        ...     degrees: int = option(200, help="Of the oven.", at_least=1)
        >>> @takes(Baking)
        ... def bake(cake, **settings):
        ...     return Baking.from_arguments(settings, "bake").degrees
        >>> inspect.signature(bake), bake("pie")
        (<Signature (cake, *, degrees: int = 200)>, 200)
    """

    def show(function: F) -> F:
        signature = inspect.signature(function)
        own_parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        full_signature = signature.replace(parameters=[*own_parameters, *options.parameters()])
        function.__signature__ = full_signature  # type: ignore[attr-defined]  # inspect reads it
        function.__doc__ = with_options(function.__doc__, options)
        return function

    return show


def parse_kind(text: str) -> tuple[str, dict[str, Any]]:
    """Parses the value of a flag: the name of a kind, and after a colon its options.

    Args:
        text: value of the flag, such as "lora:rank=16,targets=query+key". Option values are JSON or
            plain strings; + separates the items of a sequence.

    Returns:
        The kind, and the options by name; neither is checked.

    Raises:
        ValueError: an option has no value.

    Example:
        >>> parse_kind("lora:rank=16,targets=query+key")
        ('lora', {'rank': 16, 'targets': ('query', 'key')})
        >>> parse_kind("houlsby")
        ('houlsby', {})
    """
    kind, _, option_text = text.partition(":")
    options: dict[str, Any] = {}
    for item in option_text.split(",") if option_text else ():
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(
                "Options after a colon must be name=value, such as lora:rank=16,alpha=32. "
                f"Received: {item!r} in {text!r}"
            )
        options[name] = tuple(value.split("+")) if "+" in value else _from_text(value)
    return kind, options


def _from_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


@functools.cache
def _hints(cls: type[Options]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _take(value: Any, kind: Any, details: Details) -> tuple[bool, Any]:
    """Returns whether a value fits a field, and the value in plain Python.

    It fits if it has the type `kind` and is in the range or among the choices of `details`.
    """
    origin = typing.get_origin(kind) or kind
    is_bool = isinstance(value, bool | np.bool_)
    if origin is bool:
        return is_bool, bool(value) if is_bool else value
    if origin in (int, float):
        number = numbers.Integral if origin is int else numbers.Real
        if is_bool or not isinstance(value, number) or not math.isfinite(value):
            return False, value
        converted = origin(value)
        return _in_range(converted, details), converted
    if origin is tuple:
        items = (value,) if isinstance(value, str) else value
        if isinstance(items, Mapping) or not isinstance(items, Collection):
            return False, value
        item_kind, *more_kinds = typing.get_args(kind)
        converted = [_take(item, item_kind, details) for item in items]
        long_enough = more_kinds == [...] or len(converted) == 1 + len(more_kinds)
        return long_enough and all(fits for fits, _ in converted), tuple(x for _, x in converted)
    if origin is str:
        is_choice = details.choices is None or value in details.choices
        return isinstance(value, str) and is_choice, value
    return isinstance(value, origin), value


def _in_range(value: float, details: Details) -> bool:
    """Whether a number is within the bounds of an option."""
    return (
        (details.at_least is None or value >= details.at_least)
        and (details.above is None or value > details.above)
        and (details.at_most is None or value <= details.at_most)
        and (details.below is None or value < details.below)
    )


def _rule(kind: Any, details: Details) -> str:
    """Returns in words what a value of an option must be, such as "a whole number from 1 to 8".

    `kind` is its type; `details` has its choices and bounds.
    """
    origin = typing.get_origin(kind) or kind
    if origin is str and details.choices is not None:
        return f"one of {', '.join(details.choices)}"
    if origin is tuple:
        inner, *more_kinds = typing.get_args(kind)
        count = "" if more_kinds == [...] else f" of {1 + len(more_kinds)}"
        return f"a sequence{count}, each {_rule(inner, details)}"
    words = _WORDS[origin]
    if origin not in (int, float):
        return words
    low, high = details.at_least, details.at_most
    if low is not None and high is not None:
        return f"{words} from {_number(low)} to {_number(high)}"
    bounds = {
        "of at least": low,
        "above": details.above,
        "at most": high,
        "below": details.below,
    }
    limits = [f"{text} {_number(bound)}" for text, bound in bounds.items() if bound is not None]
    return " ".join([words, " and ".join(limits)]).rstrip()


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain(key): _plain(x) for key, x in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(x) for x in value]
    return value.item() if isinstance(value, np.generic) else value


def _described(field: dataclasses.Field) -> str:
    text = f"{field.name}: {field.metadata['details'].help}"
    default = field.default
    if default is dataclasses.MISSING or default in (None, ()):
        return text
    return f"{text} Default: {default!r}."


def with_options(doc: str | None, options: type[Options]) -> str | None:
    """Returns `doc` with the placeholder (`_PLACE`) replaced by the description of the fields.

    The description is indented like the placeholder. A docstring without one is unchanged.
    """
    if doc is None or _PLACE not in doc:
        return doc
    text_before = doc[: doc.index(_PLACE)]
    indent = text_before[text_before.rindex("\n") + 1 :]
    lines = [
        textwrap.fill(
            line,
            width=100,
            initial_indent=indent,
            subsequent_indent=f"{indent}    ",
            break_on_hyphens=False,
        )
        for line in options.describe().splitlines()
    ]
    return doc.replace(indent + _PLACE, "\n".join(lines))
