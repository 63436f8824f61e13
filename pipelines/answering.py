"""Common part of the programs that answer texts: flags, model, the loop to a file or a pipe."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from absl import flags

from kbert import experiments
from kbert.core import registry
from kbert.core.options import Options
from kbert.io.progress import Progress
from kbert.tasks.file_answers import NoAnswerOptions

from . import command, option_flags
from .task_flags import TextColumnOptions, define_task_module_flag

if TYPE_CHECKING:
    from kbert.experiments import AnswerFile, Records
    from kbert.tasks import Task

Columns = Mapping[str, Any]
VECTORS = "kbert-embed"  # the program that writes embeddings


def define_flags(columns: type[Options], answers: type[Options]) -> None:
    """Declares the flags; called when a program starts, never on import.

    Args:
        columns: options class for the columns of the input.
        answers: options class for the answers.
    """
    flags.DEFINE_string(
        "preset", None, "Folder or name of the model, or a folder written by kbert-export."
    )
    define_task_module_flag(with_options=False)
    flags.DEFINE_string(
        "input",
        None,
        "A .txt, .csv, .tsv, .jsonl, .parquet, .arrow or .feather file, tfds:NAME, or - for lines "
        "of standard input.",
    )
    flags.DEFINE_string("output", None, "File of the answers, or - for standard output.")
    flags.DEFINE_integer("batch_size", 32, "Rows per forward pass.", 1)
    option_flags.define(columns)
    option_flags.define(answers)
    command.define_ignore_flag()
    flags.mark_flags_as_required(["preset", "input", "output"])


def text_program(
    name: str,
    doc: str,
    kind: str,
    answers: type[Options],
    model: tuple[type[Options], Mapping[str, str]] = (NoAnswerOptions, {}),
) -> command.Program:
    """Makes a program that answers texts.

    Args:
        name: name of the program.
        doc: help text of the program.
        kind: kind of the tasks that it supports.
        answers: options class for the answers.
        model: options class for settings of the task, and the names of its fields in the task.
    """
    model_options, names = model

    def work(options: flags.FlagValues) -> None:
        columns = {"text": options.text_column or "text"}
        settings = {names[k]: x for k, x in option_flags.given(model_options, options).items()}
        answer(name, registry.get("task", kind), options, columns, answers, **settings)

    def define() -> None:
        define_flags(TextColumnOptions, answers)
        option_flags.define(model_options)

    return command.Program(
        name=name,
        doc=doc,
        define_flags=define,
        work=work,
        files=("input",),
        models=("preset",),
    )


def answer(
    program: str,
    task_class: "type[Task]",
    options: flags.FlagValues,
    columns: Any,
    answers: type[Options],
    **settings: Any,
) -> None:
    """Answers the records of --input with the task of --preset, and writes them to --output.

    Args:
        program: name of the program.
        task_class: class of the tasks that the program supports.
        options: the parsed flags.
        columns: kbert's name of a column -> the file's name.
        answers: options class for the answers, of which a task may support none.
        **settings: constructor arguments of the task that replace those of the preset.

    Raises:
        ValueError: a flag of `answers` was given that the task does not support.
    """
    task, checksum = experiments.answering_task(program, task_class, options.preset, **settings)
    own_options = type(task).file_answers.options
    unsupported = {*option_flags.given(answers, options)} - {*own_options.names()}
    if unsupported:
        raise ValueError(
            f"{', '.join(f'--{name}' for name in sorted(unsupported))} cannot be given for this "
            f"task. Received: a {type(task).__name__}"
        )
    chosen = option_flags.read(own_options, options)
    records = experiments.Records(options.input, str(task.kind), columns)
    arguments: dict[str, Any] = {"batch_size": options.batch_size, "options": chosen}
    if options.output == "-":
        _to_standard_output(task, records, arguments)
        return
    identity = {
        "model": checksum(),
        "tokenizer": task.tokenizer.checksum,
        "columns": columns,
        "bytes of the input": records.size,
        **chosen.identity(),
    }
    output = _output(program, options.output, identity, task)
    finished = output.finished  # if so, input and output are only checked
    with Progress(options.output, records.size, "B", "answers", int(not finished)) as bar:
        for answered in experiments.answer_records(task, records, output, **arguments):
            bar.show(records.consumed, answered)
    summary = f"{output.records:,} answers"
    print(
        f"{options.output} is complete: {summary}"
        if finished
        else f"{summary} in {options.output}",
        file=sys.stderr,
    )


def _output(program: str, path: str, identity: dict[str, Any], task: "Task") -> "AnswerFile":
    """Returns the output file: vectors if its name ends in .npy, else JSON lines.

    Args:
        program: name of the program; only kbert-embed writes vectors, others raise ValueError.
        path: the file.
        identity: what the answers depend on besides the input.
        task: task that answers.
    """
    vectors = path.endswith(".npy")
    if vectors and program != VECTORS:
        raise ValueError(
            f"--output can be a .npy file for {VECTORS} only. Received: --output={path} of "
            f"{program}"
        )
    return experiments.AnswerFile(path, identity, cast(Any, task).width if vectors else None)


def _to_standard_output(task: "Task", records: "Records", how: Mapping[str, Any]) -> None:
    """Prints each batch's answers once computed; stops silently if the reader closes the pipe."""
    try:
        for line in experiments.answer_stream(task, records, **how):
            print(line, flush=True)
    except BrokenPipeError:  # the reader has closed the pipe, like `head`
        # Python flushes standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
