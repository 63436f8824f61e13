"""Exports from JAX or PyTorch, with a copy of the task in a process that runs TensorFlow.

The layers compute the same on every backend, so the copy is made by a preset folder of the task.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import keras

from kbert.core import registry
from kbert.core.types import PathLike
from kbert.decoding.methods import to_json
from kbert.io.paths import absolute

PROGRAM = """
import json, sys
from kbert import tasks
from kbert.core import late, registry
from kbert.decoding.methods import from_json
module, kind, folder, dtype, directory, options = json.loads(sys.argv[1], object_hook=from_json)
late.user_module(module)
task = registry.get("task", kind).from_preset(folder, dtype=dtype)
print(task.export(directory, **options))
"""


def export_copy(task: keras.Model, directory: PathLike, options: dict[str, Any]) -> str:
    """Exports a copy of the task from a new process with TensorFlow, on the CPU.

    Args:
        task: a task that its preset describes completely.
        directory: folder of the model.
        options: further arguments of the task's `export`, such as `format`.

    Returns:
        The path written.

    Raises:
        RuntimeError: the process fails; the message has the end of its error output.
        ValueError: another process cannot find the class of the task.
    """
    task_class: Any = type(getattr(task, "members", [task])[0])  # an ensemble has its members'
    module, kind = _module_of(task_class), task_class.kind
    if registry.find("task", kind) is not task_class:
        raise ValueError(
            "A task's class must declare its own `kind`, by which another process can find it. "
            f"Received: {type(task).__name__} of kind {kind!r}"
        )
    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(folder)
        dtype = task.dtype_policy.name
        order = [module, kind, folder, dtype, absolute(directory), options]
        order = json.dumps(order, default=to_json)
        environment = {
            **os.environ,
            "KERAS_BACKEND": "tensorflow",
            "CUDA_VISIBLE_DEVICES": "-1",  # this process may use all of the GPU's memory
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        process = subprocess.run(
            [sys.executable, "-c", PROGRAM, order], env=environment, capture_output=True, text=True
        )
    if process.returncode:
        raise RuntimeError(
            "The export, which runs in a separate process under TensorFlow, failed. Received: "
            f"{process.stderr[-2000:]}"
        )
    return process.stdout.splitlines()[-1]


def _module_of(cls: type) -> str:
    """Returns what `late.user_module` imports to define a class in another process.

    Returns:
        Name of a module in a package, or else the path of the module's file.

    Raises:
        ValueError: the class is not defined in a file.
    """
    if "." in cls.__module__:
        return cls.__module__
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    if file is None:
        raise ValueError(
            "The export runs in a separate process that imports the task's class, so the class "
            f"must be defined in a file. Received: {cls.__name__} of {cls.__module__}, which has "
            "none"
        )
    return os.path.abspath(file)
