"""Checkpoints that a run resumes from exactly: weights, optimizer, dropout seeds, data position.

A checkpoint has two files: `step-00000100.safetensors` with the arrays and `step-00000100.json`
with their description. The JSON is written last and removed first, and each file gets its name only
when it is complete. So a process that dies at any moment leaves a whole checkpoint or none. The
files are the same on every backend.
"""

import itertools
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from kbert.core.types import PathLike
from kbert.io import atomic, fingerprints
from kbert.io.arrays import check_arrays, check_finite, read_safetensors, write_safetensors
from kbert.io.paths import Path
from kbert.training.step.mixin import TrainStep

FORMAT_VERSION = 1
WEIGHTS = "weights/"  # prefix of the names of weights
# Name of a checkpoint's files without the suffix; others, such as "step-00000002 (copy)", are not
# the run's.
_NAME = re.compile(r"step-(\d{8,})")


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: Folder of the checkpoints; all hosts must see the same one.
        keep: Number of newest checkpoints to keep.

    Example:
        >>> import tempfile
        >>> Checkpoints(tempfile.mkdtemp()).latest() is None
        True
    """

    def __init__(self, folder: PathLike, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"`keep` must be at least 1. Received: {keep}")
        self.folder = Path(folder)
        self.keep = keep

    def save(self, task: TrainStep, step: int, progress: dict[str, Any] | None = None) -> None:
        """Saves a checkpoint to resume from after `step` updates; call it on the chief only.

        Args:
            task: The compiled task.
            step: Updates made.
            progress: Further state of the run, JSON-serialisable.

        Raises:
            ValueError: A weight or a moment is not finite.
        """
        self.publish(copy_state(task), step, progress or {})

    def publish(self, arrays: dict[str, np.ndarray], step: int, progress: dict[str, Any]) -> None:
        """Writes a checkpoint, then removes older ones, so that the `keep` newest remain.

        Earlier checkpoints that only bridge the time to this one are removed first.

        Args:
            arrays: state from `copy_state`.
            step: updates made.
            progress: further state of the run, JSON-serialisable.

        Raises:
            ValueError: a weight or a moment is not finite.
        """
        position = [int(i) for i in arrays["data_position"]]
        self.write(arrays, step, {"position": position, "progress": progress})
        self.remove_bridges(step)
        self.remove(self.steps()[: -self.keep])

    def write(self, arrays: dict[str, np.ndarray], step: int, info: dict[str, Any]) -> None:
        """Writes the two files of a checkpoint; removes no other checkpoints.

        Args:
            arrays: name -> array; ValueError if one is not finite.
            step: updates made.
            info: further entries of the JSON file.
        """
        path = self._path(step)
        check_finite(arrays, str(path))
        self.folder.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        write_safetensors(path, arrays)
        crc32 = fingerprints.crc32_of_files(path)
        info = {"format_version": FORMAT_VERSION, "step": step, **info, "crc32": crc32}
        # A callback may have put NumPy numbers into the history.
        atomic.write(path.with_suffix(".json"), json.dumps(info, default=float).encode())

    def remove(self, steps: Iterable[int]) -> None:
        """Removes the checkpoints of `steps`; each must exist."""
        for step in steps:
            self._path(step).with_suffix(".json").unlink()
            self._path(step).unlink()

    def remove_bridges(self, step: int) -> None:
        """Removes the checkpoints before `step` that were written only by the clock or at a stop.

        Otherwise the checkpoints that are kept, and averaged at the end, would depend on a run's
        speed and on when it was stopped. The checkpoint of `step` must be complete. Call this at
        the start of a run too: a process may die after writing that checkpoint and before this
        call.
        """
        for earlier_step in [x for x in self.steps() if x < step]:
            try:
                info = json.loads(self._path(earlier_step).with_suffix(".json").read_bytes())
                is_bridge = info["progress"].get("bridge", False)
            except (ValueError, KeyError):  # damaged: `latest` skips it with a warning
                continue
            if is_bridge:
                self.remove([earlier_step])

    def remove_leftovers(self) -> None:
        """Removes files of a process killed while saving; call it on the chief, at the start."""
        if not self.folder.exists():
            return
        atomic.remove_leftovers(str(self.folder))
        for path in self.folder.glob("step-*.safetensors"):
            if _NAME.fullmatch(path.stem) and not path.with_suffix(".json").exists():
                path.unlink()

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending."""
        names = [_NAME.fullmatch(path.stem) for path in self.folder.glob("step-*.json")]
        return sorted(int(name[1]) for name in names if name)

    def describe(self) -> str:
        """Returns a sentence about the newest checkpoint, for messages."""
        steps = self.steps()
        if not steps:
            return f"No checkpoint was saved in {self.folder}. "
        return f"The last good checkpoint is that of step {steps[-1]}, in {self.folder}. "

    def latest(self) -> dict[str, Any] | None:
        """Returns `step`, `position` and `progress` of the newest undamaged checkpoint.

        `None` if there is no checkpoint.

        A damaged checkpoint is skipped with a warning: resuming from an older one gives the same
        numbers and costs only time. If all are damaged, this raises: starting over silently would
        discard the run.

        Raises:
            ValueError: There are checkpoints and all are damaged.
        """
        problems = []
        for step in reversed(self.steps()):
            try:
                return self.info(step)
            except (OSError, ValueError, KeyError) as error:
                problems.append(str(error))
                warnings.warn(
                    f"Checkpoint of step {step} is damaged and skipped: {error}", stacklevel=2
                )
        if problems:
            raise ValueError(
                "Every checkpoint of the run is damaged. To start over, empty the folder or choose "
                f"another. Received: {self.folder}: " + "; ".join(problems)
            )
        return None

    def restore(self, task: TrainStep, step: int) -> None:
        """Restores weights, optimizer, seeds and position of the checkpoint of `step`.

        Args:
            task: The compiled task, after `prepare`, with the same sizes and optimizer.
            step: A step that `steps` lists.

        Raises:
            ValueError: The checkpoint does not fit the task; every difference is listed and nothing
                is restored.
        """
        set_variables(named_state(task), self.read(step), str(self._path(step)))

    def read(self, step: int) -> dict[str, np.ndarray]:
        """Returns name -> array of the checkpoint of `step`; the checksum is not verified."""
        return read_safetensors(self._path(step))

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"

    def info(self, step: int) -> dict[str, Any]:
        """Returns the content of the JSON file of the checkpoint of `step`; verifies the checksum.

        Raises:
            ValueError: The checkpoint is damaged, or has another format version.
        """
        path = self._path(step)
        info = json.loads(path.with_suffix(".json").read_text())
        if info["format_version"] != FORMAT_VERSION:
            raise ValueError(
                f"{path} must be of format {FORMAT_VERSION}. Received: {info['format_version']}"
            )
        if fingerprints.crc32_of_files(path) != info["crc32"]:
            raise ValueError(f"{path} is damaged or was changed: its checksum differs")
        return info


