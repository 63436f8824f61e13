"""Objectives on a corpus: masked rows, packed or continuing rows of text, words as characters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.data.corpus.mixture import Mixture
from kbert.data.denoising.dataset import denoising_dataset
from kbert.data.denoising.noise import Noise, make_noise
from kbert.data.masking.schemes import MASKING_SCHEMES
from kbert.data.pretraining.causal import causal_dataset
from kbert.data.pretraining.dataset import pretraining_dataset
from kbert.data.pretraining.language_model import language_model_dataset
from kbert.data.pretraining.segment_schemes import SEGMENT_SCHEMES
from kbert.data.pretraining.settings import MaskingSettings
from kbert.data.pretraining.stream import Corpus, open_corpus
from kbert.io import fingerprints
from kbert.io.paths import Path, is_file
from kbert.tasks.corpus_objective import CorpusObjective
from kbert.tasks.settings import (
    DenoisedSettings,
    HybridSettings,
    MaskedSettings,
    MixedSettings,
    StepsSettings,
)
from kbert.tokenizers import load_tokenizer
from kbert.tokenizers.base import Tokenizer
from kbert.training.optimization.settings import WARMUP_STEPS
from kbert.training.run.phases import Phase

# Defaults of GPT and of ELMo (openai/finetune-transformer-lm; bin/train_elmo.py of
# allenai/bilm-tf).
GPT_WARMUP = 2000
GPT: dict[str, Any] = {
    "learning_rate": 2.5e-4,
    "decay": "cosine",
    "decay_join": "after",
    "bias_correction": True,
}
ELMO: dict[str, Any] = {
    **{"optimizer": "adagrad", "learning_rate": 0.2, "initial_accumulator_value": 1.0},
    **{"decay": "constant", "warmup_steps": 0, "clip_norm": 10.0},
}


class MaskedCorpus(CorpusObjective):
    """Objective on rows of a corpus with masked tokens; by default a row is one run of text."""

    settings: ClassVar[type[StepsSettings]] = MaskedSettings
    masks = True

    def usual(self) -> dict[str, Any]:
        return {"segments": "single"}

    def check(self) -> None:
        final = self.options.final_masked_share
        if final is not None and any(phase.masked_share is not None for phase in self.plan):
            raise ValueError(
                "final_masked_share and masked shares in phases exclude each other: leave out one "
                "of them. Received: "
                f"final_masked_share={final}, phases={self.options.phases}"
            )
        lexicons, masking = self._lexicons, self.options.masking
        if len(lexicons) > 1 and (len(lexicons) != len(self.plan) or masking != "phrase"):
            raise ValueError(
                "phrases must be one lexicon for the whole run or, with masking=phrase, one for "
                f"each phase. Received: phrases={self.options.phrases}, "
                f"phases={self.options.phases}, masking={masking}"
            )
        super().check()

    @property
    def max_length(self) -> int | None:
        return self.model.row_length

    @property
    def needed_documents(self) -> int:
        return SEGMENT_SCHEMES[self.options.segments].documents

    def data(self) -> Mapping[str, Any]:
        checksums = [path and fingerprints.crc32_of_files(Path(path)) for path in self._lexicons]
        phrases = checksums if len(checksums) > 1 else checksums[0]
        return {**super().data(), "phrases_checksum": phrases}

    def dataset(self, phase: Phase, split: str, **stream: Any) -> tf.data.Dataset:
        is_training = split == "train"
        options = self.options.arguments(of=MaskingSettings)
        options |= self._shares(phase) if is_training else self._last_shares
        options |= self._units(phase if is_training else self.plan[-1])
        return pretraining_dataset(
            self.corpus,
            self.tokenizer,
            **options,
            **self.more(),
            **self.stream(phase, split, **stream),
        )

    def more(self) -> dict[str, Any]:
        """Returns arguments of `pretraining_dataset` that a subclass adds; here none."""
        return {}

    @property
    def _lexicons(self) -> list[str | None]:
        """Path of each phase's phrase lexicon, None = none; a single entry is for all phases."""
        phrases = self.options.phrases
        if isinstance(phrases, str) and "," in phrases and not is_file(phrases):
            phrases = tuple(path.strip() for path in phrases.split(","))
        if isinstance(phrases, tuple):
            return [os.fspath(path) or None for path in phrases]
        return [None if phrases is None else os.fspath(phrases)]

    def _units(self, phase: Phase) -> dict[str, Any]:
        """Returns the arguments `phrases` and `masking` of `pretraining_dataset` for a phase.

        A phase with a lexicon masks its phrases, one without a lexicon whole words. Empty if all
        phases use the same lexicon, or none.
        """
        lexicons = self._lexicons
        if len(lexicons) == 1:
            return {}
        begins = [planned.first_step for planned in self.plan]
        path = lexicons[begins.index(phase.first_step)]
        return {"phrases": path, "masking": "whole_word" if path is None else "phrase"}

    def _shares(self, phase: Phase) -> dict[str, Any]:
        """Returns the arguments of `pretraining_dataset` for the masked share of a phase.

        With `final_masked_share`, the share changes linearly over the run. The arguments then are
        the phase's first and last share, its steps, and its steps done so far.
        """
        begin, end = self.options.masked_share, self.options.final_masked_share
        if end is None:
            return {"masked_share": begin if phase.masked_share is None else phase.masked_share}
        steps = self.options.steps
        first, last = (begin + (end - begin) * n / steps for n in (phase.first_step, phase.end))
        return {
            "masked_share": first,
            "final_masked_share": last,
            "share_steps": phase.steps,
            "first_step": phase.done,
        }

    @property
    def _last_shares(self) -> dict[str, Any]:
        """Arguments of `pretraining_dataset` for the masked share of evaluations.

        It is the last share of the run, so that all evaluations measure the same.
        """
        last, final = self.plan[-1].masked_share, self.options.final_masked_share
        share = next(x for x in (final, last, self.options.masked_share) if x is not None)
        return {"masked_share": share, "final_masked_share": None}


