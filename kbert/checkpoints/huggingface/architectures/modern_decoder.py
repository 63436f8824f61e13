"""Hugging Face's ModernBERT decoder, the architecture of Ettin's decoders."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import clipped, dense, norm
from kbert.checkpoints.huggingface.architectures.modernbert import (
    ModernBert,
    window_of,
    with_decoder_bias,
)
from kbert.checkpoints.renames import Rule
from kbert.configs.base import Config
from kbert.configs.decoder import DecoderConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays


class ModernBertDecoder(ModernBert):
    """ModernBERT's causal language model; a token attends to half of an encoder's window."""

    model_type = "modernbert-decoder"
    title = "ModernBERT decoder"
    config_class: ClassVar[type[Config]] = DecoderConfig
    root = "decoder"
    task = "causal_lm"
    class_prefix = "ModernBertDecoder"
    causal_class = "ForCausalLM"
    heads = ("lm_head.", "decoder.", "head.", "classifier.")
    ignored = ModernBert.ignored | {"sliding_window"}
    own_fields: ClassVar[tuple[str, ...]] = (
        "attention_pattern",
        "rotary_base",
        "local_rotary_base",
        "norm",
        *("use_bias", "bias_exceptions", "head_activation"),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "positions": "rotary",
        "block": "pre_norm_except_first",
        "feed_forward": "gated",
        "embedding_norm": True,
        "output": "transformed",
    }
    unsaid: ClassVar[Mapping[str, Any]] = {}
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = {}

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = [
            Rule(
                "decoder/embeddings/token",
                ("model.embeddings.tok_embeddings.weight",),
                aliases=("decoder.weight",),
            ),
            *norm("decoder/embedding_norm", "model.embeddings.norm"),
        ]
        for i in range(config.num_layers):
            layer, source = f"decoder/layers/{i}", f"model.layers.{i}"
            parts = [f"{source}.attn.{part}_proj" for part in ("q", "k", "v")]
            table += [
                *dense(f"{layer}/attention/qkv", *parts),
                *dense(f"{layer}/attention/output", f"{source}.attn.Wo"),
                *norm(f"{layer}/attention_input_norm", f"{source}.attn_norm"),
                *dense(f"{layer}/feed_forward/intermediate", f"{source}.mlp.Wi"),
                *dense(f"{layer}/feed_forward/output", f"{source}.mlp.Wo"),
                *norm(f"{layer}/feed_forward_input_norm", f"{source}.mlp_norm"),
            ]
        return [
            *table,
            *norm("decoder/norm", "model.final_norm"),
            *dense("decoder/head/transform", "lm_head.dense"),
            *norm("decoder/head/norm", "lm_head.norm"),
            Rule("decoder/head/bias", ("decoder.bias",)),
        ]

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        return None  # Hugging Face adds a dense layer that kbert's decoder classifier lacks

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        return with_decoder_bias(arrays, "lm_head.dense.weight")

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        return arrays

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        del fields["pooling"]
        return fields

    def _window(self, content: Mapping[str, Any], max_positions: Any, source: str) -> int:
        """Returns the window in tokens, at most `max_positions`.

        It is `sliding_window`, which transformers writes, else half of `local_attention`.
        """
        if "sliding_window" in content:
            window = window_of(content, "sliding_window", 1, source)
        else:
            window = window_of(content, "local_attention", 2, source) // 2
        return clipped(window, max_positions) if isinstance(max_positions, int) else window

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = super().write_fields(config, tokenizer)
        del fields["classifier_pooling"]
        if any(config.window(layer) is not None for layer in range(config.num_layers)):
            fields["sliding_window"] = fields["local_attention"]
            fields["local_attention"] *= 2
        if tokenizer is None:  # transformers accepts None for eos_token_id only
            fields |= dict.fromkeys(
                (f"{role}_token_id" for role in ("pad", "bos", "cls", "sep")), 0
            )
        return fields
