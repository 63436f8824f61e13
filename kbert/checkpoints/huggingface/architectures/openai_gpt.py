"""Hugging Face's first GPT."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.decoders import DecoderArchitecture, four_times


class OpenAIGpt(DecoderArchitecture):
    """GPT: norms after each residual, as in BERT; feed-forward parts are four times as wide."""

    model_type = "openai-gpt"
    title = "GPT"
    class_prefix = "OpenAIGPT"
    fields: ClassVar[Mapping[str, str]] = {**DecoderArchitecture.fields, "afn": "activation"}
    defaults: ClassVar[Mapping[str, Any]] = {**DecoderArchitecture.defaults, "afn": "gelu"}
    fixed: ClassVar[Mapping[str, Any]] = {"block": "post_norm"}
    own_fields: ClassVar[tuple[str, ...]] = ("intermediate_size",)
    # Only in this architecture "gelu" is the tanh form.
    activations: ClassVar[Mapping[str, str]] = {
        "gelu": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    }
    tables = ("tokens_embed", "positions_embed")
    norms = ("attention_norm", "feed_forward_norm")

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        return {**fields, "intermediate_size": four_times(fields["hidden_size"])}

    def misfits(self, config: Any) -> list[str]:
        if config.intermediate_size == 4 * config.hidden_size:
            return []
        return ["its feed-forward part is four times as wide as the model"]
