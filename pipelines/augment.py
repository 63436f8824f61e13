r"""Data augmentation: copies of a task's texts in which words are replaced, to train a student on.

  kbert-augment --task=sst2 --train=SST-2/train.tsv --preset=bert-base-uncased \
    --vectors=glove.6B.300d.txt --output_dir=augmented

The algorithm is TinyBERT's (https://arxiv.org/abs/1909.10351, algorithm 1). A word that is a single
subword of the vocabulary is masked, and the --preset, a pretrained masked LM, predicts the
--candidates most probable words for it. A word of several subwords gets its nearest neighbours in
--vectors. Then every text is copied --copies times, and in a copy each word is replaced with the
probability --replaced_share. Stop words, numbers and punctuation are kept, and so are labels and
all other columns; duplicate copies are dropped. A label may be wrong for a copy: train the student
on the teacher's predictions, not on the labels.

--dry_run shows a few texts with the replaced words in brackets and measures the time. The tasks are
those of kbert-finetune:

  kbert-augment --task=rte --train=RTE --preset=P --output_dir=out        pairs: both texts
  kbert-augment --task=classify --train=t.csv --text_column=review --label_column=stars …
  kbert-augment --task=ner --train=train.conll …                          words keep their tags

Data without labels must have a column text, or the columns first and second. Questions with
contexts, and choices, are not supported: replaced words would move their answers. TinyBERT used 30
copies, and fewer for large tasks: 20 for SST-2 and QNLI, 10 for MNLI and QQP. Without --vectors,
neighbours come from the model's embedding table, among the words of its vocabulary and of the data.
They are similar in spelling rather than in meaning, so use GloVe's vectors if possible. For
languages other than English pass --stop_words, a file with one word per line.

output_dir holds augmented-00000-of-00007.jsonl and so on, each row followed by its copies, and
manifest.json with all settings and counts. After a kill at any moment, the same command resumes and
writes the same bytes, with any --batch_size; a folder with other settings is refused.

Then: kbert-distill --augmented=augmented …, or kbert-finetune --task=classify
--train='augmented/*.jsonl' …
"""

from absl import flags

from kbert import experiments, tasks, word_vectors
from kbert.distillation import augmentation

from . import command, option_flags
from .task_flags import ColumnOptions, columns, define_task_flag


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    define_task_flag("Kind of task and format of its files, as for kbert-finetune.")
    flags.DEFINE_string("train", None, "The texts: a file, a pattern, a folder or tfds:NAME.")
    option_flags.define(ColumnOptions)
    flags.DEFINE_string(
        "preset", None, "Pretrained model with its masked-LM head: a folder, or a name on the hub."
    )
    flags.DEFINE_string("output_dir", None, "Folder for the shards; the same folder resumes.")
    option_flags.define(augmentation.AugmentationSettings)
    flags.DEFINE_string(
        "vectors",
        None,
        "For words of several subwords: file of word vectors (word2vec, GloVe or fastText).",
    )
    flags.DEFINE_integer(
        "max_vectors",
        augmentation.MAX_VECTORS,
        "With --vectors: number of words to read from the start of the file; 0 = all.",
        0,
    )
    flags.DEFINE_string(
        "stop_words", None, "File of words that are never replaced. Default: English ones."
    )
    flags.DEFINE_integer("shards", None, "Number of files. Default: one for every 1,024 rows.", 1)
    flags.DEFINE_integer("batch_size", 32, "Rows per forward pass.", 1)
    flags.DEFINE_boolean("dry_run", False, "Show examples and estimates, and stop.")
    command.define_ignore_flag()
    flags.mark_flags_as_required(["task", "train", "preset", "output_dir"])


def _augment(options: flags.FlagValues) -> None:
    """Augments --train and writes the shards, or shows a preview (--dry_run)."""
    named = experiments.named_task(options.task)
    if not named.task_class.augmentable:
        raise ValueError(
            "--task must be of texts, pairs or tagged words; in questions and choices, replaced "
            f"words would move the answers. Received: --task={options.task}, a "
            f"{named.task_class.__name__}"
        )
    if not options.vectors:
        option_flags.refuse(options, ("max_vectors",), "without --vectors")
    settings = option_flags.read(augmentation.AugmentationSettings, options)
    table = experiments.read(
        named,
        options.train,
        split="train",
        columns=columns(options),
        label_separator=options.label_separator,
    )
    arguments = {}
    if options.stop_words:
        arguments["stop_words"] = augmentation.read_stop_words(options.stop_words)
    if options.vectors:
        limit = options.max_vectors or None
        arguments["vectors"] = word_vectors.WordVectors.load(options.vectors, limit=limit)
    try:
        model = tasks.Pretraining.from_preset(options.preset)
    except ValueError as error:
        raise ValueError(
            "--preset must be a model with its masked-LM head, such as one written by "
            f"kbert-pretrain, not a fine-tuned one. {error}"
        ) from error
    augmenter = augmentation.Augmenter(
        table, model, settings, batch_size=options.batch_size, **arguments
    )
    if options.dry_run:
        print(augmentation.preview(augmenter))
        return
    manifest = augmentation.write_augmented(
        options.output_dir, augmenter, shards=options.shards, verbose=True
    )
    counts = manifest["counts"]
    print(
        f"{options.output_dir}: {counts['rows']:,} rows and {counts['copies']:,} copies in "
        f"{len(manifest['shards'])} shards"
    )


PROGRAM = command.Program(
    name="kbert-augment",
    doc=__doc__,
    define_flags=define_flags,
    work=_augment,
    files=("train", "vectors", "stop_words"),
    models=("preset",),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
