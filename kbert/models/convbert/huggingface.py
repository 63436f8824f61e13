"""Hugging Face's ConvBERT: ELECTRA's embeddings and heads, and convolutions next to attention.

(Jiang et al. 2020, https://arxiv.org/abs/2008.02496.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import ACTIVATIONS, Architecture, dense
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.huggingface.architectures.electra import Electra
from kbert.checkpoints.keys import known_activation
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike

# Default options of the part:
USUAL = {"kernel_size": 9, "num_groups": 1}
_SUMMARY = {"summary_type": "first", "summary_use_proj": True}


class ConvBert(Electra):
    """ConvBERT: `num_attention_heads` is the number of attention heads times `head_ratio`."""

    model_type = "convbert"
    part = "dynamic_convolution"
    title = "ConvBERT"
    class_prefix = "ConvBert"
    prefix = "convbert"
    heads: ClassVar[tuple[str, ...]] = (
        *("generator_predictions.", "generator_lm_head.", "sequence_summary."),
        *("classifier.", "qa_outputs."),
    )
    defaults: ClassVar[Mapping[str, Any]] = {**Electra.defaults, "embedding_size": 768}
    # The part's keys are read in `read_fields`.
    ignored = Electra.ignored | {"conv_kernel_size", "head_ratio", "num_groups"}
    own_fields = (*Electra.own_fields, "part")
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = {
        **Architecture.head_dropouts,
        "choice": ("summary_last_dropout", 0.0),
    }

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        hidden, half = config.hidden_size, config.hidden_size // 2
        kernel_size = _options(config)["kernel_size"]
        table = {rule.name: rule for rule in super().rules(config, head)}
        for i in range(config.num_layers):
            path, module = f"encoder/layers/{i}", f"convbert.encoder.layer.{i}"
            attention, convolution = f"{module}.attention.self", f"{path}/attention/key_convolution"
            parts = [f"{attention}.{name}" for name in ("query", "key", "value", "conv_out_layer")]
            separable = f"{attention}.key_conv_attn_layer"
            changed = [
                *dense(f"{path}/attention/qkv", *parts),
                *dense(f"{path}/attention/weights", f"{attention}.conv_kernel_layer"),
                Rule(
                    f"{convolution}/depthwise",
                    (f"{separable}.depthwise.weight",),
                    transpose=True,
                    shapes=((hidden, kernel_size), (hidden, 1, kernel_size)),
                ),
                Rule(
                    f"{convolution}/pointwise/kernel",
                    (f"{separable}.pointwise.weight",),
                    transpose=True,
                    shapes=((half, hidden), (half, hidden, 1)),
                ),
                Rule(
                    f"{convolution}/pointwise/bias",
                    (f"{separable}.bias",),
                    shapes=((half,), (half, 1)),
                ),
            ]
            if _options(config)["num_groups"] > 1:  # grouped kernels have kbert's layout
                for name, source in (("intermediate", "intermediate"), ("output", "output")):
                    kernel = f"{path}/feed_forward/{name}/kernel"
                    changed.append(Rule(kernel, (f"{module}.{source}.dense.weight",)))
            table.update({rule.name: rule for rule in changed})
        return list(table.values())

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        numbers = {
            "head_ratio": content.get("head_ratio", 2),
            "kernel_size": content.get("conv_kernel_size", USUAL["kernel_size"]),
            "num_groups": content.get("num_groups", USUAL["num_groups"]),
            "num_attention_heads": fields["num_heads"],
        }
        for key, value in numbers.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(
                    f"`{key}` must be a whole number above 0. Received: {value!r} in {source}"
                )
        # At least one head attends, even if `head_ratio` exceeds the number of heads.
        heads = max(numbers["num_attention_heads"] // numbers["head_ratio"], 1)
        part = {name: numbers[name] for name, usual in USUAL.items() if numbers[name] != usual}
        return {**fields, "num_heads": heads, "part": {"name": self.part, **part}}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        options = _options(config)
        return {
            **super().write_fields(config, tokenizer),
            "num_attention_heads": 2 * config.num_heads,
            "head_ratio": 2,
            "conv_kernel_size": options["kernel_size"],
            "num_groups": options["num_groups"],
            **_SUMMARY,
            "summary_activation": "gelu",
        }

    def pooler_activation(self, content: Mapping[str, Any], head: str | None) -> str:
        if head != "choice":  # the activation is the encoder's
            name = content.get("hidden_act", Bert.defaults["hidden_act"])
            activation = known_activation(name, ACTIVATIONS, "`hidden_act`", "the config")
        else:
            for key, value in _SUMMARY.items():
                if content.get(key) != value:
                    raise ValueError(
                        f"`{key}` must be {value!r} for multiple choice: kbert's poolers read the "
                        f"first token. Received: {content.get(key)!r}"
                    )
            activation = super().pooler_activation(content, head)
        if activation not in self.pooler_activations:
            raise ValueError(
                f"The dense layer under a head of {self.title} must have the activation "
                f"{self.pooler_activations[0]!r}. Received: {activation!r}"
            )
        return activation

    def misfits(self, config: Any) -> list[str]:
        misfits = super().misfits(config)
        if config.part is None or config.part["name"] != self.part:
            misfits.append(f"its part is {self.part!r}")
        if config.pooler_activation not in (None, config.activation):
            misfits.append("its pooler has the activation of its layers")
        return misfits


def _options(config: Any) -> dict[str, Any]:
    return {**USUAL, **(config.part or {})}
