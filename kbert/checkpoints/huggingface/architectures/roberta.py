"""Hugging Face's RoBERTa and XLM-RoBERTa.

Their position table begins with rows that no token uses. Positions count from the padding id plus
one, and skip tokens with the padding id (`create_position_ids_from_input_ids` in
modeling_roberta.py). Their only segment is added to every token, so kbert adds it to the position
table.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.huggingface.architectures.base import (
    Architecture,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.huggingface.architectures.bert import Bert, encoder_rules
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_PAD_ID = 1  # RoBERTa's


_PADDING = "padding_position"  # name that `fold` gives to the row of padding


class Roberta(Architecture):
    """RoBERTa; a sequence classifier has a dense layer of its own instead of the pooler."""

    model_type = "roberta"
    title = "RoBERTa"
    class_prefix = "Roberta"
    prefix = "roberta"
    heads = ("lm_head.", "classifier.", "qa_outputs.")
    fields = Bert.fields
    defaults = Bert.defaults
    min_segments = 0
    # Files of transformers before version 3 have both the pooler and the classifier's dense layer.
    replaced_pooler = ("roberta.pooler.dense.weight", "roberta.pooler.dense.bias")
    masked_lm_activation = "gelu"
    own_fields: ClassVar[tuple[str, ...]] = (*Architecture.own_fields, "padding_id")

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        inner = head == "classifier"
        pooler = "classifier.dense" if inner else f"{self.prefix}.pooler.dense"
        return [
            *encoder_rules(config, self.prefix, tied=("lm_head.decoder.weight",)),
            Rule("encoder/embeddings/padding", (_PADDING,)),
            *dense("encoder/pooler", pooler),
            *dense("masked_lm/transform", "lm_head.dense"),
            *norm("masked_lm/norm", "lm_head.layer_norm"),
            Rule("masked_lm/bias", ("lm_head.bias",), aliases=("lm_head.decoder.bias",)),
            *fine_tuned_rules(head, "classifier.out_proj" if inner else "classifier"),
        ]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        unused = _unused_rows(content, source)
        if fields.get("num_segments") == 1:
            fields["num_segments"] = 0
        if isinstance(fields["max_positions"], int):  # else the config raises
            fields["max_positions"] -= unused
        return {**fields, "padding_id": unused - 1}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        pad_id = config.padding_id
        if pad_id is None:
            pad_id = _PAD_ID if tokenizer is None else tokenizer.pad_id
        elif tokenizer is not None and tokenizer.pad_id != pad_id:
            raise ValueError(
                f"`padding_id` must be the tokenizer's {tokenizer.pad_id}, as positions of "
                f"{self.title} skip padding. Received: padding_id={pad_id}"
            )
        fields = {
            **super().write_fields(config, tokenizer),
            "max_position_embeddings": config.max_positions + pad_id + 1,
            "pad_token_id": pad_id,
        }
        if self._has_segments:
            fields["type_vocab_size"] = config.num_segments or 1
        if tokenizer is not None:
            fields |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
        return fields

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        positions, segments = self._tables()
        if positions not in arrays:
            return arrays
        folded = dict(arrays)
        unused = _unused_rows(content, "the config")
        folded[positions] = arrays[positions][unused:]
        folded[_PADDING] = arrays[positions][unused - 1]
        has_one_segment = content.get("type_vocab_size", self.defaults["type_vocab_size"]) == 1
        if has_one_segment and self._has_segments:
            if segments not in arrays:
                raise ValueError(
                    f"The weights of a {self.title} must include {segments!r}. Received: "
                    f"{len(arrays)} arrays without it"
                )
            segment = folded.pop(segments)
            folded[positions] = folded[positions] + segment
            folded[_PADDING] = folded[_PADDING] + segment[0]
        return folded

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        name, segments = self._tables()
        if name not in arrays:
            return arrays
        positions = arrays[name]
        unused = np.zeros((content["pad_token_id"] + 1, positions.shape[1]), positions.dtype)
        unfolded = dict(arrays)
        unused[-1] = unfolded.pop(_PADDING, unused[-1])
        unfolded[name] = np.concatenate([unused, positions])
        if self._has_segments:
            unfolded.setdefault(segments, np.zeros((1, positions.shape[1]), positions.dtype))
        return unfolded

    @property
    def _has_segments(self) -> bool:
        return "num_segments" in self.fields.values()

    def _tables(self) -> tuple[str, str]:
        """Returns the names of the position table and the segment table."""
        tables = (f"{self.prefix}.embeddings.{x}_embeddings" for x in ("position", "token_type"))
        positions, segments = (f"{table}.weight" for table in tables)
        return positions, segments

    def incompatibilities(self, config: Any) -> list[str]:
        reasons = (
            ["its single segment is num_segments=0 in kbert"] if config.num_segments == 1 else []
        )
        return super().incompatibilities(config) + reasons


class XlmRoberta(Roberta):
    """XLM-RoBERTa: RoBERTa with another vocabulary."""

    model_type = "xlm-roberta"
    title = "XLM-RoBERTa"
    class_prefix = "XLMRoberta"


class Camembert(XlmRoberta):
    """CamemBERT: XLM-RoBERTa under another name."""

    model_type = "camembert"
    title = "CamemBERT"
    class_prefix = "Camembert"


def _unused_rows(content: Mapping[str, Any], source: str) -> int:
    """Returns how many rows at the start of the position table no token uses, padding's too."""
    pad_id = content.get("pad_token_id", _PAD_ID)
    if not isinstance(pad_id, int) or pad_id < 0:
        raise ValueError(
            "`pad_token_id` must be an id: RoBERTa's positions start one after it. Received: "
            f"{pad_id!r} in {source}"
        )
    return pad_id + 1
