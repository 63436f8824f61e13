"""Hugging Face's GPT-2, and models with its architecture: DistilGPT-2, DialoGPT."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import norm
from kbert.checkpoints.huggingface.architectures.decoders import DecoderArchitecture, four_times
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike


class Gpt2(DecoderArchitecture):
    """GPT-2: norms before each part, and a norm on the last layer's output."""

    model_type = "gpt2"
    title = "GPT-2"
    class_prefix = "GPT2"
    fields: ClassVar[Mapping[str, str]] = {
        **DecoderArchitecture.fields,
        "n_inner": "intermediate_size",
        "activation_function": "activation",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "n_inner": None,
        "activation_function": "gelu_new",
    }
    # The first two scale attention scores differently; the third only changes the order of steps.
    required: ClassVar[Mapping[str, tuple]] = {
        **DecoderArchitecture.required,
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False, True),
    }
    fixed: ClassVar[Mapping[str, Any]] = {"block": "pre_norm"}
    tables = ("wte", "wpe")
    norms = ("attention_input_norm", "feed_forward_input_norm")

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        return [*super().rules(config, head), *norm("decoder/norm", f"{self.prefix}.ln_f")]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        if fields["intermediate_size"] is None:
            fields["intermediate_size"] = four_times(fields["hidden_size"])
        return fields

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = super().write_fields(config, tokenizer)
        if config.intermediate_size == 4 * config.hidden_size:
            fields["n_inner"] = None
        return fields
