"""Pretraining on a corpus: token shards from which every batch of a run can be reproduced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.data.corpus.manifest import Manifest
from kbert.data.corpus.mixture import Mixture
from kbert.data.pretraining.stream import Corpus, open_corpus
from kbert.tasks.settings import CorpusSettings, StepsSettings
from kbert.tasks.steps_objective import StepsObjective
from kbert.tokenizers.base import Tokenizer
from kbert.training.run.phases import Epochs, Phase, Start, parse_phases

_PATHS = (str, os.PathLike)
_BEGINNING: Start = (0, 0, 0)  # position from which a new run reads


class CorpusObjective(StepsObjective):
    """Objective on the text of a corpus in phases; a subclass defines the batches by `dataset`.

    Args:
        task: a `Task`.
        data: a folder of `kbert.data.prepare_corpus`, several with their shares as `{folder:
            share}`, or text, which is prepared once; see `kbert.data.pretraining_dataset`.
        model: model to train: the task, or a model that contains it; None = the task.
        cache_dir: folder in which text is prepared; None = the user's cache folder.
        **settings: the fields of `settings`, and `notes`.

    Raises:
        FileNotFoundError: there is no such corpus.
        TypeError: an argument is unknown, or `steps` is missing.
        ValueError: the settings do not fit each other, the task or the corpus.
    """

    settings: ClassVar[type[StepsSettings]] = CorpusSettings
    masks: ClassVar[bool] = False  # whether tokens are masked

    def __init__(
        self,
        task: Any,
        data: Any,
        *,
        model: Any = None,
        cache_dir: PathLike | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(task, model=model, **settings)
        self.corpus, self.tokenizer = self.open(data, cache_dir)
        options = self.options
        text = options.phases or f"{options.sequence_length}:1"
        self.plan = parse_phases(text, options.steps, options.batch_size)
        if not self.masks and any(phase.masked_share is not None for phase in self.plan):
            raise ValueError(
                f"phases of a {type(task).__name__} must be length:share or "
                f"length:share:batch_size (it masks nothing). Received: phases={options.phases}"
            )
        self.check()

    @staticmethod
    def takes(data: Any) -> bool:
        """Returns whether `data` is a path, a manifest, a mixture, or folders with their shares."""
        if isinstance(data, Mapping):
            pairs = data.items()
            return all(isinstance(x, _PATHS) and isinstance(y, int | float) for x, y in pairs)
        return isinstance(data, (*_PATHS, Manifest, Mixture))

    def open(self, data: Any, cache_dir: PathLike | None) -> tuple[Corpus, Tokenizer]:
        """Opens the corpus; returns it with the tokenizer of its ids, which is the task's.

        `data` is a folder or text, see the class; text is prepared in `cache_dir`.
        """
        return open_corpus(data, self.task.tokenizer, cache_dir), self.task.tokenizer

    def check(self) -> None:
        """Raises ValueError now for errors that would otherwise occur when a later phase begins.

        They are found by making the batches of each phase. The run uses those of the first one.
        """
        longest = self.max_length
        batches = []
        for phase in self.plan:
            if longest is not None and phase.sequence_length > longest:
                raise ValueError(
                    "sequence_length, and every length in phases, must be at most the model's "
                    f"max_positions. Received: sequence_length={phase.sequence_length}, "
                    f"max_positions={longest}"
                )
            batches.append(self.dataset(phase, "train", start=_BEGINNING))
        self._first_batches = batches[0]

    def batches(
        self, stage: Phase | Epochs, start: Start, *, num_hosts: int = 1, host_index: int = 0
    ) -> tf.data.Dataset:
        if (stage, start, num_hosts) == (self.plan[0], _BEGINNING, 1):
            return self._first_batches
        return super().batches(stage, start, num_hosts=num_hosts, host_index=host_index)

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens in a row; None if there is no limit."""
        return self.task.model.config.max_positions

    def stream(self, phase: Phase, split: str, **others: Any) -> dict[str, Any]:
        """Returns the arguments common to all datasets of a corpus, and the `others` unchanged.

        `split` is "train" or "held_out".
        """
        return {
            "split": split,
            "sequence_length": phase.sequence_length,
            "batch_size": phase.batch_size,
            "seed": self.options.seed,
            **others,
        }

    def data(self) -> Mapping[str, Any]:
        return {"data": self.corpus.checksum, "tokenizer": self.tokenizer.checksum}

    @property
    def why_no_evaluation(self) -> str | None:
        documents, needed = self.corpus.split("held_out").documents, self.needed_documents
        if documents >= needed:
            return None
        return (
            f"{documents} held-out document(s), {needed} required; prepare the corpus with "
            "a larger held_out_share"
        )

    @property
    def needed_documents(self) -> int:
        """Least number of held-out documents for an evaluation."""
        return 1
