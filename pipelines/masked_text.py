"""`kbert-pretrain` for encoders: masked words, and sentence objectives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from absl import flags

import kbert
from kbert.catalog.recipe import SENTENCE_OBJECTIVES
from kbert.core import registry
from kbert.core.options import Options
from kbert.data.pretraining.attention_kinds import NUM_SEGMENTS
from kbert.data.pretraining.settings import MaskingSettings
from kbert.io.json_file import read_json
from kbert.io.paths import Path

from .flags import (
    HybridOptions,
    MixedOptions,
    PermutationOptions,
    ReplacedTokensOptions,
    parse_settings,
)
from .shards import OnShards

if TYPE_CHECKING:
    from kbert.tokenizers.base import Tokenizer


class MaskedText(OnShards):
    """The objectives masked_lm and span_boundary, of encoders."""

    READS: ClassVar[Sequence[type[Options]]] = (MaskingSettings,)

    def changes(self) -> dict[str, Any]:
        """Returns field of the config -> new value."""
        return parse_settings(self.options.set)

    def make_task(self) -> kbert.tasks.Task:
        options, changes = self.options, self.changes()
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


class ReplacedTokensText(MaskedText):
    """The objective replaced_tokens (ELECTRA)."""

    READS = (MaskingSettings, ReplacedTokensOptions)


class MaskedAndCausalText(MaskedText):
    """The objective masked_and_causal (GPT-BERT)."""

    READS = (MaskingSettings, HybridOptions)


class UniLMText(MaskedText):
    """The objective unilm, for which a model gets six segments unless --set says otherwise."""

    READS = (MaskingSettings, MixedOptions)

    def changes(self) -> dict[str, Any]:
        return {"num_segments": NUM_SEGMENTS, **super().changes()}


class PermutedText(MaskedText):
    """The objective permutation_lm (XLNet)."""

    READS = (MaskingSettings, PermutationOptions)


def task_builder(options: flags.FlagValues) -> Callable[[kbert.Encoder, Any], kbert.tasks.Task]:
    """Returns a function (encoder, tokenizer) -> task, for --objective and --segments.

    Raises:
        ValueError: flags contradict each other, such as an objective and its segments or masking.
    """
    sentence = SENTENCE_OBJECTIVES.get(options.segments)
    if options.objective == "replaced_tokens":
        if sentence:
            raise ValueError(
                "--objective=replaced_tokens (ELECTRA) has no sentence objective: use other "
                f"--segments, such as consecutive. Received: --segments={options.segments}"
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
                "--objective=masked_and_causal has no sentence objective, because some sequences "
                "are causal: use other --segments, such as single. Received: "
                f"--segments={options.segments}"
            )
        return functools.partial(kbert.tasks.MaskedAndCausal, z_loss=options.z_loss)
    if options.objective == "unilm":
        if options.segments != "consecutive":
            raise ValueError(
                "--objective=unilm requires --segments=consecutive, whose second segment follows "
                f"the first. Received: --segments={options.segments}"
            )
        return kbert.tasks.UniLM
    if (options.objective == "permutation_lm") != (options.masking == "permutation"):
        raise ValueError(
            "--objective=permutation_lm and --masking=permutation require each other. Received: "
            f"--objective={options.objective}, --masking={options.masking}"
        )
    if options.objective == "permutation_lm":
        memory = options.memory_length
        if memory and options.segments != "runs":
            raise ValueError(
                "--memory_length requires --segments=runs, whose sequences continue in the next "
                f"batch. Received: --segments={options.segments}"
            )
        return functools.partial(
            kbert.tasks.PermutationLM,
            memory_length=memory,
            batch_size=options.batch_size if memory else None,
        )
    spans = options.objective == "span_boundary"
    if spans and options.masking != "span":
        raise ValueError(
            "--objective=span_boundary requires --masking=span. Received: "
            f"--masking={options.masking}"
        )
    return functools.partial(
        kbert.tasks.Pretraining,
        next_sentence=sentence == "next_sentence",
        sentence_order=sentence == "sentence_order",
        span_boundary=spans,
    )


def read_config(model: str, changes: dict, tokenizer: Tokenizer) -> kbert.EncoderConfig:
    """Reads an encoder's config, and sets the fields that depend on the tokenizer.

    Args:
        model: name of a family member, or path of a JSON file.
        changes: field -> new value, which override all others.
        tokenizer: tokenizer of the shards.

    Raises:
        ValueError: the model is not an encoder of the BERT family.
    """
    config = encoder_config(model)
    if config is None:
        raise ValueError(
            "--model must be an encoder of the BERT family; ELMo is trained with "
            f"--objective=language_model, or --recipe=elmo. Received: --model={model}"
        )
    return type(config).from_dict(
        {**config.to_dict(), **tokenizer_fields(config, tokenizer), **changes}
    )


def tokenizer_fields(config: kbert.EncoderConfig, tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the config fields of a new model that depend on its tokenizer."""
    fields = {"vocabulary_size": tokenizer.vocabulary_size}
    return fields if config.padding_id is None else {**fields, "padding_id": tokenizer.pad_id}


def encoder_config(model: str) -> kbert.EncoderConfig | None:
    """Reads the config of an encoder; returns None for another kind of model.

    Args:
        model: name of a family member, or path of a JSON file.
    """
    if model.endswith(".json"):
        fields = dict(read_json(Path(model)))
        kind = fields.pop("kind", kbert.EncoderConfig.kind)
        config = registry.get("config", kind).from_dict(fields)
    else:
        config = kbert.family(model)
    return config if isinstance(config, kbert.EncoderConfig) else None
