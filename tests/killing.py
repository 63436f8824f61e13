"""Programs killed in the middle of their work, as a power cut does it."""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from kbert.training.run.checkpoints import Checkpoints


def kill_after_checkpoint(process: subprocess.Popen, model_dir: Path, last_step: int) -> None:
    """SIGKILL once a checkpoint is there; fails where the run had reached its end by then."""
    checkpoints = Checkpoints(model_dir / "checkpoints")
    while not checkpoints.steps() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    steps = checkpoints.steps()
    assert steps, f"it ended before its first checkpoint: {errors}"
    assert steps[-1] < last_step, "it was too fast to be killed"


@contextlib.contextmanager
def copied_at(step: int, model_dir: Path, copy: Path) -> Iterator[None]:
    """`copy` becomes what a kill after the checkpoint of `step` leaves; the run continues."""
    publish = Checkpoints.publish

    def publish_and_copy(self, arrays, at, progress):
        publish(self, arrays, at, progress)
        if at == step and self.folder.parent == model_dir:
            shutil.copytree(model_dir, copy)

    with mock.patch.object(Checkpoints, "publish", publish_and_copy):
        yield
    assert Checkpoints(copy / "checkpoints").steps()[-1] == step
