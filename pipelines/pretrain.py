r"""Shards of tokens to a pretrained model: masked words and next sentences, as BERT.

  kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary_size=30000 --output_dir=shards
  kbert-pretrain --data_dir=shards --model=bert-small --model_dir=run --train_steps=100000

First look, then work: --dry_run shows the first examples as tokens and measures the memory and the
time the run will take. Killed at any moment, the same command goes on as if nothing had happened:
every loss is that of an uninterrupted run. After SIGTERM or Ctrl-C it saves a checkpoint and exits
with 143 or 130. BERT's own way, short sequences first, on two GPUs:

  kbert-pretrain --data_dir=shards --model=bert-base-uncased --model_dir=run \
    --train_steps=1000000 --phases=128:0.9,512:0.1 --batch_size=256 --learning_rate=1e-4 \
    --strategy=mirrored --precision=mixed_bfloat16 --evaluate_every=10000 --tensorboard

To go on from a pretrained model with texts of your own, give --init_preset=FOLDER and prepare the
corpus with the model's vocabulary; entries added at its end become new rows of the table.

model_dir holds run.json (all settings), steps.jsonl (every step's losses), evaluations.jsonl and
checkpoints/. The vocabulary is that of the shards.
"""

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import tensorflow as tf
from absl import flags, logging

import kbert
from kbert.training.estimates import estimate
from kbert.training.monitor import NonFiniteLoss
from kbert.training.optimizers import OPTIMIZERS
from kbert.training.phases import Phase, parse_phases
from kbert.training.run import Start, train
from kbert.training.schedules import WarmupDecay, default_warmup
from kbert.training.strategies import make_strategy
from pipelines import command
from pipelines.flags import (
    define_model_flags,
    define_optimizer_flags,
    define_run_flags,
    parse_settings,
)


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
    flags.DEFINE_enum("masking", "token", ["token", "whole_word"], "What is masked together.")
    flags.DEFINE_boolean("next_sentence", True, "Predict next sentences too.")
    flags.DEFINE_string(
        "init_preset", None, "Folder of a model to go on from; it says the sizes, not --model."
    )
    flags.DEFINE_string("preset_dir", None, "Folder for the model at the end, to fine-tune from.")
    flags.DEFINE_string("export_dir", None, "Folder for a SavedModel at the end, to serve.")
    define_model_flags()
    define_optimizer_flags(learning_rate=1e-4)
    define_run_flags()
    flags.mark_flag_as_required("data_dir")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        sys.exit(f"kbert-pretrain takes flags only. Received: {argv[1:]}")
    try:
        _pretrain(flags.FLAGS)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (ValueError, OSError, RuntimeError, NonFiniteLoss) as error:
        logging.debug("", exc_info=True)  # --verbosity=1 shows where it came from
        sys.exit(f"kbert-pretrain: {error}")


def _pretrain(options: flags.FlagValues) -> None:
    strategy = make_strategy(options.strategy)
    manifest = kbert.data.read_manifest(options.data_dir)  # first: it tells an unfinished folder
    tokenizer = kbert.load_tokenizer(options.data_dir)
    text = options.phases or f"{options.sequence_length}:1"
    phases = parse_phases(text, options.train_steps, options.batch_size)
    keras.utils.set_random_seed(options.seed)
    with strategy.scope():
        task = make_task(options, tokenizer)

    def batches(phase: Phase, **settings):
        return kbert.data.pretraining_dataset(
            options.data_dir,
            tokenizer,
            sequence_length=phase.sequence_length,
            batch_size=phase.batch_size,
            seed=options.seed,
            masking=options.masking,
            next_sentence=task.next_sentence,
            num_hosts=strategy.num_hosts,
            host_index=strategy.host_index,
            **settings,
        )

    def training(phase: Phase, start: Start):
        return batches(phase, start=start)

    def held_out(phase: Phase):
        return batches(phase, split="held_out", epochs=1).take(options.evaluation_steps or -1)

    check_phases(phases, task.encoder.config, batches)
    no_evaluation = why_no_evaluation(manifest, task.next_sentence)
    if no_evaluation and options.evaluate_every:
        raise ValueError(
            "--evaluate_every needs held-out documents: prepare the corpus with a larger "
            f"--held_out_share, or leave the flag out. Received: {no_evaluation}"
        )
    if strategy.is_chief:
        print(f"{task.count_params():,} parameters; {manifest.summary()}")
        if no_evaluation:
            print(f"no evaluation: {no_evaluation}")
    if options.dry_run:
        kbert.data.show_examples(training(phases[0], (0, 0, 0)), tokenizer)
        print(estimate(task, training, phases, strategy).summary(phases))
        return
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
        tensorboard=options.tensorboard,
        settings=settings(options, task),
    )
    if history.stopped_by is not None:
        sys.exit(128 + history.stopped_by)  # as a shell would say it: the job is not done
    if not strategy.is_chief:
        return
    if options.preset_dir:
        task.save_to_preset(options.preset_dir)
        print(f"model written to {options.preset_dir}")
    if options.export_dir:
        print(f"SavedModel written to {task.export(options.export_dir)}")


