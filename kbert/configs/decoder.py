"""The configuration of decoders: left-to-right language models."""

import dataclasses
from typing import ClassVar

from kbert.configs.transformer import TransformerConfig

OUTPUTS = ("tied", "transformed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """Sizes and options of a decoder.

    The defaults are GPT-2's (https://github.com/openai/gpt-2, src/model.py).

    Args:
        vocabulary_size: rows of the token table, which is also the output matrix.
        hidden_size: width of the residual stream.
        num_layers: number of blocks.
        num_heads: number of attention heads; divides `hidden_size`.
        intermediate_size: width inside the feed-forward part.
        max_positions: longest sequence, in tokens.
        activation: activation of the feed-forward part.
        head_activation: activation of the dense layer of a "transformed" output; None =
            `activation`.
        dropout: dropout rate on embeddings and on the output of each sub-layer.
        attention_dropout: dropout rate on attention probabilities.
        layer_norm_epsilon: number added to the variance.
        initializer_range: standard deviation of the truncated normal that initialises kernels and
            tables.
        positions: kind of positions: "learned", "sinusoidal", "rotary" or "none"; see
            `EncoderConfig`.
        rotary_base, local_rotary_base: longest wavelength of "rotary" positions over 2 pi, in all
            layers and in those with a window; see `EncoderConfig`.
        attention_pattern: attention of the layers, repeated over them: "global", or a window. A
            window is the number of tokens that a token attends to, itself the last of them.
        feed_forward, norm: kinds of feed-forward part and normalisation; see `EncoderConfig`.
        block: where a layer normalises. "pre_norm": the input of attention and feed-forward, and
            the last layer's output (GPT-2). "post_norm": after each residual (GPT).
            "pre_norm_except_first": like "pre_norm" without the norm before the first attention.
        embedding_norm: whether the embeddings are normalised.
        use_bias, bias_exceptions: whether dense layers have biases, and the parts for which the
            opposite holds; see `EncoderConfig`.
        output: how logits are computed from the last layer. "tied": by the token table alone.
            "transformed": by a dense layer, the activation and a norm before the table, and a bias
            after it (Ettin).

    Raises:
        ValueError: a value is out of range, or two values are inconsistent.

    Example:
        >>> DecoderConfig(vocabulary_size=50257, hidden_size=768, num_layers=12, num_heads=12,
        ...               intermediate_size=3072).count_parameters()
        124439808
    """

    kind: ClassVar[str] = "decoder"
    told: ClassVar[str] = "a decoder, which kbert.Decoder loads"
    FORMATS: ClassVar[tuple[str, ...]] = ("kbert", "huggingface")
    num_segments: ClassVar[int] = 0  # read where encoders are, too

    max_positions: int = 1024
    layer_norm_epsilon: float = 1e-5
    block: str = "pre_norm"
    embedding_norm: bool = False
    output: str = "tied"

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **TransformerConfig.CHOICES,
        "positions": ("learned", "sinusoidal", "rotary", "none"),
        "output": OUTPUTS,
    }
    WINDOW_MULTIPLE: ClassVar[int] = 1
    LATER: ClassVar[tuple[str, ...]] = (*TransformerConfig.LATER, "output")

    def count_parameters(self) -> int:
        """Returns the number of weights of a decoder of this config, by formula."""
        width = self.hidden_size
        rows = self.vocabulary_size
        rows += self.max_positions if self.positions == "learned" else 0
        count = rows * width + self.embedding_norm * self.count_norm(width) + self.count_blocks()
        if self.output == "transformed":
            count += (
                self.count_dense(width, width, "heads")
                + self.count_norm(width)
                + self.vocabulary_size
            )
        return count
