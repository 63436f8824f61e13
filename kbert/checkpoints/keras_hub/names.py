"""KerasHub's backbones: config keys, weight names, and values fixed in code.

(keras_hub, src/models/<name>/<name>_backbone.py and src/layers/modeling/transformer_encoder.py.)
"""

import dataclasses
from collections.abc import Mapping

from kbert.checkpoints.renames import Rule, dense, norm
from kbert.configs.encoder import EncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backbone:
    """Description of a KerasHub backbone class.

    Attributes:
        model_type: Hugging Face's name of the architecture.
        class_name: name of the backbone class in `keras_hub.models`.
        tokenizer: name of its tokenizer class in `keras_hub.models`.
        tokenizer_kind: kbert's kind of that tokenizer.
        activation: activation of the feed-forward part, fixed in KerasHub whatever a model was
            trained with.
        layer_norm_epsilon: epsilon of LayerNorm, fixed in KerasHub.
        pooler: whether the backbone has a pooler, always with tanh.
        vocabulary_key: config key of the vocabulary size.
        more_keys: config key -> field of EncoderConfig, in addition to the keys of all backbones.
        tables: prefix of the names of token and position tables.
        projection: name of the layer that projects narrow embeddings; None = no such layer.
        always_projects: whether embeddings of the hidden width are projected too.
        block: pattern of a block's name, filled with its number.
    """

    model_type: str
    class_name: str
    tokenizer: str
    tokenizer_kind: str = "wordpiece"
    activation: str = "gelu_tanh"
    layer_norm_epsilon: float = 1e-12
    pooler: bool = True
    vocabulary_key: str = "vocabulary_size"
    more_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tables: str = ""
    projection: str | None = None
    always_projects: bool = False
    block: str = "transformer_layer_{}"

    @property
    def fields(self) -> dict[str, str]:
        """Key of the config -> field of EncoderConfig."""
        return {
            self.vocabulary_key: "vocabulary_size",
            "num_layers": "num_layers",
            "num_heads": "num_heads",
            "hidden_dim": "hidden_size",
            "intermediate_dim": "intermediate_size",
            "dropout": "dropout",
            "max_sequence_length": "max_positions",
            **self.more_keys,
        }

    def incompatibilities(self, config: EncoderConfig) -> list[str]:
        """Returns why a model with this config cannot be this backbone; empty if it can be."""
        reasons = [
            f"{name} is {getattr(self, name)!r} in it"
            for name in ("activation", "layer_norm_epsilon")
            if getattr(config, name) != getattr(self, name)
        ]
        if config.kind != EncoderConfig.kind:
            reasons.append(f"it is no {config.kind}")
        checked_fields = {*self.fields.values(), *_JUDGED}
        reasons += [
            f"{field.name} is {field.default!r} in it"
            for field in dataclasses.fields(config)
            if field.name not in checked_fields and getattr(config, field.name) != field.default
        ]
        if config.dropout != config.attention_dropout:
            reasons.append("it has one dropout rate")
        if bool(config.num_segments) != ("num_segments" in self.more_keys):
            reasons.append("it has no segments" if config.num_segments else "it has segments")
        narrow = config.embedding_width != config.hidden_size
        if narrow and self.projection is None:
            reasons.append("its embeddings have the hidden width")
        if self.always_projects and not narrow:
            reasons.append("it also projects embeddings of the hidden width")
        if "num_groups" not in self.more_keys and config.num_layer_groups is not None:
            reasons.append("its layers share no weights")
        if config.num_layers % config.num_blocks:
            reasons.append("its groups of layers have one size")
        if self.pooler and config.pooler_activation not in ("tanh", None):
            reasons.append("its pooler has tanh")
        return reasons

    def rules(self, config: EncoderConfig) -> list[Rule]:
        """Returns the table of weight names.

        Args:
            config: config of the encoder, for the number of blocks and the width of the heads.
        """
        table = [
            *_table("token", f"{self.tables}token_embedding"),
            *_table("position", f"{self.tables}position_embedding"),
            *_table("segment", "segment_embedding"),
            *norm("encoder/embeddings/norm", "embeddings_layer_norm"),
        ]
        if self.projection is not None:
            table += dense("encoder/embeddings/projection", self.projection)
        width, heads = config.hidden_size, config.num_heads
        split = (heads, width // heads)
        for i in range(config.num_blocks):
            layer, source = f"encoder/layers/{i}", self.block.format(i)
            attention = f"{source}/self_attention_layer"
            parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
            table += [
                Rule(
                    f"{layer}/attention/qkv/kernel",
                    tuple(f"{part}/kernel" for part in parts),
                    shapes=((width, width), (width, *split)),
                ),
                Rule(
                    f"{layer}/attention/qkv/bias",
                    tuple(f"{part}/bias" for part in parts),
                    shapes=((width,), split),
                ),
                Rule(
                    f"{layer}/attention/output/kernel",
                    (f"{attention}/attention_output/kernel",),
                    shapes=((width, width), (*split, width)),
                ),
                Rule(f"{layer}/attention/output/bias", (f"{attention}/attention_output/bias",)),
                *norm(f"{layer}/attention_norm", f"{source}/self_attention_layer_norm"),
                *dense(
                    f"{layer}/feed_forward/intermediate", f"{source}/feedforward_intermediate_dense"
                ),
                *dense(f"{layer}/feed_forward/output", f"{source}/feedforward_output_dense"),
                *norm(f"{layer}/feed_forward_norm", f"{source}/feedforward_layer_norm"),
            ]
        return [*table, *dense("encoder/pooler", "pooled_dense")]


# Fields that `Backbone.incompatibilities` checks separately, and fields that do not matter to it.
_JUDGED = (
    *("activation", "layer_norm_epsilon", "attention_dropout", "num_segments", "embedding_size"),
    *("num_layer_groups", "pooler_activation", "initializer_range", "padding_id"),
)
_SEGMENTS = {"num_segments": "num_segments"}
_NARROW = {"embedding_dim": "embedding_size"}

# In the order in which `choose` tries them.
BACKBONES = (
    Backbone(
        model_type="bert",
        class_name="BertBackbone",
        tokenizer="BertTokenizer",
        more_keys=_SEGMENTS,
    ),
    Backbone(
        model_type="electra",
        class_name="ElectraBackbone",
        tokenizer="ElectraTokenizer",
        vocabulary_key="vocab_size",
        more_keys={**_SEGMENTS, **_NARROW},
        projection="embeddings_projection",
    ),
    Backbone(
        model_type="albert",
        class_name="AlbertBackbone",
        tokenizer="AlbertTokenizer",
        tokenizer_kind="unigram",
        more_keys={**_SEGMENTS, **_NARROW, "num_groups": "num_layer_groups"},
        projection="embedding_projection",
        always_projects=True,
        block="group_{}_inner_layer_0",
    ),
    Backbone(
        model_type="distilbert",
        class_name="DistilBertBackbone",
        tokenizer="DistilBertTokenizer",
        activation="gelu",
        pooler=False,
        tables="token_and_position_embedding/",
    ),
    Backbone(
        model_type="roberta",
        class_name="RobertaBackbone",
        tokenizer="RobertaTokenizer",
        tokenizer_kind="bpe",
        activation="gelu",
        layer_norm_epsilon=1e-5,
        pooler=False,
        tables="embeddings/",
    ),
    Backbone(
        model_type="xlm-roberta",
        class_name="XLMRobertaBackbone",
        tokenizer="XLMRobertaTokenizer",
        tokenizer_kind="unigram",
        activation="gelu",
        layer_norm_epsilon=1e-5,
        pooler=False,
        tables="embeddings/",
    ),
)


def choose(config: EncoderConfig, model_type: str | None) -> Backbone:
    """Returns a backbone class that is compatible with an encoder.

    Args:
        config: config of the encoder.
        model_type: model type of the wanted backbone; None = the first in the table that is
            compatible. So RoBERTa precedes XLM-RoBERTa, which differs only in its tokenizer, and
            BERT precedes ELECTRA with embeddings of the hidden width.

    Returns:
        The backbone class.

    Raises:
        ValueError: there is no such backbone, or no candidate is compatible; the message gives the
            reasons.

    Example:
        >>> config = EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> choose(config, None).class_name
        'BertBackbone'
    """
    candidates = [b for b in BACKBONES if model_type in (None, b.model_type)]
    if not candidates:
        model_types = ", ".join(backbone.model_type for backbone in BACKBONES)
        raise ValueError(
            f"`architecture` must be one of {model_types} for KerasHub. Received: {model_type!r}"
        )
    for backbone in candidates:
        if not backbone.incompatibilities(config):
            return backbone
    candidates.sort(key=lambda backbone: len(backbone.incompatibilities(config)))  # closest first
    reasons = "".join(
        f"\n  {b.class_name}: {'; '.join(b.incompatibilities(config))}" for b in candidates
    )
    raise ValueError(f"KerasHub does not support this model. Received: {config}{reasons}")


def _table(name: str, source: str) -> tuple[Rule, ...]:
    return (Rule(f"encoder/embeddings/{name}", (f"{source}/embeddings",)),)
