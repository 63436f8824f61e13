"""Parameter counts of decoders and encoder-decoders, by formula."""

import dataclasses
from typing import Any

from kbert.catalog.families import Row
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
        parameters: number of trained parameters of the model as published.
        tokenizer: kind of tokenizer; None for a custom config.
        unused_parameters: number of these in rows of tables that no token reads, which kbert's
            model does not have.
    """

    name: str | None
    config: DecoderConfig | Seq2SeqConfig
    parameters: int
    tokenizer: str | None
    unused_parameters: int = 0

    @property
    def held_parameters(self) -> int:
        """Number of trained parameters of the kbert model."""
        return self.parameters - self.unused_parameters

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
            "feed-forward width": f"{config.intermediate_size:,}, {config.activation}"
            + (", gated" if config.feed_forward == "gated" else ""),
            "vocabulary": f"{config.vocabulary_size:,}"
            + (f", {self.tokenizer}" if self.tokenizer else ""),
            "positions": positions,
            "parameters": f"{self.parameters:,}",
            **({"held by kbert": f"{self.held_parameters:,}"} if self.unused_parameters else {}),
        }
        return "\n".join(f"{name:20}{value}" for name, value in lines.items())


def describe_generator(row: Row, name: str | None = None) -> GeneratorDescription:
    """Counts the parameters of a decoder or an encoder-decoder; see `kbert.describe`.

    Args:
        row: table entry of the model.
        name: `name` of the description.

    Example:
        >>> from kbert.catalog.families import family_row
        >>> describe_generator(family_row("gpt2")).parameters
        124439808
    """
    config: Any = row.config
    total = config.count_parameters()
    if config.kind == DecoderConfig.kind:
        total += count_edits(config, [config.kernels()] * config.num_layers)
    unused = row.unused_rows * config.hidden_size
    return GeneratorDescription(name, config, total + unused, row.tokenizer, unused)
