r"""Distils a model into a small one, on text or a task: DistilBERT, TinyBERT, MiniLM, MobileBERT.

On the data of a task, from a model that kbert-finetune wrote to a student with half its layers:

  kbert-finetune --task=sst2 --train=SST-2/train.tsv --dev=SST-2/dev.tsv --preset=P --output_dir=big
  kbert-distill --recipe=tinybert-task --task=sst2 --train=SST-2/train.tsv --dev=SST-2/dev.tsv \
    --teacher=big/preset --output_dir=small

The closing table compares both on --dev: metric, what the student retained, parameters, speed. The
flags are those of kbert-finetune, including --seeds, --grid and --dry_run; --epochs and
--learning_rate apply to the last stage, --first_epochs and --first_learning_rate to the stage
before it. --teacher=big,other distils the mean of several models, or an ensemble of kbert-finetune;
it requires terms that compare predictions: --recipe=distilbert --term_weights=hidden_cosine=0.
--augmented takes a folder of kbert-augment instead of --train. --cache_dir stores the
teacher's outputs for each text, so that it reads a text once for all epochs, runs and students.

On text, from a pretrained model to a student that can be fine-tuned for any task, on shards
prepared with the teacher's vocabulary:

  kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary=TEACHER --output_dir=shards
  kbert-distill --recipe=distilbert --data_dir=shards --teacher=TEACHER --model_dir=run \
    --batch_size=32 --steps=50000 --preset_dir=student

The flags are those of kbert-pretrain: phases, optimizer, strategies, precision, --evaluate_every,
--tensorboard, --dry_run. A recipe changes the defaults of the other flags, and a given flag
overrides it; its batch size is meant for a cluster. A recipe that compares heads requires a teacher
with a masked-LM head; tinybert-general and minilm support any encoder, and write only an encoder.
mobilebert trains twice: for a third of the steps layer by layer (mobilebert-transfer), in a
subfolder of the run, then as a whole. Its teacher is an IB-BERT, pretrained by
kbert-pretrain --recipe=bert --model=ib-bert-large-uncased.

The student and the loss, on either:

  --num_layers=3                          the teacher's width (minilm and tinybert-general on text:
                                          the recipe's); initialised with every other layer
  --num_layers=6 --init=0,2,4,7,9,11      initialised with these layers, as DistilBERT
  --init=embeddings                       as deep as given, with the teacher's embeddings and heads
  --student=bert-small                    a size of the family or a JSON file, randomly initialised
  --student=FOLDER                        a pretrained or distilled model to start from
  --set=hidden_size=312 --init=random     other fields of the teacher's config
  --layers=2,4,6                          teacher layer for each student layer; uniform, last
  --term_weights=soft_targets=5,own=0     0 removes a term
  --temperature=4                         of soft targets

After a kill at any moment, the same command resumes exactly; checkpoints do not have the teacher.
After SIGTERM or Ctrl-C the program saves a checkpoint and exits with 143 or 130.
"""

from absl import flags

from kbert.catalog.distillation import table
from kbert.training.run.values import NonFiniteLoss

from . import command, option_flags
from .distill_flags import TASK, TEXT, DistillationOptions
from .flags import define_dry_run_flag
from .task_flags import (
    define_task_flag,
    define_task_module_flag,
    define_task_settings,
    task_settings,
)
from .task_run import is_finished


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    option_flags.define(DistillationOptions)
    flags.DEFINE_string("preset_dir", None, "Folder for the trained student.")
    flags.DEFINE_string("export_dir", None, "Folder for a SavedModel of the student, to serve.")
    define_task_module_flag()
    define_task_flag("On a task: the kind of task and its files, see kbert-finetune.")
    define_dry_run_flag()
    # Flags of both modes are defined as for text. On a task only the given values are read, and
    # the defaults are those of kbert-finetune.
    for options in (*TEXT, *task_settings(), *TASK):
        option_flags.define(options, segments="pairs", learning_rate=None)
    define_task_settings()
    command.define_ignore_flag()
    flags.mark_flags_as_required(["recipe", "teacher"])


def _distill(options: flags.FlagValues) -> None:
    from .distilling import distill

    distill(options)


PROGRAM = command.Program(
    name="kbert-distill",
    doc=__doc__,
    define_flags=define_flags,
    work=_distill,
    errors=(RuntimeError, NonFiniteLoss),
    files=("train", "dev", "test"),
    models=("teacher",),
    is_finished=is_finished,
    shards=("data_dir",),
    listing=("Recipes (--recipe)", table),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
