"""The base of the objectives of `kbert-pretrain` that are trained on shards of tokens."""

from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import tensorflow as tf
from absl import flags

import kbert
from kbert.core.options import Options
from kbert.data.corpus.mixture import parse_folders
from kbert.data.pretraining.settings import MaskingSettings
from kbert.tokenizers.base import Tokenizer
from kbert.training.run.phases import Phase, parse_phases
from kbert.training.strategies import Strategy

from .flags import HybridOptions, PermutationOptions, ReplacedTokensOptions, refuse_flags
from .option_flags import flag_names
from .translation_flags import TranslationOptions

# Not read by language models, which have no masks and segments.
MASKED = (MaskingSettings, ReplacedTokensOptions, HybridOptions, PermutationOptions)


Corpus: TypeAlias = kbert.data.Manifest | kbert.data.Mixture


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


class ShardsObjective:
    """An objective that learns from a folder of `kbert-prepare-corpus`.

    Args:
        options: the parsed flags.
        tokenizer: the shards'.
        manifest: theirs.

    Raises:
        ValueError: if a flag is given that the objective does not read.
    """

    UNREAD: Sequence[type[Options]] = (TranslationOptions,)
    MASKS = False  # whether tokens are masked
    needed_to_evaluate = "held-out documents: prepare the corpus with a larger --held_out_share"

    def __init__(self, options: flags.FlagValues, tokenizer: Tokenizer, manifest: Corpus) -> None:
        refuse_flags(options, flag_names(*self.UNREAD))
        self.options = options
        self.tokenizer = tokenizer
        self.manifest = manifest

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

    @property
    def unread(self) -> Sequence[str]:
        """Flags that shape no run of this objective."""
        return flag_names(*self.UNREAD)

    def phases(self) -> list[Phase]:
        """The phases of the run."""
        options = self.options
        text = options.phases or f"{options.sequence_length}:1"
        phases = parse_phases(text, options.train_steps, options.batch_size)
        if not self.MASKS and any(phase.masked_share is not None for phase in phases):
            raise ValueError(
                f"--objective={options.objective} masks nothing: its phases are written "
                f"length:share or length:share:batch_size. Received: --phases={options.phases}"
            )
        return phases

    def summary(self) -> str:
        """The training data, in a line."""
        return self.manifest.summary()

    def data(self) -> dict:
        """The training data and what its ids mean, by their names in run.json.

        The data may change in the middle of a run, the tokenizer only by its own name.
        """
        return {"data": self.manifest.checksum, "tokenizer": self.tokenizer.checksum}

    def why_no_evaluation(self) -> str | None:
        """Why the held-out split cannot be evaluated on, or None."""
        return None if self.manifest.split("held_out").documents else "0 held-out documents"

    def saved_kind(self, task: Any) -> str | None:
        """The kind of task that `save` writes; None for a model alone."""
        return task.kind

    def save(self, task: Any, folder: str) -> None:
        """Writes what was trained, to continue from."""
        task.save_to_preset(folder)

    def extra_scores(self, task: Any) -> None:
        """Evaluations measure losses and metrics alone."""

    def batches(self, phase: Phase, **settings: Any) -> tf.data.Dataset:
        """The dataset of a phase; of the held-out text with split="held_out"."""
        raise NotImplementedError(f"{type(self).__name__} must define `batches`.")

    def held_out(self, phase: Phase, **hosts: int) -> tf.data.Dataset:
        """Batches of a phase's shape, once through the held-out documents."""
        return self.batches(phase, split="held_out", epochs=1, **hosts)

    def check_positions(self, phases: Sequence[Phase], longest: int) -> None:
        """Refuses what would fail days later, when a phase begins."""
        for phase in phases:
            if phase.sequence_length > longest:
                raise ValueError(
                    "No phase may be longer than the model's max_positions; set --sequence_length "
                    "or --phases, which override a recipe's. Received: "
                    f"sequence_length={phase.sequence_length}, max_positions={longest}"
                )
            self.batches(phase)  # raises for what it does not accept

    def check_rows(self, phases: Sequence[Phase], rows: int) -> None:
        """Refuses phases of other rows than those that a model remembers."""
        for phase in phases:
            if phase.batch_size != rows:
                raise ValueError(
                    "What a language model remembers belongs to the rows of a batch, so all "
                    f"phases must have --batch_size rows. Received: {phase.batch_size} rows in a "
                    f"phase, batch_size={rows}"
                )
