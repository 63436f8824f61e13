"""The one configuration of every encoder of the BERT family, and what all configurations can do.

A difference between models becomes a field only where two published checkpoints disagree in a
value. Where they disagree in code it is a part handed to the encoder (see `kbert.models.encoder`).
"""

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")
BLOCKS = ("pre_norm", "post_norm")  # where a block normalises, see kbert.models.blocks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What every configuration can do; a kind of model adds its fields and checks them."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as a plain dict that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The reverse of `to_dict`; a key that is unknown or missing raises and is named."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=3)
                hint = f" Did you mean: {', '.join(close)}?" if close else ""
                raise ValueError(
                    f"{cls.__name__} has no such field.{hint} Known: {', '.join(known)}. "
                    f"Received: {key!r}"
                )
        missing = [
            field.name
            for field in dataclasses.fields(cls)
            if field.default is dataclasses.MISSING and field.name not in fields
        ]
        if missing:
            raise ValueError(
                f"{cls.__name__} must be given {', '.join(missing)}. "
                f"Received: {', '.join(map(str, fields)) or 'nothing'}"
            )
        return cls(**fields)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return type(self).from_dict({**self.to_dict(), **changes})


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
        pooler_activation: of the dense layer on the first token; None = the family has no pooler.

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

    def __post_init__(self) -> None:
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

    @property
    def embedding_width(self) -> int:
        """Width of the embedding tables: `embedding_size`, or `hidden_size` where that is None."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def num_blocks(self) -> int:
        """Blocks with weights of their own."""
        return self.num_layers if self.num_layer_groups is None else self.num_layer_groups


def check_count(name: str, value: Any, minimum: int) -> None:
    """Raises unless a field's value is an integer, and not below `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"`{name}` must be an integer of at least {minimum}. Received: {value!r}")


def check_real(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> None:
    """Raises unless a field's value is a finite number that `holds`, as `rule` says in words."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not holds(value):
        raise ValueError(f"`{name}` must be a number that is {rule}. Received: {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Raises unless a field's value is a finite number above 0."""
    check_real(name, value, "positive", lambda x: x > 0)


def check_rate(name: str, value: Any) -> None:
    """Raises unless a field's value is a rate of dropout."""
    check_real(name, value, "at least 0 and less than 1", lambda x: 0 <= x < 1)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises unless a field's value is one of `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(choices)}. Received: {value!r}")


def check_activation(name: str, value: Any) -> None:
    """Raises unless a field's value is one of `ACTIVATIONS`."""
    check_choice(name, value, ACTIVATIONS)


def check_transformer(config: Any) -> None:
    """Raises unless the fields that all models of attention blocks have hold together."""
    for name in (
        *("vocabulary_size", "hidden_size", "num_layers", "num_heads"),
        *("intermediate_size", "max_positions"),
    ):
        check_count(name, getattr(config, name), minimum=1)
    if config.hidden_size % config.num_heads:
        raise ValueError(
            "`hidden_size` must be a multiple of `num_heads`. "
            f"Received: hidden_size={config.hidden_size}, num_heads={config.num_heads}"
        )
    check_activation("activation", config.activation)
    for name in ("dropout", "attention_dropout"):
        check_rate(name, getattr(config, name))
    check_positive("layer_norm_epsilon", config.layer_norm_epsilon)


def count_block(hidden_size: int, intermediate_size: int, num_attentions: int = 1) -> int:
    """Weights of a block with so many attentions, a feed-forward part and a norm for each."""
    attention = 4 * (hidden_size**2 + hidden_size) + 2 * hidden_size
    feed_forward = 2 * hidden_size * intermediate_size + intermediate_size + 3 * hidden_size
    return num_attentions * attention + feed_forward
