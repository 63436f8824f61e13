"""The one configuration of every encoder of the BERT family.

A difference between models becomes a field only if two published checkpoints differ in a value. If
they differ in code, it becomes a part that is passed to the encoder (see `kbert.models.encoder`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

from kbert.configs.base import (
    Frozen,
    check_activation,
    check_count,
    check_flag,
)
from kbert.configs.transformer import TransformerConfig
from kbert.core import registry

IDENTITY = "identity"  # in `pooler_activation`: no dense layer


# Parts of the previous version that are edits now -> their kinds.
_FORMER_PARTS = {"quantized": "rounding", "movement": "movement", "pruned": "pruned"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """Sizes and options of an encoder.

    An encoder with another loop over the layers has its own class and its own subclass of this
    config. The subclass lists the fields that it does not use in `UNUSED`, and counts weights by
    `count_embeddings`, `count_blocks` and `count_pooler`.

    Args:
        vocabulary_size: rows of the token table.
        hidden_size: width of the residual stream.
        num_layers: number of layers, each of which applies a block.
        num_heads: number of attention heads; divides `hidden_size`.
        intermediate_size: width inside the feed-forward part.
        max_positions: longest sequence, in tokens.
        num_segments: rows of the segment table; 0 = the model has no segments.
        embedding_size: width of the embedding tables; None = `hidden_size`. When it differs, a
            projection widens the embeddings (ALBERT; ELECTRA-small).
        num_layer_groups: number of blocks with separate weights; None = one for each layer. ALBERT
            has 1. Layer `i` uses block `i * num_layer_groups // num_layers`.
        activation: activation of the feed-forward part and the masked-LM transform. "gelu" is the
            erf form, "gelu_tanh" the approximation that BERT's own code trained with.
        head_activation: activation of the dense layers before the logits of heads, including the
            masked-LM transform (RoBERTa's is always "gelu"); None = `activation`.
        dropout: dropout rate on embeddings and on the output of each sub-layer.
        attention_dropout: dropout rate on attention probabilities.
        layer_norm_epsilon: number added to the variance. 1e-12 is BERT's, 1e-5 RoBERTa's.
        initializer_range: standard deviation of the truncated normal that initialises kernels and
            tables.
        pooler_activation: activation of the dense layer that computes "pooled". "identity" = no
            such layer: "pooled" is what it would read (MobileBERT). None = the family has no
            pooler.
        pooler_norm: whether a normalisation follows the pooler's dense layer (ModernBERT).
        token_transform: whether heads of tokens and spans have their own dense layer, activation
            and normalisation before the logits, like the masked-LM head (ModernBERT).
        pooling: what the pooler reads: the "first" token, the "last", or the "mean" of all. With
            "late" it reads every token, and "pooled" is the mean of the results.
        positions: kind of positions. "learned" or "sinusoidal": embeddings that are added to those
            of the tokens. "rotary": queries and keys are rotated by them. "alibi": attention
            decreases with the distance. "none".
        padding_id: token id that learned positions skip, whatever the padding mask is: they number
            the other tokens, and this one has its own position embedding (RoBERTa). None = every
            token is numbered by its place.
        rotary_base: longest wavelength of "rotary" positions over 2 pi; None = 10,000.
        local_rotary_base: `rotary_base` of the layers with a window; None = `rotary_base`.
        attention_pattern: attention of the layers, repeated over them: "global", or a window. A
            window is the even number of tokens around each token that it attends to, half of them
            on either side.
        feed_forward: "dense", two dense layers; or "gated" (GLU): the first is twice as wide, and
            the activation of one half of its output is multiplied by the other half.
        norm: "layer", with a scale and a shift; "layer_no_bias", without the shift; "rms", by the
            root mean square, without mean and shift.
        block: where a layer normalises. "post_norm": after each residual. "pre_norm": the input of
            each part, and the last layer's output. "pre_norm_except_first": like "pre_norm"
            without the norm before the first attention, for embeddings that are normalised.
        embedding_norm: whether the embeddings are normalised.
        use_bias: whether dense layers have biases; the output layer of a head always does.
        bias_exceptions: parts for which the opposite of `use_bias` holds: "attention"; "gate", the
            first layer of gated feed-forward parts (MosaicBERT); "heads", the dense layers of the
            pooler and of the masked-LM head (EuroBERT).
        num_key_value_heads: number of key and value heads, a divisor of `num_heads`. Each serves
            `num_heads / num_key_value_heads` neighbouring query heads. None = `num_heads`.
        output: output layer of the masked-LM head. "transformed": a dense layer, the activation
            and a norm before the token table. "untied": a table of its own with nothing before it.
        part: layers of this family that are defined in code: "name", the `kind` of a registered
            `kbert.models.Part`, and its options. None = no part.
        edits: changes made to the model, in this order: each a "kind" of `kbert.edit` and its
            options.

    Raises:
        ValueError: a value is out of range, or two values are inconsistent.

    Example:
        >>> config = EncoderConfig(vocabulary_size=100, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=32)
        >>> config.replace(num_layers=4).num_layers
        4
    """

    kind: ClassVar[str] = "encoder"
    told: ClassVar[str] = "an encoder of the BERT family, which kbert.Encoder loads"
    FORMATS: ClassVar[tuple[str, ...]] = ("kbert", "huggingface", "keras_hub")

    num_segments: int = 2
    embedding_size: int | None = None
    num_layer_groups: int | None = None
    pooler_activation: str | None = "tanh"
    pooler_norm: bool = False
    token_transform: bool = False
    pooling: str = "first"
    part: Mapping[str, Any] | None = None
    num_key_value_heads: int | None = None
    output: str = "transformed"
    padding_id: int | None = None

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **TransformerConfig.CHOICES,
        "pooling": ("first", "last", "mean", "late"),
        "output": ("transformed", "untied"),
    }
    LATER: ClassVar[tuple[str, ...]] = (
        *TransformerConfig.LATER,
        *("block", "pooler_norm", "token_transform", "pooling", "part"),
        *("num_key_value_heads", "output", "padding_id"),
    )

    UNUSED: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self._check_unused()
        if self.part is not None:
            object.__setattr__(self, "part", Frozen(self._checked_part(self.part)))
        check_count("num_segments", self.num_segments, minimum=0)
        for name in ("embedding_size", "num_layer_groups"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=1)
        super().__post_init__()
        if self.num_layer_groups is not None and self.num_layer_groups > self.num_layers:
            raise ValueError(
                "`num_layer_groups` must not exceed `num_layers`. Received: "
                f"num_layer_groups={self.num_layer_groups}, num_layers={self.num_layers}"
            )
        if self.pooler_activation not in (None, IDENTITY):
            check_activation("pooler_activation", self.pooler_activation)
        for name in ("pooler_norm", "token_transform"):
            check_flag(name, getattr(self, name))
        self._check_padding()
        if self.num_key_value_heads is not None:
            check_count("num_key_value_heads", self.num_key_value_heads, minimum=1)
            if self.num_heads % self.num_key_value_heads:
                raise ValueError(
                    "`num_heads` must be a multiple of `num_key_value_heads`. Received: "
                    f"num_heads={self.num_heads}, num_key_value_heads={self.num_key_value_heads}"
                )
        if self.pooler_norm and self.pooler_activation == IDENTITY:
            raise ValueError(
                "`pooler_norm` requires a pooler with a dense layer. Received: pooler_norm=True, "
                f"pooler_activation={IDENTITY!r}"
            )
        if self.block == "pre_norm_except_first" and self.num_blocks < self.num_layers:
            raise ValueError(
                "block='pre_norm_except_first' does not support `num_layer_groups`: layers that "
                "share weights have the same norms. Received: "
                f"num_layer_groups={self.num_layer_groups}"
            )
        # Loading a part imports Keras: one not loaded yet checks the config when a model is made.
        if self.part is not None and registry.loaded("part", self.part["name"]) is not None:
            self.find_part().check_config(self)

    def count_embeddings(self) -> int:
        """Returns the number of weights of the embeddings, including their norm and projection."""
        width = self.embedding_width
        rows = self.vocabulary_size + self.num_segments
        rows += self.max_positions if self.positions == "learned" else 0
        rows += self.padding_id is not None
        has_projection = width != self.hidden_size
        projection_weights = self.count_dense(width, self.hidden_size) if has_projection else 0
        return rows * width + self.embedding_norm * self.count_norm(width) + projection_weights

    def count_pooler(self) -> int:
        """Returns the number of weights of the pooler; 0 without one."""
        if self.pooler_activation in (None, IDENTITY):
            return 0
        norm = self.count_norm(self.hidden_size) if self.pooler_norm else 0
        return self.count_dense(self.hidden_size, self.hidden_size, "heads") + norm

    @property
    def key_value_heads(self) -> int:
        return self.num_key_value_heads or self.num_heads

    def _check_padding(self) -> None:
        """Raises ValueError if `padding_id` is no id, or positions are not learned."""
        if self.padding_id is None:
            return
        check_count("padding_id", self.padding_id, minimum=0)
        if self.positions != "learned" or self.padding_id >= self.vocabulary_size:
            raise ValueError(
                "`padding_id` must be an id of the vocabulary, with positions='learned', which "
                f"skip padding. Received: padding_id={self.padding_id}, "
                f"positions={self.positions!r}, vocabulary_size={self.vocabulary_size}"
            )

    def _check_unused(self) -> None:
        """Raises ValueError if an unsupported field (`UNUSED`) does not have its default."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in self.UNUSED and value != field.default:
                raise ValueError(
                    f"{type(self).__name__} does not support `{field.name}`. Received: {value!r}"
                )

    def _checked_part(self, part: Any) -> Mapping[str, Any]:
        if not isinstance(part, Mapping) or not isinstance(part.get("name"), str):
            raise ValueError(
                f"`part` must be an object with a `name` and options. Received: {part!r}"
            )
        return part

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        part = fields.get("part")
        part = part if isinstance(part, Mapping) else {}
        kind = _FORMER_PARTS.get(str(part.get("name")))
        if kind is not None:
            options = {name: value for name, value in part.items() if name != "name"}
            part_edit, edits = {**options, "kind": kind}, fields.get("edits", ())
            edits = [part_edit, *edits] if kind == "pruned" else [*edits, part_edit]
            fields = {**fields, "part": None, "edits": edits}
        return super().from_dict(fields)

    def find_part(self) -> Any:
        """Returns the `kbert.models.parts.Part` that the field `part` names, with its options.

        Returns None if the field is not set, or no such part is registered.
        """
        if self.part is None or (part := registry.find("part", self.part["name"])) is None:
            return None
        options = {name: value for name, value in self.part.items() if name != "name"}
        return cast(Any, part).from_dict(options)

    @property
    def output_columns(self) -> int:
        """Columns of the masked-LM head's output layer in addition to those of the token table."""
        part = self.find_part()
        return 0 if part is None else part.output_columns(self)

    @property
    def embedding_width(self) -> int:
        """Width of the embedding tables: `embedding_size`, or `hidden_size` if that is None."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def num_blocks(self) -> int:
        return self.num_layers if self.num_layer_groups is None else self.num_layer_groups
