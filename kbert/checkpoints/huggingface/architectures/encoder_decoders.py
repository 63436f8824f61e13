"""Base class of Hugging Face's encoder-decoders: `kbert.Seq2Seq` in kbert."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.huggingface.architectures.base import IGNORED, REQUIRED, Architecture
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays


class EncoderDecoder(Architecture):
    """An encoder-decoder whose layers are numbered from 0 on each side."""

    config_class = Seq2SeqConfig
    root = "seq2seq"
    task = "text2text"
    task_settings: ClassVar[Mapping[str, Any]] = {"special_tokens": "all"}
    class_ending = "ForConditionalGeneration"
    head_dropouts: ClassVar[Mapping[str, Any]] = {}
    required: ClassVar[Mapping[str, tuple]] = {**REQUIRED, "is_encoder_decoder": (True,)}
    # The head's dropout, and a copy of the number of layers.
    ignored = IGNORED | frozenset(("classif_dropout", "num_hidden_layers"))
    unsaid: ClassVar[Mapping[str, Any]] = {}

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        return None

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        if fields["num_decoder_layers"] == fields["num_layers"]:
            fields["num_decoder_layers"] = None
        return fields

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = {key: getattr(config, field) for key, field in self.fields.items()}
        layers = next(x for x, field in self.fields.items() if field == "num_decoder_layers")
        fields |= {layers: config.decoder_layers, "is_encoder_decoder": True}
        if tokenizer is None:
            return fields
        ids = {"bos": tokenizer.cls_id, "eos": tokenizer.sep_id, "pad": tokenizer.pad_id}
        known_ids = {f"{name}_token_id": x for name, x in ids.items() if x is not None}
        return {**fields, **known_ids}

    def misfits(self, config: Any) -> list[str]:
        return []


def flat_bias(arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns the arrays with `final_logits_bias` as (V,); without it if it is zero."""
    flat = dict(arrays)
    bias = flat.pop("final_logits_bias", None)
    if bias is not None and bias.any():
        flat["final_logits_bias"] = bias.reshape(-1)
    return flat
