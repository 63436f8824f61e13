"""What is imported by a name: the one place of it.

Names in files and flags decide what a program needs: the format of a folder, the kind of a task or
of a model, a package of an extra, a user's own module. The public names of a package load on first
use. Everything else is imported where a module begins.
"""

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# Sort -> name -> "module", or "module:attribute". Higher rooms are named here alone.
TABLE = {
    # In the order in which a folder is tried. Each has `is_folder(path)` and
    # `read_folder(path) -> Checkpoint`.
    "checkpoint format": {
        "kbert": "kbert.checkpoints.preset",
        "huggingface": "kbert.checkpoints.huggingface.huggingface",
        "keras_hub": "kbert.checkpoints.keras_hub.checkpoint",
        "keras_nlp": "kbert.checkpoints.keras_hub.model_h5",
        "tf_hub": "kbert.checkpoints.google.saved_model",
        "google": "kbert.checkpoints.google.checkpoint",
        "bilm": "kbert.checkpoints.bilm.checkpoint",
        "fairseq": "kbert.checkpoints.fairseq.checkpoint",
    },
}


def public_names(package: str) -> tuple[Callable, Callable, list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names load on first use.

    The names are those that its `__init__.py` imports under `if TYPE_CHECKING:`, for type checkers
    and editors, and those that it imports at once: a function in a module of the same name.

    Args:
        package: its `__name__`, called while it is imported.

    Example:
        >>> import kbert.configs
        >>> "ElmoConfig" in vars(kbert.configs), kbert.configs.ElmoConfig.kind
        (False, 'elmo')
    """
    module = sys.modules[package]
    loader: Any = module.__spec__.loader if module.__spec__ else None
    places = {}
    for statement in ast.parse(loader.get_source(package)).body:
        inner = statement.body if isinstance(statement, ast.If) else [statement]
        for line in inner:
            if isinstance(line, ast.ImportFrom) and line.module:
                places |= {x.asname: (line.module, x.name) for x in line.names if x.asname}

    def getattribute(name: str) -> Any:
        path = f"{package}.{name}"
        place = places.get(name)
        if place is not None and place[0] != package:
            value = getattr(importlib.import_module(place[0]), place[1])
        elif not name.startswith("__") and importlib.util.find_spec(path):
            value = importlib.import_module(path)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        setattr(module, name, value)
        return value

    return getattribute, lambda: sorted({*vars(module), *places}), sorted(places)


def load(sort: str, name: str) -> Any:
    """What a name of the table stands for.

    Example:
        >>> load("checkpoint format", "kbert").__name__
        'kbert.checkpoints.preset'
    """
    module, _, attribute = TABLE[sort][name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def load_each(sort: str) -> Iterator[tuple[str, Any]]:
    """The names of a sort and what they stand for, each imported when its turn comes."""
    return ((name, load(sort, name)) for name in TABLE[sort])


def optional(module: str, extra: str) -> ModuleType:
    """A module of a package that an extra installs.

    Args:
        module: its name.
        extra: of `pip install 'kbert[EXTRA]'`.

    Raises:
        ImportError: it is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This format needs the extra: pip install 'kbert[{extra}]'. Received: {error}"
        ) from error


def user_module(module: str) -> ModuleType:
    """Imports a module by its name, or a Python file, so that its classes register.

    Args:
        module: such as "my_package.ordinal" or "tasks/ordinal.py".

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no such module.
    """
    if not module.endswith(".py"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ValueError(
                "A module is named as in an import, from a folder of PYTHONPATH, or by its file "
                f"(….py). Received: {module!r} ({error})"
            ) from error
    path = Path(module).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"There is no such file of a module. Received: {module!r}")
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if os.path.realpath(getattr(loaded, "__file__", None) or "") == os.fspath(path):
            return loaded
        raise ValueError(
            "The name of a module's file must not be that of another module. "
            f"Received: {module!r}, next to {loaded.__name__} of {loaded.__file__}"
        )
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return made
