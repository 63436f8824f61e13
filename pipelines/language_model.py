"""`kbert-pretrain` for ELMo: a language model in both directions."""

from absl import flags

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.data.pretraining.stream import Corpus
from kbert.hub import locate
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.tokenizers.base import Tokenizer

from .flags import NegativesOptions, VocabularyOptions, parse_settings
from .shards import OnShards


class LanguageModel(OnShards):
    """The objective language_model.

    Args:
        options: the parsed flags.
        tokenizer: tokenizer of the shards.
        corpus: the shards.

    Raises:
        ValueError: a flag is given that this objective does not read, or the shards do not hold
            words.
    """

    READS = (VocabularyOptions, NegativesOptions)

    def __init__(self, options: flags.FlagValues, tokenizer: Tokenizer, corpus: Corpus) -> None:
        super().__init__(options, tokenizer, corpus)
        if tokenizer.kind != "words":
            raise ValueError(
                "--objective=language_model requires whole words: prepare the corpus with "
                f"--tokenizer=words. Received: shards of a {tokenizer.kind} tokenizer"
            )
        self.config = read_config(options, tokenizer)

    def make_task(self) -> kbert.tasks.BidirectionalLM:
        """Makes the task that the flags describe, not compiled."""
        # The softmax covers only the most frequent words of the shards.
        words = kbert.WordTokenizer(self.tokenizer.vocabulary[: self.config.vocabulary_size])
        options = self.options
        if options.init_preset:
            elmo = kbert.tasks.adapt_elmo(
                options.init_preset,
                words,
                changes=parse_settings(options.set),
                dtype=options.precision,
            )
        else:
            elmo = kbert.Elmo(self.config, tokenizer=words, dtype=options.precision)
        return kbert.tasks.BidirectionalLM(
            elmo,
            batch_size=options.batch_size,
            negatives=options.negatives,
            seed=options.seed,
        )


def read_config(options: flags.FlagValues, tokenizer: Tokenizer) -> kbert.ElmoConfig:
    """Returns the config of ELMo, with a softmax over --vocabulary_size words.

    Args:
        options: the parsed flags; --init_preset or --model has the config, --set changes it.
        tokenizer: tokenizer of the shards.

    Raises:
        ValueError: the config is of another model, or the vocabulary has fewer words.
    """
    if options.init_preset:
        config = read_checkpoint(locate(options.init_preset)).expect(kbert.ElmoConfig).config
    elif options.model.endswith(".json"):
        config = kbert.ElmoConfig.from_dict(read_json(Path(options.model)))
    else:
        config = kbert.family(options.model)
    if not isinstance(config, kbert.ElmoConfig):
        raise ValueError(
            "--objective=language_model trains ELMo: give --model=elmo-small, another of its "
            f"sizes, or a JSON file with a config. Received: --model={options.model}"
        )
    changes = parse_settings(options.set)
    if "vocabulary_size" in changes:
        raise ValueError(
            "Use --vocabulary_size, not --set, for the number of words in the softmax. Received: "
            f"--set=vocabulary_size={changes['vocabulary_size']}"
        )
    most = tokenizer.vocabulary_size
    size = most if options.vocabulary_size is None else options.vocabulary_size
    if size > most:
        raise ValueError(
            "--vocabulary_size must be at most the number of words in the shards' vocabulary. "
            f"Received: --vocabulary_size={size}, {most} words in the vocabulary"
        )
    return kbert.ElmoConfig.from_dict({**config.to_dict(), **changes, "vocabulary_size": size})
