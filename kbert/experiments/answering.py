"""Loads the task that a program answers files with, from a preset or an export to a runtime."""

import os
from collections.abc import Callable
from typing import Any

from kbert.core.types import PathLike
from kbert.experiments.answer_file import model_checksum
from kbert.export import load_exported
from kbert.export.folder import DESCRIPTION_FILE
from kbert.io.paths import exists
from kbert.tasks import EncoderTask, FineTuningTask, Task
from kbert.tasks.loading import WrongTaskError


def answering_task(
    program: str, task_class: type[Task], folder: PathLike, **settings: Any
) -> tuple[Task, Callable[[], str]]:
    """Loads, from a preset or an export, the task with which a program answers files.

    Args:
        program: name of the program, such as "kbert-predict".
        task_class: class of the tasks that the program supports.
        folder: a preset, or an export to a runtime.
        **settings: constructor arguments of the task that replace those of a preset.

    Returns:
        The task, and a function that computes a checksum: of weights and settings, or of the
        export's files.

    Raises:
        ValueError: the folder holds another task; the message names the program for it. Or it is an
            export, whose settings are fixed.
    """
    if exists(os.path.join(folder, DESCRIPTION_FILE)):
        if settings:
            raise ValueError(
                "The layers and the pooling of an export are fixed: pass the preset that it was "
                f"made from. Received: {', '.join(settings)} for the export {folder}"
            )
        exported = load_exported(folder)
        exported_class = type(exported.task)
        if not _fits(program, exported_class):
            raise ValueError(_wrong(program, exported_class, folder))
        return exported.task, lambda: exported.checksum
    try:
        task = task_class.from_preset(folder, **settings)
        found = type(task)
    except WrongTaskError as error:
        if error.found is None:
            raise
        task, found = None, error.found
        if task_class.file_answers.pretrained and _is_pretrained(found):
            task = task_class.from_preset(folder, new_head=True, **settings)
            found = type(task)
    if not _fits(program, found):
        raise ValueError(_wrong(program, found, folder))
    if task is None:
        task = found.from_preset(folder, **settings)
    return task, lambda: model_checksum(task)


def _fits(program: str, found: type[Task]) -> bool:
    """Returns whether a program supports tasks of class `found`."""
    return found.file_answers.program == program


def _is_pretrained(found: type[Task]) -> bool:
    """Returns whether tasks of class `found` pretrain an encoder, which any embedder can take."""
    return issubclass(found, EncoderTask) and not issubclass(found, FineTuningTask)


def _wrong(program: str, found: type[Task], folder: PathLike) -> str:
    """Returns the message that a program does not support tasks of class `found`."""
    own_program = found.file_answers.program
    use = f"use {own_program}" if own_program else "no program supports it for files"
    if program == FineTuningTask.file_answers.program:
        use += "; kbert-finetune fine-tunes a pretrained model"
    return f"{program} does not support this model: {use}. Received: a {found.__name__} in {folder}"
