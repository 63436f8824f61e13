"""The folder of one run: its settings, and the results of a finished run.

run.json       task, data and settings at the start of the run; only one process at a time writes to
               the folder
training/      steps.jsonl, evaluations.jsonl, and checkpoints until the run is finished; a run in
               stages has a folder for each
preset/        the best model
adapter/       the adapter of the best model, if it has one (kbert.edit.adapters.load_task)
tasks/         of several tasks: a folder for each, with its answers and reports; with its adapter
               if the encoder was not trained
results.json   the results; written last, so a folder that has it is finished
"""

import json

from kbert.core.types import PathLike
from kbert.experiments.results import Result
from kbert.hub import locate
from kbert.io import atomic
from kbert.io.paths import Path, remove_tree
from kbert.training.run.checkpoints import Checkpoints
from kbert.training.run.record import (
    FIXED,
    SAME,
    Resume,
    check_settings,
    differences,
    weights_checksum,
    write_settings,
)

# Paths of models (which may be moved), and the checksums that identify the models.
PLACES = ("preset", "teacher", "student")
CHECKSUMS = tuple(f"{name}_checksum" for name in PLACES)


class RunFolder:
    """The folder that a run reads and writes.

    Args:
        path: the folder; it is made when something is written.

    Attributes:
        path: the folder.
        training: subfolder of checkpoints and logs.
        preset: subfolder of the best model.

    Example:
        >>> import tempfile
        >>> folder = RunFolder(tempfile.mkdtemp())
        >>> folder.begin({"settings": {"seed": 0}})
        >>> folder.result() is None
        True
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self.training = self.path / "training"
        self.preset = self.path / "preset"
        self._former: bytes | None = None

    def part(self, name: str) -> "RunFolder":
        """Returns the folder of the answers of a task; "" = the only task."""
        return RunFolder(self.path / "tasks" / name) if name else self

    def begin(self, identity: dict, resume: Resume = SAME) -> None:
        """Writes the settings of a new run; compares them if a checkpoint or results exist.

        Args:
            identity: what the results depend on, as JSON can hold it.
            resume: settings that may have changed: "same" = none, "changed" = any, or names, see
                `kbert.training.run.record.check_settings`. For a finished run none may change.

        Raises:
            ValueError: the folder holds another run, a series of runs, or a model that is read.
        """
        self.check_sources(identity)
        runs = sorted(p.parent.name for p in self.path.glob("*/run.json"))
        if other_runs := [name for name in runs if name != self.training.name]:
            raise ValueError(
                f"{self.path} holds a series of runs; choose another folder. Received: "
                f"{', '.join(other_runs)}"
            )
        path = self.path / "run.json"
        if path.exists() and self._has_something():
            missing_checksums = [name for name in CHECKSUMS if identity.get(name) is None]
            unchecked = (*PLACES, *missing_checksums)
            if resume != SAME and self.result() is not None:
                saved = json.loads(path.read_text(encoding="utf-8"))
                if changes := differences(saved, json.loads(json.dumps(identity)), unchecked):
                    listed = "; ".join(f"{name} {change}" for name, change in changes.items())
                    raise ValueError(
                        f"The run in {self.path} is finished, so its settings cannot change: "
                        f"choose another folder. Received: {listed}"
                    )
            former = path.read_bytes()
            check_settings(path, identity, unchecked=unchecked, resume=resume, fixed=FIXED)
            self._former = former
        else:
            write_settings(path, identity)

    def undo_begin(self) -> None:
        """Writes the settings from before `begin` again, if the training refuses the new ones."""
        if self._former is not None:
            atomic.write(self.path / "run.json", self._former)

    def check_sources(self, identity: dict) -> None:
        """Raises ValueError if a model of the identity lies where the best model is written."""
        written = self.preset.resolve()
        for name in PLACES:
            models = identity.get(name)  # joined, if there are several
            for model in models.split(", ") if isinstance(models, str) else ():
                source = Path(model).resolve()
                if written in (source, *source.parents):
                    raise ValueError(
                        f"The best model is written to {self.preset}: choose another folder for "
                        f"the run, or move the {name}. Received: the {name} {model}"
                    )

    def _has_something(self) -> bool:
        """Returns whether there are results or a checkpoint; a failed start leaves neither."""
        if (self.path / "results.json").exists():
            return True
        # A run of several stages has a folder for each.
        folders = self.training.rglob("checkpoints")
        return any(Checkpoints(folder).latest() is not None for folder in folders)

    def result(self) -> Result | None:
        """Returns the result of the run; None if it is not finished."""
        path = self.path / "results.json"
        if not path.exists():
            return None
        return Result.from_dict(self.path, json.loads(path.read_text(encoding="utf-8")))

    def finish(self, result: Result) -> None:
        """Writes the result of the run, and removes the files that only a restart needs."""
        content = json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n"
        atomic.write(self.path / "results.json", content.encode())
        self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        """Removes the checkpoints (weights and optimizer), several times the model's size."""
        for name in ("checkpoints", "best"):
            for folder in list(self.training.rglob(name)):
                remove_tree(folder)


def checksum_of(model: PathLike | None) -> str | None:
    """Returns the checksum of a model's weights; None without model, or if it cannot be found."""
    try:
        return None if model is None else weights_checksum(locate(model))
    except (FileNotFoundError, ConnectionError):
        return None
