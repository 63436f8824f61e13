"""The one configuration of every encoder of the BERT family.

A difference between models becomes a field only where two published checkpoints disagree in a
value. Where they disagree in code it is a part handed to the encoder (see `kbert.models.encoder`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from kbert import registry
from kbert.configs.base import (
    BLOCKS,
    NORMS,
    Config,
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
_CHOICES = {
    "pooling": ("first", "mean"),
    "positions": ("learned", "rotary", "sinusoidal", "alibi", "none"),
    "feed_forward": ("dense", "gated"),
    "norm": NORMS,
    "block": (*BLOCKS, "pre_norm_except_first"),
}


class _Frozen(dict):
    """A mapping of options that is hashed by its content, as configs are."""

    def __hash__(self) -> int:  # type: ignore[override]  # dicts have none
        return hash(tuple(sorted((name, repr(value)) for name, value in self.items())))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """The sizes and values that tell one encoder from another.

    Args:
        vocabulary_size: rows of the token table.
        hidden_size: width of the residual stream.
        num_layers: how many times a block is applied.
        num_heads: attention heads; divides `hidden_size`.
        intermediate_size: width inside the feed-forward part.
        max_positions: longest sequence, in tokens.
        num_segments: rows of the segment table; 0 = the model knows no segments.
        embedding_size: width of the embedding tables; None = `hidden_size`. When it differs, a
            projection widens the embeddings (ALBERT; ELECTRA-small).
        num_layer_groups: blocks with weights of their own; None = one for each layer. ALBERT
            has 1. Layer `i` uses block `i * num_layer_groups // num_layers`.
        activation: of the feed-forward part and the masked-LM transform. "gelu" is the erf form,
            "gelu_tanh" the approximation that BERT's own code trained with.
        dropout: rate on embeddings and on the output of each sub-layer.
        attention_dropout: rate on attention probabilities.
        layer_norm_epsilon: added to the variance. 1e-12 is BERT's, 1e-5 RoBERTa's.
        initializer_range: sigma of the truncated normal that kernels and tables start from.
        pooler_activation: of the dense layer that makes "pooled"; None = the family has no pooler.
        pooler_norm: whether a normalisation follows it there (ModernBERT).
        pooling: what the pooler reads: the "first" token, or the "mean" of all.
        positions: how a token knows its place: "learned" or "sinusoidal" vectors that are added to
            its own; "rotary": queries and keys are turned by it; "alibi": attention falls off with
            the distance; "none".
        rotary_base: the longest wavelength of "rotary" over 2 pi; None = 10,000.
        local_rotary_base: that of the layers with a window; None = `rotary_base`.
        attention_pattern: what the layers attend to, repeated over them: "global", or a window, the
            even number of tokens around each that it attends to, half of them on either side.
        feed_forward: "dense", two dense layers; or "gated": the first is twice as wide, and of its
            outputs the activation of one half is multiplied with the other (GLU).
        norm: "layer", with a scale and a shift; "layer_no_bias", without the shift; "rms", of the
            root mean square, without mean and shift.
        block: where a layer normalises: "post_norm", after each residual; "pre_norm", what goes
            into each part, and the last layer's output; "pre_norm_except_first": the first
            attention takes the embeddings as they are, where those are normalised already.
        embedding_norm: whether the embeddings are normalised.
        use_bias: whether dense layers have biases; the output layer of a head always does.
        part: what this family has in code: "name", under which `kbert.models.register_part` knows
            it, and its options. None = nothing.

    Raises:
        ValueError: a value is out of range, or two of them do not fit together.

    Example:
        >>> config = EncoderConfig(vocabulary_size=100, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=32)
        >>> config.replace(num_layers=4).num_layers
        4
    """

    vocabulary_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int = 512
    num_segments: int = 2
    embedding_size: int | None = None
    num_layer_groups: int | None = None
    activation: str = "gelu_tanh"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    pooler_activation: str | None = "tanh"
    pooler_norm: bool = False
    pooling: str = "first"
    positions: str = "learned"
    rotary_base: float | None = None
    local_rotary_base: float | None = None
    attention_pattern: tuple[str | int, ...] = (GLOBAL,)
    feed_forward: str = "dense"
    norm: str = "layer"
    block: str = "post_norm"
    embedding_norm: bool = True
    use_bias: bool = True
    part: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attention_pattern, list):  # as JSON has it
            object.__setattr__(self, "attention_pattern", tuple(self.attention_pattern))
        if self.part is not None:
            object.__setattr__(self, "part", _Frozen(self._checked_part(self.part)))
        check_transformer(self)
        check_count("num_segments", self.num_segments, minimum=0)
        for name in ("embedding_size", "num_layer_groups"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=1)
        if self.num_layer_groups is not None and self.num_layer_groups > self.num_layers:
            raise ValueError(
                "`num_layer_groups` must not exceed `num_layers`. Received: "
                f"num_layer_groups={self.num_layer_groups}, num_layers={self.num_layers}"
            )
        if self.pooler_activation is not None:
            check_activation("pooler_activation", self.pooler_activation)
        check_positive("initializer_range", self.initializer_range)
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in ("pooler_norm", "embedding_norm", "use_bias"):
            check_flag(name, getattr(self, name))
        self._check_pattern()
        self._check_rotary()
        if self.block == "pre_norm_except_first" and self.num_blocks < self.num_layers:
            raise ValueError(
                "Layers that share weights normalise alike: block='pre_norm_except_first' takes "
                f"no `num_layer_groups`. Received: num_layer_groups={self.num_layer_groups}"
            )

        if self.part is not None and (part := registry.find("part", self.part["name"])):
            options = {name: value for name, value in self.part.items() if name != "name"}
            cast(Any, part).from_dict(options).check_config(self)

    def _checked_part(self, part: Any) -> Mapping[str, Any]:
        if not isinstance(part, Mapping) or not isinstance(part.get("name"), str):
            raise ValueError(
                f"`part` must be an object with a `name` and options. Received: {part!r}"
            )
        return part

    def to_dict(self) -> dict[str, Any]:
        """The fields as a plain dict that JSON can hold."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "part": None if self.part is None else dict(self.part)}

    def _check_pattern(self) -> None:
        pattern = self.attention_pattern
        if not isinstance(pattern, tuple) or not pattern:
            raise ValueError(
                '`attention_pattern` must name an attention or more, such as ("global", 128, 128). '
                f"Received: {pattern!r}"
            )
        for window in pattern:
            if window == GLOBAL:
                continue
            check_count("attention_pattern", window, minimum=2)
            if window % 2 or window > self.max_positions:
                raise ValueError(
                    "A window of `attention_pattern` must be an even number of tokens, and not "
                    f"above max_positions={self.max_positions}. Received: {window}"
                )

    def _check_rotary(self) -> None:
        bases = {name: getattr(self, name) for name in ("rotary_base", "local_rotary_base")}
        given = {name: base for name, base in bases.items() if base is not None}
        for name, base in given.items():
            check_real(name, base, "above 1", lambda x: x > 1)
        if self.positions != "rotary":
            if given:
                raise ValueError(
                    f"Only positions='rotary' have a base. Received: {given}, "
                    f"positions={self.positions!r}"
                )
            return
        if self.hidden_size // self.num_heads % 2:
            raise ValueError(
                "positions='rotary' turns pairs of numbers: heads must be of an even width. "
                f"Received: {self.hidden_size // self.num_heads} (hidden_size={self.hidden_size}, "
                f"num_heads={self.num_heads})"
            )
        if self.local_rotary_base is not None and (
            set(self.attention_pattern) <= {GLOBAL} or self.num_blocks < self.num_layers
        ):
            raise ValueError(
                "`local_rotary_base` is of layers with a window and weights of their own. "
                f"Received: attention_pattern={self.attention_pattern}, "
                f"num_layer_groups={self.num_layer_groups}"
            )

    def window(self, layer: int) -> int | None:
        """Tokens that those of a layer attend to; None = all.

        Example:
            >>> from kbert import family
            >>> [family("answerdotai/ModernBERT-base").window(layer) for layer in range(4)]
            [None, 128, 128, None]
        """
        window = self.attention_pattern[layer % len(self.attention_pattern)]
        return None if window == GLOBAL else cast(int, window)

    def layer_rotary_base(self, layer: int) -> float | None:
        """The base of a layer's rotary positions; None where its positions are others."""
        if self.positions != "rotary":
            return None
        local = self.local_rotary_base
        if local is not None and self.window(layer) is not None:
            return local
        return ROTARY_BASE if self.rotary_base is None else self.rotary_base

    @property
    def embedding_width(self) -> int:
        """Width of the embedding tables: `embedding_size`, or `hidden_size` where that is None."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def num_blocks(self) -> int:
        """Blocks with weights of their own."""
        return self.num_layers if self.num_layer_groups is None else self.num_layer_groups
