"""Flags of `kbert-pretrain` that only a translator reads."""

from kbert.core.options import option
from kbert.decoding.options import EvaluationOptions

KINDS = ("bpe", "wordpiece", "unigram")
# Flags of the training pairs and of the held-out ones: two aligned files, or one table or data set.
PAIRS, DEV_PAIRS = ("source", "target", "pairs"), ("dev_source", "dev_target", "dev_pairs")


def _dev(what: str) -> str | None:
    return option(
        None,
        help=f"Like --{what}, for the pairs that BLEU is measured on.",
    )


class TranslationOptions(EvaluationOptions):
    """Options for the pairs, the tokenizer and the beam search of a translator."""

    # run.json holds checksums of the content of these files.
    source: str | None = option(None, help="File with one sentence per line, plain or .gz.")
    target: str | None = option(None, help="File with their translations, line by line.")
    pairs: str | None = option(
        None,
        help="Instead of source and target files: files of tab-separated source and target, or of "
        "JSON lines, plain or .gz, of Parquet or Arrow, or a TensorFlow dataset as "
        "tfds:NAME[/CONFIG][:SPLIT].",
    )
    dev_source: str | None = _dev("source")
    dev_target: str | None = _dev("target")
    dev_pairs: str | None = _dev("pairs")
    columns: tuple[str, ...] | None = option(
        None,
        help="Columns of source and target in --pairs and --dev_pairs, by number from 0 or by "
        "name, such as translation.en,translation.de inside a struct. Default: 0,1; for a dataset "
        "the two that it declares.",
    )
    tokenizer: str = option(
        "bpe",
        help="Kind of the tokenizer that both languages share. It is trained once, with "
        "--vocabulary_size entries, and kept in model_dir/tokenizer.",
        choices=KINDS,
    )
    tokenizer_dir: str | None = option(None, help="Folder of an existing tokenizer.")
    lowercase: bool = option(
        False, help="Lower-case and strip accents, in translations too; not for bpe."
    )
    batch_tokens: int = option(
        4096, help="Largest number of tokens per side of a batch of sentence pairs.", at_least=1
    )
    label_smoothing: float = option(
        0.1, help="Probability mass that targets give to all other tokens.", at_least=0, at_most=1
    )
