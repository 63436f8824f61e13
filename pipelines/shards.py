"""The base of what `kbert-pretrain` trains on shards of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from absl import flags

import kbert
from kbert.core.options import Options
from kbert.data.corpus.shares import parse_folders
from kbert.data.pretraining.settings import MaskingSettings

from . import option_flags
from .flags import HybridOptions, PermutationOptions, ReplacedTokensOptions, refuse_flags
from .option_flags import flag_names
from .translation_flags import TranslationOptions

if TYPE_CHECKING:
    from kbert.data.pretraining.stream import Corpus
    from kbert.tokenizers.base import Tokenizer
    from kbert.training.strategies import Strategy

# Not read by language models, which have no masks and segments.
MASKED = (MaskingSettings, ReplacedTokensOptions, HybridOptions, PermutationOptions)


def read_corpus(options: flags.FlagValues) -> Corpus:
    """What --data_dir names: the shards of one folder, or of several."""
    folders = parse_folders(options.data_dir)
    if isinstance(folders, str):
        if options.mixture_temperature != 1:
            raise ValueError(
                "--mixture_temperature is of several folders in --data_dir. "
                f"Received: --data_dir={options.data_dir}"
            )
        return kbert.data.read_manifest(folders)
    return kbert.data.Mixture.read(folders, options.mixture_temperature)


class OnShards:
    """A task by its flags, and the folder of `kbert-prepare-corpus` that it learns from.

    Args:
        options: the parsed flags.
        tokenizer: the shards'.
        corpus: theirs.

    Raises:
        ValueError: if a flag is given that the objective does not read.
    """

    UNREAD: Sequence[type[Options]] = (TranslationOptions,)

    def __init__(self, options: flags.FlagValues, tokenizer: Tokenizer, corpus: Corpus) -> None:
        refuse_flags(options, flag_names(*self.UNREAD))
        self.options = options
        self.tokenizer = tokenizer
        self.corpus = corpus

    @classmethod
    def from_flags(cls, options: flags.FlagValues, strategy: Strategy) -> Self:
        """Opens --data_dir."""
        if options.data_dir is None:
            raise ValueError(
                f"--objective={options.objective} learns from a folder of kbert-prepare-corpus: "
                "give --data_dir. Received: none"
            )
        corpus = read_corpus(options)  # first: it raises for unfinished ones
        first = corpus.manifests[0] if isinstance(corpus, kbert.data.Mixture) else corpus
        return cls(options, kbert.load_tokenizer(first.folder), corpus)

    def make_task(self) -> Any:
        """The task that the flags describe, not compiled."""
        raise NotImplementedError(f"{type(self).__name__} must define `make_task`.")

    def make_objective(self, task: Any, **notes: Any) -> Any:
        """What the task is trained on.

        Args:
            task: what `make_task` gave.
            **notes: what run.json says besides.
        """
        trained = getattr(task, "student", task)
        settings = option_flags.read(trained.corpus_objective.settings, self.options).arguments()
        return task.make_objective(self.corpus, notes=notes, **settings)

    def summary(self) -> str:
        """The training data, in a line."""
        return self.corpus.summary()

    def saved_kind(self, task: Any) -> str | None:
        """The kind of task that `save` writes; None for a model alone."""
        return task.kind

    def save(self, task: Any, folder: str) -> None:
        """Writes what was trained, to continue from."""
        task.save_to_preset(folder)
