r"""Fine-tunes a pretrained model on labelled texts: classes, tags, answers, summaries and more.

  kbert-finetune --task=classify --train=train.csv --dev=dev.csv --preset=bert-base-uncased \
    --text_column=review --label_column=stars --output_dir=out

--dry_run shows the first examples as tokens with their labels and measures the time a run will
take. After a kill at any moment, the same command resumes and gives the same numbers; for a
finished run it shows the results. After SIGTERM or Ctrl-C it saves a checkpoint and exits with 143
or 130. One command for each kind of task:

  kbert-finetune --task=sst2 --train=SST-2/train.tsv --dev=SST-2/dev.tsv --preset=P --output_dir=out
  kbert-finetune --task=classify --train=t.tsv --dev_share=0.1 --pair_columns=question,answer …
  kbert-finetune --task=multilabel --train=t.csv --dev=d.csv --label_column=toxic,insult,threat …
  kbert-finetune --task=regress --train=t.jsonl --dev=d.jsonl --label_column=score …
  kbert-finetune --task=ner --train=train.conll --dev=dev.conll …
  kbert-finetune --task=squad2 --train=train-v2.0.json --dev=dev-v2.0.json …
  kbert-finetune --task=swag --train=train.csv --dev=val.csv …
  kbert-finetune --task=boolq --train=tfds:super_glue/boolq --dev=tfds:super_glue/boolq …
  kbert-finetune --task=summarize --train=t.jsonl --dev=d.jsonl --label_column=summary …
  kbert-finetune --task=translate --train=t.tsv --text_column=en --label_column=de --prefix=…
  kbert-finetune --task_module=FILE.py --task=KIND …     a custom task, see docs/own_task.md

Several tasks on one encoder (MT-DNN), described in a file, with a table of metrics at the end:

  kbert-finetune --tasks=tasks.toml --preset=bert-base-uncased --output_dir=out

  sampling = "annealed"             # or proportional, sqrt, uniform; also steps_per_epoch
  defaults = {max_length = 128}     # keys of every task

  [tasks.mnli]                      # paths are relative to the file
  train = "MNLI/train.tsv"
  dev = "MNLI/dev_matched.tsv"

  [tasks.praise]                    # any name, with a --task
  task = "classify"
  train = "reviews.csv"
  dev_share = 0.1
  columns = {text = "review", label = "stars"}

Each task has a preset in out/preset, such as out/preset/mnli, for kbert-predict, kbert-evaluate and
kbert-export. A single task can be fine-tuned further from all of them, with a new head:

  kbert-finetune --task=rte --train=RTE --dev=RTE --preset=out/preset --output_dir=rte

How certain are the numbers, and which settings are best?

  --seeds=5    five runs that differ in the seed: a table with mean and standard deviation;
               --ensemble writes them as one model that averages their probabilities, --soup the
               mean of their weights
  --grid       the BERT paper's: learning rates 5e-5 to 2e-5, batches 16 and 32, 2 to 4 epochs,
               best on --dev; other values with --grid_learning_rates and so on

Both resume after a kill, run by run. To save memory: --micro_batches=4; for training data larger
than memory: --rows_folder=rows. Faster on GPUs and new CPUs: --precision=mixed_bfloat16. For texts
longer than the model's maximum: --doc_stride=128 splits them into windows.

The preset may be a decoder such as gpt2, for texts, pairs and choices. Then its language-model loss
on the texts is added to the task's loss, and --both_orders reads pairs in both orders. GPT was
fine-tuned with --learning_rate=6.25e-5 --warmup_share=0.002.

Summaries and translations need an encoder-decoder such as BART or T5, or an encoder, from which
both of its sides start. Each evaluation generates texts: --beam_width=4 makes them better and
slower. Several references of a text are a list in JSON lines, or --label_column=first,second.

output_dir holds run.json (all settings), results.json (metrics, seconds, peak memory), preset/ (the
best model), dev_answers.jsonl (every answer with the label), and for classes and tags
dev_report.txt and confusion_matrix.png; training/ has every step's loss and every evaluation. A
--test file is evaluated too, or predicted if it has no labels; for GLUE and SuperGLUE as a
submission file.

Then: kbert-predict --preset=out/preset --input=texts.txt --output=answers.jsonl
(texts from texts: kbert-generate)
"""

from typing import Any

from absl import flags

from kbert import experiments
from kbert.training.run.values import NonFiniteLoss

from . import command, option_flags, task_run
from .flags import ResumeOptions
from .outputs import keep_what_is_read
from .task_flags import (
    DataOptions,
    SeriesOptions,
    data,
    define_task_flag,
    define_task_module_flag,
    define_task_settings,
    tasks_and_data_sets,
)


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    define_task_module_flag()
    define_task_flag("Kind of task and format of its files, see below.")
    flags.DEFINE_string(
        "tasks", None, "Instead of --task and its data: a TOML or JSON file of several tasks."
    )
    option_flags.define(DataOptions)
    flags.DEFINE_string("preset", None, "Pretrained model: a folder or a name on the hub.")
    flags.DEFINE_string("output_dir", None, "Folder of the run; the same folder resumes it.")
    flags.DEFINE_string("preset_dir", None, "Folder for a copy of the best model.")
    flags.DEFINE_string("export_dir", None, "Folder for a SavedModel of the best, to serve.")
    define_task_settings()
    option_flags.define(SeriesOptions)
    option_flags.define(ResumeOptions)
    flags.DEFINE_boolean("dry_run", False, "Show examples and estimates, and stop.")
    command.define_ignore_flag()
    flags.mark_flags_as_required(["preset", "output_dir"])


def _check(options: flags.FlagValues) -> None:
    """Raises ValueError unless the flags are those of one task, or of a file of several."""
    if (options.task is None) == (options.tasks is None):
        raise ValueError(
            "Exactly one of --task and --tasks (a file of several) must be given. Received: "
            f"--task={options.task}, --tasks={options.tasks}"
        )
    if options.task is not None and options.train is None:
        raise ValueError("--train must be given: the training data. Received: none")
    given = option_flags.given(DataOptions, options)
    if options.tasks is not None and given:
        raise ValueError(
            "With --tasks the data is described in the file. Received: "
            f"{', '.join(f'--{name}' for name in given)}"
        )


def _finetune(options: flags.FlagValues) -> None:
    """Fine-tunes the model that the flags describe, in one run or several."""
    written = ("output_dir", "preset_dir", "export_dir", "rows_folder")
    keep_what_is_read(options, read=("preset",), written=written)
    # First of all, several hosts must find each other.
    experiments.devices(options.strategy, options.model_devices)
    experiment: Any
    if options.tasks is not None:
        experiment = experiments.read_task_file(options.tasks, preset=options.preset)
    else:
        experiment = experiments.Experiment(
            options.task, preset=options.preset, train=options.train, **data(options)
        )
    task_run.make_runs(experiment, options)


PROGRAM = command.Program(
    name="kbert-finetune",
    doc=__doc__,
    define_flags=define_flags,
    work=_finetune,
    errors=(
        RuntimeError,
        NonFiniteLoss,
    ),
    files=("train", "dev", "test", "tasks"),
    check=_check,
    models=("preset",),
    is_finished=task_run.is_finished,
    listing=("Tasks (--task)", tasks_and_data_sets),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
