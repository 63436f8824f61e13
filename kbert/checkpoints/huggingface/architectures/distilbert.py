"""Hugging Face's DistilBERT: no segments, no pooler, and its own weight names."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import (
    IGNORED,
    Architecture,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.huggingface.architectures.bert import embedding_rules
from kbert.checkpoints.renames import Rule


class DistilBert(Architecture):
    """DistilBERT; sequence and choice classifiers have a dense layer with ReLU as the pooler."""

    model_type = "distilbert"
    title = "DistilBERT"
    class_prefix = "DistilBert"
    prefix = "distilbert"
    heads = (
        "vocab_transform.",
        "vocab_layer_norm.",
        "vocab_projector.",
        "pre_classifier.",
        "classifier.",
        "qa_outputs.",
    )
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocabulary_size",
        "dim": "hidden_size",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "hidden_dim": "intermediate_size",
        "max_position_embeddings": "max_positions",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 512,
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "initializer_range": 0.02,
    }
    # Sinusoids only initialised the position table, which is in the file.
    ignored = IGNORED | frozenset(
        "qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_".split()
    )
    head_dropouts = dict.fromkeys(("classifier", "choice"), ("seq_classif_dropout", 0.2))
    fixed: ClassVar[Mapping[str, Any]] = {"num_segments": 0, "layer_norm_epsilon": 1e-12}
    pooler_activations = ("relu",)
    min_segments = 0

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = embedding_rules("distilbert.embeddings", tied=("vocab_projector.weight",))
        for i in range(config.num_layers):
            layer, source = f"encoder/layers/{i}", f"distilbert.transformer.layer.{i}"
            parts = [f"{source}.attention.{part}_lin" for part in ("q", "k", "v")]
            table += [
                *dense(f"{layer}/attention/qkv", *parts),
                *dense(f"{layer}/attention/output", f"{source}.attention.out_lin"),
                *norm(f"{layer}/attention_norm", f"{source}.sa_layer_norm"),
                *dense(f"{layer}/feed_forward/intermediate", f"{source}.ffn.lin1"),
                *dense(f"{layer}/feed_forward/output", f"{source}.ffn.lin2"),
                *norm(f"{layer}/feed_forward_norm", f"{source}.output_layer_norm"),
            ]
        return [
            *table,
            *dense("encoder/pooler", "pre_classifier"),
            *dense("masked_lm/transform", "vocab_transform"),
            *norm("masked_lm/norm", "vocab_layer_norm"),
            Rule("masked_lm/bias", ("vocab_projector.bias",)),
            *fine_tuned_rules(head, "classifier"),
        ]
