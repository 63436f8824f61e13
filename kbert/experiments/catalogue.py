"""Named tasks: their settings, and the named task of a fine-tuned one."""

from typing import Any, cast

from kbert.catalog.named_tasks import TASKS, NamedTask, named_task, task_options
from kbert.core import registry
from kbert.edit import adapters, pruning
from kbert.experiments.settings import Settings, flag_options, settings_of
from kbert.tasks import EncoderTask, TableTask, Task

_ONE_OF = ("adapter", "quantization_aware", "prune_weights")


def settings_for(named: NamedTask, **given: Any) -> Settings:
    """Returns the settings of a named task: its defaults, with some values changed.

    Args:
        named: the task.
        **given: fields of `Settings`, and settings of the task class.

    Raises:
        ValueError: the task class does not have a setting, settings cannot be combined, or a value
            is invalid.
    """
    cls, options = named.task_class, task_options()
    settings = settings_of(cast(Any, options[named.kind]))
    known_names = {
        name for task_settings in options.values() for name in flag_options(task_settings)
    }
    unsupported_names = sorted(known_names - set(settings.names()))
    for name in unsupported_names:
        if given.pop(name, None) is not None:
            raise ValueError(
                f"{cls.__name__} does not support {name}; it supports "
                f"{', '.join(flag_options(cls.options))}. Received: {name}"
            )
    chosen = {x: y for x in _ONE_OF if (y := given.get(x)) not in (None, False)}
    if len(chosen) > 1:
        raise ValueError(
            "adapter, quantization_aware and prune_weights cannot be combined. Received: "
            f"{' with '.join(f'{name}={value!r}' for name, value in chosen.items())}"
        )
    if chosen and not issubclass(cls, EncoderTask):
        raise ValueError(
            f"{next(iter(chosen))} is supported by tasks on encoders only. Received: "
            f"{', '.join(chosen)} for a {cls.__name__}"
        )
    if given.get("prune_weights") is not None:
        pruning.parse(given["prune_weights"])  # raises if it is invalid
    if given.get("adapter") is not None:
        adapter = adapters.parse(given["adapter"])  # raises if it is invalid
        given = {"learning_rate": adapter.learning_rate, **given}
    result = settings.from_arguments({**named.defaults, **given}, "experiments.run")
    if result.tune_threshold and not cls.can_tune(named.fixed):
        raise ValueError(
            "tune_threshold requires questions that may have no answer, or texts with any number "
            f"of labels. Received: tune_threshold=True for {named.name}"
        )
    return result


def task_for(task: Task, name: str | None = None) -> NamedTask:
    """Returns the named task that describes how to read data for a fine-tuned task.

    Args:
        task: the fine-tuned task.
        name: name of a named task of the same kind; None = the one with the task's settings, else
            the generic one.

    Raises:
        ValueError: the task is not a fine-tuned one, or the name is that of a task of another kind.
    """
    if not isinstance(task, TableTask):
        classes = ", ".join(registry.get("task", kind).__name__ for kind in task_options())
        program = task.file_answers.program
        own = "" if program is None else f", and {program} supports files with this one"
        raise ValueError(
            f"The model must be a fine-tuned one: {classes}. Received: a {type(task).__name__}; "
            f"kbert-finetune fine-tunes a pretrained model{own}"
        )
    alike = [named for named in TASKS.values() if named.kind == task.kind]
    # Settings that the names of this kind fix, such as whether a text has any number of labels.
    usual = {key: task.options.field_of(key).default for named in alike for key in named.fixed}
    own = {key: task.settings[key] for key in usual}
    if name is None:
        fitting = [named for named in alike if named.fixed and {**usual, **named.fixed} == own]
        return fitting[0] if fitting else named_task(cast(str, task.kind))
    named = named_task(name)
    if named.kind != task.kind or {**usual, **named.fixed} != own:
        differing = "".join(f" with {k}={own[k]}" for k in own if own[k] != usual[k])
        raise ValueError(
            f"The task {name} requires a {named.task_class.__name__}. Received: a "
            f"{type(task).__name__}{differing}"
        )
    return named
