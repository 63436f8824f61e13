"""What a run shows: a bar where someone watches, whole lines in files."""

import sys

import pytest

from kbert.training.step.verbosity import keras_verbosity
from tests.training import toy_task
from tests.training.run.fine_tuning_toy import EPOCHS, STEPS_PER_EPOCH, compiled_task, main

CONTROLS = ("\b", "\r", "\x1b")


@pytest.fixture
def in_file(monkeypatch):
    """Standard output is no terminal, nor does a notebook run."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)


def test_a_bar_is_for_terminals_and_notebooks(in_file, monkeypatch):
    assert [keras_verbosity(verbose) for verbose in (0, 1, 2, "auto")] == [0, 1, 2, 2]
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True)
        assert keras_verbosity("auto") == 1
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    assert keras_verbosity("auto") == 1
    with pytest.raises(ValueError, match=r"must be 0, 1, 2 or \"auto\".*Received: 'quiet'"):
        keras_verbosity("quiet")


def test_a_file_gets_a_line_an_epoch(in_file, capsys):
    """Of `fine_tune`, of a task's own `fit`, and of its `evaluate`."""
    main(None, task=compiled_task(run_eagerly=True), verbose="auto")
    shown = capsys.readouterr().out
    assert shown.count(f"{STEPS_PER_EPOCH}/{STEPS_PER_EPOCH} - ") == EPOCHS
    assert shown.count("val_loss: ") == EPOCHS
    assert "trained for 18 steps" in shown

    task = compiled_task(run_eagerly=True)
    task.fit(toy_task.dataset(3))
    task.evaluate(toy_task.dataset(2))
    shown += capsys.readouterr().out
    assert shown.count("3/3 - ") == shown.count("2/2 - ") == 1
    assert not any(control in shown for control in CONTROLS)


def test_a_bar_is_drawn_where_it_is_asked_for(in_file, capsys):
    compiled_task(run_eagerly=True).fit(toy_task.dataset(2), verbose=1)
    assert "\x1b[" in capsys.readouterr().out
