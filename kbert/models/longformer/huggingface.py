"""Hugging Face's Longformer: RoBERTa with windows, and separate projections for global tokens.

(Beltagy et al. 2020, https://arxiv.org/abs/2004.05150.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import REQUIRED, clipped, dense
from kbert.checkpoints.huggingface.architectures.roberta import Roberta
from kbert.checkpoints.renames import Rule
from kbert.configs.transformer import GLOBAL
from kbert.core.protocols import TokenizerLike

_WINDOW = 512  # transformers' default


class Longformer(Roberta):
    """Longformer: `attention_window` has a window for each layer."""

    model_type = "longformer"
    part = "global_tokens"
    title = "Longformer"
    class_prefix = "Longformer"
    prefix = "longformer"
    replaced_pooler = ("longformer.pooler.dense.weight", "longformer.pooler.dense.bias")
    # Keys of the authors' own code, which also had attention without windows.
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        "attention_mode": ("longformer", "sliding_chunks", "tvm", None),
        "ignore_attention_mask": (False, None),
    }
    # `attention_window` is read in `read_fields`.
    ignored = Roberta.ignored | {"attention_window", "onnx_export"}
    own_fields = (*Roberta.own_fields, "attention_pattern", "part")

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = super().rules(config, head)
        for i in range(config.num_layers):
            path, module = f"encoder/layers/{i}/attention", f"longformer.encoder.layer.{i}"
            key, value = (f"{module}.attention.self.{x}_global" for x in ("key", "value"))
            table += dense(f"{path}/global_query", f"{module}.attention.self.query_global")
            table += dense(f"{path}/global_key_value", key, value)
        return table

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        windows = content.get("attention_window", _WINDOW)
        if isinstance(windows, list):
            if not windows or len(windows) != fields["num_layers"]:
                raise ValueError(
                    "`attention_window` must be a number, or one for each of "
                    f"{fields['num_layers']!r} layers. Received: {windows!r:.80} in {source}"
                )
            pattern = windows[:1] if all(x == windows[0] for x in windows) else windows
        else:
            pattern = [windows]
        widest = 2 * fields["max_positions"] if isinstance(fields["max_positions"], int) else None
        pattern = [clipped(window, widest) for window in pattern]
        return {**fields, "attention_pattern": pattern, "part": {"name": self.part}}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = super().write_fields(config, tokenizer)
        fields["attention_window"] = [config.window(layer) for layer in range(config.num_layers)]
        return fields if tokenizer is None else {**fields, "sep_token_id": tokenizer.sep_id}

    def misfits(self, config: Any) -> list[str]:
        misfits = super().misfits(config)
        if config.part is None or config.part["name"] != self.part:
            misfits.append(f"its part is {self.part!r}")
        if GLOBAL in config.attention_pattern:
            misfits.append("each of its layers has a window")
        return misfits
