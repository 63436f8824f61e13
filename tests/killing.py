"""Programs killed in the middle of their work, as a power cut does it."""

import signal
import subprocess
import time
from pathlib import Path

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
