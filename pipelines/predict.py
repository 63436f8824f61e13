r"""Predicts with a fine-tuned model: any number of texts in, one line of JSON each out.

  kbert-predict --preset=out/preset --input=texts.txt --output=answers.jsonl
  kbert-predict --preset=out/preset --input=reviews.csv.gz --text_column=review --output=a.jsonl
  kbert-predict --preset=out/preset --input=p.tsv --pair_columns=question,answer --output=a.jsonl
  cat texts.txt | kbert-predict --preset=out/preset --input=- --output=-
  kbert-predict --preset=bart-large-mnli --candidate_labels=sports,politics --input=texts.txt \
      --output=answers.jsonl

Input formats, plain or .gz; --input=- reads lines of text from standard input:

  texts.txt       one text per line; an empty line is an empty text
  *.csv, *.tsv    a header, then one record per line; flags name the columns
  *.jsonl         one object per line: text, or first and second, or words (a list), or question and
                  context, or context and choices (a list)
  *.parquet, *.arrow, *.feather   the same columns, not gzipped (pip install 'kbert[arrow]')
  tfds:NAME       a TensorFlow dataset; "/CONFIG" and ":SPLIT" may follow (default: test)

Answers are in the order of the input and include the text: {"text": "…", "label": "spam",
"probability": 0.98, …}. Memory use does not grow with the input. After a kill at any moment, the
same command resumes where it stopped; it refuses another input or model. For embeddings,
translations, continuations and masks use kbert-embed, kbert-translate, kbert-generate and
kbert-fill-mask.

--candidate_labels classifies texts into any classes (zero-shot), with a classifier whose labels
are entailment and contradiction or the like. --multi_label allows several for a text.

--runner=beam predicts many files on many machines, by Apache Beam (pip install 'kbert[beam]').
Then --input is a pattern, and --output a folder for predictions-00000-of-00012.jsonl and so on: one
per input file, in the order of their names, with the same bytes as on one machine. All machines
must see the preset, the input and the folder:

  kbert-predict --preset=out/preset --input='texts/*.jsonl.gz' --output=answers \
      --runner=beam --beam_flags='--runner=FlinkRunner --flink_master=HOST:8081'
"""

import sys

from absl import flags

from kbert import experiments, tasks
from kbert.tasks.fine_tuning.options import ZeroShotOptions

from . import answering, beam_flags, command, option_flags
from .task_flags import ColumnOptions, columns


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    answering.define_flags(ColumnOptions, ZeroShotOptions)
    beam_flags.define()


def _predict(options: flags.FlagValues) -> None:
    """Answers one input on this machine, or many files on Apache Beam (--runner=beam)."""
    beam_arguments = beam_flags.read(options)
    if beam_arguments is not None:
        _predict_on_beam(options, beam_arguments)
        return
    arguments = (options, columns(options), ZeroShotOptions)
    answering.answer("kbert-predict", tasks.FineTuningTask, *arguments)


def _predict_on_beam(options: flags.FlagValues, given: list[str]) -> None:
    """Answers many files on Apache Beam; `given` are flags of Beam."""
    if "-" in (options.input, options.output):
        raise ValueError(
            "--runner=beam requires files as --input and a folder as --output. Received: "
            f"--input={options.input}, --output={options.output}"
        )
    if given_options := option_flags.given(ZeroShotOptions, options):
        raise ValueError(
            f"--runner=beam does not support --{' and --'.join(given_options)}: leave out "
            "--runner. Received: both"
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


PROGRAM = command.Program(
    name="kbert-predict",
    doc=__doc__,
    define_flags=define_flags,
    work=_predict,
    files=("input",),
    models=("preset",),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