class SentencesCorpus(MaskedCorpus):
    """Objective on masked rows, with the segments and masks that `Pretraining`'s heads need."""

    def usual(self) -> dict[str, Any]:
        task = self.task
        segments = "pairs" if task.next_sentence else "halves" if task.sentence_order else "single"
        masking = {} if task.span_boundary_head is None else {"masking": "span"}
        return {"segments": segments, **masking}


class HybridCorpus(MaskedCorpus):
    """Objective on masked rows with causal rows among them, for `MaskedAndCausal`."""

    settings = HybridSettings

    def more(self) -> dict[str, Any]:
        return {"causal_share": self.options.causal_share}


class MixedCorpus(MaskedCorpus):
    """Objective on masked rows of the four kinds of `UniLM`."""

    settings = MixedSettings

    def usual(self) -> dict[str, Any]:
        return {"segments": "consecutive", "masking": "token_ngram"}

    def more(self) -> dict[str, Any]:
        return {"attention_shares": self.options.attention_shares}


class PermutedCorpus(MaskedCorpus):
    """Objective on rows with permuted factorisation orders, for `PermutationLM`.

    If the task has a memory, row b of a batch continues row b of the previous batch.
    """

    def usual(self) -> dict[str, Any]:
        if self.task.batch_size is None:
            return {"masking": "permutation", "segments": "single"}
        remembered = {"segments": "runs", "batch_size": self.task.batch_size}
        return {"masking": "permutation", **remembered}

    def check(self) -> None:
        if not MASKING_SCHEMES[self.options.masking].permutes:
            raise ValueError(
                "masking of a PermutationLM must be permutation, which is the default. "
                f"Received: masking={self.options.masking}"
            )
        _check_rows(self)
        super().check()


class CausalCorpus(CorpusObjective):
    """Objective on rows of packed text, for next-token prediction."""

    usual_warmup = GPT_WARMUP
    runs = False  # whether a row continues in the next batch

    def usual(self) -> dict[str, Any]:
        return dict(GPT)

    def dataset(self, phase: Phase, split: str, **stream: Any) -> tf.data.Dataset:
        return causal_dataset(
            self.corpus, self.tokenizer, runs=self.runs, **self.stream(phase, split, **stream)
        )


