"""Runs of a training objective: from the parsed flags to the model's folder."""

import math
import sys
from typing import Any

import keras
from absl import flags

import kbert
from kbert.tasks.settings import HybridSettings, MixedSettings
from kbert.training.run.estimates import estimate
from kbert.training.strategies import Strategy

from .outputs import check_outputs, keep_what_is_read
from .shards import OnShards
from .translation import Translation

READ = ("init_preset", "teacher", "student", "data_dir", "model_dir")  # flags of folders


def train_objective(
    learner: OnShards | Translation,
    options: flags.FlagValues,
    strategy: Strategy,
    description: str | None = None,
) -> None:
    """Trains the task that the flags describe and writes it, or shows a preview (--dry_run).

    If a signal stops the run, the process ends.

    Args:
        learner: objective, with its task and data.
        options: the parsed flags.
        strategy: devices and hosts of the run.
        description: description of the recipe, which is printed; None for none.
    """
    keep_what_is_read(options, READ, written=("preset_dir", "export_dir"))
    keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        task = learner.make_task()
        objective = learner.make_objective(task, command=_command(options))
        objective.compile()
    if strategy.is_chief:
        check_outputs(options, learner.saved_kind(task))
        if description is not None:
            print(description)
        parameters = sum(math.prod(v.shape) for v in task.trainable_variables)
        print(f"{parameters:,} parameters; {learner.summary()}")
        if objective.why_no_evaluation:
            print(f"no evaluation: {objective.why_no_evaluation}")
    if options.dry_run:
        first, *_ = objective.plan
        kbert.data.show_examples(objective.batches(first, (0, 0, 0)), learner.tokenizer)
        print(estimate(task, objective, objective.plan, strategy).summary(objective.plan))
        return
    with strategy.scope():
        objective.fit(
            model_dir=options.model_dir, resume=tuple(options.allow_changes), strategy=strategy
        )
    if not strategy.is_chief:
        return
    if options.preset_dir:
        learner.save(task, options.preset_dir)
        print(f"model written to {options.preset_dir}")
    if options.export_dir:
        print(f"SavedModel written to {task.export(options.export_dir)}")


def _command(options: flags.FlagValues) -> dict[str, Any]:
    """Returns the given flags that are not settings of the run, for run.json."""
    program_flags = options.get_key_flags_for_module(sys.argv[0])
    settings = {*HybridSettings.names(), *MixedSettings.names()}
    return {
        x.name: x.value for x in program_flags if x.value is not None and x.name not in settings
    }
