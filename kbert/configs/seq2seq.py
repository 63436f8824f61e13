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
    """Sizes and options of an encoder-decoder.

    One vocabulary and one token table serve source, target and output. The defaults are those of
    the original (Vaswani et al. 2017, section 5, https://arxiv.org/abs/1706.03762).

    Args:
        vocabulary_size: rows of the token table.
        hidden_size: width of the residual streams.
        num_layers: number of encoder blocks.
        num_heads: number of attention heads; divides `hidden_size`.
        intermediate_size: width inside the feed-forward parts.
        num_decoder_layers: number of decoder blocks; None = as many as the encoder has.
        max_positions: longest source and longest target, in tokens.
        positions: kind of positions: "sinusoidal", without weights, or "learned", a table for each
            side.
        embeddings: "plain" sums of token and position embeddings (the original), or "normalised"
            sums (BART, and models that are initialised from a BERT).
        block: where a layer normalises. "post_norm": after each residual (the original).
            "pre_norm": the input of each sub-layer, and the last layers' outputs.
        activation: activation of the feed-forward parts.
        dropout: dropout rate on embeddings and on the output of each sub-layer.
        attention_dropout: dropout rate on attention probabilities.
        layer_norm_epsilon: number added to the variance.
        initializer_range: standard deviation of the truncated normal that initialises kernels and
            tables. None = Glorot uniform kernels and a token table of standard deviation
            `hidden_size ** -0.5`, whose embeddings are scaled up to 1 at look-up.

    Raises:
        ValueError: a value is out of range, or two values are inconsistent.

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
        """Number of decoder blocks."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def table_range(self) -> float:
        """Standard deviation of the tables' initial values."""
        sigma = self.initializer_range
        return self.hidden_size**-0.5 if sigma is None else sigma

    def count_parameters(self) -> int:
        """Returns the number of weights of a model of this config, by formula."""
        width = self.hidden_size
        position_rows = 2 * self.max_positions if self.positions == "learned" else 0
        # Norms of one side; there are two sides, and a norm has a scale and a shift.
        norms = (self.block == "pre_norm") + (self.embeddings == "normalised")
        encoder = self.num_layers * count_block(width, self.intermediate_size)
        decoder = self.decoder_layers * count_block(width, self.intermediate_size, 2)
        return (
            (self.vocabulary_size + position_rows) * width + encoder + decoder + 4 * norms * width
        )
