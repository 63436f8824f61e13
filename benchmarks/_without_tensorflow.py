"""Lets kbert be imported where TensorFlow is not installed, once this module is.

TensorFlow makes the input of runs and is nothing of a step on JAX: a machine that only times steps
does without. Names of it give a placeholder, which annotations, decorators and constants take.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _AnyName(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __instancecheck__(cls, instance: Any) -> bool:
        return False


class _Placeholder(metaclass=_AnyName):
    pass


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in ("tensorflow", "tensorflow_text"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = lambda name: getattr(_Placeholder, name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


sys.meta_path.insert(0, _Finder())
