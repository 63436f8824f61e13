r"""Converts text of any size to shards of token ids, once for any number of pretraining runs.

  kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary=vocab.txt --output_dir=shards
  kbert-prepare-corpus --input=docs: --vocabulary_size=8000 --output_dir=shards --num_workers=4
  kbert-prepare-corpus --input=docs: --tokenizer=unigram --vocabulary_size=8000 --output_dir=shards
  kbert-prepare-corpus --input=split.txt --tokenizer=words --output_dir=shards
  kbert-prepare-corpus --input=docs: --tokenizer=unigram --vocabulary_size=32000 \
    --num_sentinels=100 --output_dir=shards

The tokenizer is an existing one of any kind (--vocabulary: a vocab.txt, a SentencePiece .model, a
kbert or Hugging Face folder; with --tokenizer=words a file of words, as for bilm-tf), or is trained
on the input (--vocabulary_size, and --tokenizer for its kind: wordpiece as for BERT, bpe as for
RoBERTa, unigram as for ALBERT, words as for ELMo). Its files are stored with the shards, and
training loads it from there. --tokenizer=words splits text at white space, so separate punctuation
first. Without --vocabulary_size it keeps all words: ELMo reads their characters, and kbert-pretrain
selects those to predict.

--dry_run shows the first documents as sentences and tokens, with an estimate of time, disk and
memory. After an interrupt or a kill, the same command resumes. Input formats:

  corpus/*.txt, *.txt.gz      a blank line between documents; one sentence per line or running text
  corpus/*.jsonl, *.jsonl.gz  one JSON object per line, the text under --field
  *.parquet, *.arrow          one document per row, the text in the column --field
  tfds:wikipedia/20230601.en  a TensorFlow dataset, the text under --field; ":SPLIT" may follow
  docs:                       the documentation that is installed with Python and its packages

--runner=beam prepares many files on many machines, by Apache Beam (pip install 'kbert[beam]'), with
the same bytes as on one machine. All machines must see the input and --output_dir; each file is
read by one machine:

  kbert-prepare-corpus --runner=beam --beam_flags='--runner=FlinkRunner --flink_master=HOST:8081' …

Then: kbert-pretrain --data_dir=shards …
"""

from absl import flags

import kbert
from kbert import tokenizers
from kbert.io import atomic
from kbert.io.paths import Path, is_file
from kbert.text import chinese_lexicon, open_sources, read_pairs
from kbert.text.chinese import segmenter
from kbert.tokenizers.text_ops import import_without_keras

from . import beam_flags, command

# Enough text for the preview of a vocabulary.
_DRY_RUN_DOCUMENTS = 2_000


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    flags.DEFINE_multi_string(
        "input", None, "Source of text, see above; separate several by commas or repeat the flag."
    )
    flags.DEFINE_multi_string(
        "target",
        None,
        "Files with the translations of --input, line by line, as many files as --input: each "
        "text and its translation form one document, for kbert-pretrain --segments=aligned.",
    )
    flags.DEFINE_string("output_dir", None, "Folder for the shards and manifest.json.")
    flags.DEFINE_string(
        "vocabulary",
        None,
        "A vocab.txt, a SentencePiece .model, a file of words (with --tokenizer=words), or the "
        "folder of a tokenizer.",
    )
    flags.DEFINE_integer(
        "vocabulary_size",
        None,
        "Train a vocabulary of this size on the input instead. Default with --tokenizer=words: "
        "all words.",
    )
    flags.DEFINE_enum(
        "tokenizer", None, tokenizers.KINDS, "Kind of the tokenizer. Default: wordpiece."
    )
    flags.DEFINE_boolean(
        "lowercase",
        None,
        "Lower-case and strip accents; not for bpe and words. Default: the setting in the folder "
        "of --vocabulary, else true.",
    )
    flags.DEFINE_integer(
        "num_sentinels",
        0,
        "Sentinels of a trained vocabulary, wordpiece or unigram, for kbert-pretrain --recipe=t5. "
        "T5 has 100; rows of 512 tokens require 28.",
        0,
    )
    flags.DEFINE_float(
        "held_out_share", 0.01, "Share of the documents kept for evaluation.", 0.0, 0.999
    )
    flags.DEFINE_integer("num_workers", 1, "Processes; each needs about 1 GB.", 0)
    beam_flags.define()
    flags.DEFINE_string(
        "field",
        "text",
        "Field or column of the text in JSON lines, Parquet, Arrow and TensorFlow datasets.",
    )
    flags.DEFINE_enum(
        "on_bad_utf8",
        "fail",
        ["fail", "replace"],
        "Invalid UTF-8: stop and report it, or replace it with U+FFFD.",
    )
    flags.DEFINE_string(
        "lexicon",
        None,
        "Also write the Chinese words of the text to this file, one per line, for kbert-pretrain "
        "--masking=phrase --phrases=FILE; words are segmented by jieba (pip install "
        "'kbert[chinese]').",
    )
    flags.DEFINE_integer("lexicon_min_count", 2, "Minimum count of a word in --lexicon.", 1)
    flags.DEFINE_boolean("dry_run", False, "Show what would be done, and stop.")
    flags.mark_flags_as_required(["input", "output_dir"])
    flags.register_multi_flags_validator(
        ["vocabulary", "vocabulary_size", "tokenizer"],
        _says_the_vocabulary,
        "Exactly one of --vocabulary and --vocabulary_size must be given, or neither with "
        "--tokenizer=words, for all words.",
    )
    flags.register_multi_flags_validator(
        ["vocabulary", "num_sentinels"],
        lambda values: values["vocabulary"] is None or not values["num_sentinels"],
        "--num_sentinels requires a vocabulary that is newly trained: leave out --vocabulary.",
    )


