"""Common base of the configurations of encoders and decoders: the stack of blocks."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from kbert.configs.base import (
    BLOCKS,
    NORMS,
    Config,
    Frozen,
    check_activation,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    check_real,
    check_transformer,
)

GLOBAL = "global"  # in `attention_pattern`: every token attends to every token
ROTARY_BASE = 10_000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(Config):
    """Fields and checks of a stack of blocks; see `EncoderConfig` and `DecoderConfig`.

    Attributes:
        CHOICES: field -> the values that this kind of model supports.
        WINDOW_MULTIPLE: number that a window must be a multiple of.
    """

    vocabulary_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int = 512
    activation: str = "gelu_tanh"
    head_activation: str | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    positions: str = "learned"
    rotary_base: float | None = None
    local_rotary_base: float | None = None
    attention_pattern: tuple[str | int, ...] = (GLOBAL,)
    feed_forward: str = "dense"
    norm: str = "layer"
    block: str = "post_norm"
    embedding_norm: bool = True
    use_bias: bool = True
    bias_exceptions: tuple[str, ...] = ()
    edits: tuple[Mapping[str, Any], ...] = ()

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "positions": ("learned", "rotary", "sinusoidal", "alibi", "none"),
        "feed_forward": ("dense", "gated"),
        "norm": NORMS,
        "block": (*BLOCKS, "pre_norm_except_first"),
    }

    WINDOW_MULTIPLE: ClassVar[int] = 2  # half on either side
    LATER: ClassVar[tuple[str, ...]] = (
        *(
            "head_activation",
            "positions",
            "rotary_base",
            "local_rotary_base",
            "attention_pattern",
            "feed_forward",
        ),
        *("norm", "embedding_norm", "use_bias", "bias_exceptions", "edits"),
    )

    def __post_init__(self) -> None:
        for name in ("attention_pattern", "bias_exceptions"):
            if isinstance(getattr(self, name), list):  # JSON has no tuples
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check_transformer(self)
        if self.head_activation is not None:
            check_activation("head_activation", self.head_activation)
        check_positive("initializer_range", self.initializer_range)
        for name, choices in self.CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in ("embedding_norm", "use_bias"):
            check_flag(name, getattr(self, name))
        self._check_edits()
        self._check_exceptions()
        self._check_pattern()
        self._check_rotary()

    @property
    def num_blocks(self) -> int:
        """Number of blocks with separate weights."""
        return self.num_layers

    @property
    def transform_activation(self) -> str:
        """Activation of the dense layer before a head's logits."""
        return self.head_activation or self.activation

    @property
    def widest_window(self) -> int:
        """Largest window that is allowed, in tokens: it reaches over the longest sequence."""
        return self.WINDOW_MULTIPLE * self.max_positions

    @property
    def positions_in_attention(self) -> bool:
        """Whether positions enter the attention scores instead of the token embeddings."""
        return self.positions in ("rotary", "alibi")

    def _check_pattern(self) -> None:
        """Raises ValueError unless `attention_pattern` is a tuple of "global" and valid windows."""
        pattern = self.attention_pattern
        if not isinstance(pattern, tuple) or not pattern:
            raise ValueError(
                "`attention_pattern` must be a tuple of one or more attentions, such as "
                f'("global", 128, 128). Received: {pattern!r}'
            )
        for window in pattern:
            if window == GLOBAL:
                continue
            check_count("attention_pattern", window, minimum=self.WINDOW_MULTIPLE)
            window = cast(int, window)
            if window % self.WINDOW_MULTIPLE or window > self.widest_window:
                even = "an even" if self.WINDOW_MULTIPLE == 2 else "a"
                raise ValueError(
                    f"A window of `attention_pattern` must be {even} number of tokens and at most "
                    f"{self.widest_window}, as no sequence is longer than "
                    f"max_positions={self.max_positions}. Received: {window}"
                )

    def _check_edits(self) -> None:
        """Raises ValueError for invalid `edits`, and makes them a tuple of frozen mappings."""
        edits = self.edits
        are_mappings = isinstance(edits, list | tuple) and all(
            isinstance(edit, Mapping) for edit in edits
        )
        kinds = [edit.get("kind") for edit in edits] if are_mappings else [None]
        are_named = all(isinstance(kind, str) for kind in kinds)
        if not are_named or len(set(kinds)) < len(kinds):
            raise ValueError(
                "`edits` must be a list of objects, each with another name as its `kind`. "
                f"Received: {edits!r}"
            )
        object.__setattr__(self, "edits", tuple(map(Frozen, edits)))

    def _check_exceptions(self) -> None:
        """Raises ValueError for invalid `bias_exceptions`, such as "gate" without a gate."""
        choices = ("attention", "gate", "heads")
        exceptions = self.bias_exceptions
        are_known = isinstance(exceptions, tuple) and all(name in choices for name in exceptions)
        if not are_known or len(set(exceptions)) < len(exceptions):
            raise ValueError(
                f"`bias_exceptions` must be some of {', '.join(choices)}, without duplicates. "
                f"Received: {exceptions!r}"
            )
        if "gate" in exceptions and self.feed_forward != "gated":
            raise ValueError(
                '`bias_exceptions` may include "gate" only with a gated feed-forward part. '
                f"Received: bias_exceptions={exceptions}, feed_forward={self.feed_forward!r}"
            )

    def _check_rotary(self) -> None:
        """Raises ValueError if the rotary bases or the width of a head do not fit the positions."""
        bases = {name: getattr(self, name) for name in ("rotary_base", "local_rotary_base")}
        given_bases = {name: base for name, base in bases.items() if base is not None}
        for name, base in given_bases.items():
            check_real(name, base, "above 1", lambda x: x > 1)
        if self.positions != "rotary":
            if given_bases:
                raise ValueError(
                    "`rotary_base` and `local_rotary_base` require positions='rotary'. Received: "
                    f"{given_bases}, positions={self.positions!r}"
                )
            return
        if self.hidden_size // self.num_heads % 2:
            raise ValueError(
                "The width of a head must be even with positions='rotary', which rotates pairs of "
                f"numbers. Received: {self.hidden_size // self.num_heads} "
                f"(hidden_size={self.hidden_size}, num_heads={self.num_heads})"
            )
        if self.local_rotary_base is not None and (
            set(self.attention_pattern) <= {GLOBAL} or self.num_blocks < self.num_layers
        ):
            raise ValueError(
                "`local_rotary_base` requires layers with a window that do not share weights. "
                f"Received: attention_pattern={self.attention_pattern}, {self.num_blocks} blocks "
                f"of {self.num_layers} layers"
            )

    def window(self, layer: int) -> int | None:
        """Returns the attention window of a layer, in tokens; None = all tokens.

        Example:
            >>> from kbert import family
            >>> [family("answerdotai/ModernBERT-base").window(layer) for layer in range(4)]
            [None, 128, 128, None]
        """
        window = self.attention_pattern[layer % len(self.attention_pattern)]
        return None if window == GLOBAL else cast(int, window)

    def layer_rotary_base(self, layer: int) -> float | None:
        """Returns the base of the rotary positions of layer number `layer`; None without these."""
        if self.positions != "rotary":
            return None
        local = self.local_rotary_base
        if local is not None and self.window(layer) is not None:
            return local
        return ROTARY_BASE if self.rotary_base is None else self.rotary_base

    @property
    def key_value_heads(self) -> int:
        """Number of key and value heads; fewer than query heads if several of those share one."""
        return self.num_heads

    def has_bias(self, part: str) -> bool:
        """Whether the dense layers of a part have biases: "attention", "gate", "heads" or another.

        Example:
            >>> from kbert import family
            >>> [family("mosaicml/mosaic-bert-base").has_bias(x) for x in ("attention", "gate")]
            [True, False]
        """
        return self.use_bias != (part in self.bias_exceptions)

    def count_norm(self, width: int) -> int:
        """Returns the number of weights of a normalisation of `width` columns."""
        return 2 * width if self.norm == "layer" else width

    def count_dense(self, width_in: int, width_out: int, part: str = "") -> int:
        """Returns the number of weights of a dense layer, with its bias if `has_bias(part)`."""
        return width_in * width_out + self.has_bias(part) * width_out

    def kernels(
        self, heads: int | None = None, intermediate_size: int | None = None
    ) -> list[tuple[int, int]]:
        """Returns the shapes (width in, width out) of a block's four dense kernels.

        These are queries, keys and values together; the attention's output; and the two layers of
        the feed-forward part.

        Args:
            heads: number of attention heads, if fewer than `num_heads`.
            intermediate_size: width inside the feed-forward part, if less than the config's.
        """
        hidden, width = self.hidden_size, self.hidden_size // self.num_heads
        inside = self.intermediate_size if intermediate_size is None else intermediate_size
        queries, keys = width * (heads or self.num_heads), width * (heads or self.key_value_heads)
        return [
            (hidden, queries + 2 * keys),
            (queries, hidden),
            (hidden, inside * (1 + (self.feed_forward == "gated"))),
            (inside, hidden),
        ]

    def count_blocks(self) -> int:
        """Returns the number of weights of all blocks, including any norm after the last one."""
        width = self.hidden_size
        keys = width // self.num_heads * self.key_value_heads
        attention = self.count_dense(width, width + 2 * keys, "attention")
        attention += self.count_dense(width, width, "attention")
        gated = self.feed_forward == "gated"
        feed_forward = self.count_dense(
            width, (1 + gated) * self.intermediate_size, "gate" if gated else ""
        )
        feed_forward += self.count_dense(self.intermediate_size, width)
        norms = 2 * self.num_blocks + {"post_norm": 0, "pre_norm": 1}.get(self.block, 0)
        return self.num_blocks * (attention + feed_forward) + norms * self.count_norm(width)
