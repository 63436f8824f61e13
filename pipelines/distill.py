r"""Distils a model into a small one, as DistilBERT, TinyBERT, MiniLM, MobileBERT: on text, a task.

On the data of a task, from a model that kbert-finetune wrote to a student with half its layers:

  kbert-finetune --task=sst2 --train=SST-2/train.tsv --dev=SST-2/dev.tsv --preset=P --output_dir=big
  kbert-distill --recipe=tinybert-task --task=sst2 --train=SST-2/train.tsv --dev=SST-2/dev.tsv \
    --teacher=big/preset --output_dir=small

The closing table compares both on --dev: metric, what the student retained, parameters, speed. The
flags are those of kbert-finetune, including --seeds, --grid and --dry_run; --epochs and
--learning_rate apply to the last stage, --first_epochs and --first_learning_rate to the stage
before it. --augmented takes a folder of kbert-augment instead of --train. --cache_dir stores the
teacher's outputs for each text, so that it reads a text once for all epochs, runs and students.

On text, from a pretrained model to a student that can be fine-tuned for any task, on shards
prepared with the teacher's vocabulary:

  kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary=TEACHER --output_dir=shards
  kbert-distill --recipe=distilbert --data_dir=shards --teacher=TEACHER --model_dir=run \
    --batch_size=32 --steps=50000 --preset_dir=student

The flags are those of kbert-pretrain: phases, optimizer, strategies, precision, --evaluate_every,
--tensorboard, --dry_run. A recipe changes the defaults of the other flags, and a given flag
overrides it; its batch size is meant for a cluster. A recipe that compares heads needs a teacher
with a masked-LM head; tinybert-general and minilm take any encoder, and write an encoder alone.
mobilebert trains twice, a third of the steps layer by layer (mobilebert-transfer) in a folder of
the run; its teacher is an IB-BERT, kbert-pretrain --recipe=bert --model=ib-bert-large-uncased.

The student and the loss, on either:

  --num_layers=3                          the teacher's width; initialised with every other layer
  --num_layers=6 --init=0,2,4,7,9,11      initialised with these layers, as DistilBERT
  --init=embeddings                       as deep as given, with the teacher's embeddings and heads
  --student=bert-small                    a size of the family or a JSON file, randomly initialised
  --student=FOLDER                        a pretrained or distilled model to start from
  --set=hidden_size=312 --init=random     other fields of the teacher's config
  --layers=2,4,6                          teacher layer for each student layer; uniform, last
  --term_weights=soft_targets=5,own=0     0 removes a term
  --temperature=4                         of soft targets

Killed at any moment, the same command resumes exactly; the teacher is in no checkpoint. After
SIGTERM or Ctrl-C it saves a checkpoint and exits with 143 or 130.
"""

import json
import sys
import textwrap
from typing import cast

from absl import flags

from kbert import experiments
from kbert.core import registry
from kbert.distillation import DistillationExperiment, DistillationRecipe
from kbert.distillation.augmentation import read_augmented
from kbert.distillation.published import table
from kbert.experiments import Result, Series
from kbert.io import atomic
from kbert.io.paths import Path
from kbert.tasks.steps_objective import StepsSettings
from kbert.training.run.values import NonFiniteLoss
from kbert.training.strategies import Strategy, make_strategy

from . import command, option_flags
from .distill_flags import (
    TASK,
    TASK_FLAGS,
    TEXT,
    TEXT_FLAGS,
    DistillationOptions,
    chosen_recipe,
    refuse_other_flags,
    student_arguments,
    student_preset,
)
from .distilled_text import DistilledText, apply_general
from .flags import define_dry_run_flag
from .outputs import keep_what_is_read
from .task_flags import data, define_task_flag, define_task_module_flag, define_task_settings
from .task_run import make_runs
from .training_run import train_objective


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    option_flags.define(DistillationOptions)
    flags.DEFINE_string("preset_dir", None, "Folder for the student at the end.")
    flags.DEFINE_string("export_dir", None, "Folder for a SavedModel of the student, to serve.")
    define_task_module_flag()
    define_task_flag("On a task: the kind of task and its files, see kbert-finetune.")
    define_dry_run_flag()
    # Flags of both are defined as on text; on a task given values are read, and the defaults are
    # those of kbert-finetune.
    for options in (*TEXT, *TASK):
        option_flags.define(options, segments="pairs", learning_rate=None)
    define_task_settings()
    command.define_ignore_flag()
    flags.mark_flags_as_required(["recipe", "teacher"])


def main(argv: list[str]) -> None:
    """Checks the command line and runs the program."""
    if len(argv) > 1:
        sys.exit(f"kbert-distill takes flags only. Received: {argv[1:]}")
    with command.one_line_errors("kbert-distill", RuntimeError, NonFiniteLoss):
        _distill(flags.FLAGS)


