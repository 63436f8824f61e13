"""`kbert-pretrain` for GPT, Transformer-XL and AWD-LSTM: the next token of packed text."""

from typing import Any

from absl import flags

import kbert
from kbert.configs.awd_lstm import AwdLstmConfig
from kbert.configs.transformer_xl import TransformerXlConfig
from kbert.core import registry
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.tokenizers.base import Tokenizer

from .flags import PermutationOptions, parse_settings
from .shards import OnShards


class Causal(OnShards):
    """The objective causal_lm: a decoder learns to predict the next token (GPT)."""

    def make_task(self) -> kbert.tasks.CausalLM:
        return kbert.tasks.CausalLM(make_decoder(self.options, self.tokenizer), self.tokenizer)


class RememberedText(Causal):
    """The objective memory_lm: the next token, with a memory of earlier text."""

    READS = (PermutationOptions,)

    def make_task(self) -> kbert.tasks.MemoryLM:
        """Makes the task that the flags describe, not compiled."""
        options, changes = self.options, parse_settings(self.options.set)
        sizes = {"memory_length": options.memory_length, "batch_size": options.batch_size}
        if options.init_preset:
            check_vocabulary(options.init_preset, self.tokenizer)
            task = kbert.tasks.MemoryLM.from_preset(options.init_preset, options.precision, **sizes)
            encoder = with_changes(task.encoder, changes, options.precision)
            if encoder is task.encoder:
                return task
            changed = kbert.tasks.MemoryLM(encoder, self.tokenizer, **sizes)
            changed.softmax.set_weights(task.softmax.get_weights())
            return changed
        config = read_config(options.model, TransformerXlConfig, AwdLstmConfig)
        fields = {**config.to_dict(), "vocabulary_size": self.tokenizer.vocabulary_size, **changes}
        encoder = kbert.Encoder(type(config).from_dict(fields), dtype=options.precision)
        return kbert.tasks.MemoryLM(encoder, self.tokenizer, **sizes)


def check_vocabulary(preset: str, tokenizer: Tokenizer) -> None:
    """Raises ValueError if a model's tokenizer differs from the shards' tokenizer.

    Args:
        preset: folder or name of the model.
        tokenizer: tokenizer of the shards.
    """
    model_tokenizer = kbert.load_tokenizer(preset)
    if model_tokenizer.checksum != tokenizer.checksum:
        raise ValueError(
            "A pretrained decoder keeps its own vocabulary: prepare the corpus with "
            f"--vocabulary={preset}. Received: shards of another tokenizer, of "
            f"{tokenizer.vocabulary_size} entries; the model's has "
            f"{model_tokenizer.vocabulary_size}"
        )


def make_decoder(options: flags.FlagValues, tokenizer: Tokenizer) -> kbert.Decoder:
    """Returns the model of --init_preset, or a new one with the tokenizer's vocabulary size."""
    changes, dtype = parse_settings(options.set), options.precision
    if options.init_preset:
        check_vocabulary(options.init_preset, tokenizer)
        decoder = kbert.Decoder.from_preset(options.init_preset, dtype=dtype)
        return with_changes(decoder, changes, dtype)
    config = read_config(options.model, kbert.DecoderConfig)
    fields = {**config.to_dict(), "vocabulary_size": tokenizer.vocabulary_size, **changes}
    return kbert.Decoder(kbert.DecoderConfig.from_dict(fields), dtype=dtype)


def with_changes(model: Any, changes: dict, dtype: str) -> Any:
    """Returns a model with the same weights and a changed config; itself without changes.

    Args:
        model: the model.
        changes: field of the config -> new value; only fields that no weight depends on, such as
            dropout.
        dtype: dtype policy of the new model.

    Raises:
        ValueError: a change affects the shapes of weights.
    """
    if not changes:
        return model
    config = type(model.config).from_dict({**model.config.to_dict(), **changes})
    changed = type(model)(config, dtype=dtype)
    old_shapes, new_shapes = (
        [tuple(w.shape) for w in some_model.weights] for some_model in (model, changed)
    )
    if old_shapes != new_shapes:
        raise ValueError(
            "--set cannot change the sizes of a pretrained model. Received: "
            + ", ".join(f"--set={name}={value}" for name, value in changes.items())
        )
    changed.set_weights(model.get_weights())
    return changed


def read_config(model: str, kind: Any, *others: type) -> Any:
    """Reads a model's config.

    Args:
        model: name of a family member, or path of a JSON file. Its "kind" names the config's class,
            by default `kind`.
        kind: config class of the objective.
        *others: further config classes of the objective.

    Raises:
        ValueError: the config is of another class.
    """
    if model.endswith(".json"):
        fields = dict(read_json(Path(model)))
        config: Any = registry.get("config", fields.pop("kind", kind.kind)).from_dict(fields)
    else:
        config = kbert.family(model)
    if not isinstance(config, (kind, *others)):
        examples = {
            kbert.DecoderConfig: ("causal_lm", "a decoder", "gpt2"),
            kbert.Seq2SeqConfig: (
                "denoising or translation",
                "an encoder and a decoder",
                "transformer-small",
            ),
            TransformerXlConfig: (
                "memory_lm",
                "a Transformer-XL or an AWD-LSTM",
                "transfo-xl-wt103",
            ),
        }
        objective, parts, example = examples[kind]
        raise ValueError(
            f"--objective={objective} trains {parts}: give --model={example}, another of its "
            f"sizes, or a JSON file with a config. Received: --model={model}"
        )
    return config
