"""`kbert-pretrain` for encoders: masked words, and sentence objectives."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import flags

import kbert
from kbert.catalog.recipe import SENTENCE_OBJECTIVES
from kbert.core import registry
from kbert.core.options import Options
from kbert.data.pretraining.segments import SEGMENT_SCHEMES
from kbert.data.pretraining.settings import MaskingSettings
from kbert.io import fingerprints
from kbert.io.json_file import read_json
from kbert.io.paths import Path, is_file
from kbert.tokenizers.base import Tokenizer
from kbert.training.run.phases import Phase

from . import option_flags
from .flags import (
    HybridOptions,
    NegativesOptions,
    PermutationOptions,
    ReplacedTokensOptions,
    VocabularyOptions,
    parse_settings,
)
from .shards import Corpus, ShardsObjective
from .translation_flags import TranslationOptions

UNMASKED = (VocabularyOptions, NegativesOptions, TranslationOptions)


class MaskedText(ShardsObjective):
    """The objectives masked_lm, span_boundary and replaced_tokens.

    Args:
        options: the parsed flags.
        tokenizer: the shards'.
        manifest: theirs.

    Raises:
        ValueError: if a flag is given that these objectives do not read.
    """

    UNREAD: Sequence[type[Options]] = (HybridOptions, PermutationOptions, *UNMASKED)
    MASKS = True

    def __init__(self, options: flags.FlagValues, tokenizer: Tokenizer, manifest: Corpus) -> None:
        super().__init__(options, tokenizer, manifest)
        self.masking = option_flags.read(MaskingSettings, options)

    def make_task(self) -> kbert.tasks.Task:
        """The task that the flags describe, not compiled."""
        options = self.options
        changes = parse_settings(options.set)
        build = task_builder(options)
        if options.init_preset:
            return kbert.tasks.adapt(
                options.init_preset,
                self.tokenizer,
                make_task=build,
                changes=changes,
                dtype=options.precision,
                seed=options.seed,
            )
        config = read_config(options.model, changes, self.tokenizer)
        return build(kbert.Encoder(config, dtype=options.precision), self.tokenizer)

    def model(self, task: kbert.tasks.Task) -> dict:
        """What the task trains, by its name in run.json."""
        return {"encoder": task.encoder.config.to_dict()}

    def data(self) -> dict:
        """The shards, and the phrases that are masked."""
        checksums = [path and fingerprints.crc32_of_files(Path(path)) for path in self._lexicons()]
        phrases = checksums if len(checksums) > 1 else checksums[0]
        return {**super().data(), "phrases_checksum": phrases}

    def _lexicons(self) -> list[str | None]:
        """Where the phrases of each phase are; a lone one is that of all of them."""
        given = self.options.phrases
        if given is None or is_file(given) or "," not in given:
            return [given]
        return [path.strip() or None for path in given.split(",")]

    def _units(self, phase: Phase | None) -> dict[str, Any]:
        """What is masked together in a phase, None the last: its lexicon's phrases, or words."""
        paths = self._lexicons()
        if len(paths) == 1:
            return {}
        begins = [each.first_step for each in self.phases()]
        path = paths[-1 if phase is None else begins.index(phase.first_step)]
        return {"phrases": path, "masking": "whole_word" if path is None else "phrase"}

    def phases(self) -> list[Phase]:
        """The phases of the run, of which some may have a masked share of their own."""
        phases, final = super().phases(), self.masking.final_masked_share
        if final is not None and any(phase.masked_share is not None for phase in phases):
            raise ValueError(
                "The masked share changes from phase to phase or over the whole run: leave out "
                "--final_masked_share, or the shares of --phases. Received: "
                f"--final_masked_share={final}, --phases={self.options.phases}"
            )
        lexicons, masking = self._lexicons(), self.masking.masking
        if len(lexicons) > 1 and (len(lexicons) != len(phases) or masking != "phrase"):
            raise ValueError(
                "Lexicons are one for the whole run, or with --masking=phrase one for each of "
                f"--phases. Received: --phrases={self.options.phrases}, "
                f"--phases={self.options.phases}, --masking={masking}"
            )
        return phases

    def batches(self, phase: Phase, split: str = "train", **settings: Any) -> tf.data.Dataset:
        """The dataset of a phase; of held-out text, masked as at the end of the run."""
        options = self.options
        shares = self._shares(phase) if split == "train" else self._last_shares()
        units = self._units(phase if split == "train" else None)
        return kbert.data.pretraining_dataset(
            self.manifest,
            self.tokenizer,
            split=split,
            sequence_length=phase.sequence_length,
            batch_size=phase.batch_size,
            seed=options.seed,
            **{**self.masking.arguments(), **shares, **units},
            **settings,
        )

    def _shares(self, phase: Phase) -> dict[str, Any]:
        """What a phase's batches are masked by: the part of the run's way that lies in it."""
        begin, end = self.masking.masked_share, self.masking.final_masked_share
        if end is None:
            return {"masked_share": begin if phase.masked_share is None else phase.masked_share}
        steps = self.options.train_steps
        first, last = (begin + (end - begin) * n / steps for n in (phase.first_step, phase.end))
        return {
            "masked_share": first,
            "final_masked_share": last,
            "share_steps": phase.steps,
            "first_step": phase.done,
        }

    def _last_shares(self) -> dict[str, Any]:
        """The last share of the run: evaluations during it measure the same."""
        last = self.phases()[-1].masked_share
        final = self.masking.final_masked_share
        share = next(x for x in (final, last, self.masking.masked_share) if x is not None)
        return {"masked_share": share, "final_masked_share": None}

    def check_phases(self, phases: Sequence[Phase], task: kbert.tasks.Task) -> None:
        """Refuses what would fail days later, when a phase begins."""
        self.check_positions(phases, task.encoder.config.max_positions)

    def why_no_evaluation(self) -> str | None:
        """Why the held-out split cannot be evaluated on, or None."""
        documents = self.manifest.split("held_out").documents
        segments = self.options.segments
        needed = SEGMENT_SCHEMES[segments].documents
        if documents >= needed:
            return None
        return f"{documents} held-out document(s), and segments={segments} needs {needed}"


