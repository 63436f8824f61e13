"""Flags of `kbert-pretrain` that only a translator reads."""

from kbert.options import Options, option

KINDS = ("bpe", "wordpiece", "unigram")
# Two aligned files, one table, or a data set; of the training pairs and of the held-out ones.
PAIRS, DEV_PAIRS = ("source", "target", "pairs"), ("dev_source", "dev_target", "dev_pairs")


def _dev(what: str) -> str | None:
    return option(None, help=f"As --{what}, of the pairs that BLEU is measured on.")


class TranslationOptions(Options):
    """What is translated, by which tokens, and how a translation is searched for."""

    source: str | None = option(None, help="File of a sentence a line, plain or .gz.")
    target: str | None = option(None, help="File of their translations, line by line.")
    pairs: str | None = option(
        None,
        help="In the place of these: files of source and target between tabs, or of JSON lines, "
        "plain or .gz, or a TensorFlow data set as tfds:NAME[/CONFIG][:SPLIT].",
    )
    dev_source: str | None = _dev("source")
    dev_target: str | None = _dev("target")
    dev_pairs: str | None = _dev("pairs")
    columns: tuple[str, ...] | None = option(
        None,
        help="Of --pairs and --dev_pairs: source and target, by numbers from 0 or by names. "
        "Default: 0,1; the two that a data set itself names.",
    )
    tokenizer: str = option(
        "bpe",
        help="Kind of the tokenizer that both languages share. It is learned once, of "
        "--vocabulary_size entries, and kept in model_dir/tokenizer.",
        choices=KINDS,
    )
    tokenizer_dir: str | None = option(None, help="Folder of one that is there already.")
    lowercase: bool = option(
        False, help="Lower case and no accents, in translations too; not for bpe."
    )
    batch_tokens: int = option(
        4096, help="Tokens of each side of a batch of sentence pairs at most.", at_least=1
    )
    label_smoothing: float = option(
        0.1, help="Probability that targets leave to all other tokens.", at_least=0, at_most=1
    )
    beam_width: int = option(
        4, help="Of the search for translations that BLEU is of; 1: greedy.", at_least=1
    )
    length_penalty: float = option(
        0.6, help="Beams are compared by log P / ((5 + length) / 6) ** this.", at_least=0
    )
