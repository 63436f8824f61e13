"""`kbert-pretrain` for GPT: the next token of packed text."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import flags

import kbert
from kbert.files import Path
from kbert.json_file import read_json
from kbert.tokenizers.base import Tokenizer
from kbert.training.run.phases import Phase

from .flags import NegativesOptions, VocabularyOptions, parse_settings
from .shards import MASKED, ShardsObjective
from .translation_flags import TranslationOptions


class Causal(ShardsObjective):
    """The objective causal_lm."""

    UNREAD = (*MASKED, VocabularyOptions, NegativesOptions, TranslationOptions)

    def make_task(self) -> kbert.tasks.CausalLM:
        """The task that the flags describe, not compiled."""
        return kbert.tasks.CausalLM(make_decoder(self.options, self.tokenizer), self.tokenizer)

    def model(self, task: kbert.tasks.CausalLM) -> dict:
        """What the task trains, by its name in run.json."""
        return {"decoder": task.decoder.config.to_dict()}

    def batches(self, phase: Phase, **settings: Any) -> tf.data.Dataset:
        """The dataset of a phase."""
        return kbert.data.causal_dataset(
            self.manifest,
            self.tokenizer,
            sequence_length=phase.sequence_length,
            batch_size=phase.batch_size,
            seed=self.options.seed,
            **settings,
        )

    def check_phases(self, phases: Sequence[Phase], task: kbert.tasks.CausalLM) -> None:
        """Refuses what would fail days later, when a phase begins."""
        self.check_positions(phases, task.decoder.config.max_positions)


def make_decoder(options: flags.FlagValues, tokenizer: Tokenizer) -> kbert.Decoder:
    """The model of --init_preset, or a new one with as many entries as the tokenizer has."""
    changes, dtype = parse_settings(options.set), options.precision
    if options.init_preset:
        theirs = kbert.load_tokenizer(options.init_preset)
        if theirs.checksum != tokenizer.checksum:
            raise ValueError(
                "A pretrained decoder keeps its own vocabulary: prepare the corpus with "
                f"--vocabulary={options.init_preset}. Received: shards of another tokenizer, of "
                f"{tokenizer.vocabulary_size} entries; the model's has {theirs.vocabulary_size}"
            )
        decoder = kbert.Decoder.from_preset(options.init_preset, dtype=dtype)
        return with_changes(decoder, changes, dtype)
    config = read_config(options.model, kbert.DecoderConfig)
    fields = {**config.to_dict(), "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return kbert.Decoder(kbert.DecoderConfig.from_dict(fields), dtype=dtype)


def with_changes(model: Any, changes: dict, dtype: str) -> Any:
    """The same weights under a config that differs in what has no weights, such as dropout."""
    if not changes:
        return model
    config = type(model.config).from_dict({**model.config.to_dict(), **changes})
    changed = type(model)(config, dtype=dtype)
    before, after = ([tuple(w.shape) for w in each.weights] for each in (model, changed))
    if before != after:
        raise ValueError(
            "--set changes no sizes of a pretrained model. Received: "
            + ", ".join(f"--set={name}={value}" for name, value in changes.items())
        )
    changed.set_weights(model.get_weights())
    return changed


def read_config(model: str, kind: type) -> Any:
    """A config of the family or of a JSON file, which must be of the objective's kind."""
    config = (
        kind.from_dict(read_json(Path(model))) if model.endswith(".json") else kbert.family(model)
    )
    if not isinstance(config, kind):
        examples = {
            kbert.DecoderConfig: ("causal_lm", "a decoder", "gpt2"),
            kbert.Seq2SeqConfig: ("translation", "an encoder and a decoder", "transformer-small"),
        }
        objective, parts, example = examples[kind]
        raise ValueError(
            f"--objective={objective} trains {parts}: give --model={example}, another of its "
            f"sizes, or a JSON file with a config. Received: --model={model}"
        )
    return config
