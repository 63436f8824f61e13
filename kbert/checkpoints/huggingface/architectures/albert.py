"""Hugging Face's ALBERT: layers in groups, each group's weights stored once."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.groups import check_groups
from kbert.checkpoints.huggingface.architectures.base import (
    CLASSIFIERS,
    IGNORED,
    REQUIRED,
    Architecture,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.huggingface.architectures.bert import Bert, embedding_rules
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"


class Albert(Architecture):
    """ALBERT; unlike in kbert, embeddings of the hidden width are projected too."""

    model_type = "albert"
    title = "ALBERT"
    class_prefix = "Albert"
    prefix = "albert"
    heads = ("predictions.", "sop_classifier.", "classifier.", "qa_outputs.")
    fields: ClassVar[Mapping[str, str]] = {
        **Bert.fields,
        "embedding_size": "embedding_size",
        "num_hidden_groups": "num_layer_groups",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **Bert.defaults,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "embedding_size": 128,
        "num_hidden_groups": 1,
    }
    required: ClassVar[Mapping[str, tuple]] = {**REQUIRED, "inner_group_num": (1,)}
    # All keys but the first are from Google's releases; no code reads them.
    ignored = IGNORED | frozenset(
        "classifier_dropout_prob "
        "down_scale_factor gap_size layers_to_keep net_structure_type num_memory_blocks".split()
    )
    head_dropouts = dict.fromkeys(CLASSIFIERS, ("classifier_dropout_prob", 0.1))
    factorised = True
    shared_layers = True
    sentence_objective = "sentence_order"

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = [
            *embedding_rules("albert.embeddings", tied=("predictions.decoder.weight",)),
            Rule("encoder/embeddings/segment", ("albert.embeddings.token_type_embeddings.weight",)),
            *dense("encoder/embeddings/projection", _PROJECTION),
        ]
        for i in range(config.num_blocks):
            layer = f"encoder/layers/{i}"
            source = f"albert.encoder.albert_layer_groups.{i}.albert_layers.0"
            parts = [f"{source}.attention.{part}" for part in ("query", "key", "value")]
            table += [
                *dense(f"{layer}/attention/qkv", *parts),
                *dense(f"{layer}/attention/output", f"{source}.attention.dense"),
                *norm(f"{layer}/attention_norm", f"{source}.attention.LayerNorm"),
                *dense(f"{layer}/feed_forward/intermediate", f"{source}.ffn"),
                *dense(f"{layer}/feed_forward/output", f"{source}.ffn_output"),
                *norm(f"{layer}/feed_forward_norm", f"{source}.full_layer_layer_norm"),
            ]
        return [
            *table,
            *dense("encoder/pooler", "albert.pooler"),
            *dense("masked_lm/transform", "predictions.dense"),
            *norm("masked_lm/norm", "predictions.LayerNorm"),
            Rule("masked_lm/bias", ("predictions.bias",), aliases=("predictions.decoder.bias",)),
            *dense("sentence/dense", "sop_classifier.classifier"),
            *fine_tuned_rules(head, "classifier"),
        ]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        layers, groups = fields["num_layers"], fields["num_layer_groups"]
        if isinstance(layers, int) and isinstance(groups, int):  # else the config raises
            _check_groups(layers, groups, source)
        return fields

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        _check_groups(config.num_layers, config.num_blocks, "the config")
        fields = {
            **super().write_fields(config, tokenizer),
            "embedding_size": config.embedding_width,
            "num_hidden_groups": config.num_blocks,
            "inner_group_num": 1,
        }
        if tokenizer is not None:
            fields |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
        return fields

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        size = content["hidden_size"]
        names = (f"{_PROJECTION}.weight", f"{_PROJECTION}.bias")
        if content.get("embedding_size", 128) != size or not all(n in arrays for n in names):
            return arrays
        folded = dict(arrays)
        weight, bias = (folded.pop(name) for name in names)
        if not np.array_equal(weight, np.eye(size)) or bias.any():
            raise ValueError(
                "The projection of embeddings that are as wide as the layers must be the "
                f"identity, as kbert has none. Received: another {names[0]!r} or {names[1]!r}"
            )
        return folded

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        size = content["hidden_size"]
        tokens = arrays.get("albert.embeddings.word_embeddings.weight")
        if content["embedding_size"] != size or tokens is None:
            return arrays
        return {
            **arrays,
            f"{_PROJECTION}.weight": np.eye(size, dtype=tokens.dtype),
            f"{_PROJECTION}.bias": np.zeros(size, tokens.dtype),
        }


def _check_groups(layers: int, groups: int, source: str) -> None:
    """Raises ValueError if transformers assigns a layer to another group than kbert.

    (`AlbertTransformer.forward` in modeling_albert.py.) The two differ for 18 layers in 14 groups.
    """
    check_groups(layers, groups, lambda i: int(i / (layers / groups)), "Hugging Face", source)
