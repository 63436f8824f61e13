r"""Predicts with a fine-tuned model: any number of texts in, one line of JSON each out.

  kbert-predict --preset=out/preset --input=texts.txt --output=answers.jsonl
  kbert-predict --preset=out/preset --input=reviews.csv.gz --text_column=review --output=a.jsonl
  kbert-predict --preset=out/preset --input=p.tsv --pair_columns=question,answer --output=a.jsonl
  cat texts.txt | kbert-predict --preset=out/preset --input=- --output=-

What it reads, plain or .gz; - is text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; flags name the columns
  *.jsonl         one object per line: text, or first and second, or words (a list), or question and
                  context, or context and choices (a list)

Answers are in the order of the input and include the text: {"text": "…", "label": "spam",
"probability": 0.98, …}. Memory does not grow with the input. Killed at any moment, the same command
resumes where it was; it refuses another input or model.

Many files on many machines, by Apache Beam (pip install 'kbert[beam]'): --input is a pattern,
--output a folder for predictions-00000-of-00012.jsonl and so on, one a file in the order of names,
each with the bytes of a local run. All machines must see the preset, the input and the folder:

  kbert-predict --preset=out/preset --input='texts/*.jsonl.gz' --output=answers \
      --runner=beam --beam_flags='--runner=FlinkRunner --flink_master=HOST:8081'
"""

import sys

from absl import flags

import kbert
from kbert import experiments
from kbert.progress import Progress

from . import beam_flags, command, option_flags
from .task_flags import ColumnOptions, columns, define_task_module_flag


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    flags.DEFINE_string("preset", None, "Folder of the fine-tuned model.")
    define_task_module_flag(with_options=False)
    flags.DEFINE_string("input", None, "A .txt, .csv, .tsv or .jsonl file, or - for text lines.")
    flags.DEFINE_string("output", None, "A .jsonl file, or - for standard output.")
    beam_flags.define()
    option_flags.define(ColumnOptions)
    flags.DEFINE_integer("batch_size", 32, "Rows per forward pass.", 1)
    flags.mark_flags_as_required(["preset", "input", "output"])


def main(argv: list[str]) -> None:
    """Checks the command line and runs the program."""
    if len(argv) > 1:
        sys.exit(f"kbert-predict takes flags only. Received: {argv[1:]}")
    with command.one_line_errors("kbert-predict", ImportError):
        _predict(flags.FLAGS)


def _predict(options: flags.FlagValues) -> None:
    given = beam_flags.read(options)
    if given is not None:
        _predict_on_beam(options, given)
        return
    task = kbert.tasks.Task.from_preset(options.preset)
    named = experiments.task_for(task)
    records = experiments.Records(options.input, named.kind, columns(options))
    if options.output == "-":
        for line in experiments.answer_stream(task, records, batch_size=options.batch_size):
            print(line, flush=True)
        return
    identity = {
        "model": experiments.model_checksum(task),
        "columns": columns(options),
        "bytes of the input": records.size,
    }
    output = experiments.AnswerFile(options.output, identity)
    if output.finished:
        print(f"{options.output} holds {output.records:,} answers, finished", file=sys.stderr)
        return
    with Progress(options.output, records.size, "B", "answers") as bar:
        for answered in experiments.answer_records(
            task, records, output, batch_size=options.batch_size
        ):
            bar.show(records.consumed, answered)
    print(f"{output.records:,} answers in {options.output}", file=sys.stderr)


def _predict_on_beam(options: flags.FlagValues, given: list[str]) -> None:
    if "-" in (options.input, options.output):
        raise ValueError(
            "--runner=beam reads files and writes into a folder. Received: "
            f"--input={options.input}, --output={options.output}"
        )
    records = experiments.answer_on_beam(
        options.preset,
        options.input,
        options.output,
        given,
        columns=columns(options),
        batch_size=options.batch_size,
        task_module=options.task_module,
    )
    print(f"{records:,} answers in {options.output}", file=sys.stderr)


def run() -> None:
    """Entry point of the console script."""
    command.run(main, define_flags, __doc__)


if __name__ == "__main__":
    run()
