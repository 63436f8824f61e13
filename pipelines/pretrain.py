r"""Text to a pretrained model: BERT, RoBERTa, ALBERT, SpanBERT, ELECTRA, ELMo, GPT, Transformer.

  kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary_size=30000 --output_dir=shards
  kbert-pretrain --data_dir=shards --model=bert-small --model_dir=run --train_steps=100000

First look, then work: --dry_run shows the first examples as tokens and measures the memory and the
time the run will take. Killed at any moment, the same command goes on as if nothing had happened:
every loss is that of an uninterrupted run. After SIGTERM or Ctrl-C it saves a checkpoint and exits
with 143 or 130. BERT's own way, short sequences first, on two GPUs:

  kbert-pretrain --data_dir=shards --model=bert-base-uncased --model_dir=run \
    --train_steps=1000000 --phases=128:0.9,512:0.1 --batch_size=256 --learning_rate=1e-4 \
    --strategy=mirrored --precision=mixed_bfloat16 --evaluate_every=10000 --tensorboard

Or as another model of the family was trained, with the batches and the time that you have:

  kbert-pretrain --data_dir=shards --model_dir=run --recipe=electra --batch_size=32 \
    --train_steps=50000 --preset_dir=electra

ELMo reads words, each letter by letter, and predicts the most frequent ones:

  kbert-prepare-corpus --input='corpus/*.txt.gz' --tokenizer=words --output_dir=words
  kbert-pretrain --data_dir=words --model_dir=run --recipe=elmo --model=elmo-small \
    --vocabulary_size=100000 --batch_size=128 --train_steps=50000 --preset_dir=elmo

GPT reads the same shards as BERT, and predicts the next token:

  kbert-pretrain --data_dir=shards --model_dir=run --recipe=gpt --model=gpt2-tiny \
    --batch_size=32 --sequence_length=128 --train_steps=50000 --preset_dir=gpt

The Transformer learns from sentences and their translations, in two aligned files, in one file of
columns (--pairs=train.tsv) or in a data set (--pairs=tfds:NAME), and is measured by BLEU. Its
weights at the end are the mean of the last checkpoints':

  kbert-pretrain --source=train.en --target=train.de --dev_source=dev.en --dev_target=dev.de \
    --model_dir=run --recipe=transformer --model=transformer-small --vocabulary_size=8000 \
    --batch_tokens=4096 --learning_rate=1e-3 --train_steps=10000 --evaluate_every=1000 \
    --preset_dir=translator --export_dir=serve

To go on from a pretrained model with texts of your own, give --init_preset=FOLDER and prepare the
corpus with the model's vocabulary; entries added at its end become new rows of the table.

model_dir holds run.json (all settings), steps.jsonl (every step's losses), evaluations.jsonl,
checkpoints/ and, of a mean, average.json. The vocabulary is that of the shards; a translator's is
in tokenizer/.
"""

import json
import math
import sys
import textwrap
from pathlib import Path

import keras
from absl import flags, logging

import kbert
from kbert import atomic
from kbert.recipes import Recipe, table
from kbert.training import average_checkpoints
from kbert.training.estimates import estimate
from kbert.training.optimizers import make_optimizer
from kbert.training.phases import Phase
from kbert.training.run import Start, train
from kbert.training.schedules import WarmupDecay
from kbert.training.step import TrainStep
from kbert.training.step_values import NonFiniteLoss
from kbert.training.strategies import make_strategy
from pipelines import command
from pipelines.causal import Causal
from pipelines.flags import (
    apply_recipe,
    define_model_flags,
    define_objective_flags,
    define_optimizer_flags,
    define_recipe_flag,
    define_run_flags,
    define_vocabulary_flags,
    departures,
)
from pipelines.language_model import LanguageModel
from pipelines.masked_text import MaskedText
from pipelines.shards import ShardsObjective
from pipelines.translation import Translation
from pipelines.translation_flags import define_translation_flags

Objective = ShardsObjective | Translation
# The others mask.
UNMASKED = {"language_model": LanguageModel, "causal_lm": Causal, "translation": Translation}


def define_flags() -> None:
    flags.DEFINE_string("data_dir", None, "Folder that kbert-prepare-corpus wrote.")
    flags.DEFINE_integer("batch_size", 256, "Rows of a batch, of all devices together.", 1)
    flags.DEFINE_integer("sequence_length", 128, "Tokens of a row.", 8)
    flags.DEFINE_string(
        "phases",
        None,
        "Lengths in turn with their shares of the steps, as length:share[:batch_size],… "
        "For example 128:0.9:256,512:0.1:64. Takes the place of --sequence_length.",
    )
    define_recipe_flag()
    define_objective_flags()
    define_vocabulary_flags()
    define_translation_flags()
    flags.DEFINE_string(
        "init_preset", None, "Folder of a model to go on from; it says the sizes, not --model."
    )
    flags.DEFINE_string("preset_dir", None, "Folder for the model at the end, to fine-tune from.")
    flags.DEFINE_string("export_dir", None, "Folder for a SavedModel at the end, to serve.")
    define_model_flags()
    define_optimizer_flags(learning_rate=1e-4)
    define_run_flags()


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        sys.exit(f"kbert-pretrain takes flags only. Received: {argv[1:]}")
    with command.one_line_errors("kbert-pretrain", RuntimeError, NonFiniteLoss):
        _pretrain(flags.FLAGS)


