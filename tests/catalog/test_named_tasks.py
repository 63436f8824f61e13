"""Named tasks as values: what they name is there, and a list of them needs no TensorFlow."""

import subprocess
import sys

import pytest

from kbert.catalog.named_tasks import TASKS, task_table
from kbert.core import late
from kbert.experiments.readers import READERS
from kbert.tasks import TableTask
from tests.processes import ROOT


@pytest.mark.parametrize("name", TASKS)
def test_what_a_name_stands_for_is_there(name):
    named = TASKS[name]
    assert named.name == name
    assert named.kind in late.TABLE["task"]
    assert issubclass(named.task_class, TableTask)
    assert callable(READERS[named.reader])
    row = next(line for line in task_table().splitlines() if line.split()[0] == name)
    assert row.split()[1] == named.task_class.__name__
    assert row.endswith(named.files)


def test_every_reader_is_some_task_s():
    assert {named.reader for named in TASKS.values()} == {*READERS}


def test_the_list_needs_neither_tensorflow_nor_keras():
    code = """import sys
sys.modules |= dict.fromkeys(("tensorflow", "keras", "numpy"))
from kbert.catalog.named_tasks import task_table
print(task_table())"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == task_table() + "\n", done.stderr
