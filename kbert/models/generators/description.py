"""Parameter counts of decoders and encoder-decoders, by formula."""

import dataclasses
from typing import Any

from kbert.configs.decoder import DecoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.models.edits import count_edits


@dataclasses.dataclass(frozen=True)
class GeneratorDescription:
    """Sizes and parameter counts of a model that generates text; `print` shows them as a table.

    Attributes:
        name: name passed to `describe`; for a config, the names of the published models that have
            it, or None.
        config: config of the model.
        parameters: number of parameters of the model, whose output matrix is the token table.
        tokenizer: kind of tokenizer; None for a custom config.
    """

    name: str | None
    config: DecoderConfig | Seq2SeqConfig
    parameters: int
    tokenizer: str | None

    @property
    def held_parameters(self) -> int:
        """Number of parameters of the kbert model: all of them."""
        return self.parameters

    def __str__(self) -> str:
        config = self.config
        layers, positions = f"{config.num_layers}", f"{config.max_positions:,}"
        if isinstance(config, Seq2SeqConfig):
            layers = f"{layers} of the encoder, {config.decoder_layers} of the decoder"
            positions = f"{positions}, {config.positions}"
        elif config.positions != "learned":
            positions = f"{positions}, {config.positions}"
        lines = {
            "model": self.name or "a custom config",
            "layers": f"{layers}, {config.block}",
            "hidden width": f"{config.hidden_size:,}, {config.num_heads} heads",
            "feed-forward width": f"{config.intermediate_size:,}, {config.activation}",
            "vocabulary": f"{config.vocabulary_size:,}"
            + (f", {self.tokenizer}" if self.tokenizer else ""),
            "positions": positions,
            "parameters": f"{self.parameters:,}",
        }
        return "\n".join(f"{name:20}{value}" for name, value in lines.items())


def describe_generator(
    config: Any, name: str | None = None, tokenizer: str | None = None
) -> GeneratorDescription:
    """Counts the parameters of a decoder or an encoder-decoder; see `kbert.describe`.

    `name` and `tokenizer` become fields of the description unchanged.

    Example:
        >>> from kbert import family
        >>> describe_generator(family("gpt2")).parameters
        124439808
    """
    total = config.count_parameters()
    if config.kind == DecoderConfig.kind:
        total += count_edits(config, [config.kernels()] * config.num_layers)
    return GeneratorDescription(name, config, total, tokenizer)
