r"""Pretrains a model: BERT, RoBERTa, ALBERT, SpanBERT, ELECTRA, ELMo, GPT, Transformer.

  kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary_size=30000 --output_dir=shards
  kbert-pretrain --data_dir=shards --model=bert-small --model_dir=run --steps=100000

--dry_run shows the first examples as tokens and measures the memory and time the run will take.
After a kill at any moment, the same command resumes exactly: every loss equals that of an
uninterrupted run. After SIGTERM or Ctrl-C it saves a checkpoint and exits with 143 or 130. It does
not resume a run with other data or settings; --allow_changes=learning_rate,steps allows these
settings to change. BERT's schedule, short sequences first, on two GPUs:

  kbert-pretrain --data_dir=shards --model=bert-base-uncased --model_dir=run \
    --steps=1000000 --phases=128:0.9,512:0.1 --batch_size=256 --learning_rate=1e-4 \
    --strategy=mirrored --precision=mixed_bfloat16 --evaluate_every=10000 --tensorboard

Another model's recipe, with the batch size and steps you can afford:

  kbert-pretrain --data_dir=shards --model_dir=run --recipe=electra --batch_size=32 \
    --steps=50000 --preset_dir=electra

GPT-BERT fills masks and generates text with one model. The share of masked tokens falls from 30 to
15 %, and the final weights are a moving average:

  kbert-pretrain --data_dir=shards --model_dir=run --recipe=gpt-bert --batch_size=64 \
    --steps=50000 --phases=128:0.7,256:0.2:32,512:0.1:16 --preset_dir=gpt-bert

ELMo reads words character by character and predicts the most frequent ones:

  kbert-prepare-corpus --input='corpus/*.txt.gz' --tokenizer=words --output_dir=words
  kbert-pretrain --data_dir=words --model_dir=run --recipe=elmo --model=elmo-small \
    --vocabulary_size=100000 --batch_size=128 --steps=50000 --preset_dir=elmo

GPT reads the same shards as BERT and predicts the next token:

  kbert-pretrain --data_dir=shards --model_dir=run --recipe=gpt --model=gpt2-tiny \
    --batch_size=32 --sequence_length=128 --steps=50000 --preset_dir=gpt

BART's encoder-decoder restores text with masked spans and permuted sentences; --noise=t5, mass,
pegasus or prefix_lm corrupts it in other ways, and --dry_run shows both sides as tokens:

  kbert-pretrain --data_dir=shards --model_dir=run --objective=denoising \
    --model=facebook/bart-base --batch_size=64 --steps=50000 --preset_dir=bart

The Transformer is trained on sentences and their translations, from two aligned files, one file of
columns (--pairs=train.tsv) or a dataset (--pairs=tfds:NAME), and evaluated by BLEU. Its final
weights are the mean of the last checkpoints:

  kbert-pretrain --source=train.en --target=train.de --dev_source=dev.en --dev_target=dev.de \
    --model_dir=run --recipe=transformer --model=transformer-small --vocabulary_size=8000 \
    --batch_tokens=4096 --learning_rate=1e-3 --steps=10000 --evaluate_every=1000 \
    --preset_dir=translator --export_dir=serve

To continue pretraining on your own text, pass --init_preset=FOLDER and prepare the corpus with that
model's vocabulary; entries appended to the vocabulary become new rows of the embedding table.

model_dir holds run.json (all settings), steps.jsonl (every step's losses), evaluations.jsonl,
checkpoints/ and, with --average_checkpoints, average.json. The tokenizer is that of the shards; a
translator's is in tokenizer/.
"""

from absl import flags

from kbert.catalog.recipes import table
from kbert.tasks.settings import HybridSettings
from kbert.training.run.values import NonFiniteLoss

from . import command, option_flags
from .flags import (
    CorpusOptions,
    HybridOptions,
    MixedOptions,
    ModelOptions,
    NegativesOptions,
    NoiseOptions,
    ObjectiveOptions,
    PermutationOptions,
    ReplacedTokensOptions,
    ResumeOptions,
    RunOptions,
    VocabularyOptions,
    define_dry_run_flag,
)
from .translation_flags import TranslationOptions


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    option_flags.define(CorpusOptions)
    option_flags.define(HybridSettings, segments="pairs", steps=None)
    option_flags.define(ObjectiveOptions)
    option_flags.define(NoiseOptions)
    option_flags.define(ReplacedTokensOptions)
    option_flags.define(HybridOptions)
    option_flags.define(MixedOptions)
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


def _pretrain(options: flags.FlagValues) -> None:
    from .pretraining import pretrain

    pretrain(options)


PROGRAM = command.Program(
    name="kbert-pretrain",
    doc=__doc__,
    define_flags=define_flags,
    work=_pretrain,
    errors=(
        RuntimeError,
        NonFiniteLoss,
    ),
    files=("source", "target", "pairs", "dev_source", "dev_target", "dev_pairs"),
    models=("init_preset",),
    shards=("data_dir",),
    listing=("Recipes (--recipe)", table),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
