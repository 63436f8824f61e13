"""Hugging Face's SqueezeBERT: BERT's embeddings and heads, and convolutions over one token.

(Iandola et al. 2020, https://arxiv.org/abs/2006.11316.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.huggingface.architectures.base import Architecture, dense, norm
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike

# Default option of the part:
_USUAL_GROUPS = 4
_GROUPED = ("q_groups", "k_groups", "v_groups", "intermediate_groups", "output_groups")
_EPSILON = 1e-12  # epsilon of the layers' norms in any config


class SqueezeBert(Bert):
    """SqueezeBERT: all dense layers have the same number of groups, the attention's output one."""

    model_type = "squeezebert"
    part = "grouped"
    title = "SqueezeBERT"
    class_prefix = "SqueezeBert"
    prefix = "transformer"
    required: ClassVar[Mapping[str, tuple]] = {
        **Bert.required,
        "post_attention_groups": (1, None),
    }
    # Read in `read_fields`; the embeddings are as wide as the layers.
    ignored = Bert.ignored | {*_GROUPED, "embedding_size"}
    own_fields = (*Architecture.own_fields, "part")
    head_dropouts: ClassVar[dict[str, tuple[str, float | None]]] = {}
    sentence_objective: ClassVar[str | None] = None

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = {rule.name: rule for rule in super().rules(config, head)}
        width, groups = config.hidden_size, _groups(config)
        for i in range(config.num_layers):
            path, module = f"encoder/layers/{i}", f"{self.prefix}.encoder.layers.{i}"
            for name in ("kernel", "bias"):
                del table[f"{path}/attention/qkv/{name}"]
            grouped = {
                **{f"attention/{name}": f"attention.{name}" for name in ("query", "key", "value")},
                "feed_forward/intermediate": "intermediate.conv1d",
                "feed_forward/output": "output.conv1d",
            }
            changed = [
                Rule(
                    f"{path}/attention/output/kernel",
                    (f"{module}.post_attention.conv1d.weight",),
                    transpose=True,
                    shapes=((width, width), (width, width, 1)),
                ),
                dense(f"{path}/attention/output", f"{module}.post_attention.conv1d")[1],
                *norm(f"{path}/attention_norm", f"{module}.post_attention.layernorm"),
                *norm(f"{path}/feed_forward_norm", f"{module}.output.layernorm"),
            ]
            for ours, theirs in grouped.items():
                kernel = _GroupedKernel(
                    f"{path}/{ours}/kernel", (f"{module}.{theirs}.weight",), groups=groups
                )
                changed += [kernel, dense(f"{path}/{ours}", f"{module}.{theirs}")[1]]
            table.update({rule.name: rule for rule in changed})
        return list(table.values())

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        group_counts = {key: content.get(key, _USUAL_GROUPS) for key in _GROUPED}
        first, *other_counts = group_counts.values()
        if any(number != first for number in other_counts):
            raise ValueError(
                "All grouped layers must have the same number of groups. Received: "
                f"{', '.join(f'{key}={value}' for key, value in group_counts.items())} in {source}"
            )
        width, hidden = content.get("embedding_size", fields["hidden_size"]), fields["hidden_size"]
        if width != hidden:
            raise ValueError(
                "`embedding_size` of a SqueezeBERT must be its `hidden_size`. Received: "
                f"embedding_size={width}, hidden_size={hidden} in {source}"
            )
        if fields["layer_norm_epsilon"] != _EPSILON:
            raise ValueError(
                f"`layer_norm_eps` must be {_EPSILON}: SqueezeBERT's layers have this epsilon "
                "with any config, and all of kbert's norms have the same one. Received: "
                f"layer_norm_eps={fields['layer_norm_epsilon']} in {source}"
            )
        groups = {} if first == _USUAL_GROUPS else {"num_groups": first}
        return {**fields, "part": {"name": self.part, **groups}}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        return {
            **super().write_fields(config, tokenizer),
            **dict.fromkeys(_GROUPED, _groups(config)),
            "embedding_size": config.hidden_size,
        }

    def misfits(self, config: Any) -> list[str]:
        misfits = super().misfits(config)
        if config.part is None or config.part["name"] != self.part:
            misfits.append(f"its part is {self.part!r}")
        if config.layer_norm_epsilon != _EPSILON:
            misfits.append(f"its epsilon is {_EPSILON}")
        return misfits


def _groups(config: Any) -> int:
    return (config.part or {}).get("num_groups", _USUAL_GROUPS)


@dataclasses.dataclass(frozen=True)
class _GroupedKernel(Rule):
    """Rule for a kernel (G, I / G, O / G) that has the shape (O, I / G, 1) in transformers."""

    groups: int = 1

    def read(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        array = arrays[self.sources[0]]
        if array.ndim != 3 or array.shape[0] % self.groups:
            return array  # `set_arrays` reports the wrong shape
        shape = (self.groups, array.shape[0] // self.groups, array.shape[1])
        return array.reshape(shape).transpose(0, 2, 1)

    def write(self, array: np.ndarray) -> dict[str, np.ndarray]:
        groups, inputs, outputs = array.shape
        kernel = array.transpose(0, 2, 1).reshape(groups * outputs, inputs, 1)
        return {self.sources[0]: kernel}
