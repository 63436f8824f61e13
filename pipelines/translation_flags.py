"""Flags of `kbert-pretrain` that only a translator reads."""

from absl import flags

KINDS = ("bpe", "wordpiece", "unigram")
# Two aligned files, one table, or a data set; of the training pairs and of the held-out ones.
PAIRS, DEV_PAIRS = ("source", "target", "pairs"), ("dev_source", "dev_target", "dev_pairs")
TRANSLATION_FLAGS = (
    *(*PAIRS, *DEV_PAIRS, "columns", "tokenizer", "tokenizer_dir", "lowercase"),
    *("batch_tokens", "label_smoothing", "beam_width", "length_penalty"),
)


def define_translation_flags() -> None:
    """What is translated, by which tokens, and how a translation is searched for."""
    flags.DEFINE_string("source", None, "File of a sentence a line, plain or .gz.")
    flags.DEFINE_string("target", None, "File of their translations, line by line.")
    flags.DEFINE_string(
        "pairs",
        None,
        "In the place of these: files of source and target between tabs, or of JSON lines, plain "
        "or .gz, or a TensorFlow data set as tfds:NAME[/CONFIG][:SPLIT].",
    )
    for name, what in zip(DEV_PAIRS, PAIRS, strict=True):
        flags.DEFINE_string(name, None, f"As --{what}, of the pairs that BLEU is measured on.")
    flags.DEFINE_list(
        "columns",
        None,
        "Of --pairs and --dev_pairs: source and target, by numbers from 0 or by names. Default: "
        "0,1; the two that a data set itself names.",
    )
    flags.DEFINE_enum(
        "tokenizer",
        "bpe",
        KINDS,
        "Kind of the tokenizer that both languages share. It is learned once, of "
        "--vocabulary_size entries, and kept in model_dir/tokenizer.",
    )
    flags.DEFINE_string("tokenizer_dir", None, "Folder of one that is there already.")
    flags.DEFINE_boolean(
        "lowercase", False, "Lower case and no accents, in translations too; not for bpe."
    )
    flags.DEFINE_integer(
        "batch_tokens", 4096, "Tokens of each side of a batch of sentence pairs at most.", 1
    )
    flags.DEFINE_float(
        "label_smoothing", 0.1, "Probability that targets leave to all other tokens.", 0.0, 1.0
    )
    flags.DEFINE_integer(
        "beam_width", 4, "Of the search for translations that BLEU is of; 1: greedy.", 1
    )
    flags.DEFINE_float(
        "length_penalty", 0.6, "Beams are compared by log P / ((5 + length) / 6) ** this.", 0.0
    )
