"""Base of the objectives that `kbert-pretrain` trains on shards of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from absl import flags

import kbert
from kbert.core.options import Options
from kbert.data.corpus.shares import parse_folders
from kbert.data.pretraining.settings import MaskingSettings

from . import option_flags
from .flags import (
    HybridOptions,
    MixedOptions,
    NoiseOptions,
    PermutationOptions,
    ReplacedTokensOptions,
    refuse_flags,
)
from .option_flags import flag_names
from .translation_flags import TranslationOptions

if TYPE_CHECKING:
    from kbert.data.pretraining.stream import Corpus
    from kbert.tokenizers.base import Tokenizer
    from kbert.training.strategies import Strategy

# Options that language models do not read: they have no masks and segments.
MASKED = (
    *(MaskingSettings, ReplacedTokensOptions, HybridOptions, MixedOptions),
    PermutationOptions,
)


def read_corpus(options: flags.FlagValues) -> Corpus:
    """Opens the shards of --data_dir: of one folder, or a mixture of several.

    Raises:
        ValueError: --mixture_temperature is given for a single folder.
    """
    folders = parse_folders(options.data_dir)
    if isinstance(folders, str):
        if options.mixture_temperature != 1:
            raise ValueError(
                "--mixture_temperature requires several folders in --data_dir. Received: "
                f"--data_dir={options.data_dir}"
            )
        return kbert.data.read_manifest(folders)
    return kbert.data.Mixture.read(folders, options.mixture_temperature)


class OnShards:
    """A pretraining objective on shards of `kbert-prepare-corpus`: its task and its data.

    Args:
        options: the parsed flags.
        tokenizer: tokenizer of the shards.
        corpus: the shards.

    Raises:
        ValueError: a flag is given that the objective does not read.
    """

    UNREAD: Sequence[type[Options]] = (TranslationOptions,)
    READS_NOISE: ClassVar[bool] = False

    def __init__(self, options: flags.FlagValues, tokenizer: Tokenizer, corpus: Corpus) -> None:
        unread = list(self.UNREAD)
        if "noise" in options and not self.READS_NOISE:  # kbert-distill has no such flag
            unread.append(NoiseOptions)
        refuse_flags(options, flag_names(*unread))
        self.options = options
        self.tokenizer = tokenizer
        self.corpus = corpus

    @classmethod
    def from_flags(cls, options: flags.FlagValues, strategy: Strategy) -> Self:
        """Makes the objective from the flags; opens --data_dir and its tokenizer.

        Args:
            options: the parsed flags.
            strategy: devices and hosts of the run; not used here.

        Raises:
            ValueError: --data_dir is not given.
        """
        if options.data_dir is None:
            raise ValueError(
                f"--objective={options.objective} requires --data_dir, a folder written by "
                "kbert-prepare-corpus. Received: none"
            )
        corpus = read_corpus(options)  # first, because it raises for unfinished shards
        first = corpus.manifests[0] if isinstance(corpus, kbert.data.Mixture) else corpus
        return cls(options, kbert.load_tokenizer(first.folder), corpus)

    def make_task(self) -> Any:
        """Makes the task that the flags describe, not compiled; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define `make_task`.")

    def make_objective(self, task: Any, **notes: Any) -> Any:
        """Makes the training objective of the task.

        Args:
            task: the task from `make_task`.
            **notes: further entries of run.json.
        """
        trained = getattr(task, "student", task)
        settings = option_flags.read(trained.corpus_objective.settings, self.options).arguments()
        return task.make_objective(self.corpus, notes=notes, **settings)

    def summary(self) -> str:
        """Returns a summary of the training data in one line."""
        return self.corpus.summary()

    def saved_kind(self, task: Any) -> str | None:
        """Returns the kind of task that `save` writes; None for a model without a task."""
        return task.kind

    def save(self, task: Any, folder: str) -> None:
        """Writes the trained task as a preset."""
        task.save_to_preset(folder)
