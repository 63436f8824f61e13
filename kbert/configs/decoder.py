"""The configuration of decoders: language models that read from left to right."""

import dataclasses

from kbert.configs.base import (
    BLOCKS,
    Config,
    check_choice,
    check_positive,
    check_transformer,
    count_block,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """The sizes and values that tell one decoder from another.

    The defaults are GPT-2's (https://github.com/openai/gpt-2, src/model.py).

    Args:
        vocabulary_size: rows of the token table, which is the output matrix too.
        hidden_size: width of the residual stream.
        num_layers: blocks.
        num_heads: attention heads; divides `hidden_size`.
        intermediate_size: width inside the feed-forward part.
        max_positions: longest sequence, in tokens.
        block: which part a layer is: "pre_norm" normalises what goes into attention and
            feed-forward, and the last layer's output (GPT-2); "post_norm" normalises after each
            residual (GPT).
        activation: of the feed-forward part.
        dropout: rate on embeddings and on the output of each sub-layer.
        attention_dropout: rate on attention probabilities.
        layer_norm_epsilon: added to the variance.
        initializer_range: sigma of the truncated normal that kernels and tables start from.

    Raises:
        ValueError: a value is out of range, or two of them do not fit together.

    Example:
        >>> DecoderConfig(vocabulary_size=50257, hidden_size=768, num_layers=12, num_heads=12,
        ...               intermediate_size=3072).count_parameters()
        124439808
    """

    vocabulary_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int = 1024
    block: str = "pre_norm"
    activation: str = "gelu_tanh"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        check_transformer(self)
        check_choice("block", self.block, BLOCKS)
        check_positive("initializer_range", self.initializer_range)

    def count_parameters(self) -> int:
        """Weights of a decoder of this config, by formula."""
        tables = (self.vocabulary_size + self.max_positions) * self.hidden_size
        last_norm = 2 * self.hidden_size if self.block == "pre_norm" else 0
        block = count_block(self.hidden_size, self.intermediate_size)
        return tables + self.num_layers * block + last_norm
