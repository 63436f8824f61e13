"""The configuration of encoder-decoders: the original Transformer, BART, T5 and their kin."""

import dataclasses
from typing import ClassVar

from kbert.configs.base import (
    BLOCKS,
    Config,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    check_rate,
    check_transformer,
)

RELATIVE = "relative"  # positions: biases of the attention scores
POSITIONS = ("sinusoidal", "sinusoidal_halves", "learned", RELATIVE)
EMBEDDINGS = ("plain", "normalised")
OUTPUTS = ("tied", "tied_scaled", "untied")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Config):
    """Sizes and options of an encoder-decoder.

    The defaults are those of the original (Vaswani et al. 2017, section 5,
    https://arxiv.org/abs/1706.03762).

    Args:
        vocabulary_size: rows of the token table of source, target and output.
        hidden_size: width of the residual streams.
        num_layers: number of encoder blocks.
        num_heads: number of attention heads; divides `hidden_size` if `head_size` is None.
        intermediate_size: width inside the feed-forward parts.
        num_decoder_layers: number of decoder blocks; None = as many as the encoder has.
        max_positions: longest source and longest target, in tokens.
        positions: kind of positions. "sinusoidal", without weights. "sinusoidal_halves", the same
            with all sines before all cosines (Marian, PEGASUS). "learned", a table for each side.
            "relative", a learned bias of the self-attention scores for each head and bucket of
            distances, which all layers of a side share (T5).
        embeddings: "plain" sums of token and position embeddings (the original), or "normalised"
            sums (BART, and models that are initialised from a BERT).
        block: where a layer normalises. "post_norm": after each residual (the original).
            "pre_norm": the input of each sub-layer, and the last layers' outputs.
        activation: activation of the feed-forward parts.
        dropout: dropout rate on embeddings and on the output of each sub-layer.
        attention_dropout: dropout rate on attention probabilities.
        layer_norm_epsilon: number added to the variance.
        initializer_range: standard deviation of the truncated normal that initialises kernels and
            tables. None = Glorot uniform kernels, and token embeddings of standard deviation 1
            after `scale_embeddings`.
        scale_embeddings: whether token embeddings are multiplied by `hidden_size ** 0.5`; None =
            only if `initializer_range` is None.
        norm: kind of the norms, "layer" or "rms" (T5), see `kbert.layers.LayerNorm`.
        use_bias: whether dense layers have biases.
        feed_forward: "dense", two dense layers; or "gated" (T5 1.1), see `EncoderConfig`.
        head_size: width of an attention head; None = `hidden_size / num_heads`.
        scale_scores: whether attention scores are divided by the root of the head's width. False
            in T5, which draws smaller initial queries instead.
        activation_dropout: dropout rate between the two layers of the feed-forward parts.
        output_dropout: whether the output of each side's last norm has the dropout too (T5).
        output: how logits are computed. "tied": by the token table. "tied_scaled": by the token
            table, from states multiplied by `hidden_size ** -0.5` (T5 1.0). "untied": by a table of
            the output alone (T5 1.1, mT5).
        output_bias: whether a fixed bias is added to the logits (Marian).
        target_vocabulary_size: rows of a token table of target and output alone; None = one table
            for all (Marian has both).
        num_buckets: relative biases of a head on one side of the model.
        max_distance: first distance beyond the logarithmic buckets, see
            `kbert.layers.RelativeBiases`.

    Raises:
        ValueError: a value is out of range, or two values are inconsistent.

    Example:
        >>> Seq2SeqConfig(vocabulary_size=37000, hidden_size=512, num_layers=6, num_heads=8,
        ...               intermediate_size=2048).count_parameters()
        63082496
    """

    kind: ClassVar[str] = "seq2seq"
    told: ClassVar[str] = "an encoder-decoder, which kbert.Seq2Seq loads"
    FORMATS: ClassVar[tuple[str, ...]] = ("kbert", "huggingface")
    num_segments: ClassVar[int] = 0  # read where encoders are, too

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
    scale_embeddings: bool | None = None
    norm: str = "layer"
    use_bias: bool = True
    feed_forward: str = "dense"
    head_size: int | None = None
    scale_scores: bool = True
    activation_dropout: float = 0.0
    output_dropout: bool = False
    output: str = "tied"
    output_bias: bool = False
    target_vocabulary_size: int | None = None
    num_buckets: int = 32
    max_distance: int = 128

    LATER: ClassVar[tuple[str, ...]] = (
        *("scale_embeddings", "norm", "use_bias", "feed_forward", "head_size", "scale_scores"),
        *("activation_dropout", "output_dropout", "output", "output_bias"),
        *("target_vocabulary_size", "num_buckets", "max_distance"),
    )

    def __post_init__(self) -> None:
        if self.head_size is not None:
            check_count("head_size", self.head_size, minimum=1)
        check_transformer(self)
        for name in ("num_decoder_layers", "target_vocabulary_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=1)
        check_choice("positions", self.positions, POSITIONS)
        check_choice("embeddings", self.embeddings, EMBEDDINGS)
        check_choice("block", self.block, BLOCKS)
        check_choice("norm", self.norm, ("layer", "rms"))
        check_choice("feed_forward", self.feed_forward, ("dense", "gated"))
        check_choice("output", self.output, OUTPUTS)
        for name in ("use_bias", "scale_scores", "output_dropout", "output_bias"):
            check_flag(name, getattr(self, name))
        if self.scale_embeddings is not None:
            check_flag("scale_embeddings", self.scale_embeddings)
        check_rate("activation_dropout", self.activation_dropout)
        if self.initializer_range is not None:
            check_positive("initializer_range", self.initializer_range)
        self._check_buckets()

    def _check_buckets(self) -> None:
        """Raises ValueError if the buckets of relative positions are invalid, or set without."""
        if self.positions != RELATIVE:
            if (self.num_buckets, self.max_distance) != (32, 128):
                raise ValueError(
                    "`num_buckets` and `max_distance` require positions='relative'. Received: "
                    f"num_buckets={self.num_buckets!r}, max_distance={self.max_distance!r}, "
                    f"positions={self.positions!r}"
                )
            return
        check_count("num_buckets", self.num_buckets, minimum=4)
        check_count("max_distance", self.max_distance, minimum=2)
        # A decoder has all buckets for the distances to earlier tokens.
        if self.num_buckets % 4 or self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                "`num_buckets` must be a multiple of 4, and `max_distance` greater than "
                f"num_buckets / 2. Received: num_buckets={self.num_buckets}, "
                f"max_distance={self.max_distance}"
            )

    @property
    def decoder_layers(self) -> int:
        """Number of decoder blocks."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def target_rows(self) -> int:
        """Rows of the target's token table, which are the logits of a token."""
        separate = self.target_vocabulary_size
        return self.vocabulary_size if separate is None else separate

    @property
    def embedding_scale(self) -> float:
        """Factor of the token embeddings."""
        scaled = self.scale_embeddings
        scaled = self.initializer_range is None if scaled is None else scaled
        return self.hidden_size**0.5 if scaled else 1.0

    @property
    def table_range(self) -> float:
        """Standard deviation of the tables' initial values."""
        sigma = self.initializer_range
        return 1.0 / self.embedding_scale if sigma is None else sigma

    def count_parameters(self) -> int:
        """Returns the number of trained weights of a model of this config, by formula."""
        width = self.hidden_size
        inside = (self.head_size or width // self.num_heads) * self.num_heads
        norm = width * (1 + (self.norm == "layer"))
        biases = int(self.use_bias)
        attention = 4 * width * inside + biases * (3 * inside + width) + norm
        gates = 1 + (self.feed_forward == "gated")
        feed_forward = (1 + gates) * width * self.intermediate_size + norm
        feed_forward += biases * (gates * self.intermediate_size + width)
        blocks = self.num_layers * (attention + feed_forward)
        blocks += self.decoder_layers * (2 * attention + feed_forward)
        rows = self.vocabulary_size + (self.target_vocabulary_size or 0)
        rows += self.target_rows if self.output == "untied" else 0
        rows += 2 * self.max_positions if self.positions == "learned" else 0
        buckets = 2 * self.num_buckets * self.num_heads if self.positions == RELATIVE else 0
        # Further norms of each of the two sides.
        norms = 2 * ((self.block == "pre_norm") + (self.embeddings == "normalised"))
        return rows * width + buckets + blocks + norms * norm
