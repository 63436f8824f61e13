"""Names -> classes for what folders and flags name: kinds of tasks, parts of models.

A class registers itself when its module defines it (`Registered`). The modules of kbert's own
classes are listed in `kbert.core.late.TABLE` and imported on demand. A folder causes no other
import: a user who loads a folder with a custom class must import its module first. Programs do this
with `--task_module`.
"""

import difflib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from kbert.core import late

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Sort -> name -> class; the sort is "task", "part", "edit", ….
_CLASSES: dict[str, dict[str, type]] = {}

# Names of task kinds and settings in presets and runs of the previous version -> today's names.
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
    """Registers a class under a name.

    A class that is defined again, such as in a notebook cell that is run twice, replaces itself.

    Args:
        sort: sort of the class: "task", "part", "edit", ….
        name: name of the class, unique in its sort.
        cls: the class.

    Raises:
        ValueError: the name belongs to another class.
    """
    classes = _CLASSES.setdefault(sort, {})
    previous = classes.get(name, cls)
    origin = late.TABLE.get(sort, {}).get(name, _place(previous)).replace(":", ".")
    if origin != _place(cls) and (previous is cls or _source(previous) != _source(cls)):
        raise ValueError(
            f"Every {sort} must have a unique name, but {name!r} is already registered for "
            f"{origin}. Received: {_place(cls)}"
        )
    classes[name] = cls


def register_own(sort: str, cls: type) -> None:
    """Registers a class of a sort ("task", …) under its `kind`; an inherited one does not count."""
    if (kind := cls.__dict__.get("kind")) is not None:
        register(sort, kind, cls)


class Registered:
    """Base of classes that folders and flags name: each registers its `kind` when it is defined.

    Args:
        sort: Sort of the classes: "task", "part", "edit", …; subclasses inherit it.

    Attributes:
        kind: The name, unique in its sort; a class that does not define one is not registered.

    Raises:
        ValueError: The name belongs to another class.

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
    """Returns the class of a sort ("task", "part", …) with this name, imported if it is kbert's.

    It is None if neither kbert nor an imported module defines the name.
    """
    cls = loaded(sort, name)
    if cls is None and name in late.TABLE.get(sort, {}):
        cls = _CLASSES.setdefault(sort, {})[name] = late.load(sort, name)
    return cls


def loaded(sort: str, name: str) -> type | None:
    """Returns the class of a sort with this name, if its module has been imported; else None."""
    return _CLASSES.get(sort, {}).get(name)


def get(sort: str, name: str) -> type:
    """Returns the class of a sort ("task", "part", …) with this name, imported if it is kbert's.

    Raises:
        ValueError: no class has this name; the message lists all names, the most similar first.

    Example:
        >>> get("task", "classify").__name__
        'TextClassifier'
    """
    cls = find(sort, name)
    if cls is None:
        near = difflib.get_close_matches(name, names(sort), n=len(names(sort)), cutoff=0.0)
        article = "An" if sort[0] in "aeiou" else "A"
        raise ValueError(f"{article} {sort} must be one of {', '.join(near)}. Received: {name!r}")
    return cls


def names(sort: str) -> list[str]:
    """Returns all names of the classes of a sort ("task", "part", …), kbert's own first."""
    return list(late.TABLE.get(sort, {}) | _CLASSES.get(sort, {}))


def current(task: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the record of a task, written by any version, to today's names.

    Args:
        task: kind and settings of the task.

    Example:
        >>> current({"kind": "TextClassifier", "max_length": 64})
        {'kind': 'classify', 'max_length': 64}
    """
    record = {FORMER_SETTINGS.get(name, name): value for name, value in task.items()}
    if "kind" in record:
        record["kind"] = _FORMER_KINDS.get(record["kind"], record["kind"])
    return record


def _source(cls: type) -> tuple[str, str]:
    """Returns file and qualified name of a class: one file may be loaded as two modules."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    return os.path.realpath(file), cls.__qualname__


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
