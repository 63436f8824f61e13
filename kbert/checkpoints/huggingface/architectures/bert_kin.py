"""Models whose names and keys are those of Hugging Face's BERT, and one thing their own.

ERNIE adds a vector of the task to every token (Sun et al. 2019, "ERNIE 2.0",
https://arxiv.org/abs/1907.12412); MosaicBERT has ALiBi and gates, in code that lies with its
weights on the hub (Portes et al. 2023, https://arxiv.org/abs/2312.17482; bert_layers.py of
mosaicml/mosaic-bert-base).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import Architecture, dense, norm
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.renames import Rule
from kbert.configs.encoder import EncoderConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

TASK_PART = "task_embeddings"  # of `kbert.models.parts`, whose default this is:
_USUAL_TASKS = 3
_TASKS = "task_type_vocab_size"
_CODE = "mosaicml/mosaic-bert-base--"


class Ernie(Bert):
    """Baidu's ERNIE 1.0 to 3.0. Where it has tasks, transformers takes the first by default."""

    model_type = "ernie"
    title = "ERNIE"
    class_prefix = "Ernie"
    prefix = "ernie"
    required: ClassVar[Mapping[str, tuple]] = {**Bert.required, "task_id": (0, None)}
    ignored = Bert.ignored | {"use_task_id", _TASKS}
    own_fields = (*Architecture.own_fields, "part")

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = Rule("encoder/embeddings/task", ("ernie.embeddings.task_type_embeddings.weight",))
        return [*super().rules(config, head), table]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        found = super().read_fields(content, source)
        if not content.get("use_task_id", False):
            return found
        return {
            **found,
            "part": {"name": TASK_PART, "num_tasks": content.get(_TASKS, _USUAL_TASKS)},
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        part = config.part or {}
        return {
            **super().write_fields(config, tokenizer),
            "use_task_id": bool(part),
            _TASKS: part.get("num_tasks", _USUAL_TASKS),
        }

    def misfits(self, config: EncoderConfig) -> list[str]:
        found = super().misfits(config)
        part = config.part or {"name": TASK_PART}
        if part["name"] != TASK_PART:
            found.append(f"its part is {TASK_PART!r}")
        elif part.get("task", 0):
            found.append("its task is the first where none is given")
        return found


class MosaicBert(Bert):
    """Its config says that it is BERT, and has a key of its own."""

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
        there = "bert.embeddings"
        table = [
            Rule(
                "encoder/embeddings/token",
                (f"{there}.word_embeddings.weight",),
                aliases=("cls.predictions.decoder.weight",),
            ),
            Rule("encoder/embeddings/segment", (f"{there}.token_type_embeddings.weight",)),
            *norm("encoder/embeddings/norm", f"{there}.LayerNorm"),
        ]
        for i in range(config.num_layers):
            here, there = f"encoder/layers/{i}", f"bert.encoder.layer.{i}"
            table += [
                *dense(f"{here}/attention/qkv", f"{there}.attention.self.Wqkv"),
                *dense(f"{here}/attention/output", f"{there}.attention.output.dense"),
                *norm(f"{here}/attention_norm", f"{there}.attention.output.LayerNorm"),
                *dense(f"{here}/feed_forward/intermediate", f"{there}.mlp.gated_layers"),
                *dense(f"{here}/feed_forward/output", f"{there}.mlp.wo"),
                *norm(f"{here}/feed_forward_norm", f"{there}.mlp.layernorm"),
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
