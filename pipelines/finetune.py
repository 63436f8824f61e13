r"""A pretrained model and a table of texts to a measured model: classes, tags, answers, choices.

  kbert-finetune --task=classify --train=train.csv --dev=dev.csv --preset=bert-base-uncased \
    --text_column=review --label_column=stars --output_dir=out

First look, then work: --dry_run shows the first examples as tokens with their labels and measures
the time a run will take. Killed at any moment, the same command goes on to the same numbers; a
finished run is only shown. After SIGTERM or Ctrl-C it saves a checkpoint and exits with 143 or 130.
One line for each kind of task:

  kbert-finetune --task=sst2 --train=SST-2/train.tsv --dev=SST-2/dev.tsv --preset=P --output_dir=out
  kbert-finetune --task=classify --train=t.tsv --dev_share=0.1 --pair_columns=question,answer …
  kbert-finetune --task=multilabel --train=t.csv --dev=d.csv --label_column=toxic,insult,threat …
  kbert-finetune --task=regress --train=t.jsonl --dev=d.jsonl --label_column=score …
  kbert-finetune --task=ner --train=train.conll --dev=dev.conll …
  kbert-finetune --task=squad2 --train=train-v2.0.json --dev=dev-v2.0.json …
  kbert-finetune --task=swag --train=train.csv --dev=val.csv …

How sure are the numbers, and which settings are best?

  --seeds=5    five runs that differ in the seed alone: a table with mean and standard deviation
  --grid       BERT's own: learning rates 5e-5 to 2e-5, batches 16 and 32, 2 to 4 epochs, best on
               --dev; the values by --grid_learning_rates and so on

Both go on after a kill, run by run. Where memory is short: --micro_batches=4; faster on GPUs and
new CPUs: --precision=mixed_bfloat16; texts longer than the model: --stride=128 reads windows.

The preset may be a decoder too, such as gpt2, for texts, pairs and choices: its own loss on the
texts is trained along, and --both_orders reads pairs both ways round. GPT was fine-tuned with
--learning_rate=6.25e-5 --warmup_share=0.002.

output_dir holds run.json (all settings), results.json (metrics, seconds, peak memory), preset/ (the
best model), dev_answers.jsonl (every answer beside what was expected), and for classes and tags
dev_report.txt and confusion_matrix.png; training/ has every step's loss and every evaluation. A
--test file is measured too, or without labels answered; of GLUE as a file to hand in.

Then: kbert-predict --preset=out/preset --input=texts.txt --output=answers.jsonl
"""

import shutil
import sys
import textwrap
from pathlib import Path

import tensorflow as tf
from absl import flags, logging

import kbert
from kbert import finetuning
from kbert.finetuning import Result, Series
from kbert.training import NonFiniteLoss
from pipelines import command
from pipelines.pictures import draw_confusion
from pipelines.task_flags import (
    columns,
    define_column_flags,
    define_labels_flag,
    define_settings_flags,
    define_task_flag,
    settings,
)

# What --grid goes through.
_GRID = {
    "learning_rates": finetuning.LEARNING_RATES,
    "batch_sizes": finetuning.BATCH_SIZES,
    "epochs": finetuning.EPOCHS,
}


