"""`kbert-pretrain` for the Transformer: translation, learned from pairs of sentences."""

from typing import Any, Self

from absl import flags

import kbert
from kbert import tokenizers
from kbert.checkpoints import read_checkpoint
from kbert.decoding.options import EvaluationOptions
from kbert.hub import locate
from kbert.io.paths import Path
from kbert.tasks.settings import StepsSettings
from kbert.text import read_pairs
from kbert.tokenizers.base import Tokenizer
from kbert.training.strategies import Strategy

from . import option_flags
from .causal import read_config, with_changes
from .flags import VocabularyOptions, parse_settings, refuse_unread
from .translation_flags import DEV_PAIRS, PAIRS, TranslationOptions

VOCABULARY_SIZE = 37_000  # Vaswani et al. 2017, section 5.1


class Translation:
    """The objective translation: a Transformer learns from pairs of sentences.

    Args:
        options: the parsed flags.
        tokenizer: tokenizer of both languages.
        pairs: training data.
        dev: development data, or None.
    """

    READS = (VocabularyOptions, TranslationOptions)

    def __init__(
        self,
        options: flags.FlagValues,
        tokenizer: Tokenizer,
        pairs: Any,
        dev: Any | None,
    ) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.pairs = pairs
        self.dev = dev

    @classmethod
    def from_flags(cls, options: flags.FlagValues, strategy: Strategy) -> Self:
        """Opens the pairs; trains the tokenizer, or loads the one of an earlier start.

        Args:
            options: the parsed flags.
            strategy: devices and hosts of the run.

        Raises:
            ValueError: there are no training pairs, or flags contradict each other.
        """
        refuse_unread(options, cls.READS, ["data_dir", "batch_size", "phases"])
        pairs, dev = open_pairs(options, PAIRS), open_pairs(options, DEV_PAIRS)
        if pairs is None:
            raise ValueError(
                "--objective=translation requires sentence pairs: --source and --target, or "
                "--pairs. Received: none of them"
            )
        if options.columns is not None and options.pairs is options.dev_pairs is None:
            raise ValueError(
                "--columns requires --pairs or --dev_pairs. Received: "
                f"--columns={','.join(options.columns)}, and neither of them"
            )
        writes = strategy.is_chief and not options.dry_run
        tokenizer = run_tokenizer(options, pairs, writes)
        return cls(options, tokenizer, pairs, dev)

    def summary(self) -> str:
        """Returns a summary of the training data in one line."""
        dev = "" if self.dev is None else f"; dev: {self.dev.name}"
        return (
            f"train: {self.pairs.name}{dev}; {self.tokenizer.kind} tokenizer of "
            f"{self.tokenizer.vocabulary_size:,} entries"
        )

    def make_task(self) -> kbert.tasks.Translator:
        """Makes the task that the flags describe, not compiled."""
        seq2seq = make_seq2seq(self.options, self.tokenizer)
        smoothing = self.options.label_smoothing
        return kbert.tasks.Translator(seq2seq, self.tokenizer, label_smoothing=smoothing)

    def make_objective(self, task: kbert.tasks.Translator, **notes: Any) -> Any:
        """Makes the training objective of the task.

        Args:
            task: the task from `make_task`.
            **notes: further entries of run.json.
        """
        options = self.options
        settings = option_flags.read(StepsSettings, options).arguments()
        settings |= {name: options[name].value for name in EvaluationOptions.names()}
        settings["max_tokens"] = options.batch_tokens
        if options["sequence_length"].present:
            settings["max_length"] = options.sequence_length
        return task.make_objective(self.pairs, validation_data=self.dev, notes=notes, **settings)

    def saved_kind(self, task: kbert.tasks.Translator) -> str | None:
        """Returns the kind of task that `save` writes."""
        return task.kind

    def save(self, task: kbert.tasks.Translator, folder: str) -> None:
        """Writes the trained task as a preset."""
        task.save_to_preset(folder)


def open_pairs(options: flags.FlagValues, names: tuple[str, str, str]) -> Any | None:
    """Opens sentence pairs: two aligned files, or one source of pairs.

    Args:
        options: the parsed flags.
        names: names of three flags: source file, target file, source of pairs.

    Returns:
        The pairs; None if none of the flags is given.

    Raises:
        ValueError: neither both files nor only the source of pairs are given.
    """
    source, target, pairs = (options[name].value for name in names)
    if source is target is pairs is None:
        return None
    if (source is None) != (target is None) or (source is None) == (pairs is None):
        source_flag, target_flag, pairs_flag = names
        raise ValueError(
            f"Pass --{source_flag} and --{target_flag} together, or only --{pairs_flag}. Received: "
            + ", ".join(f"--{n}={options[n].value}" for n in names if options[n].value is not None)
        )
    if pairs is None:
        return read_pairs(source, target)
    columns = options.columns
    if columns is not None and all(column.isdecimal() for column in columns):
        columns = [int(column) for column in columns]
    return read_pairs(pairs, columns=columns)


