r"""Evaluates a fine-tuned model on labelled data: metrics, report per class, every answer.

  kbert-evaluate --preset=out/preset --data=test.csv --text_column=review --label_column=stars
  kbert-evaluate --preset=out/preset --task=sst2 --data=SST-2/dev.tsv --output_dir=report
  kbert-evaluate --preset=out/preset --task=squad2 --data=dev-v2.0.json --tune_threshold \
    --preset_dir=tuned

--task selects how the file is read; the default depends on the kind of the model: classify,
multilabel, regress, tag, answer, choose or embed. With --output_dir it writes metrics.json,
test_answers.jsonl (every answer with the label), and for classes and tags test_report.txt and
confusion_matrix.png.

--tune_threshold finds the best threshold on these data: for SQuAD 2.0's "no answer", or, in models
with any number of labels per text, for the probability above which a text has a label. The model
with this threshold is written to --preset_dir. Tune on development data, not on the test set.

The test sets of GLUE and SuperGLUE have no labels: --submission writes predictions in the format
to upload.

  kbert-evaluate --preset=out/preset --task=cola --data=CoLA/test.tsv --submission --output_dir=glue
"""

import json

from absl import flags

import kbert
from kbert import experiments
from kbert.checkpoints.preset import check_target
from kbert.io.paths import Path

from . import command, option_flags
from .outputs import keep_what_is_read
from .pictures import draw_confusion
from .task_flags import (
    ColumnOptions,
    columns,
    define_task_flag,
    define_task_module_flag,
    tasks_and_data_sets,
)


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    flags.DEFINE_string("preset", None, "Folder of the fine-tuned model.")
    flags.DEFINE_string(
        "data", None, "Labelled data: a file, a pattern, tfds:NAME, or a benchmark's folder."
    )
    define_task_module_flag(with_options=False)
    define_task_flag("Format of the data, see below. Default: as the model's kind.")
    option_flags.define(ColumnOptions)
    flags.DEFINE_string("output_dir", None, "Folder for the metrics, the report and the answers.")
    flags.DEFINE_integer("batch_size", 32, "Rows per forward pass.", 1)
    flags.DEFINE_boolean(
        "submission", False, "Write the submission file of GLUE or SuperGLUE into --output_dir."
    )
    flags.DEFINE_boolean("tune_threshold", False, "Find the best threshold on the data.")
    flags.DEFINE_string(
        "preset_dir", None, "With --tune_threshold: folder for the model with the best threshold."
    )
    command.define_ignore_flag()
    flags.mark_flags_as_required(["preset", "data"])


def _evaluate(options: flags.FlagValues) -> None:
    """Evaluates the model on --data, or writes a submission; may tune its threshold."""
    if options.submission and not options.output_dir:
        raise ValueError("--submission requires --output_dir")
    if options.submission:
        tuning = ("tune_threshold", "preset_dir")
        option_flags.refuse(options, tuning, "with --submission, whose data have no labels")
    if options.preset_dir and not options.tune_threshold:
        raise ValueError(
            "--preset_dir requires --tune_threshold: it is the folder for the model with that "
            "threshold"
        )
    keep_what_is_read(options, ("preset",), ("preset_dir",))
    task = kbert.tasks.Task.from_preset(options.preset)
    if options.preset_dir:
        check_target(options.preset_dir, task.kind)
    named = experiments.task_for(task, options.task)
    table = experiments.read(
        named,
        options.data,
        split="test" if options.submission else "dev",
        columns=columns(options),
        label_separator=options.label_separator,
    )
    folder = Path(options.output_dir) if options.output_dir else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    if options.submission:
        experiments.check_submission(named, table)
        answers = task.predict(table, batch_size=options.batch_size)
        path = experiments.write_submission(named, table, answers, folder)
        print(f"{len(table):,} answers written to {path}")
        return
    if options.tune_threshold:
        print(experiments.tune_threshold(task, table, batch_size=options.batch_size))
        if options.preset_dir:
            task.save_to_preset(options.preset_dir)
            print(f"model with this threshold written to {options.preset_dir}")
    evaluation = experiments.predict_and_score(task, table, batch_size=options.batch_size)
    print(f"\n{evaluation}")
    if folder:
        evaluation.write(folder, "test", table)
        path = folder / "metrics.json"
        path.write_text(json.dumps(evaluation.metrics, indent=2) + "\n", encoding="utf-8")
        draw_confusion(evaluation.confusion, folder)
        print(f"\nwritten to {folder}")


PROGRAM = command.Program(
    name="kbert-evaluate",
    doc=__doc__,
    define_flags=define_flags,
    work=_evaluate,
    files=("data",),
    models=("preset",),
    listing=("Tasks (--task)", tasks_and_data_sets),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