class MaskedAndCausalText(MaskedText):
    """The objective masked_and_causal."""

    UNREAD = (ReplacedTokensOptions, PermutationOptions, *UNMASKED)

    def batches(self, phase: Phase, split: str = "train", **settings: Any) -> tf.data.Dataset:
        """The dataset of a phase."""
        share = self.options.causal_share
        return super().batches(phase, split, causal_share=share, **settings)


class PermutedText(MaskedText):
    """The objective permutation_lm."""

    UNREAD = (ReplacedTokensOptions, HybridOptions, *UNMASKED)

    def check_phases(self, phases: Sequence[Phase], task: kbert.tasks.Task) -> None:
        """Refuses what would fail days later, when a phase begins."""
        super().check_phases(phases, task)
        if task.batch_size is not None:
            self.check_rows(phases, task.batch_size)


def task_builder(options: flags.FlagValues) -> Callable[[kbert.Encoder, Any], kbert.tasks.Task]:
    """(encoder, tokenizer) -> the task of --objective and --segments."""
    sentence = SENTENCE_OBJECTIVES.get(options.segments)
    if options.objective == "replaced_tokens":
        if sentence:
            raise ValueError(
                "ELECTRA has no sentence objective: with --objective=replaced_tokens take other "
                f"segments, such as consecutive. Received: --segments={options.segments}"
            )
        return lambda encoder, tokenizer: kbert.tasks.ReplacedTokenDetection(
            encoder,
            tokenizer,
            generator=kbert.tasks.generator_config(
                encoder.config, options.generator_share, options.generator_depth
            ),
            embedding_sharing=options.embedding_sharing,
            seed=options.seed,
        )
    if options.objective == "masked_and_causal":
        if sentence:
            raise ValueError(
                "Rows that are causal have no sentence objective: with "
                "--objective=masked_and_causal take other segments, such as single. "
                f"Received: --segments={options.segments}"
            )
        return functools.partial(kbert.tasks.MaskedAndCausal, z_loss=options.z_loss)
    if (options.objective == "permutation_lm") != (options.masking == "permutation"):
        raise ValueError(
            "Permuted rows are those of --objective=permutation_lm and of no other: "
            "--masking=permutation goes with it. "
            f"Received: --objective={options.objective}, --masking={options.masking}"
        )
    if options.objective == "permutation_lm":
        memory = options.memory_length
        if memory and options.segments != "runs":
            raise ValueError(
                "Rows are remembered that go on in the next batch: --memory_length needs "
                f"--segments=runs. Received: --segments={options.segments}"
            )
        return functools.partial(
            kbert.tasks.PermutationLM,
            memory_length=memory,
            batch_size=options.batch_size if memory else None,
        )
    spans = options.objective == "span_boundary"
    if spans and options.masking != "span":
        raise ValueError(
            "The boundary objective fills spans: --objective=span_boundary needs --masking=span. "
            f"Received: --masking={options.masking}"
        )
    return functools.partial(
        kbert.tasks.Pretraining,
        next_sentence=sentence == "next_sentence",
        sentence_order=sentence == "sentence_order",
        span_boundary=spans,
    )


def read_config(model: str, changes: dict, tokenizer: Tokenizer) -> kbert.EncoderConfig:
    """A config of the family or of a JSON file, with the tokenizer's entries and its padding."""
    config = encoder_config(model)
    if config is None:
        raise ValueError(
            "A language model is trained with --objective=language_model, or --recipe=elmo. "
            f"Received: --model={model}"
        )
    return type(config).from_dict(
        {**config.to_dict(), **tokenizer_fields(config, tokenizer), **changes}
    )


def tokenizer_fields(config: kbert.EncoderConfig, tokenizer: Tokenizer) -> dict[str, int]:
    """Fields of a new model's config that its tokenizer decides."""
    fields = {"vocabulary_size": tokenizer.vocabulary_size}
    return fields if config.padding_id is None else {**fields, "padding_id": tokenizer.pad_id}


def encoder_config(model: str) -> kbert.EncoderConfig | None:
    """The config of an encoder of the family or of a JSON file; None for another kind of model."""
    if model.endswith(".json"):
        fields = dict(read_json(Path(model)))
        kind = fields.pop("kind", kbert.EncoderConfig.kind)
        config = registry.get("config", kind).from_dict(fields)
    else:
        config = kbert.family(model)
    return config if isinstance(config, kbert.EncoderConfig) else None
