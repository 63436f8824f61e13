"""Tasks by name."""

import inspect

import pytest

from kbert.core import registry
from kbert.core.options import option
from kbert.experiments import TASKS, named_task, settings_for, task_table
from kbert.experiments.settings import settings_of
from kbert.tasks import Columns, FineTuningTask, RowOptions


@pytest.mark.parametrize("name", TASKS)
def test_settings_of_every_task_are_arguments_of_its_class(name):
    named = named_task(name)
    settings = settings_for(named, max_length=16)
    accepted = inspect.signature(named.task_class).parameters
    assert set(named.arguments(settings)) <= set(accepted)
    assert named.name in task_table()


def test_an_unknown_name_lists_the_near_ones_first():
    with pytest.raises(ValueError, match=r"A task must be one of sst2, .*Received: 'sst-2'"):
        named_task("sst-2")


def test_a_setting_without_use_is_refused():
    with pytest.raises(
        ValueError, match=r"MultipleChoice does not support doc_stride; it supports .*max_length"
    ):
        settings_for(named_task("swag"), doc_stride=16)
    squad = named_task("squad")
    assert squad.arguments(settings_for(squad, doc_stride=16)) == {"doc_stride": 16}
    with pytest.raises(ValueError, match="Received: tune_threshold=True for cola"):
        settings_for(named_task("cola"), tune_threshold=True)


def test_published_labels_keep_their_order():
    assert named_task("rte").labels == ("entailment", "not_entailment")
    assert named_task("classify").labels is None


def test_a_task_of_one_s_own_is_there_by_its_kind():
    class Length(FineTuningTask):
        kind = "test_length"
        columns = Columns(inputs=(("body",),), label="tokens")

    named = named_task("test_length")
    assert named.task_class is Length
    assert named.files == "CSV, TSV, JSONL: body, tokens"
    with pytest.raises(
        ValueError, match=r"Length does not support pooling; it supports max_length. Received"
    ):
        settings_for(named, pooling="max")
    with pytest.raises(TypeError, match=r"no such argument. Did you mean: max_length"):
        settings_for(named, max_lenght=9)
    with pytest.raises(ValueError, match=r"A task must be one of test_length, .*--task_module"):
        named_task("test_lenght")

    class SeedOptions(RowOptions):
        seed: int = option(0, help="Its own.")

    with pytest.raises(
        TypeError, match=r"must not have the name of a run's setting. Received: seed of Seed"
    ):
        settings_of(SeedOptions)
    registry._CLASSES["task"].pop("test_length")
