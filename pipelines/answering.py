"""What the programs share that answer texts: flags, the model, the loop to a file or a pipe."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from absl import flags

from kbert import experiments
from kbert.core.options import Options
from kbert.io.paths import exists
from kbert.io.progress import Progress
from kbert.serving.exported import DESCRIPTION_FILE
from kbert.tasks import FineTuningTask, Task, load_exported
from kbert.tasks.loading import WrongTaskError

from . import command, option_flags
from .task_flags import TextColumnOptions, define_task_module_flag

Columns = Mapping[str, Any]
VECTORS = "kbert-embed"  # the program whose answers are vectors


def define_flags(columns: type[Options], answers: type[Options]) -> None:
    """Declares the flags; called when a program starts, never on import.

    Args:
        columns: of the input.
        answers: what may be chosen of answers.
    """
    flags.DEFINE_string("preset", None, "Folder or name of the model, or what kbert-export wrote.")
    define_task_module_flag(with_options=False)
    flags.DEFINE_string("input", None, "A .txt, .csv, .tsv or .jsonl file, or - for text lines.")
    flags.DEFINE_string("output", None, "File of the answers, or - for standard output.")
    flags.DEFINE_integer("batch_size", 32, "Rows that go through the model together.", 1)
    option_flags.define(columns)
    option_flags.define(answers)
    command.define_ignore_flag()
    flags.mark_flags_as_required(["preset", "input", "output"])


def define_text_flags(task: type[Task]) -> None:
    """As `define_flags`, of a program whose input is texts.

    Args:
        task: the class of tasks.
    """
    define_flags(TextColumnOptions, task.file_answers.options)


def main(program: str, task: type[Task], argv: list[str]) -> None:
    """Checks the command line and runs a program whose input is texts."""
    check_arguments(program, argv)
    with command.one_line_errors(program):
        options = flags.FLAGS
        answer(program, task, options, {"text": options.text_column or "text"})


def check_arguments(program: str, argv: list[str]) -> None:
    """Ends the program where there is more than flags."""
    if len(argv) > 1:
        sys.exit(f"{program} takes flags only. Received: {argv[1:]}")


def answer(program: str, task_class: type[Task], options: flags.FlagValues, columns: Any) -> None:
    """Answers the input.

    Args:
        program: its name.
        task_class: the class of tasks that it is for.
        options: the flags.
        columns: our name of a column -> the file's.
    """
    task, checksum = load(program, task_class, options.preset)
    chosen = option_flags.read(task_class.file_answers.options, options)
    records = experiments.Records(options.input, str(task.kind), columns)
    how: dict[str, Any] = {"batch_size": options.batch_size, "options": chosen}
    if options.output == "-":
        _to_standard_output(task, records, how)
        return
    identity = {
        "model": checksum(),
        "tokenizer": task.tokenizer.checksum,
        "columns": columns,
        "bytes of the input": records.size,
        **chosen.identity(),
    }
    output = _output(program, options.output, identity, task)
    finished = output.finished  # then the input and the output are read, and none is answered
    with Progress(options.output, records.size, "B", "answers", int(not finished)) as bar:
        for answered in experiments.answer_records(task, records, output, **how):
            bar.show(records.consumed, answered)
    said = f"{output.records:,} answers"
    print(
        f"{options.output} holds {said}, finished" if finished else f"{said} in {options.output}",
        file=sys.stderr,
    )


def load(program: str, task_class: type[Task], folder: str) -> tuple[Task, Callable[[], str]]:
    """The task of a folder, and what computes a checksum of its weights and settings.

    Args:
        program: its name.
        task_class: the class of tasks that it is for.
        folder: of a preset, or of an export to a runtime.

    Raises:
        ValueError: it holds another task; the message names the program that answers with it.
    """
    if exists(os.path.join(folder, DESCRIPTION_FILE)):
        exported = load_exported(folder)
        found = type(exported.task)
        if not _fits(program, task_class, found):
            raise ValueError(_wrong(program, found, folder))
        return exported.task, lambda: exported.checksum
    try:
        task = task_class.from_preset(folder)
    except WrongTaskError as error:
        if error.found is None:
            raise
        if not _fits(program, task_class, error.found):
            raise ValueError(_wrong(program, error.found, folder)) from error
        task = error.found.from_preset(folder)
    return task, lambda: experiments.model_checksum(task)


def _fits(program: str, wanted: type[Task], found: type[Task]) -> bool:
    return issubclass(found, wanted) or found.file_answers.program == program


def _wrong(program: str, found: type[Task], folder: str) -> str:
    own = found.file_answers.program
    use = f"use {own}" if own else "no program answers files with it"
    if program == FineTuningTask.file_answers.program:
        use += "; kbert-finetune makes a fine-tuned model of a pretrained one"
    return (
        f"{program} does not answer with such a model: {use}. "
        f"Received: a {found.__name__} in {folder}"
    )


def _output(
    program: str, path: str, identity: dict[str, Any], task: Task
) -> experiments.AnswerFile:
    vectors = path.endswith(".npy")
    if vectors and program != VECTORS:
        raise ValueError(
            f"A .npy file holds the vectors that {VECTORS} writes. "
            f"Received: --output={path} of {program}"
        )
    return experiments.AnswerFile(path, identity, cast(Any, task).width if vectors else None)


def _to_standard_output(task: Task, records: experiments.Records, how: Mapping[str, Any]) -> None:
    try:
        for line in experiments.answer_stream(task, records, **how):
            print(line, flush=True)
    except BrokenPipeError:  # who reads it has seen enough, as `head` does
        # Python flushes it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