def define_flags() -> None:
    define_task_flag(None, "What is learned from which files, see below.")
    flags.DEFINE_string("train", None, "Training data: a file, a pattern, or tfds:NAME.")
    flags.DEFINE_string("dev", None, "Development data; it chooses the best checkpoint.")
    flags.DEFINE_float("dev_share", None, "Without --dev: share of --train kept apart.", 0.0, 1.0)
    flags.DEFINE_string("test", None, "Test data, measured at the end; or answered, if unlabelled.")
    define_column_flags()
    define_labels_flag()
    flags.DEFINE_string("preset", None, "The pretrained model: a folder or a name of the hub.")
    flags.DEFINE_string("output_dir", None, "Folder of the run; the same folder, the same run.")
    flags.DEFINE_string("preset_dir", None, "Another folder for the best model.")
    flags.DEFINE_string("export_dir", None, "Folder for a SavedModel of the best, to serve.")
    define_settings_flags()
    flags.DEFINE_integer("seeds", None, "Runs that differ in the seed.", 1)
    flags.DEFINE_boolean("grid", False, "A run for every combination of the paper's settings.")
    for name, values in _GRID.items():
        tried = f"The {name.replace('_', ' ')} that --grid tries."
        flags.DEFINE_list(f"grid_{name}", [f"{value:g}" for value in values], tried)
    flags.DEFINE_boolean("dry_run", False, "Show examples and estimates, and stop.")
    flags.mark_flags_as_required(["task", "train", "preset", "output_dir"])


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        sys.exit(f"kbert-finetune takes flags only. Received: {argv[1:]}")
    with command.one_line_errors("kbert-finetune", RuntimeError, NonFiniteLoss):
        try:
            _finetune(flags.FLAGS)
        except finetuning.Stopped as stopped:
            print(stopped)
            sys.exit(128 + stopped.signal)  # as a shell would say it: the job is not done


def _finetune(options: flags.FlagValues) -> None:
    # Every run of a series traces graphs of its own, which TensorFlow counts together and warns of.
    tf.get_logger().setLevel("ERROR")
    if options.seeds and options.grid:
        raise ValueError("--seeds and --grid are two kinds of series: give one of them")
    experiment = finetuning.Experiment(
        options.task,
        preset=options.preset,
        train=options.train,
        dev=options.dev,
        test=options.test,
        dev_share=options.dev_share,
        labels=options.labels,
        columns=columns(options),
        label_separator=options.label_separator,
    )
    given = settings(options)
    print(experiment.summary())
    if options.dry_run:
        print(finetuning.preview(experiment, **given))
        return
    folder = Path(options.output_dir)
    finished = any((folder / name).exists() for name in ("results.json", "series.json"))
    outcome = _run(experiment, options, given)
    if finished:
        print(f"{folder} holds this, finished before:")
    best = outcome if isinstance(outcome, Result) else outcome.best
    _report(best, folder)
    if isinstance(outcome, Series):
        print(outcome)
        print(f"best: {best.folder.name}")
    print(f"model: {outcome.preset}")
    _publish(outcome.preset, options, finished)


def _run(experiment, options, given: dict) -> Result | Series:
    folder = options.output_dir
    if options.seeds:
        return finetuning.seeds(experiment, folder, count=options.seeds, **given)
    if options.grid:
        return finetuning.grid(
            experiment,
            folder,
            **{name: _numbers(options, name) for name in _GRID},
            **given,
        )
    return finetuning.run(experiment, folder, **given)


def _numbers(options: flags.FlagValues, name: str) -> list[float | int]:
    kind = type(_GRID[name][0])
    given = options[f"grid_{name}"].value
    try:
        return [kind(value) for value in given]
    except ValueError:
        raise ValueError(
            f"--grid_{name} takes numbers, by commas. Received: {','.join(given)}"
        ) from None


def _report(result: Result, folder: Path) -> None:
    """The table, the report by class, the picture."""
    report = result.folder / "dev_report.txt"
    if report.exists():
        print(f"\n{report.read_text(encoding='utf-8')}")
    draw_confusion(result.confusion, folder)
    print(f"{result}\n")
    print(result.summary())


def _publish(preset: Path, options: flags.FlagValues, finished: bool) -> None:
    """Copies and exports the best model; an export of an earlier call is not made again."""
    if options.preset_dir:
        shutil.copytree(preset, options.preset_dir, dirs_exist_ok=True)
        print(f"model written to {options.preset_dir}")
    if options.export_dir and not (finished and Path(options.export_dir).exists()):
        logging.set_verbosity(logging.WARNING)  # what TensorFlow says of its files is no news here
        task = kbert.tasks.Task.from_preset(preset)
        print(f"SavedModel written to {task.export(options.export_dir)}")


def run() -> None:
    """Entry point of the console script."""
    listing = textwrap.indent(finetuning.task_table(), "  ")
    command.run(main, define_flags, f"{__doc__}\nTasks (--task):\n\n{listing}\n")


if __name__ == "__main__":
    run()
