"""Hugging Face's RoFormer, the first encoder with rotary positions.

(Su et al. 2021, https://arxiv.org/abs/2104.09864.)
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import numpy as np

from kbert.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    IGNORED,
    REQUIRED,
    UNREAD,
    Architecture,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.huggingface.architectures.bert import Bert, encoder_rules
from kbert.checkpoints.huggingface.architectures.rotary.positions import in_halves, in_pairs
from kbert.checkpoints.keys import known_activation
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_PLACES = "roformer.encoder.embed_positions.weight"
_TURNED = (".attention.self.query.", ".attention.self.key.")


class RoFormer(Architecture):
    """RoFormer: BERT with rotary positions; a classifier has its own dense layer as the pooler."""

    model_type = "roformer"
    title = "RoFormer"
    class_prefix = "RoFormer"
    prefix = "roformer"
    heads = ("cls.", "classifier.", "qa_outputs.", "sequence_summary.")
    # Sines and cosines, which are not trained.
    unread = rf"{UNREAD}|^{_PLACES}$"
    fields: ClassVar[Mapping[str, str]] = {**Bert.fields, "embedding_size": "embedding_size"}
    defaults: ClassVar[Mapping[str, Any]] = {
        **Bert.defaults,
        "embedding_size": None,
        "max_position_embeddings": 1536,
    }
    required: ClassVar[Mapping[str, tuple]] = {**REQUIRED, "rotary_value": (False, None)}
    ignored = IGNORED
    own_fields = (*Architecture.own_fields, "rotary_base")
    fixed: ClassVar[Mapping[str, Any]] = {"positions": "rotary"}
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = {}
    pooler_activations = ("gelu", *sorted({*ACTIVATIONS.values()} - {"gelu"}))
    factorised = True

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        inner = head == "classifier"
        return [
            *encoder_rules(config, "roformer", tied=("cls.predictions.decoder.weight",)),
            *dense("encoder/embeddings/projection", "roformer.embeddings_project"),
            *(dense("encoder/pooler", "classifier.dense") if inner else ()),
            *dense("masked_lm/transform", "cls.predictions.transform.dense"),
            *norm("masked_lm/norm", "cls.predictions.transform.LayerNorm"),
            Rule(
                "masked_lm/bias",
                ("cls.predictions.bias",),
                aliases=("cls.predictions.decoder.bias",),
            ),
            *fine_tuned_rules(head, "classifier.out_proj" if inner else "classifier"),
        ]

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        # Its head for choices reads the last position, padding or not, so kbert has none like it.
        head = super().classifier(content, arrays)
        return None if head == "choice" else head

    def usual_pooler(self, config: Any) -> str:
        return cast(str, config.transform_activation)

    def pooler_activation(self, content: Mapping[str, Any], head: str | None) -> str:
        name = content.get("hidden_act", self.defaults["hidden_act"])
        return known_activation(name, ACTIVATIONS, "The activation", "the config")

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        if fields["embedding_size"] == fields["hidden_size"]:
            fields["embedding_size"] = None
        return fields

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = super().write_fields(config, tokenizer)
        return {**fields, "embedding_size": config.embedding_width, "rotary_value": False}

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        return _with_turned(arrays, content, in_halves)

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        size = content["hidden_size"] // content["num_attention_heads"]
        angles = np.arange(content["max_position_embeddings"])[:, None] / np.power(
            10000, np.arange(0, size, 2) / size
        )
        sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
        return {**_with_turned(arrays, content, in_pairs), _PLACES: sinusoids}

    def misfits(self, config: Any) -> list[str]:
        reasons = super().misfits(config)
        if config.rotary_base not in (None, 10_000.0):
            reasons.append("its rotary base is 10,000")
        if config.pooler_activation not in (None, config.activation):
            reasons.append("its pooler has the activation of its layers")
        return reasons


def _with_turned(arrays: Arrays, content: Mapping[str, Any], change: Callable) -> Arrays:
    """Replaces each weight of queries and keys by `change(weight, number of heads)`."""
    heads = content["num_attention_heads"]
    return {
        name: change(array, heads) if any(part in name for part in _TURNED) else array
        for name, array in arrays.items()
    }