def named_state(task: TrainStep) -> dict[str, keras.Variable]:
    """Returns {name: variable} of everything a run resumes from; names are based on paths.

    The names of the model and the optimizer are removed from the paths: Keras numbers them when a
    process creates several. Dropout seeds are named by their order. Two equal names raise
    ValueError, or are numbered if the task allows equal paths (`repeats_paths`).
    """
    state = task.step_state.saved()
    num_seeds = 0
    weights = [*task.trainable_variables, *task.non_trainable_variables]
    groups = [
        (WEIGHTS, task.name, weights),
        ("optimizer/", task.optimizer.name, task.optimizer.variables),
    ]
    for group, owner, variables in groups:
        for variable in variables:
            if variable.name == "seed_generator_state":
                name = f"seeds/{num_seeds}"
                num_seeds += 1
            else:
                name = group + path_below(variable, owner)
            if name in state and task.repeats_paths:
                name = next(x for n in itertools.count(1) if (x := f"{name}/{n}") not in state)
            if name in state:
                raise ValueError(
                    "Paths of a task's variables must be unique, since checkpoints use them as "
                    f"names. Received: two of {variable.path!r}"
                )
            state[name] = variable
    return state


def path_below(variable: keras.Variable, owner: str) -> str:
    """Returns the path of a variable without the name of its model or optimizer, `owner`."""
    return variable.path.removeprefix(f"{owner}/")


def copy_state(task: TrainStep) -> dict[str, np.ndarray]:
    """Returns name -> copy of the current value, for everything in `named_state`."""
    if hasattr(task, "jax_state_sync"):
        task.jax_state_sync()  # within fit, JAX keeps the state outside the variables
    return read_variables(named_state(task))


def read_variables(variables: Mapping[str, keras.Variable]) -> dict[str, np.ndarray]:
    """Returns name -> copy of the value; a scalar becomes a vector of one element."""
    # On some backends `numpy` is a view of memory that the next step writes to; "O" is owned.
    return {
        name: np.atleast_1d(np.require(variable.numpy(), requirements="O"))
        for name, variable in variables.items()
    }


def set_variables(
    variables: Mapping[str, keras.Variable], arrays: Mapping[str, np.ndarray], source: str
) -> None:
    """Sets all variables to the arrays of their names, as `read_variables` returns them.

    Args:
        variables: name -> variable.
        arrays: name -> array.
        source: origin of the arrays, for the error message.

    Raises:
        ValueError: names or shapes differ, or an array is not finite; no variable is changed.
    """
    shapes = {name: tuple(variable.shape) or (1,) for name, variable in variables.items()}
    check_arrays(shapes, arrays, source)
    for name, variable in variables.items():
        variable.assign(arrays[name].reshape(variable.shape))
