"""Hugging Face's BERT, and models that load as BERT: SpanBERT, BERT-wwm, MiniLM, TinyBERT."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import (
    CLASSIFIERS,
    IGNORED,
    REQUIRED,
    SIZES,
    Architecture,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.renames import Rule
from kbert.configs.encoder import EncoderConfig


class Bert(Architecture):
    """BERT, whose table most other architectures start from."""

    model_type = "bert"
    title = "BERT"
    class_prefix = "Bert"
    prefix = "bert"
    heads = ("cls.", "classifier.", "qa_outputs.")
    fields: ClassVar[Mapping[str, str]] = {
        **SIZES,
        "max_position_embeddings": "max_positions",
        "type_vocab_size": "num_segments",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    }
    required: ClassVar[Mapping[str, tuple]] = {**REQUIRED, "pool_act": ("tanh", None)}
    # The poolers' keys are from multilingual BERT, the others from TinyBERT and (like `pool_act`)
    # from PaddleNLP: no code reads them.
    ignored = IGNORED | frozenset(
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers "
        "pooler_size_per_head pooler_type "
        "cell emb_size pre_trained structure training "
        "enable_recompute fuse init_class num_classes paddlenlp_version".split()
    )
    head_dropouts = dict.fromkeys(CLASSIFIERS, ("classifier_dropout", None))
    sentence_objective: ClassVar[str | None] = "next_sentence"
    sentence_class = "ForNextSentencePrediction"

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        return [
            *encoder_rules(config, self.prefix, tied=("cls.predictions.decoder.weight",)),
            *dense("encoder/pooler", f"{self.prefix}.pooler.dense"),
            *dense("masked_lm/transform", "cls.predictions.transform.dense"),
            *norm("masked_lm/norm", "cls.predictions.transform.LayerNorm"),
            Rule(
                "masked_lm/bias",
                ("cls.predictions.bias",),
                aliases=("cls.predictions.decoder.bias",),
            ),
            *dense("sentence/dense", "cls.seq_relationship"),
            *fine_tuned_rules(head, "classifier"),
        ]


def encoder_rules(config: EncoderConfig, prefix: str, tied: tuple[str, ...]) -> list[Rule]:
    """Returns the rules of an encoder, which several architectures share except for the prefix.

    Args:
        config: config of the encoder.
        prefix: first part of the names in transformers, such as "bert".
        tied: names in transformers of copies of the token table.
    """
    table = [
        *embedding_rules(f"{prefix}.embeddings", tied),
        Rule("encoder/embeddings/segment", (f"{prefix}.embeddings.token_type_embeddings.weight",)),
    ]
    for i in range(config.num_layers):
        layer, source = f"encoder/layers/{i}", f"{prefix}.encoder.layer.{i}"
        parts = [f"{source}.attention.self.{part}" for part in ("query", "key", "value")]
        table += [
            *dense(f"{layer}/attention/qkv", *parts),
            *dense(f"{layer}/attention/output", f"{source}.attention.output.dense"),
            *norm(f"{layer}/attention_norm", f"{source}.attention.output.LayerNorm"),
            *dense(f"{layer}/feed_forward/intermediate", f"{source}.intermediate.dense"),
            *dense(f"{layer}/feed_forward/output", f"{source}.output.dense"),
            *norm(f"{layer}/feed_forward_norm", f"{source}.output.LayerNorm"),
        ]
    return table


def embedding_rules(there: str, tied: tuple[str, ...]) -> list[Rule]:
    """Returns the rules of the token and position tables and of their norm.

    Args:
        there: prefix of the names in transformers, such as "bert.embeddings".
        tied: names in transformers of copies of the token table.
    """
    return [
        Rule("encoder/embeddings/token", (f"{there}.word_embeddings.weight",), aliases=tied),
        Rule("encoder/embeddings/position", (f"{there}.position_embeddings.weight",)),
        *norm("encoder/embeddings/norm", f"{there}.LayerNorm"),
    ]