def _distill(options: flags.FlagValues) -> None:
    on = [name for name in ("data_dir", "task") if options[name].value is not None]
    if len(on) != 1:
        raise ValueError(
            "A student is trained on text, from a folder of kbert-prepare-corpus (--data_dir), or "
            "on the data of a task (--task): give one of the two. Received: "
            f"{' and '.join(f'--{name}' for name in on) or 'neither'}"
        )
    keep_what_is_read(options, read=("teacher", "student"), written=("preset_dir",))
    if on == ["data_dir"]:
        refuse_other_flags(options, TASK_FLAGS, "on text (--data_dir)")
        _on_text(options)
    else:
        refuse_other_flags(options, TEXT_FLAGS, "on a task (--task)")
        _on_task(options)


def _on_text(options: flags.FlagValues) -> None:
    _needs(options, "model_dir")
    strategy = None
    found = chosen_recipe(options)
    begun = found.first is None or student_preset(options) is not None
    if not begun and options.steps is not None:
        strategy = make_strategy(options.strategy, options.model_devices)
        if not _train_first(options, found, strategy):
            return
    apply_general(options)
    option_flags.read(StepsSettings, options)  # what contradicts itself is refused at once
    strategy = strategy or make_strategy(options.strategy, options.model_devices)
    objective = DistilledText.from_flags(options, strategy)
    train_objective(objective, options, strategy, objective.describe())


def _train_first(options: flags.FlagValues, found: DistillationRecipe, strategy: Strategy) -> bool:
    """Trains by the recipe before the chosen one, in a folder of the run, for its share of steps.

    What it writes is --student then, and --steps are those that are left; nothing of this is
    so where it is a preview.
    """
    folder = Path(options.model_dir) / cast(str, found.first)
    steps = round(found.first_share * options.steps)
    if not 0 < steps < options.steps:
        raise ValueError(
            f"--recipe={found.name} takes {found.first_share:.0%} of the steps for "
            f"{found.first}, and needs more of them. Received: --steps={options.steps}"
        )
    left = options.steps - steps
    values = {
        **{"recipe": found.first, "model_dir": str(folder), "steps": steps},
        **{"preset_dir": str(folder / "preset"), "export_dir": None, "average_checkpoints": 1},
        # Of the terms of the chosen recipe.
        **{"term_weights": [], "temperature": None, "positions": None},
    }
    given = {name: options[name].value for name in values}
    for name, value in values.items():
        options[name].value = value
    apply_general(options)
    objective = DistilledText.from_flags(options, strategy)
    train_objective(objective, options, strategy, objective.describe())
    strategy.agrees(steps)  # all wait until the chief has written the student
    for name, value in given.items():
        options[name].value = value
    if options.dry_run:
        print(f"then {left:,} steps of {found.name}, from the student of these {steps:,}")
        return False
    made = {"student": str(folder / "preset"), "num_layers": None, "init": None, "set": []}
    for name, value in {**made, "steps": left}.items():
        options[name].value = value
    return True


def _on_task(options: flags.FlagValues) -> None:
    _needs(options, "output_dir")
    if (options.train is None) == (options.augmented is None):
        raise ValueError(
            "The student learns from --train, or from --augmented, which holds the same texts and "
            f"more: give one. Received: --train={options.train}, --augmented={options.augmented}"
        )
    # Several hosts find each other before all else.
    experiments.devices(options.strategy, options.model_devices)
    preset = student_preset(options)
    experiment = DistillationExperiment(
        options.task,
        teacher=options.teacher,
        recipe=chosen_recipe(options),
        preset=preset,
        student=None if preset else student_arguments(options),
        first_epochs=options.first_epochs,
        first_learning_rate=options.first_learning_rate,
        cache_dir=options.cache_dir,
        **_tables(options),
    )
    make_runs(experiment, options, lambda outcome: _compare(experiment, outcome))


def _tables(options: flags.FlagValues) -> dict:
    """The arguments of an experiment about data."""
    if options.augmented is None:
        return {"train": options.train, **data(options)}
    given = data(options)
    if given.pop("dev_share") is not None:
        raise ValueError(
            "With --augmented give --dev: a share of the copies would be of texts that are trained "
            f"on. Received: --dev_share={options.dev_share}"
        )
    # Its columns have our names already; those of the other files are as the flags say.
    reading = {name: given.pop(name) for name in ("columns", "label_separator")}
    named = experiments.named_task(options.task)
    for split in ("dev", "test"):
        if given[split] is not None:
            given[split] = experiments.read(named, given[split], split=split, **reading)
    return {"train": read_augmented(options.augmented), **given}


def _compare(experiment: DistillationExperiment, outcome: Result | Series) -> None:
    """The closing table, also as comparison.json."""
    best = outcome if isinstance(outcome, Result) else outcome.best
    found = experiment.compare(
        outcome.preset, experiment.settings(**registry.current(best.settings))
    )
    print(f"\n{found}\n")
    content = json.dumps(found.to_dict(), indent=2) + "\n"
    atomic.write(Path(outcome.folder) / "comparison.json", content.encode())


def _needs(options: flags.FlagValues, name: str) -> None:
    if options[name].value is None:
        raise ValueError(f"--{name} must be given: the folder of the run. Received: none")


def run() -> None:
    """Entry point of the console script."""
    listing = textwrap.indent(table(), "  ")
    command.run(main, define_flags, f"{__doc__}\nRecipes (--recipe):\n\n{listing}\n")


if __name__ == "__main__":
    run()
