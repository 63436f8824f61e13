"""Sizes of decoders and encoder-decoders, and the memory of training the latter, by formula."""

import dataclasses
from typing import Any

from kbert.catalog.families import Row
from kbert.configs.decoder import DecoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.models.edits import count_edits
from kbert.models.generators.memory import estimate_seq2seq_memory
from kbert.models.memory import TrainingMemory


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

    def _layers(self) -> str:
        """Returns the numbers of layers in words."""
        return f"{self.config.num_layers}"

    def _more(self) -> dict[str, str]:
        """Returns further lines of the table."""
        return {}

    def __str__(self) -> str:
        config = self.config
        positions = f"{config.max_positions:,}"
        if config.positions != "learned":
            positions = f"{positions}, {config.positions}"
        lines = {
            "model": self.name or "a custom config",
            "layers": f"{self._layers()}, {config.block}",
            "hidden width": f"{config.hidden_size:,}, {config.num_heads} heads",
            "feed-forward width": f"{config.intermediate_size:,}, {config.activation}"
            + (", gated" if config.feed_forward == "gated" else ""),
            "vocabulary": f"{config.vocabulary_size:,}"
            + (f", {self.tokenizer}" if self.tokenizer else ""),
            "positions": positions,
            "parameters": f"{self.parameters:,}",
            **({"held by kbert": f"{self.held_parameters:,}"} if self.unused_parameters else {}),
            **self._more(),
        }
        return "\n".join(f"{name:20}{value}" for name, value in lines.items())


@dataclasses.dataclass(frozen=True)
class Seq2SeqDescription(GeneratorDescription):
    """Sizes, parameter counts and training memory of an encoder-decoder.

    The attributes are those of `GeneratorDescription`.
    """

    config: Seq2SeqConfig

    def training_memory(
        self,
        batch_size: int,
        source_length: int,
        target_length: int | None = None,
        *,
        precision: str = "float32",
        optimizer_slots: int = 2,
        recompute: bool = False,
        label_smoothing: float = 0.0,
    ) -> TrainingMemory:
        """Estimates the memory in bytes of a training step, by formula: both sides and the logits.

        The estimate is for TensorFlow without XLA, see `Description.training_memory`.

        Args:
            batch_size: rows in a step on one device, or in a micro-batch.
            source_length: tokens of a source.
            target_length: tokens of a target; None = `source_length`.
            precision: "float32", "mixed_bfloat16" or "mixed_float16".
            optimizer_slots: numbers that the optimizer stores for each weight: 2 for AdamW, 0 for
                Adafactor.
            recompute: whether only the input of each layer is kept for the gradient.
            label_smoothing: label smoothing of the loss; above 0 it needs more memory.

        Returns:
            The parts and their sum, in bytes.

        Raises:
            ValueError: a number is out of range, or the precision is unknown.

        Example:
            >>> from kbert.models import describe
            >>> bart = describe("facebook/bart-base")
            >>> f"{bart.training_memory(8, 512).total / 1e9:.1f} GB"
            '10.7 GB'
        """
        return estimate_seq2seq_memory(
            self.config,
            batch_size=batch_size,
            source_length=source_length,
            target_length=source_length if target_length is None else target_length,
            precision=precision,
            optimizer_slots=optimizer_slots,
            recompute=recompute,
            label_smoothing=label_smoothing,
        )

    def _layers(self) -> str:
        config = self.config
        return f"{config.num_layers} of the encoder, {config.decoder_layers} of the decoder"

    def _more(self) -> dict[str, str]:
        length = min(128, self.config.max_positions)
        memory = self.training_memory(32, length).total / 2**30
        return {"memory to train": f"about {memory:.1f} GiB at 32 x {length} tokens in float32"}


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
    kind = GeneratorDescription if config.kind == DecoderConfig.kind else Seq2SeqDescription
    return kind(name, config, total + unused, row.tokenizer, unused)
