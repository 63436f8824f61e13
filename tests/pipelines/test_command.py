"""What programs begin and end with: Ctrl-C at any moment, warnings without source."""

import importlib
import signal
import subprocess
import sys
import warnings

import pytest
from absl.testing import flagsaver

from pipelines import command, interrupts
from tests.pipelines.test_flags import PROGRAMS
from tests.processes import LIGHT, ROOT
from tests.waiting import PATIENCE


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As in a terminal: in the background of a shell, the tests' own process ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow.python":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["kbert-pretrain", "--model_dir=nowhere"]
from pipelines.pretrain import run; run()
"""


def test_ctrl_c_while_tensorflow_is_imported():
    process = start("-c", INTERRUPTED)
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, errors) == (130, "", "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_says_what_is_written(name, monkeypatch, capsys):
    """absl formats it: "15 % and" came out as the program's name."""
    program = importlib.import_module(f"pipelines.{name}")
    monkeypatch.setattr(sys, "argv", [f"kbert-{name}"])
    monkeypatch.setattr(sys.modules["__main__"], "__doc__", None)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(interrupts, "raise_as_usual", lambda: None)
    monkeypatch.setattr(command.app, "run", lambda main: command.app.usage(writeto_stdout=True))
    with flagsaver.flagsaver():
        program.run()
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in program.__doc__.splitlines() if line not in shown] == []


PROGRAM = """
import signal, sys, tempfile, warnings
sys.argv = ["kbert-anything"]
from pipelines import command
from absl import logging

def work(options):
    import tensorflow as tf
    from kbert.export import export_saved_model
    from kbert.signatures import Signature

    logging.info("what kbert tells")
    tf.distribute.MirroredStrategy(["CPU:0"])
    double = Signature(lambda x: {"y": 2 * x}, [tf.TensorSpec([None], tf.float32, "x")])
    export_saved_model(tempfile.mkdtemp(), {"double": double})
    warnings.warn("the shards are old")
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        print("cleared away")

command.Program(
    name="kbert-anything", doc="What it does.", define_flags=lambda: None, work=work
).run()
"""


def test_what_a_program_tells_and_ctrl_c_in_the_end():
    process = start("-c", LIGHT + PROGRAM)
    out, errors = process.communicate(timeout=PATIENCE)
    assert "] what kbert tells\n" in errors
    for notice in ("Using MirroredStrategy", "Assets written", "fingerprint", "Sharding"):
        assert notice not in errors
    assert (process.returncode, out) == (130, "cleared away\n")
    assert "Traceback" not in errors
    assert errors.endswith("UserWarning: the shards are old\n")  # no line of source behind it


@pytest.mark.parametrize(
    ("argv", "command", "ends"),
    [
        (["/usr/bin/kbert-pretrain", "--x"], ["python", "/usr/bin/kbert-pretrain"], True),
        (["-m"], ["python", "-m", "kbert.pipelines.predict"], True),
        (["-m"], ["python", "-m", "pytest", "tests/pipelines"], False),
        (["notebook.py"], ["python", "notebook.py"], False),
        ([""], ["python"], False),
    ],
)
def test_only_programs_end_at_once(monkeypatch, argv, command, ends):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", command)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupts.end_at_once("kbert.pipelines")
        assert (signal.getsignal(signal.SIGINT) is not signal.default_int_handler) == ends
        interrupts.raise_as_usual()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # in the background of a shell
        interrupts.end_at_once("kbert.pipelines")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
