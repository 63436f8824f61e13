r"""Pretrains a model: BERT, RoBERTa, ALBERT, SpanBERT, ELECTRA, ELMo, GPT, Transformer.

  kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary_size=30000 --output_dir=shards
  kbert-pretrain --data_dir=shards --model=bert-small --model_dir=run --steps=100000

--dry_run shows the first examples as tokens and measures the memory and time the run will take.
Killed at any moment, the same command resumes exactly: every loss equals that of an uninterrupted
run. After SIGTERM or Ctrl-C it saves a checkpoint and exits with 143 or 130. A run with other data
or settings is refused, unless --allow_changes=learning_rate,steps names them. BERT's
schedule, short sequences first, on two GPUs:

  kbert-pretrain --data_dir=shards --model=bert-base-uncased --model_dir=run \
    --steps=1000000 --phases=128:0.9,512:0.1 --batch_size=256 --learning_rate=1e-4 \
    --strategy=mirrored --precision=mixed_bfloat16 --evaluate_every=10000 --tensorboard

Another model's recipe, with the batch size and steps you can afford:

  kbert-pretrain --data_dir=shards --model_dir=run --recipe=electra --batch_size=32 \
    --steps=50000 --preset_dir=electra

GPT-BERT fills masks and writes, with one model whose mask share falls from 30 to 15 % and whose
final weights are a moving average:

  kbert-pretrain --data_dir=shards --model_dir=run --recipe=gpt-bert --batch_size=64 \
    --steps=50000 --phases=128:0.7,256:0.2:32,512:0.1:16 --preset_dir=gpt-bert

ELMo reads words character by character and predicts the most frequent ones:

  kbert-prepare-corpus --input='corpus/*.txt.gz' --tokenizer=words --output_dir=words
  kbert-pretrain --data_dir=words --model_dir=run --recipe=elmo --model=elmo-small \
    --vocabulary_size=100000 --batch_size=128 --steps=50000 --preset_dir=elmo

GPT reads the same shards as BERT and predicts the next token:

  kbert-pretrain --data_dir=shards --model_dir=run --recipe=gpt --model=gpt2-tiny \
    --batch_size=32 --sequence_length=128 --steps=50000 --preset_dir=gpt

The Transformer is trained on sentences and their translations, from two aligned files, one file of
columns (--pairs=train.tsv) or a dataset (--pairs=tfds:NAME), and evaluated by BLEU. Its final
weights are the mean of the last checkpoints:

  kbert-pretrain --source=train.en --target=train.de --dev_source=dev.en --dev_target=dev.de \
    --model_dir=run --recipe=transformer --model=transformer-small --vocabulary_size=8000 \
    --batch_tokens=4096 --learning_rate=1e-3 --steps=10000 --evaluate_every=1000 \
    --preset_dir=translator --export_dir=serve

To continue pretraining on your own text, give --init_preset=FOLDER and prepare the corpus with that
model's vocabulary; entries appended to it become new rows of the embedding table.

model_dir holds run.json (all settings), steps.jsonl (every step's losses), evaluations.jsonl,
checkpoints/ and, with --average_checkpoints, average.json. The tokenizer is that of the shards; a
translator's is in tokenizer/.
"""

import sys
import textwrap

from absl import flags, logging

from kbert.catalog.recipe import Recipe
from kbert.catalog.recipes import table
from kbert.core.protocols import TokenizerLike
from kbert.tasks.corpora import HybridSettings
from kbert.tasks.steps_objective import StepsSettings
from kbert.training.run.values import NonFiniteLoss
from kbert.training.strategies import make_strategy

from . import command, option_flags
from .causal import Causal, RememberedText
from .flags import (
    CorpusOptions,
    HybridOptions,
    ModelOptions,
    NegativesOptions,
    ObjectiveOptions,
    PermutationOptions,
    ReplacedTokensOptions,
    ResumeOptions,
    RunOptions,
    VocabularyOptions,
    apply_recipe,
    define_dry_run_flag,
    departures,
)
from .language_model import LanguageModel
from .masked_text import MaskedAndCausalText, MaskedText, PermutedText
from .training_run import train_objective
from .translation import Translation
from .translation_flags import TranslationOptions

# `MaskedText` has the others.
OWN_PROGRAMS = {
    "masked_and_causal": MaskedAndCausalText,
    "permutation_lm": PermutedText,
    "language_model": LanguageModel,
    "causal_lm": Causal,
    "memory_lm": RememberedText,
    "translation": Translation,
}


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    option_flags.define(CorpusOptions)
    option_flags.define(HybridSettings, segments="pairs", steps=None)
    option_flags.define(ObjectiveOptions)
    option_flags.define(ReplacedTokensOptions)
    option_flags.define(HybridOptions)
    option_flags.define(PermutationOptions)
    option_flags.define(VocabularyOptions)
    option_flags.define(NegativesOptions)
    option_flags.define(TranslationOptions)
    option_flags.define(ModelOptions)
    option_flags.define(RunOptions)
    option_flags.define(ResumeOptions)
    option_flags.define_former()
    flags.DEFINE_string(
        "init_preset", None, "Folder of a model to start from; its config replaces --model."
    )
    flags.DEFINE_string("preset_dir", None, "Folder for the final model, to fine-tune from.")
    command.define_ignore_flag()
    flags.DEFINE_string("export_dir", None, "Folder for a SavedModel of the final model.")
    define_dry_run_flag()
    flags.mark_flag_as_required("model_dir")


def main(argv: list[str]) -> None:
    """Checks the command line and runs the program."""
    if len(argv) > 1:
        sys.exit(f"kbert-pretrain takes flags only. Received: {argv[1:]}")
    with command.one_line_errors("kbert-pretrain", RuntimeError, NonFiniteLoss):
        _pretrain(flags.FLAGS)


def _pretrain(options: flags.FlagValues) -> None:
    chosen = apply_recipe(options)
    option_flags.read(StepsSettings, options)  # what contradicts itself is refused at once
    strategy = make_strategy(options.strategy, options.model_devices)
    kind = OWN_PROGRAMS.get(options.objective, MaskedText)
    objective = kind.from_flags(options, strategy)
    description = None
    if chosen is not None and strategy.is_chief:
        description = describe_recipe(chosen, options, objective.tokenizer)
    train_objective(objective, options, strategy, description)


def describe_recipe(chosen: Recipe, options: flags.FlagValues, tokenizer: TokenizerLike) -> str:
    """The recipe, and where the run differs from it; warns of tokens of another kind."""
    if tokenizer.kind != chosen.tokenizer:
        logging.warning(
            "The recipe %s was trained with a %s tokenizer; this one is %s",
            *(chosen.name, chosen.tokenizer, tokenizer.kind),
        )
    changed = ", ".join(departures(options, chosen)) or "nothing"
    lines = [f"recipe {chosen.name}: {chosen.source}", f"changed (published): {changed}"]
    return "\n".join([*lines, chosen.describe()] if options.dry_run else lines)


def run() -> None:
    """Entry point of the console script."""
    listing = textwrap.indent(table(), "  ")
    command.run(main, define_flags, f"{__doc__}\nRecipes (--recipe):\n\n{listing}\n")


if __name__ == "__main__":
    run()
