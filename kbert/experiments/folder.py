"""The folder of one run: what it is, and once it is finished, what came of it.

run.json       task, data and settings, as they were when the run was begun
training/      steps.jsonl, evaluations.jsonl, and checkpoints until the run is finished; of a run
               in stages a folder for each
preset/        the best model
results.json   what came of it; written last, so a folder that has it is finished
"""

import json
import os
import shutil
from pathlib import Path

from kbert import atomic, registry
from kbert.experiments.results import Result
from kbert.training.run.checkpoints import Checkpoints
from kbert.version import __version__


class RunFolder:
    """Where a run reads and writes.

    Args:
        path: the folder; made when something is written.

    Example:
        >>> import tempfile
        >>> folder = RunFolder(tempfile.mkdtemp())
        >>> folder.begin({"settings": {"seed": 0}})
        >>> folder.result() is None
        True
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
        self.training = self.path / "training"
        self.preset = self.path / "preset"

    def begin(self, identity: dict) -> None:
        """Notes what the run is; of a run that has a checkpoint, checks that it is the same.

        Args:
            identity: what the results depend on, as JSON can hold it, two levels deep.

        Raises:
            ValueError: the folder holds another run, or a series of runs.
        """
        runs = sorted(p.parent.name for p in self.path.glob("*/run.json"))
        if others := [name for name in runs if name != self.training.name]:
            raise ValueError(
                f"{self.path} holds a series of runs; name another folder. "
                f"Received: {', '.join(others)}"
            )
        identity = json.loads(json.dumps(identity))
        path = self.path / "run.json"
        if not path.exists() or not self._has_something():
            self.path.mkdir(parents=True, exist_ok=True)
            _write(path, {"kbert": __version__, **identity})
            return
        before = {name: x for name, x in _read(path).items() if name != "kbert"}
        before = _flat({**before, "settings": registry.current(before.get("settings", {}))})
        now = _flat(identity)
        # A setting that the version before did not know is none that has changed.
        now = {k: v for k, v in now.items() if k in before or not k.startswith("settings.")}
        changed = [
            f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        ]
        if changed:
            raise ValueError(
                f"{self.path} holds another run. To go on with that one give what it was begun "
                f"with; for a new one, name another folder. Received: {'; '.join(changed)}"
            )

    def _has_something(self) -> bool:
        """Whether a restart would find a result or a checkpoint; bad settings end without."""
        if (self.path / "results.json").exists():
            return True
        # A run of several stages has a folder for each.
        folders = self.training.rglob("checkpoints")
        return any(Checkpoints(folder).latest() is not None for folder in folders)

    def result(self) -> Result | None:
        """What came of the run, if it is finished."""
        path = self.path / "results.json"
        return Result.from_dict(self.path, _read(path)) if path.exists() else None

    def finish(self, result: Result) -> None:
        """Notes what came of the run, and removes what only its restart would have needed."""
        _write(self.path / "results.json", result.to_dict())
        self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        """Removes them, weights and optimizer, several times the model's size."""
        for name in ("checkpoints", "best"):
            for folder in list(self.training.rglob(name)):
                shutil.rmtree(folder, ignore_errors=True)


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, content: dict) -> None:
    atomic.write(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def _flat(content: dict) -> dict:
    """Groups under joined names; anything deeper is a value."""
    flat = {}
    for name, value in content.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": x for inner, x in value.items()}
        else:
            flat[name] = value
    return flat
