"""The configuration of the encoder-decoder Transformer."""

import dataclasses
from typing import ClassVar

from kbert.configs.base import (
    BLOCKS,
    Config,
    check_choice,
    check_count,
    check_positive,
    check_transformer,
    count_block,
)

POSITIONS = ("sinusoidal", "learned")
EMBEDDINGS = ("plain", "normalised")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Config):
    """The sizes and values that tell one encoder-decoder from another.

    One vocabulary and one token table serve source, target and output. The defaults are those of
    the original (Vaswani et al. 2017, section 5, https://arxiv.org/abs/1706.03762).

    Args:
        vocabulary_size: rows of the token table.
        hidden_size: width of the residual streams.
        num_layers: blocks of the encoder.
        num_heads: attention heads; divides `hidden_size`.
        intermediate_size: width inside the feed-forward parts.
        num_decoder_layers: blocks of the decoder; None = as many as the encoder's.
        max_positions: longest source and longest target, in tokens.
        positions: "sinusoidal", which are no weights, or "learned", a table for each side.
        embeddings: "plain" sums of token and position (the original), or "normalised" ones (BART,
            and what is begun from a BERT).
        block: which part a layer is: "post_norm" normalises after each residual (the original);
            "pre_norm" normalises what goes into each sub-layer, and the last layers' outputs.
        activation: of the feed-forward parts.
        dropout: rate on embeddings and on the output of each sub-layer.
        attention_dropout: rate on attention probabilities.
        layer_norm_epsilon: added to the variance.
        initializer_range: sigma of the truncated normal that kernels and tables start from; None =
            Glorot's uniform kernels and a token table of sigma `hidden_size ** -0.5`, which is
            scaled up to 1 where it is looked up.

    Raises:
        ValueError: a value is out of range, or two of them do not fit together.

    Example:
        >>> Seq2SeqConfig(vocabulary_size=37000, hidden_size=512, num_layers=6, num_heads=8,
        ...               intermediate_size=2048).count_parameters()
        63082496
    """

    kind: ClassVar[str] = "seq2seq"
    told: ClassVar[str] = "an encoder-decoder, which kbert.Seq2Seq loads"

    vocabulary_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    num_decoder_layers: int | None = None
    max_positions: int = 256
    positions: str = "sinusoidal"
    embeddings: str = "plain"
    block: str = "post_norm"
    activation: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_epsilon: float = 1e-6
    initializer_range: float | None = None

    def __post_init__(self) -> None:
        check_transformer(self)
        if self.num_decoder_layers is not None:
            check_count("num_decoder_layers", self.num_decoder_layers, minimum=1)
        check_choice("positions", self.positions, POSITIONS)
        check_choice("embeddings", self.embeddings, EMBEDDINGS)
        check_choice("block", self.block, BLOCKS)
        if self.initializer_range is not None:
            check_positive("initializer_range", self.initializer_range)

    @property
    def decoder_layers(self) -> int:
        """Blocks of the decoder."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def table_range(self) -> float:
        """Sigma the tables start from."""
        sigma = self.initializer_range
        return self.hidden_size**-0.5 if sigma is None else sigma

    def count_parameters(self) -> int:
        """Weights of a model of this config, by formula."""
        width = self.hidden_size
        learned = 2 * self.max_positions if self.positions == "learned" else 0
        # Of both sides, each with a scale and a shift.
        norms = (self.block == "pre_norm") + (self.embeddings == "normalised")
        encoder = self.num_layers * count_block(width, self.intermediate_size)
        decoder = self.decoder_layers * count_block(width, self.intermediate_size, 2)
        return (self.vocabulary_size + learned) * width + encoder + decoder + 4 * norms * width
