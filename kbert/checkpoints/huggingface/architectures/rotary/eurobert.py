"""Hugging Face's EuroBERT: Llama's blocks with bidirectional attention.

(Boizard et al. 2025, https://arxiv.org/abs/2503.05500.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.huggingface.architectures.base import (
    IGNORED,
    REQUIRED,
    SIZES,
    Architecture,
    check_head_size,
    dense,
    norm,
)
from kbert.checkpoints.huggingface.architectures.rotary.positions import read_base, write_base
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_POOLINGS = {"bos": "first", "mean": "mean", "late": "late"}
_LOGITS, _TOKENS = "lm_head.", "model.embed_tokens.weight"
_USUAL = 10_000.0  # transformers' default base


class EuroBert(Architecture):
    """EuroBERT: pre-norms, SwiGLU, grouped-query attention, an untied masked-LM output table."""

    model_type = "eurobert"
    title = "EuroBERT"
    class_prefix = "EuroBert"
    prefix = "model"
    heads = (_LOGITS, "dense.", "classifier.")
    fields: ClassVar[Mapping[str, str]] = {
        **SIZES,
        "num_key_value_heads": "num_key_value_heads",
        "max_position_embeddings": "max_positions",
        "hidden_act": "activation",
        "attention_dropout": "attention_dropout",
        "rms_norm_eps": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": None,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        "tie_word_embeddings": (False, True),
        "hidden_dropout": (0.0, 0),
        "pretraining_tp": (1,),
    }
    # Read in `read_fields`, except `mask_token_id`, and `auto_map`, which is in files from before
    # transformers had the code.
    ignored = IGNORED | frozenset(
        "attention_bias auto_map classifier_pooling clf_pooling head_dim mask_token_id mlp_bias "
        "rope_parameters rope_theta".split()
    )
    own_fields: ClassVar[tuple[str, ...]] = (
        *("rotary_base", "use_bias", "bias_exceptions", "pooling"),
        *("num_layer_groups", "embedding_size"),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "num_segments": 0,
        "dropout": 0.0,
        "positions": "rotary",
        "feed_forward": "gated",
        "norm": "rms",
        "block": "pre_norm",
        "embedding_norm": False,
        "output": "untied",
    }
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = {}
    pooler_activations = ("gelu",)
    min_segments = 0

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        width = config.hidden_size
        keys = width // config.num_heads * config.key_value_heads
        table = [Rule("encoder/embeddings/token", (_TOKENS,))]
        for i in range(config.num_layers):
            layer, source = f"encoder/layers/{i}", f"model.layers.{i}"
            parts = [f"{source}.self_attn.{part}_proj" for part in "qkv"]
            halves = [f"{source}.mlp.{part}_proj" for part in ("gate", "up")]
            kernel, bias = dense(f"{layer}/attention/qkv", *parts)
            table += [
                _of_widths(kernel, width, keys, keys),
                _of_widths(bias, width, keys, keys),
                *dense(f"{layer}/attention/output", f"{source}.self_attn.o_proj"),
                *norm(f"{layer}/attention_input_norm", f"{source}.input_layernorm"),
                *dense(f"{layer}/feed_forward/intermediate", *halves),
                *dense(f"{layer}/feed_forward/output", f"{source}.mlp.down_proj"),
                *norm(f"{layer}/feed_forward_input_norm", f"{source}.post_attention_layernorm"),
            ]
        table += [
            *norm("encoder/norm", "model.norm"),
            *dense("encoder/pooler", "dense"),
            Rule("masked_lm/table", (f"{_LOGITS}weight",)),
            Rule("masked_lm/bias", (f"{_LOGITS}bias",)),
        ]
        return [*table, *(dense(f"{head}/dense", "classifier") if head else ())]

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        if "classifier.weight" not in arrays:
            return None
        return "classifier" if "dense.weight" in arrays else "tokens"

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        attention_bias, other_bias = (
            bool(content.get(f"{x}_bias", False)) for x in ("attention", "mlp")
        )
        pooling = content.get("classifier_pooling", content.get("clf_pooling", "late"))
        if pooling not in list(_POOLINGS):  # a list, as the value may not be hashable
            raise ValueError(
                f"`classifier_pooling` must be one of {', '.join(_POOLINGS)}. "
                f"Received: {pooling!r} in {source}"
            )
        check_head_size("head_dim", content, fields, source)
        if fields["num_key_value_heads"] == fields["num_heads"]:
            fields["num_key_value_heads"] = None
        return {
            **fields,
            "rotary_base": read_base(content, _USUAL, source),
            "pooling": _POOLINGS[pooling],
            "use_bias": other_bias,
            "bias_exceptions": (
                *(("attention",) if attention_bias != other_bias else ()),
                *(() if other_bias else ("heads",)),
            ),
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        poolings = {name: their_name for their_name, name in _POOLINGS.items()}
        fields = {
            **super().write_fields(config, tokenizer),
            "num_key_value_heads": config.key_value_heads,
            "head_dim": config.hidden_size // config.num_heads,
            "attention_bias": config.has_bias("attention"),
            "mlp_bias": config.use_bias,
            "classifier_pooling": poolings[config.pooling],
            "tie_word_embeddings": False,
            **write_base(config.rotary_base),
        }
        roles = ("pad", "bos", "eos")
        if tokenizer is None:  # else transformers uses the ids of EuroBERT's vocabulary
            return {**fields, **dict.fromkeys(f"{role}_token_id" for role in roles)}
        ids = dict(zip(roles, (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id), strict=True))
        return {**fields, **{f"{role}_token_id": number for role, number in ids.items()}}

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        """Adds a bias of zeros for the masked-LM output table if the file has none.

        In transformers the table has a bias only if the feed-forward parts have biases. A table
        that is tied to the token table is copied, because kbert's is untied.
        """
        folded = dict(arrays)
        masked = str(content.get("architectures")).find("ForMaskedLM") >= 0
        if content.get("tie_word_embeddings") and masked and _TOKENS in arrays:
            folded.setdefault(f"{_LOGITS}weight", arrays[_TOKENS])
            arrays = folded
        if f"{_LOGITS}weight" in arrays and f"{_LOGITS}bias" not in arrays:
            table = arrays[f"{_LOGITS}weight"]
            folded[f"{_LOGITS}bias"] = np.zeros(len(table), table.dtype)
        return folded

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        bias = arrays.get(f"{_LOGITS}bias")
        if bias is None or content["mlp_bias"]:
            return arrays
        unfolded = dict(arrays)
        if not np.any(bias):
            del unfolded[f"{_LOGITS}bias"]
            return unfolded
        content["mlp_bias"] = True  # type: ignore[index]  # what is written is a dict
        for name, array in arrays.items():
            if ".mlp." in name:
                unfolded[name.replace(".weight", ".bias")] = np.zeros(len(array), array.dtype)
        return unfolded

    def misfits(self, config: Any) -> list[str]:
        reasons = super().misfits(config)
        if not config.has_bias("heads") or "gate" in config.bias_exceptions:
            reasons.append(
                "the dense layers of its heads have biases, and its gates like all others"
            )
        if config.pooling not in _POOLINGS.values():
            reasons.append(f"its pooling is one of {', '.join(_POOLINGS.values())}")
        return reasons


def _of_widths(rule: Rule, *widths: int) -> Rule:
    return Rule(rule.name, rule.sources, transpose=rule.transpose, widths=widths)
