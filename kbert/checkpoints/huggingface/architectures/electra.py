"""Hugging Face's ELECTRA: generator, discriminator and models fine-tuned from it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    IGNORED,
    Architecture,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.huggingface.architectures.bert import Bert, encoder_rules
from kbert.checkpoints.keys import known_activation
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays


class Electra(Architecture):
    """ELECTRA; sequence and choice classifiers have a dense layer with GELU as the pooler."""

    model_type = "electra"
    title = "ELECTRA"
    class_prefix = "Electra"
    prefix = "electra"
    heads: ClassVar[tuple[str, ...]] = (
        "discriminator_predictions.",
        "generator_predictions.",
        "generator_lm_head.",
        "sequence_summary.",
        "classifier.",
        "qa_outputs.",
    )
    fields: ClassVar[Mapping[str, str]] = {**Bert.fields, "embedding_size": "embedding_size"}
    defaults: ClassVar[Mapping[str, Any]] = {**Bert.defaults, "embedding_size": 128}
    # Keys of the summary only concern multiple choice: see `pooler_activation`.
    ignored = IGNORED | frozenset(
        "summary_activation summary_last_dropout summary_type summary_use_proj".split()
    )
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = {
        **Architecture.head_dropouts,
        "choice": ("summary_last_dropout", 0.1),
    }
    pooler_activations = ("gelu",)
    factorised = True
    masked_lm_activation = "gelu"

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        pooler = "sequence_summary.summary" if head == "choice" else "classifier.dense"
        classifier = "classifier.out_proj" if head == "classifier" else "classifier"
        return [
            *encoder_rules(config, self.prefix, tied=("generator_lm_head.weight",)),
            *dense("encoder/embeddings/projection", f"{self.prefix}.embeddings_project"),
            *dense("encoder/pooler", pooler),
            *dense("masked_lm/transform", "generator_predictions.dense"),
            *norm("masked_lm/norm", "generator_predictions.LayerNorm"),
            Rule("masked_lm/bias", ("generator_lm_head.bias",)),
            *dense("discriminator/transform", "discriminator_predictions.dense"),
            *dense("discriminator/output", "discriminator_predictions.dense_prediction"),
            *fine_tuned_rules(head, classifier),
        ]

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        tokens = arrays.get(f"{self.prefix}.embeddings.word_embeddings.weight")
        default_size, hidden = self.defaults["embedding_size"], content["hidden_size"]
        width, projection = (
            content.get("embedding_size", default_size),
            f"{self.prefix}.embeddings_project",
        )
        if tokens is None or width == hidden or f"{projection}.weight" in arrays:
            return arrays
        raise ValueError(
            f"{self.title} requires {projection} if its embeddings are narrower than its layers; "
            f"otherwise `embedding_size` must equal `hidden_size` (its default is {default_size}). "
            f"Received: embedding_size={width}, hidden_size={hidden}, a token table of width "
            f"{tokens.shape[-1]} and no {projection}"
        )

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = super().write_fields(config, tokenizer)
        return {**fields, "embedding_size": config.embedding_width}

    def pooler_activation(self, content: Mapping[str, Any], head: str | None) -> str:
        if head != "choice":
            return super().pooler_activation(content, head)
        if content.get("summary_type", "first") != "first":
            raise ValueError(
                "`summary_type` must be 'first': kbert's poolers read the first token. "
                f"Received: {content['summary_type']!r}"
            )
        name = content.get("summary_activation", "gelu")
        return known_activation(name, ACTIVATIONS, "`summary_activation`", "the config")
