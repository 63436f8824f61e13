"""Runs of a training objective: from the parsed flags to the model's folder."""

import json
import math
import sys
from typing import Any

import keras
import tensorflow as tf
from absl import flags

import kbert
from kbert.data.pretraining.settings import MaskingSettings
from kbert.io import atomic
from kbert.io.paths import Path
from kbert.training import average_checkpoints, use_moving_average
from kbert.training.optimization.optimizers import make_optimizer
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.run.estimates import estimate
from kbert.training.run.monitor import Evaluate
from kbert.training.run.phases import Phase, Start
from kbert.training.run.run import train
from kbert.training.step.mixin import TrainStep
from kbert.training.strategies import Strategy

from .distill_flags import DistillationOptions
from .flags import ModelOptions, ObjectiveOptions, ResumeOptions, RowsOptions, RunOptions
from .outputs import check_outputs, keep_what_is_read
from .shards import ShardsObjective
from .translation import Translation
from .translation_flags import TranslationOptions

Objective = ShardsObjective | Translation
# Entries of run.json that no number depends on, or that a checksum and a config hold too.
UNCHECKED = (
    *("backend", "init_preset"),
    *(name for options in (
        *(RowsOptions, ModelOptions, ObjectiveOptions, RunOptions, ResumeOptions),
        *(MaskingSettings, TranslationOptions, DistillationOptions),
    ) for name in options.unchecked()),
)  # fmt: skip

READ = ("init_preset", "teacher", "student", "data_dir", "model_dir")  # flags of folders

# Flags that came later: run.json has them where they are given, and else is what it was before.
LATER = ("final_masked_share", "ema")


def train_objective(
    objective: Objective,
    options: flags.FlagValues,
    strategy: Strategy,
    description: str | None = None,
) -> None:
    """Trains what the flags describe and writes the model, or shows a preview (--dry_run).

    Ends the process where a signal stopped the run.

    Args:
        objective: task and data.
        options: the parsed flags.
        strategy: devices.
        description: of the recipe, to be printed.
    """
    keep_what_is_read(options, READ, written=("preset_dir", "export_dir"))
    phases = objective.phases()
    keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        task = objective.make_task()
        compile_task(task, options)
    hosts = {"num_hosts": strategy.num_hosts, "host_index": strategy.host_index}

    def training(phase: Phase, start: Start) -> tf.data.Dataset:
        return objective.batches(phase, start=start, **hosts)

    def held_out(phase: Phase) -> tf.data.Dataset:
        return objective.held_out(phase, **hosts).take(options.evaluation_steps or -1)

    objective.check_phases(phases, task)
    no_evaluation = objective.why_no_evaluation()
    if no_evaluation and options.evaluate_every:
        raise ValueError(
            f"--evaluate_every needs {objective.needed_to_evaluate}, or leave the flag out. "
            f"Received: {no_evaluation}"
        )
    if strategy.is_chief:
        check_outputs(options, objective.saved_kind(task))
        if description is not None:
            print(description)
        parameters = sum(math.prod(v.shape) for v in task.trainable_variables)
        print(f"{parameters:,} parameters; {objective.summary()}")
        if no_evaluation:
            print(f"no evaluation: {no_evaluation}")
    if options.dry_run:
        kbert.data.show_examples(training(phases[0], (0, 0, 0)), objective.tokenizer)
        print(estimate(task, training, phases, strategy).summary(phases))
        return
    extra_scores = objective.extra_scores(task)
    history = train(
        task,
        training,
        options.model_dir,
        phases,
        strategy=strategy,
        make_evaluation_dataset=None if no_evaluation else held_out,
        evaluate_every=options.evaluate_every,
        checkpoint_every=options.checkpoint_every,
        checkpoint_minutes=options.checkpoint_minutes,
        keep_checkpoints=options.keep_checkpoints,
        extra_scores=extra_scores,
        tensorboard=options.tensorboard,
        settings=settings(options, objective, task),
        unchecked=UNCHECKED,
        resume=tuple(options.allow_changes),
    )
    if history.stopped_by is not None:
        sys.exit(128 + history.stopped_by)  # the status of a signal, as in a shell
    if options.average_checkpoints > 1 or options.ema is not None:
        with strategy.scope():
            strategy.agrees(history.step)  # all wait until the chief has saved the last one
            dataset = None if no_evaluation else strategy.distribute(held_out(phases[-1]))
            values = average(task, options, dataset)
        if strategy.is_chief:
            report_average(values, options, extra_scores)
    if not strategy.is_chief:
        return
    if options.preset_dir:
        objective.save(task, options.preset_dir)
        print(f"model written to {options.preset_dir}")
    if options.export_dir:
        print(f"SavedModel written to {task.export(options.export_dir)}")


