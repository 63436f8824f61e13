"""The folder of a run: the files under `model_dir`, from which a run resumes.

run.json             settings of the run at its first start
steps.jsonl          exact values of every step, each step once
evaluations.jsonl    values of every evaluation
checkpoints/         the last few checkpoints (`kbert.training.run.checkpoints`)
best/                the best weights that those checkpoints refer to
tensorboard/         curves, on request
"""

import warnings
from collections.abc import Collection, Mapping
from typing import Any

from absl import logging

from kbert.core.late import optional
from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.io.paths import Path
from kbert.training.run.checkpoints import Checkpoints
from kbert.training.run.curves import Curves
from kbert.training.run.log import RunLog
from kbert.training.run.record import FILE_NAME, Resume, check_settings, write_settings
from kbert.training.run.settings import RunSettings


class RunFiles:
    """The files of one run.

    Args:
        folder: `model_dir` of the run.
        settings: Settings of the run: the number of checkpoints, and whether curves are written.
        is_chief: Whether this process writes the files.
    """

    def __init__(self, folder: PathLike, settings: RunSettings, *, is_chief: bool) -> None:
        self.folder = Path(folder)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", settings.keep_checkpoints)
        self.steps = RunLog(self.folder / "steps.jsonl")
        self.evaluations = RunLog(self.folder / "evaluations.jsonl")
        self.best = self.folder / "best"
        self.is_chief = is_chief
        self.curves = None
        if settings.tensorboard and is_chief:
            self.curves = Curves(self.folder / "tensorboard")
            try:
                optional("tensorboard", "tensorboard", f"Viewing {self.folder}/tensorboard")
            except ImportError as error:
                logging.warning("%s. The curves are written without it.", error)

    def open(
        self,
        settings: Mapping[str, Any],
        unchecked: Collection[str],
        resume: Resume,
        end: int | None = None,
        fixed: Collection[str] = (),
    ) -> dict[str, Any] | None:
        """Prepares the folder; returns its newest checkpoint (`Checkpoints.latest`), None if new.

        Compares `run.json` with the settings, or writes it. Logs are truncated to the checkpoint.

        Args:
            settings: settings of the run, JSON-serialisable.
            unchecked: names of settings that may differ, since no result depends on them.
            resume: accepted changes, see `check_settings`.
            end: updates of the whole run; None = not checked.
            fixed: names of settings that no resumed run may change.

        Raises:
            ValueError: The folder has a run with other settings, or only damaged checkpoints.
        """
        latest = self.checkpoints.latest()
        path = self.folder / FILE_NAME
        if latest is not None and path.exists():
            check_settings(
                path,
                settings,
                unchecked=unchecked,
                resume=resume,
                step=latest["step"],
                end=end,
                fixed=fixed,
                writes=self.is_chief,
            )
        elif self.is_chief:
            if latest is not None:
                warnings.warn(
                    f"{self.folder} has checkpoints but no run.json: step {latest['step']} is "
                    "resumed without a check that the run had these settings",
                    stacklevel=3,
                )
            write_settings(path, settings)
        step = 0 if latest is None else latest["step"]
        if self.is_chief:
            atomic.remove_leftovers(str(self.folder))
            for checkpoints in (self.checkpoints, Checkpoints(self.best)):
                checkpoints.remove_leftovers()
            self.checkpoints.remove_bridges(step)
            for log in (self.steps, self.evaluations):
                log.truncate(step)
        return latest
