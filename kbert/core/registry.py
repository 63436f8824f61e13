"""Names -> classes of what folders and flags name: kinds of tasks, and parts of models.

A class registers when it is defined (`Registered`), with its module. The modules of kbert's own
classes are known (`kbert.core.late.TABLE`) and imported when one is looked for. No other import is
caused by a folder: whoever loads one with a class of his own has imported its module before, the
programs by `--task_module`.
"""

import difflib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from kbert.core import late

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Sort -> name -> class; the sort is "task", or what else is named.
_CLASSES: dict[str, dict[str, type]] = {}

# The names of kinds and settings of tasks in presets and runs of the previous version -> today's.
_FORMER_KINDS = {
    "CausalLM": "causal_lm",
    "MultipleChoice": "choose",
    "Pretraining": "pretrain",
    "QuestionAnswerer": "answer",
    "ReplacedTokenDetection": "detect_replaced",
    "TextClassifier": "classify",
    "TextRegressor": "regress",
    "TokenClassifier": "tag",
    "Translator": "translate",
}
FORMER_SETTINGS = {"stride": "doc_stride", "train_steps": "steps"}


def register(sort: str, name: str, cls: type) -> None:
    """Makes a class known by a name.

    The same class again, such as from a notebook's cell that is run twice, replaces itself.

    Args:
        sort: "task", or what else is named.
        name: unique in its sort.
        cls: what it stands for.

    Raises:
        ValueError: another class has the name.
    """
    known = _CLASSES.setdefault(sort, {})
    before = known.get(name, cls)
    place = late.TABLE.get(sort, {}).get(name, _place(before)).replace(":", ".")
    if place != _place(cls) and (before is cls or _source(before) != _source(cls)):
        raise ValueError(
            f"Every {sort} needs a unique name, and {name!r} is registered for {place}. "
            f"Received: {_place(cls)}"
        )
    known[name] = cls


def register_own(sort: str, cls: type) -> None:
    """Makes a class known by its `kind`, where it has one of its own."""
    if (kind := cls.__dict__.get("kind")) is not None:
        register(sort, kind, cls)


class Registered:
    """Base of classes that folders and flags name: each is known by its `kind` once it is defined.

    Args:
        sort: What is named: "task", "part", "edit", …; of a base's subclasses the same.

    Attributes:
        kind: The name, unique in its sort; a class without one of its own is not named.

    Raises:
        ValueError: Another class has the name.

    Example:
        >>> class Fruit(Registered, sort="fruit"): ...
        >>> class Apple(Fruit):
        ...     kind = "apple"
        >>> get("fruit", "apple").__name__
        'Apple'
    """

    kind: ClassVar[Any]
    _sort: ClassVar[str]

    def __init_subclass__(cls, sort: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if sort is not None:
            cls._sort = sort
        register_own(cls._sort, cls)


def find(sort: str, name: str) -> type | None:
    """The class of a name; None where neither kbert nor a module that was imported defines one."""
    found = loaded(sort, name)
    if found is None and name in late.TABLE.get(sort, {}):
        found = _CLASSES.setdefault(sort, {})[name] = late.load(sort, name)
    return found


def loaded(sort: str, name: str) -> type | None:
    """The class of a name, where its module has been imported."""
    return _CLASSES.get(sort, {}).get(name)


def get(sort: str, name: str) -> type:
    """The class of a name.

    Raises:
        ValueError: there is none; the message lists them, the nearest first.

    Example:
        >>> get("task", "classify").__name__
        'TextClassifier'
    """
    found = find(sort, name)
    if found is None:
        near = difflib.get_close_matches(name, names(sort), n=len(names(sort)), cutoff=0.0)
        article = "An" if sort[0] in "aeiou" else "A"
        raise ValueError(f"{article} {sort} is one of {', '.join(near)}. Received: {name!r}")
    return found


def names(sort: str) -> list[str]:
    """All names of a sort, kbert's own first."""
    return list(late.TABLE.get(sort, {}) | _CLASSES.get(sort, {}))


def current(task: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a task by today's names, whichever version has written it.

    Args:
        task: the kind and the settings.

    Example:
        >>> current({"kind": "TextClassifier", "max_length": 64})
        {'kind': 'classify', 'max_length': 64}
    """
    found = {FORMER_SETTINGS.get(name, name): value for name, value in task.items()}
    if "kind" in found:
        found["kind"] = _FORMER_KINDS.get(found["kind"], found["kind"])
    return found


def _source(cls: type) -> tuple[str, str]:
    """The file of a class and its name there: one file may be two modules, such as by its path."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    return os.path.realpath(file), cls.__qualname__


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