def check_averaging(options: flags.FlagValues) -> None:
    """Refuses what would fail at the end of the run: fewer checkpoints than are averaged."""
    if options.average_checkpoints > 1 and options.ema is not None:
        raise ValueError(
            "The final weights are a mean of checkpoints or a moving average: leave out one. "
            f"Received: --average_checkpoints={options.average_checkpoints}, --ema={options.ema}"
        )
    made = -(-options.train_steps // options.checkpoint_every)
    if options.average_checkpoints > min(made, options.keep_checkpoints):
        raise ValueError(
            f"--average_checkpoints={options.average_checkpoints} needs as many checkpoints: keep "
            "more of them, or save them more often. Received: --keep_checkpoints="
            f"{options.keep_checkpoints}, and {made} of them are made: --train_steps="
            f"{options.train_steps}, --checkpoint_every={options.checkpoint_every}"
        )


def average(
    task: TrainStep,
    options: flags.FlagValues,
    held_out: tf.data.Dataset | tf.distribute.DistributedDataset | None,
) -> dict[str, Any]:
    """Gives the task its average; returns what it is of, and its evaluation."""
    if options.ema is not None:
        use_moving_average(task)
        values: dict[str, Any] = {"ema": options.ema}
    else:
        folder = Path(options.model_dir) / "checkpoints"
        values = {"steps": average_checkpoints(task, folder, options.average_checkpoints)}
    if held_out is not None:
        values |= task.evaluate(held_out, verbose=0, return_dict=True)
    return values


def report_average(
    values: dict[str, Any], options: flags.FlagValues, extra_scores: Evaluate | None
) -> None:
    """Prints what `average` found, and writes it to average.json."""
    name = "ema" if "ema" in values else "steps"
    averaged = values.pop(name)
    values |= extra_scores() if extra_scores else {}
    values = {key: float(value) for key, value in values.items()}
    if name == "ema":
        print(f"the model is the moving average of the weights, with a decay of {averaged}")
    else:
        print(f"the model is the mean of the checkpoints of steps {', '.join(map(str, averaged))}")
    if values:
        print("evaluation of it: " + " · ".join(f"{k} {v:.4g}" for k, v in values.items()))
    content = json.dumps({name: averaged, **values}, indent=2) + "\n"
    atomic.write(Path(options.model_dir) / "average.json", content.encode())


def compile_task(task: TrainStep, options: flags.FlagValues) -> None:
    """The optimizer and the step that the flags describe."""
    schedule = WarmupDecay(
        options.learning_rate,
        options.train_steps,
        options.warmup_steps,
        options.decay,
        options.decay_power,
        options.decay_join,
        options.decay_share,
    )
    task.compile(
        make_optimizer(
            options.optimizer, schedule, options, rate_scales=getattr(task, "rate_scales", None)
        ),
        micro_batches=options.micro_batches,
        clip_norm=options.clip_norm or None,
        recompute=options.recompute,
        jit_compile="auto" if options.xla is None else options.xla,
    )


def settings(options: flags.FlagValues, objective: Objective, task: TrainStep) -> dict:
    """All flags that shape the run and the config that came of them, for run.json."""
    own = options.get_key_flags_for_module(sys.argv[0])
    left_out = ("help", "dry_run", "preset_dir", "export_dir", "allow_changes", *objective.unread)
    return {
        "backend": keras.backend.backend(),
        **objective.model(task),
        **objective.data(),
        "flags": {
            flag.name: flag.value
            for flag in own
            if flag.name not in left_out and not (flag.name in LATER and flag.value is None)
        },
    }