def check_phases(
    phases: Sequence[Phase],
    config: kbert.EncoderConfig,
    batches: Callable[[Phase], tf.data.Dataset],
) -> None:
    """Refuses what would fail days later, when a phase begins."""
    for phase in phases:
        if phase.sequence_length > config.max_positions:
            raise ValueError(
                "No phase may be longer than the model's max_positions. Received: "
                f"sequence_length={phase.sequence_length}, max_positions={config.max_positions}"
            )
        batches(phase)  # raises for what it does not accept


def why_no_evaluation(manifest: kbert.data.Manifest, next_sentence: bool) -> str | None:
    """What the held-out split lacks, if it does."""
    documents = manifest.split("held_out").documents
    needed = 2 if next_sentence else 1
    if documents >= needed:
        return None
    return f"{documents} held-out document(s), and next_sentence={next_sentence} needs {needed}"


def make_task(options: flags.FlagValues, tokenizer) -> kbert.tasks.Pretraining:
    """The compiled task that the flags describe."""
    changes = parse_settings(options.set)
    common = {"next_sentence": options.next_sentence, "dtype": options.precision}
    if options.init_preset:
        task = kbert.tasks.adapt(
            options.init_preset, tokenizer, changes=changes, seed=options.seed, **common
        )
    else:
        config = read_config(options.model, changes, tokenizer)
        encoder = kbert.Encoder(config, dtype=common.pop("dtype"))
        task = kbert.tasks.Pretraining(encoder, tokenizer, **common)
    steps, warmup = options.train_steps, options.warmup_steps
    schedule = WarmupDecay(
        options.learning_rate,
        steps,
        default_warmup(steps) if warmup is None else warmup,
        options.decay,
        options.decay_power,
    )
    task.compile(
        OPTIMIZERS[options.optimizer](schedule, weight_decay=options.weight_decay),
        micro_batches=options.micro_batches,
        clip_norm=options.clip_norm or None,
        jit_compile="auto" if options.xla is None else options.xla,
    )
    return task


def read_config(model: str, changes: dict, tokenizer) -> kbert.EncoderConfig:
    """A config of the family or of a JSON file, with as many entries as the tokenizer has."""
    if model.endswith(".json"):
        content = json.loads(Path(model).read_text(encoding="utf-8"))
        config = kbert.EncoderConfig.from_dict(content)
    else:
        config = kbert.family(model)
    fields = {**config.to_dict(), "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return kbert.EncoderConfig.from_dict(fields)


def settings(options: flags.FlagValues, task) -> dict:
    """All flags that shape the run and the config that came of them, for run.json."""
    own = options.get_key_flags_for_module(sys.argv[0])
    afterwards = ("help", "dry_run", "preset_dir", "export_dir")
    return {
        "backend": keras.backend.backend(),
        "encoder": task.encoder.config.to_dict(),
        "flags": {flag.name: flag.value for flag in own if flag.name not in afterwards},
    }


def run() -> None:
    """Entry point of the console script."""
    command.run(main, define_flags, __doc__)


if __name__ == "__main__":
    run()
