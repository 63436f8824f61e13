"""Programs killed in the middle of their work, as a power cut does it."""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from kbert.training.run.checkpoints import Checkpoints
from tests.waiting import PATIENCE

# The program sends itself the signal: who watches it from outside may be too late.
SIGNALLED = """
import functools, importlib, itertools, os

def signalled(place, calls, number):
    module, _, name = place.partition(":")
    *owners, name = name.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    function, counted = getattr(owner, name), itertools.count(1)

    @functools.wraps(function)
    def counting(*arguments, **options):
        value = function(*arguments, **options)
        if next(counted) == calls:
            os.kill(os.getpid(), number)
        return value

    setattr(owner, name, counting)

"""
PUBLISHED = "kbert.training.run.checkpoints:Checkpoints.publish"  # a checkpoint is on the disk


def signalled(place: str = PUBLISHED, calls: int = 1, number: int = signal.SIGKILL) -> str:
    """Code for `start_program(…, before=…)`: a signal behind so many calls of a function.

    Args:
        place: "module:function" or "module:Class.method", which is looked up in its module when it
            is called.
        calls: behind which call.
        number: the signal.
    """
    return f"{SIGNALLED}signalled({place!r}, {calls}, {int(number)})\n"


def ends_killed(process: subprocess.Popen) -> None:
    """Waits for the end of a program that was started with `signalled()`."""
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL, errors[-3000:]


def ends_before(process: subprocess.Popen, model_dir: Path, last_step: int) -> None:
    """`ends_killed` of a run, which leaves a checkpoint, and not its last."""
    ends_killed(process)
    assert Checkpoints(model_dir / "checkpoints").steps()[-1] < last_step


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
