"""Tasks by name."""

import inspect

import pytest

from kbert import tasks
from kbert.experiments import TASKS, Settings, named_task, task_table


@pytest.mark.parametrize("name", TASKS)
def test_settings_of_every_task_are_arguments_of_its_class(name):
    named = named_task(name)
    settings = Settings(**named.defaults, max_length=16)
    accepted = inspect.signature(getattr(tasks, named.kind)).parameters
    assert set(named.arguments(settings)) <= set(accepted)
    assert named.name in task_table()


def test_an_unknown_name_lists_the_near_ones_first():
    with pytest.raises(ValueError, match=r"A task is one of sst2, .*Received: 'sst-2'"):
        named_task("sst-2")


def test_a_setting_without_use_is_refused():
    with pytest.raises(ValueError, match="A MultipleChoice has no stride; it takes max_length"):
        named_task("swag").arguments(Settings(stride=16))
    assert named_task("squad").arguments(Settings(stride=16)) == {"doc_stride": 16}
    with pytest.raises(ValueError, match="Received: tune_threshold=True for cola"):
        named_task("cola").arguments(Settings(tune_threshold=True))


def test_published_labels_keep_their_order():
    assert named_task("rte").labels == ("entailment", "not_entailment")
    assert named_task("classify").labels is None
