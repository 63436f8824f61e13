"""`kbert-pretrain` for encoders: masked words, and sentence objectives."""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import flags

import kbert
from kbert.data.pretraining.segments import SEGMENT_SCHEMES
from kbert.data.pretraining.settings import MaskingSettings
from kbert.files import Path
from kbert.json_file import read_json
from kbert.recipes import SENTENCE_OBJECTIVES
from kbert.tokenizers.base import Tokenizer
from kbert.training.run.phases import Phase

from . import option_flags
from .flags import NegativesOptions, VocabularyOptions, parse_settings
from .shards import Corpus, ShardsObjective
from .translation_flags import TranslationOptions


class MaskedText(ShardsObjective):
    """The objectives masked_lm, span_boundary and replaced_tokens.

    Args:
        options: the parsed flags.
        tokenizer: the shards'.
        manifest: theirs.

    Raises:
        ValueError: if a flag is given that these objectives do not read.
    """

    UNREAD = (VocabularyOptions, NegativesOptions, TranslationOptions)

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
        path = self.options.phrases
        phrases = None if path is None else zlib.crc32(Path(path).read_bytes())
        return {**super().data(), "phrases_checksum": phrases}

    def batches(self, phase: Phase, **settings: Any) -> tf.data.Dataset:
        """The dataset of a phase."""
        options = self.options
        return kbert.data.pretraining_dataset(
            self.manifest,
            self.tokenizer,
            sequence_length=phase.sequence_length,
            batch_size=phase.batch_size,
            seed=options.seed,
            **self.masking.arguments(),
            **settings,
        )

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
            generator=kbert.tasks.generator_config(encoder.config, options.generator_share),
            seed=options.seed,
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
    """A config of the family or of a JSON file, with as many entries as the tokenizer has."""
    config = encoder_config(model)
    if config is None:
        raise ValueError(
            "A language model is trained with --objective=language_model, or --recipe=elmo. "
            f"Received: --model={model}"
        )
    fields = {**config.to_dict(), "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return kbert.EncoderConfig.from_dict(fields)


def encoder_config(model: str) -> kbert.EncoderConfig | None:
    """The config of an encoder of the family or of a JSON file; None for another kind of model."""
    if model.endswith(".json"):
        return kbert.EncoderConfig.from_dict(read_json(Path(model)))
    config = kbert.family(model)
    return config if isinstance(config, kbert.EncoderConfig) else None
