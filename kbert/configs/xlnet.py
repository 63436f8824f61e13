"""The configuration of XLNet."""

import dataclasses
from typing import ClassVar

from kbert.configs.base import check_choice, check_count, check_flag
from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class XlnetConfig(EncoderConfig):
    """Sizes and options of an XLNet (Yang et al. 2019, https://arxiv.org/abs/1906.08237).

    Positions are relative, so `max_positions` is not the size of a weight: it is the longest
    sequence that the tasks make. Attention only sees whether two tokens have the same segment, so
    there is no segment table.

    Args:
        attention: tokens that a token attends to: "bidirectional", or "causal" (no later tokens).
        same_length: whether each token, with a memory of M tokens, attends to itself and the M
            tokens before it only; needs "causal" attention.
        clamp_length: largest distance; longer ones are clipped to it. None = no clipping.
        reuse_length: number of tokens at the start of a sequence that the memory keeps for the next
            sequence; None = all.

    Raises:
        ValueError: a value is out of range, or a field that XLNet does not use is set.

    Example:
        >>> config = XlnetConfig(vocabulary_size=32, hidden_size=8, num_layers=2, num_heads=2,
        ...                      intermediate_size=16)
        >>> config.pooling, config.count_embeddings()
        ('last', 264)
    """

    kind = "xlnet"
    told = "an XLNet, which kbert.Encoder loads"

    num_segments: int = 3  # the first text, the second, and <cls>
    positions: str = "relative"
    pooling: str = "last"
    activation: str = "gelu"
    attention: str = "bidirectional"
    same_length: bool = False
    clamp_length: int | None = None
    reuse_length: int | None = None

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **TransformerConfig.CHOICES,
        "positions": ("relative",),
    }
    LATER: ClassVar[tuple[str, ...]] = (
        *EncoderConfig.LATER,
        *("attention", "same_length", "clamp_length", "reuse_length"),
    )
    UNUSED: ClassVar[tuple[str, ...]] = (
        *("num_segments", "embedding_size", "num_layer_groups", "pooler_norm", "pooling", "part"),
        *("edits",),
        *("positions", "rotary_base", "local_rotary_base", "attention_pattern", "feed_forward"),
        *("norm", "block", "embedding_norm", "use_bias", "bias_exceptions", "output"),
        *("num_key_value_heads", "token_transform", "head_activation"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("attention", self.attention, ("bidirectional", "causal"))
        check_flag("same_length", self.same_length)
        for name in ("clamp_length", "reuse_length"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=1)
        if self.hidden_size % 2:
            raise ValueError(
                "`hidden_size` must be even: distances are encoded by as many sines as cosines. "
                f"Received: {self.hidden_size}"
            )
        if self.same_length and self.attention != "causal":
            raise ValueError(
                "`same_length` requires attention='causal'. Received: same_length=True, "
                f"attention={self.attention!r}"
            )

    def count_embeddings(self) -> int:
        return (self.vocabulary_size + 1) * self.hidden_size  # and the first query vector

    def count_blocks(self) -> int:
        width = self.hidden_size
        attention = 5 * width**2 + 5 * width  # three biases, and embeddings of two segments
        feed_forward = 2 * width * self.intermediate_size + self.intermediate_size + width
        return self.num_layers * (attention + feed_forward + 2 * self.count_norm(width))