class DenoisedCorpus(CorpusObjective):
    """Objective on text that was corrupted by noise, and is restored by an encoder-decoder.

    The decoder's input begins with the token that begins the task's targets everywhere, unless the
    noise determines it (MASS).
    """

    settings = DenoisedSettings

    @property
    def _noise(self) -> Noise:
        """The noise of the settings; its targets begin as those of the task."""
        noise = make_noise(self.options.noise)
        if "targets_begin" not in noise.names():
            return noise
        begins = bool(self.task.framing.target.begin)
        asked = noise.to_dict()["targets_begin"]
        if asked not in (None, begins):
            raise ValueError(
                f"targets_begin of the noise must be {begins}, as the task's targets begin. "
                f"Received: noise={self.options.noise!r}"
            )
        return noise.replace(targets_begin=begins)

    @property
    def _start(self) -> str:
        """Role of the token that begins the decoder's input."""
        tokenizer, start_id = self.tokenizer, self.task.framing.start_id
        roles = {getattr(tokenizer, f"{role}_id"): role for role in ("pad", "sep", "cls")}
        if start_id not in roles:
            raise ValueError(
                "On a corpus, the decoder's input must begin with the tokenizer's cls, sep or pad "
                f"token. Received: the token {tokenizer.id_to_token(start_id)!r}"
            )
        return roles[start_id]

    def dataset(self, phase: Phase, split: str, **stream: Any) -> tf.data.Dataset:
        noise = self._noise
        return denoising_dataset(
            self.corpus,
            self.tokenizer,
            noise=noise,
            decoder_start=None if noise.decoder_start is None else self._start,
            **self.stream(phase, split, **stream),
        )


class RunsCorpus(CausalCorpus):
    """Objective on rows of text that continue in the next batch, for models with a memory."""

    usual_warmup = WARMUP_STEPS
    runs = True

    def usual(self) -> dict[str, Any]:
        return {"batch_size": self.task.batch_size}

    def check(self) -> None:
        _check_rows(self)
        super().check()

    @property
    def max_length(self) -> None:
        return None


class WordsCorpus(RunsCorpus):
    """Objective on words read as characters; the targets are the next and the previous word.

    The softmax is over the first words of the shards' vocabulary, or over all of them.
    """

    def usual(self) -> dict[str, Any]:
        return {**super().usual(), **ELMO}

    def open(self, data: Any, cache_dir: PathLike | None) -> tuple[Corpus, Tokenizer]:
        corpus = open_corpus(data)
        folder = corpus.manifests[0].folder if isinstance(corpus, Mixture) else corpus.folder
        tokenizer, words = load_tokenizer(folder), self.task.tokenizer.vocabulary
        if tokenizer.kind != "words" or tokenizer.vocabulary[: len(words)] != words:
            raise ValueError(
                "The model's words must be the first words of the corpus's tokenizer: prepare the "
                "corpus with a tokenizer of words, and create the model with them. Received: "
                f"{len(words):,} words, and a {tokenizer.kind} tokenizer of "
                f"{tokenizer.vocabulary_size:,} entries in {folder}"
            )
        return corpus, tokenizer

    def dataset(self, phase: Phase, split: str, **stream: Any) -> tf.data.Dataset:
        config = self.task.model.config
        return language_model_dataset(
            self.corpus,
            self.tokenizer,
            target_vocabulary=config.vocabulary_size,
            max_characters=config.max_characters,
            **self.stream(phase, split, **stream),
        )


def _check_rows(objective: CorpusObjective) -> None:
    """Raises ValueError if a phase's batch size differs from that of the task's memory, if any."""
    rows = objective.task.batch_size
    for phase in objective.plan:
        if rows is not None and phase.batch_size != rows:
            raise ValueError(
                "All phases must have the batch_size of the task, whose memory is per sequence of "
                f"a batch. Received: batch_size={phase.batch_size} in a phase, "
                f"batch_size={rows} of the task"
            )
