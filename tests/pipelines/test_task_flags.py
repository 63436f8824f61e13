"""Flags that the programs share, and what their help promises."""

import dataclasses
import re

import pytest
from absl import flags
from absl.testing import flagsaver

from kbert.experiments import Settings
from pipelines import evaluate, finetune, predict, task_flags
from pipelines.task_flags import parse_class_weights


def test_every_setting_has_a_flag():
    assert set(task_flags.SETTINGS) == {field.name for field in dataclasses.fields(Settings)}


def test_a_flag_that_is_not_given_leaves_the_default_to_the_task():
    with flagsaver.flagsaver():
        finetune.define_flags()
        required = ("--task=squad2", "--train=a", "--preset=b", "--output_dir=c")
        flags.FLAGS(["kbert-finetune", *required, "--notune_threshold", "--class_weights=balanced"])
        given = task_flags.settings(flags.FLAGS)
    assert given == {"tune_threshold": False, "class_weights": "balanced"}


@pytest.mark.parametrize("program", [finetune, evaluate, predict])
def test_the_help_tells_of_flags_that_there_are(program):
    with flagsaver.flagsaver():
        before = set(flags.FLAGS)
        program.define_flags()
        defined = set(flags.FLAGS) - before
    told = set(re.findall(r"--([a-z]\w+)", program.__doc__))
    everywhere = {"preset", "output", "input"}  # of the program that comes next
    assert told <= defined | everywhere
    assert len(told) > 4


def test_class_weights():
    assert parse_class_weights(["balanced"]) == "balanced"
    assert parse_class_weights(["a=b=2", "c=0.5"]) == {"a=b": 2.0, "c": 0.5}
