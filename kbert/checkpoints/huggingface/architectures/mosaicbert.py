"""MosaicBERT: BERT with ALiBi and gates, mostly under the names of Hugging Face's BERT.

(Portes et al. 2023, https://arxiv.org/abs/2312.17482; bert_layers.py of mosaicml/mosaic-bert-base,
code that is on the hub with the weights.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import dense, norm
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_CODE = "mosaicml/mosaic-bert-base--"


class MosaicBert(Bert):
    """MosaicBERT; its config has BERT's `model_type` and one key of its own."""

    name = "mosaicbert"
    title = "MosaicBERT"
    marks = ("alibi_starting_size",)
    defaults: ClassVar[Mapping[str, Any]] = {**Bert.defaults, "attention_probs_dropout_prob": 0.0}
    ignored = Bert.ignored | {"alibi_starting_size", "auto_map"}
    fixed: ClassVar[Mapping[str, Any]] = {
        "positions": "alibi",
        "feed_forward": "gated",
        "bias_exceptions": ("gate",),
    }
    activations: ClassVar[Mapping[str, str]] = {"gelu": "gelu"}
    head_dropouts: ClassVar[dict[str, tuple[str, float | None]]] = {
        "classifier": ("classifier_dropout", None)
    }

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        source = "bert.embeddings"
        table = [
            Rule(
                "encoder/embeddings/token",
                (f"{source}.word_embeddings.weight",),
                aliases=("cls.predictions.decoder.weight",),
            ),
            Rule("encoder/embeddings/segment", (f"{source}.token_type_embeddings.weight",)),
            *norm("encoder/embeddings/norm", f"{source}.LayerNorm"),
        ]
        for i in range(config.num_layers):
            layer, source = f"encoder/layers/{i}", f"bert.encoder.layer.{i}"
            table += [
                *dense(f"{layer}/attention/qkv", f"{source}.attention.self.Wqkv"),
                *dense(f"{layer}/attention/output", f"{source}.attention.output.dense"),
                *norm(f"{layer}/attention_norm", f"{source}.attention.output.LayerNorm"),
                *dense(f"{layer}/feed_forward/intermediate", f"{source}.mlp.gated_layers"),
                *dense(f"{layer}/feed_forward/output", f"{source}.mlp.wo"),
                *norm(f"{layer}/feed_forward_norm", f"{source}.mlp.layernorm"),
            ]
        table += [
            *dense("encoder/pooler", "bert.pooler.dense"),
            *dense("masked_lm/transform", "cls.predictions.transform.dense"),
            *norm("masked_lm/norm", "cls.predictions.transform.LayerNorm"),
            Rule("masked_lm/bias", ("cls.predictions.decoder.bias",)),
        ]
        return [*table, *(dense("classifier/dense", "classifier") if head == "classifier" else ())]

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        return "classifier" if "classifier.weight" in arrays else None

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        classes = {
            "AutoConfig": "configuration_bert.BertConfig",
            "AutoModelForMaskedLM": "bert_layers.BertForMaskedLM",
            "AutoModelForSequenceClassification": "bert_layers.BertForSequenceClassification",
        }
        return {
            **super().write_fields(config, tokenizer),
            "alibi_starting_size": config.max_positions,
            "auto_map": {auto: _CODE + name for auto, name in classes.items()},
        }
