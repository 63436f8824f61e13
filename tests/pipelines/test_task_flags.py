"""Flags that the programs share, and what their help promises."""

import re

import pytest
from absl import flags
from absl.testing import flagsaver

from kbert.experiments import Settings
from pipelines import evaluate, finetune, option_flags, predict


def test_a_flag_that_is_not_given_leaves_the_default_to_the_task():
    with flagsaver.flagsaver():
        finetune.define_flags()
        required = ("--task=squad2", "--train=a", "--preset=b", "--output_dir=c")
        flags.FLAGS(["kbert-finetune", *required, "--notune_threshold", "--class_weights=balanced"])
        given = option_flags.given(Settings, flags.FLAGS)
    assert given == {"tune_threshold": False, "class_weights": "balanced"}


@pytest.mark.parametrize("program", [finetune, evaluate, predict])
def test_the_help_tells_of_flags_that_there_are(program):
    with flagsaver.flagsaver():
        before = set(flags.FLAGS)
        program.define_flags()
        defined = set(flags.FLAGS) - before
    told = set(re.findall(r"--([a-z]\w+)", program.__doc__))
    everywhere = {"preset", "output", "input"}  # of the program that comes next
    of_beam = {"flink_master"}
    assert told <= defined | everywhere | of_beam
    assert len(told) > 4