def _says_the_vocabulary(values: dict) -> bool:
    """Returns whether the flags name or describe one vocabulary; `values` are flag -> value."""
    given_flags = [name for name in ("vocabulary", "vocabulary_size") if values[name] is not None]
    return len(given_flags) == 1 or (not given_flags and values["tokenizer"] == "words")


def _prepare(options: flags.FlagValues) -> None:
    """Writes the shards, and with --lexicon the Chinese words; or shows a preview (--dry_run)."""
    import_without_keras()  # texts are tokenised here, and no model is made
    beam_arguments = beam_flags.read(options)
    sources: list = command.split_sources(options.input)
    if options.target:
        targets = command.split_sources(options.target)
        pairs = read_pairs(sources, targets, on_bad_utf8=options.on_bad_utf8)
        sources = [pairs.aligned_documents()]
    reading = {"field": options.field, "on_bad_utf8": options.on_bad_utf8}
    if options.lexicon is not None:
        segmenter()  # raises for a missing package before hours of work
    tokenizer = _tokenizer(options, sources, reading)
    if options.dry_run:
        text, _ = kbert.data.preview_corpus(
            sources, tokenizer, num_workers=options.num_workers, **reading
        )
        print(text)
        return
    corpus = kbert.data.prepare_corpus(
        sources,
        options.output_dir,
        tokenizer,
        held_out_share=options.held_out_share,
        num_workers=options.num_workers,
        beam_flags=beam_arguments,
        **reading,
    )
    print(f"{options.output_dir}: {corpus.summary()}")
    if options.lexicon is not None:
        texts = (text for source in open_sources(sources, **reading) for text in source.documents())
        words = chinese_lexicon(texts, min_count=options.lexicon_min_count)
        atomic.write(Path(options.lexicon), "".join(f"{word}\n" for word in words).encode())
        print(f"{options.lexicon}: {len(words):,} Chinese words")


def _tokenizer(options: flags.FlagValues, sources: list, reading: dict) -> "tokenizers.Tokenizer":
    """Returns the tokenizer: that of --vocabulary, or a newly trained one.

    Args:
        options: the parsed flags; with --dry_run only the first 2,000 documents are read.
        sources: sources of text.
        reading: arguments for reading the sources.
    """
    if options.vocabulary is not None:
        return _given_tokenizer(options)
    size = options.vocabulary_size or 0  # all words
    learning = {
        "kind": options.tokenizer or "wordpiece",
        "lowercase": options.lowercase,
        "num_sentinels": options.num_sentinels,
    }
    if options.dry_run:
        print(f"(The vocabulary below is trained on {_DRY_RUN_DOCUMENTS} documents only.)\n")
        texts = (text for source in open_sources(sources, **reading) for text in source.documents())
        first = (text for text, _ in zip(texts, range(_DRY_RUN_DOCUMENTS), strict=False))
        return tokenizers.train_tokenizer(first, size, **learning)
    return kbert.data.train_or_reuse_tokenizer(
        options.output_dir, sources, size, progress=True, **learning, **reading
    )


def _given_tokenizer(options: flags.FlagValues) -> "tokenizers.Tokenizer":
    """Returns the tokenizer of --vocabulary, with the setting of --lowercase.

    A vocabulary file has words with --tokenizer=words, else WordPiece's tokens. The
    tokenizer of a folder has the kind of its files; a .model is a unigram tokenizer.

    Raises:
        ValueError: the tokenizer is not of the kind --tokenizer, or does not support --lowercase.
    """
    path = options.vocabulary
    is_vocabulary = is_file(path) and not path.endswith(".model")
    if is_vocabulary and options.tokenizer != "words":
        tokenizer: tokenizers.Tokenizer = kbert.WordPieceTokenizer(
            path, lowercase=options.lowercase is not False
        )
    else:
        tokenizer = tokenizers.WordTokenizer(path) if is_vocabulary else kbert.load_tokenizer(path)
    if options.tokenizer not in (None, tokenizer.kind):
        raise ValueError(
            f"{path} holds a tokenizer of kind {tokenizer.kind}. "
            f"Received: --tokenizer={options.tokenizer}"
        )
    config = tokenizer.get_config()
    lowercase = options.lowercase
    if lowercase is None or not (lowercase or "lowercase" in config):
        return tokenizer
    if "lowercase" not in config:
        raise ValueError(
            f"--lowercase is not supported by a tokenizer of kind {tokenizer.kind}. Received: "
            "--lowercase"
        )
    # The flag sets the accents too; a WordPiece tokenizer strips them by default as it lower-cases.
    changes = {"lowercase": lowercase, "keep_accents": not lowercase, "strip_accents": None}
    changes = {name: value for name, value in changes.items() if name in config}
    return type(tokenizer).from_config(config | changes)


PROGRAM = command.Program(
    name="kbert-prepare-corpus",
    doc=__doc__,
    define_flags=define_flags,
    work=_prepare,
    files=("input", "target"),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