def run_tokenizer(options: flags.FlagValues, pairs: Any, writes: bool) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the run, which never changes once there are checkpoints.

    It is that of --tokenizer_dir or --init_preset, that of an earlier start, or newly trained.

    Args:
        options: the parsed flags.
        pairs: training data of the tokenizer; unused with --tokenizer_dir or --init_preset.
        writes: whether to save the tokenizer in model_dir.

    Raises:
        ValueError: flags contradict each other, or the run began with another tokenizer.
    """
    folder = Path(options.model_dir) / "tokenizer"
    checkpoints = Path(options.model_dir) / "checkpoints"
    if options.init_preset and options.tokenizer_dir:
        raise ValueError(
            "A pretrained model keeps its own tokenizer: leave --tokenizer_dir out. Received: "
            f"--tokenizer_dir={options.tokenizer_dir}, --init_preset={options.init_preset}"
        )
    source = options.tokenizer_dir or options.init_preset
    learning = {"kind": options.tokenizer, "lowercase": options.lowercase}
    size = options.vocabulary_size or VOCABULARY_SIZE
    if source is None:
        if writes:
            return kbert.data.train_or_reuse_tokenizer(
                folder, pairs, size, used_by=checkpoints, progress=True, **learning
            )
        if checkpoints.exists():
            return kbert.load_tokenizer(folder)
        return tokenizers.train_tokenizer(pairs.documents(), size, **learning)
    refuse_with = ("vocabulary_size", "tokenizer", "lowercase")
    if given_flags := [name for name in refuse_with if options[name].present]:
        raise ValueError(
            f"--{given_flags[0]} requires a tokenizer that is newly trained, not that of {source}. "
            f"Received: --{given_flags[0]}={options[given_flags[0]].value}"
        )
    tokenizer = kbert.load_tokenizer(source)
    if checkpoints.exists():
        earlier_tokenizer = kbert.load_tokenizer(folder)
        if earlier_tokenizer.checksum != tokenizer.checksum:
            raise ValueError(
                f"The run in {options.model_dir} was started with another tokenizer, which is in "
                f"its folder tokenizer; choose another --model_dir. Received: that of {source}"
            )
    elif writes:
        tokenizer.save(folder)
    return tokenizer


def make_seq2seq(options: flags.FlagValues, tokenizer: Tokenizer) -> kbert.Seq2Seq:
    """Returns the model of --init_preset, or a new one with the tokenizer's vocabulary size."""
    if options.init_preset:
        seq2seq = read_seq2seq(options.init_preset, options.precision)
        return with_changes(seq2seq, parse_settings(options.set), options.precision)
    return kbert.Seq2Seq(model_config(options, tokenizer), dtype=options.precision)


def read_seq2seq(preset: str, dtype: str | None = None) -> kbert.Seq2Seq:
    """Loads the encoder-decoder of a preset, or makes one from the encoder of a preset.

    Args:
        preset: folder or name of the model.
        dtype: dtype policy; None = Keras' default.

    Raises:
        ValueError: the preset is a translator of one network.
    """
    checkpoint = read_checkpoint(locate(preset))
    if isinstance(checkpoint.config, kbert.EncoderConfig):
        kinds = (kbert.Translator.kind, kbert.tasks.UniLMTranslator.kind)
        if (checkpoint.task or {}).get("kind") in kinds:
            raise ValueError(
                "kbert-pretrain cannot continue to train a translator of one network; use "
                f"kbert.tasks.Task.from_preset(…).fit instead. Received: --init_preset={preset}"
            )
        return kbert.Seq2Seq.from_encoder(kbert.Encoder.from_preset(preset, dtype=dtype))
    return kbert.Seq2Seq.from_preset(preset, dtype=dtype)


def model_config(options: flags.FlagValues, tokenizer: Tokenizer) -> kbert.Seq2SeqConfig:
    """Returns the config that the flags describe, with the tokenizer's vocabulary size."""
    if options.init_preset:
        return read_seq2seq(options.init_preset).config
    config = read_config(options.model, kbert.Seq2SeqConfig)
    changes = parse_settings(options.set)
    fields = {**config.to_dict(), "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return kbert.Seq2SeqConfig.from_dict(fields)