def _pretrain(options: flags.FlagValues) -> None:
    chosen = apply_recipe(options)
    check_averaging(options)
    strategy = make_strategy(options.strategy)
    kind = UNMASKED.get(options.objective, MaskedText)
    objective = kind.from_flags(options, strategy)
    phases = objective.phases()
    keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        task = objective.make_task()
        compile_task(task, options)
    hosts = {"num_hosts": strategy.num_hosts, "host_index": strategy.host_index}

    def training(phase: Phase, start: Start):
        return objective.batches(phase, start=start, **hosts)

    def held_out(phase: Phase):
        return objective.held_out(phase, **hosts).take(options.evaluation_steps or -1)

    objective.check_phases(phases, task)
    no_evaluation = objective.why_no_evaluation()
    if no_evaluation and options.evaluate_every:
        raise ValueError(
            f"--evaluate_every needs {objective.needed_to_evaluate}, or leave the flag out. "
            f"Received: {no_evaluation}"
        )
    if strategy.is_chief:
        if chosen is not None:
            print(describe_recipe(chosen, options, objective.tokenizer))
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
    )
    if history.stopped_by is not None:
        sys.exit(128 + history.stopped_by)  # as a shell would say it: the job is not done
    if options.average_checkpoints > 1:
        with strategy.scope():
            strategy.agrees(history.step)  # all wait until the chief has saved the last one
            dataset = None if no_evaluation else strategy.distribute(held_out(phases[-1]))
            values = average(task, options, dataset)
        if strategy.is_chief:
            report_average(values, options, extra_scores)
    if not strategy.is_chief:
        return
    if options.preset_dir:
        task.save_to_preset(options.preset_dir)
        print(f"model written to {options.preset_dir}")
    if options.export_dir:
        print(f"SavedModel written to {task.export(options.export_dir)}")


def check_averaging(options: flags.FlagValues) -> None:
    """Refuses what would fail at the end of the run: fewer checkpoints than are averaged."""
    made = -(-options.train_steps // options.checkpoint_every)
    if options.average_checkpoints > min(made, options.keep_checkpoints):
        raise ValueError(
            f"--average_checkpoints={options.average_checkpoints} needs as many checkpoints: keep "
            "more of them, or save them more often. Received: --keep_checkpoints="
            f"{options.keep_checkpoints}, and {made} of them are made: --train_steps="
            f"{options.train_steps}, --checkpoint_every={options.checkpoint_every}"
        )


def average(task: TrainStep, options: flags.FlagValues, held_out) -> dict:
    """Gives the task the mean of the last checkpoints; what it was made of and how good it is."""
    folder = Path(options.model_dir) / "checkpoints"
    values = {"steps": average_checkpoints(task, folder, options.average_checkpoints)}
    if held_out is not None:
        values |= task.evaluate(held_out, verbose=0, return_dict=True)
    return values


def report_average(values: dict, options: flags.FlagValues, extra_scores) -> None:
    """Prints what `average` found, and writes it to average.json."""
    steps = values.pop("steps")
    values |= extra_scores() if extra_scores else {}
    values = {name: float(value) for name, value in values.items()}
    print(f"the model is the mean of the checkpoints of steps {', '.join(map(str, steps))}")
    if values:
        print("evaluation of it: " + " · ".join(f"{k} {v:.4g}" for k, v in values.items()))
    content = json.dumps({"steps": steps, **values}, indent=2) + "\n"
    atomic.write(Path(options.model_dir) / "average.json", content.encode())


def describe_recipe(chosen: Recipe, options: flags.FlagValues, tokenizer) -> str:
    """What the run takes from the recipe; warns where the tokens are of another kind."""
    if tokenizer.kind != chosen.tokenizer:
        logging.warning(
            "The recipe %s was trained with a %s tokenizer; this one is %s",
            *(chosen.name, chosen.tokenizer, tokenizer.kind),
        )
    changed = ", ".join(departures(options, chosen)) or "nothing"
    lines = [f"recipe {chosen.name}: {chosen.source}", f"changed (published): {changed}"]
    return "\n".join([*lines, chosen.describe()] if options.dry_run else lines)


def compile_task(task: TrainStep, options: flags.FlagValues) -> None:
    """The optimizer and the step that the flags describe."""
    schedule = WarmupDecay(
        options.learning_rate,
        options.train_steps,
        options.warmup_steps,
        options.decay,
        options.decay_power,
        options.decay_join,
    )
    task.compile(
        make_optimizer(options.optimizer, schedule, options),
        micro_batches=options.micro_batches,
        clip_norm=options.clip_norm or None,
        jit_compile="auto" if options.xla is None else options.xla,
    )


def settings(options: flags.FlagValues, objective: Objective, task: TrainStep) -> dict:
    """All flags that shape the run and the config that came of them, for run.json."""
    own = options.get_key_flags_for_module(sys.argv[0])
    left_out = ("help", "dry_run", "preset_dir", "export_dir", *objective.unread)
    return {
        "backend": keras.backend.backend(),
        **objective.model(task),
        "flags": {flag.name: flag.value for flag in own if flag.name not in left_out},
    }


def run() -> None:
    """Entry point of the console script."""
    listing = textwrap.indent(table(), "  ")
    command.run(main, define_flags, f"{__doc__}\nRecipes (--recipe):\n\n{listing}\n")


if __name__ == "__main__":
    run()
