"""The work of `kbert-distill`: on text, or on a task."""

import json
from typing import cast

from absl import flags

from kbert import experiments
from kbert.core import registry
from kbert.distillation import DistillationExperiment, DistillationRecipe
from kbert.distillation.augmentation import read_augmented
from kbert.experiments import Result, Series
from kbert.io import atomic
from kbert.io.paths import Path
from kbert.tasks.settings import StepsSettings
from kbert.training.strategies import Strategy, make_strategy

from . import option_flags
from .distill_flags import (
    chosen_recipe,
    flags_of_modes,
    student_arguments,
    student_preset,
)
from .distilled_text import DistilledText, apply_general
from .outputs import keep_what_is_read
from .task_flags import data
from .task_run import make_runs
from .training_run import train_objective


def distill(options: flags.FlagValues) -> None:
    """Trains a student on text or on a task, depending on the flags."""
    on = [name for name in ("data_dir", "task") if options[name].value is not None]
    if len(on) != 1:
        raise ValueError(
            "Exactly one of --data_dir (text: a folder written by kbert-prepare-corpus) and "
            "--task (the data of a task) must be given. Received: "
            f"{' and '.join(f'--{name}' for name in on) or 'neither'}"
        )
    keep_what_is_read(options, read=("teacher", "student"), written=("preset_dir",))
    text_flags, task_flags = flags_of_modes()
    if on == ["data_dir"]:
        option_flags.refuse(options, task_flags, "on text (--data_dir)")
        if len(options.teacher) != 1:
            raise ValueError(
                "--teacher must be a single model on text (--data_dir); on a task (--task) it may "
                f"be several. Received: --teacher={','.join(options.teacher)}"
            )
        options["teacher"].value = options.teacher[0]
        _on_text(options)
    else:
        option_flags.refuse(options, text_flags, "on a task (--task)")
        _on_task(options)


def _on_text(options: flags.FlagValues) -> None:
    """Trains a student on shards (--data_dir); some recipes train with another recipe first."""
    _needs(options, "model_dir")
    strategy = None
    chosen = chosen_recipe(options)
    has_start = chosen.first is None or student_preset(options) is not None
    if not has_start and options.steps is not None:
        strategy = make_strategy(options.strategy, options.model_devices)
        if not _train_first(options, chosen, strategy):
            return
    apply_general(options)
    option_flags.read(StepsSettings, options)  # raises at once for contradictory settings
    strategy = strategy or make_strategy(options.strategy, options.model_devices)
    objective = DistilledText.from_flags(options, strategy)
    train_objective(objective, options, strategy, objective.describe())


def _train_first(options: flags.FlagValues, found: DistillationRecipe, strategy: Strategy) -> bool:
    """Trains with the chosen recipe's first recipe, in a subfolder of the run.

    Then it sets --student to the result and --steps to the steps that are left, and returns True.
    In a preview it leaves these flags unchanged and returns False.

    Args:
        options: the parsed flags, which are changed.
        found: the chosen recipe, whose `first_share` of --steps is for the first recipe.
        strategy: devices and hosts of the run.

    Raises:
        ValueError: --steps is too small for two stages.
    """
    folder = Path(options.model_dir) / cast(str, found.first)
    steps = round(found.first_share * options.steps)
    if not 0 < steps < options.steps:
        raise ValueError(
            f"--steps must be larger: --recipe={found.name} uses {found.first_share:.0%} of the "
            f"steps for {found.first}. Received: --steps={options.steps}"
        )
    steps_left = options.steps - steps
    values = {
        **{"recipe": found.first, "model_dir": str(folder), "steps": steps},
        **{"preset_dir": str(folder / "preset"), "export_dir": None, "average_checkpoints": 1},
        # These flags are for the terms of the chosen recipe.
        **{"term_weights": [], "temperature": None, "positions": None},
    }
    original_values = {name: options[name].value for name in values}
    for name, value in values.items():
        options[name].value = value
    apply_general(options)
    objective = DistilledText.from_flags(options, strategy)
    train_objective(objective, options, strategy, objective.describe())
    strategy.agrees(steps)  # wait until the chief has written the student
    for name, value in original_values.items():
        options[name].value = value
    if options.dry_run:
        print(
            f"then {steps_left:,} steps of {found.name}, starting from the student of these "
            f"{steps:,}"
        )
        return False
    student_flags = {"student": str(folder / "preset"), "num_layers": None, "init": None, "set": []}
    for name, value in {**student_flags, "steps": steps_left}.items():
        options[name].value = value
    return True


def _on_task(options: flags.FlagValues) -> None:
    """Trains a student on the data of a task, in one run or several, and compares it."""
    _needs(options, "output_dir")
    if (options.train is None) == (options.augmented is None):
        raise ValueError(
            "Exactly one of --train and --augmented must be given (the augmented data includes "
            f"the texts of --train). Received: --train={options.train}, "
            f"--augmented={options.augmented}"
        )
    # First of all, several hosts must find each other.
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
    """Returns the data arguments of a `DistillationExperiment`.

    Args:
        options: the parsed flags; --augmented replaces --train and requires --dev.
    """
    if options.augmented is None:
        return {"train": options.train, **data(options)}
    arguments = data(options)
    if arguments.pop("dev_share") is not None:
        raise ValueError(
            "--augmented requires --dev instead of --dev_share, which would hold out copies of "
            f"training texts. Received: --dev_share={options.dev_share}"
        )
    # The augmented data has our column names already; the flags are for the other files.
    reading = {name: arguments.pop(name) for name in ("columns", "label_separator")}
    named = experiments.named_task(options.task)
    for split in ("dev", "test"):
        if arguments[split] is not None:
            arguments[split] = experiments.read(named, arguments[split], split=split, **reading)
    return {"train": read_augmented(options.augmented), **arguments}


def _compare(experiment: DistillationExperiment, outcome: Result | Series) -> None:
    """Prints the comparison of the best student with its teacher; writes comparison.json.

    Args:
        experiment: the experiment.
        outcome: its result, or its series of results.
    """
    best = outcome if isinstance(outcome, Result) else outcome.best
    comparison = experiment.compare(
        outcome.preset, experiment.settings(**registry.current(best.settings))
    )
    print(f"\n{comparison}\n")
    content = json.dumps(comparison.to_dict(), indent=2) + "\n"
    atomic.write(Path(outcome.folder) / "comparison.json", content.encode())


def _needs(options: flags.FlagValues, name: str) -> None:
    """Raises ValueError if a flag for the folder of the run is not given."""
    if options[name].value is None:
        raise ValueError(f"--{name} must be given: the folder of the run. Received: none")
