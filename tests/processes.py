"""Programs in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
# TensorFlow imports these where they are, for what no program here does, and they cost as much
# time as the rest of it.
WITHOUT = ("jax", "pandas", "sklearn")
# A job in the background ignores SIGINT, and so would all that it starts.
INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
LIGHT = f"import sys; sys.modules.update(dict.fromkeys({WITHOUT!r}))\n"


def run_code(code: str, *, environment=None, **changes: str) -> str:
    """What the code prints; it sees kbert, the tests, and the environment with these changes."""
    environment = os.environ if environment is None else environment
    done = subprocess.run(
        [sys.executable, "-c", LIGHT + code],
        env={**environment, "PYTHONPATH": str(ROOT), **changes},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run_alone(test: str) -> None:
    """Runs a test by its id in a process of its own, for what pytest's workers do not survive."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", test],
        cwd=ROOT,
        env={k: x for k, x in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def start_program(name: str, *flags: str, light: bool = True, before: str = "") -> subprocess.Popen:
    """`kbert-NAME` with these flags, as its console script starts it.

    Args:
        name: of the program.
        flags: its flags.
        light: without `WITHOUT`.
        before: code that runs first.
    """
    light_code = LIGHT if light else ""
    code = f"{INTERRUPTIBLE}{light_code}{before}from pipelines.{name} import run; run()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends_well(process: subprocess.Popen) -> str:
    """What a program prints; it must end with 0."""
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors[-3000:]
    return out
