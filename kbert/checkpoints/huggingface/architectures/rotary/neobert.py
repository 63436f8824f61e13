"""NeoBERT, whose code is on the hub with its weights, not in transformers.

(Le Breton et al. 2025, https://arxiv.org/abs/2502.19587; model.py of chandar-lab/NeoBERT.)
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.huggingface.architectures.base import (
    IGNORED,
    REQUIRED,
    SIZES,
    Architecture,
    dense,
    norm,
)
from kbert.checkpoints.huggingface.architectures.rotary.positions import in_halves, in_pairs
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_CODE = "chandar-lab/NeoBERT--model."
_QKV = ".qkv.weight"


class NeoBert(Architecture):
    """NeoBERT: pre-norms, SwiGLU, biases only in heads, an untied masked-LM output table.

    Its config gives 3/2 of the feed-forward width.
    """

    model_type = "neobert"
    title = "NeoBERT"
    class_prefix = "NeoBERT"
    class_endings: ClassVar[Mapping[str, str]] = {"Model": "", "ForMaskedLM": "LMHead"}
    prefix = "model"
    heads = ("decoder.", "dense.", "classifier.")
    fields: ClassVar[Mapping[str, str]] = {
        **SIZES,
        "max_length": "max_positions",
        "hidden_act": "activation",
        "norm_eps": "layer_norm_epsilon",
        "embedding_init_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_length": 1024,
        "hidden_act": "SwiGLU",
        "norm_eps": 1e-6,
        "embedding_init_range": 0.02,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        "tie_word_embeddings": (False, True, None),  # no code reads it
        "dropout": (0, 0.0),
        "rms_norm": (True,),
        "rope": (True,),
        "ngpt": (False,),
    }
    # `dim_head` repeats others, `kwargs` are unknown arguments of the constructor. The rest is for
    # loading the code, initialising weights and computing attention.
    ignored = (IGNORED - {"max_length"}) | frozenset(
        "auto_map base_scale classifier_init_range decoder_init_range dim_head flash_attention "
        "kwargs".split()
    )
    own_fields = (*Architecture.own_fields, "rotary_base")
    fixed: ClassVar[Mapping[str, Any]] = {
        "num_segments": 0,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "positions": "rotary",
        "feed_forward": "gated",
        "norm": "rms",
        "block": "pre_norm",
        "embedding_norm": False,
        "use_bias": False,
        "bias_exceptions": ("heads",),
        "output": "untied",
    }
    activations: ClassVar[Mapping[str, str]] = {"SwiGLU": "silu", "swiglu": "silu"}
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = {
        "classifier": ("classifier_dropout", 0.1)
    }
    min_segments = 0

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = [Rule("encoder/embeddings/token", ("model.encoder.weight",))]
        for i in range(config.num_layers):
            layer, source = f"encoder/layers/{i}", f"model.transformer_encoder.{i}"
            table += [
                *dense(f"{layer}/attention/qkv", f"{source}.qkv"),
                *dense(f"{layer}/attention/output", f"{source}.wo"),
                *norm(f"{layer}/attention_input_norm", f"{source}.attention_norm"),
                *dense(f"{layer}/feed_forward/intermediate", f"{source}.ffn.w12"),
                *dense(f"{layer}/feed_forward/output", f"{source}.ffn.w3"),
                *norm(f"{layer}/feed_forward_input_norm", f"{source}.ffn_norm"),
            ]
        table += [
            *norm("encoder/norm", "model.layer_norm"),
            *dense("encoder/pooler", "dense"),
            Rule("masked_lm/table", ("decoder.weight",)),
            Rule("masked_lm/bias", ("decoder.bias",)),
        ]
        return [*table, *(dense("classifier/dense", "classifier") if head else ())]

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        return "classifier" if "classifier.weight" in arrays else None

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        width = fields["intermediate_size"]
        if isinstance(width, int):  # else the config raises
            fields["intermediate_size"] = -(-(2 * width // 3) // 8) * 8
        return fields

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        classes = {
            "AutoConfig": "Config",
            "AutoModel": "",
            "AutoModelForMaskedLM": "LMHead",
            "AutoModelForSequenceClassification": "ForSequenceClassification",
        }
        return {
            **super().write_fields(config, tokenizer),
            "intermediate_size": 3 * config.intermediate_size // 2,
            "auto_map": {auto: f"{_CODE}NeoBERT{ending}" for auto, ending in classes.items()},
        }

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        return self._with_qkv(arrays, content, _read_qkv)

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        return self._with_qkv(arrays, content, _write_qkv)

    def _with_qkv(self, arrays: Arrays, content: Mapping[str, Any], change: Callable) -> Arrays:
        """Replaces each joint kernel of query, key, value by `change(kernel, number of heads)`."""
        heads = content.get("num_attention_heads", self.defaults["num_attention_heads"])
        return {
            name: change(array, heads) if name.endswith(_QKV) else array
            for name, array in arrays.items()
        }

    def misfits(self, config: Any) -> list[str]:
        reasons = super().misfits(config)
        if config.intermediate_size % 8:
            reasons.append("its feed-forward width is a multiple of 8")
        if config.rotary_base not in (None, 10_000.0):
            reasons.append("its rotary base is 10,000")
        return reasons


def _read_qkv(array: np.ndarray, heads: int) -> np.ndarray:
    """Reorders a kernel (3 H, H) in which query, key and value of each head follow one another.

    All queries come first, then all keys, then all values; pairs are rotated as in kbert.
    """
    if len(array) % (3 * heads):  # unchanged: setting the weights reports the shape
        return array
    query, key, value = array.reshape(heads, 3, -1, *array.shape[1:]).swapaxes(0, 1)
    flat = [x.reshape(-1, *array.shape[1:]) for x in (query, key, value)]
    return np.concatenate([in_halves(flat[0], heads), in_halves(flat[1], heads), flat[2]])


def _write_qkv(array: np.ndarray, heads: int) -> np.ndarray:
    """Reverses `_read_qkv`, for a kernel (3 H, H)."""
    query, key, value = np.split(array, 3)
    parts = [in_pairs(query, heads), in_pairs(key, heads), value]
    stacked = np.stack([x.reshape(heads, -1, *array.shape[1:]) for x in parts], axis=1)
    return stacked.reshape(array.shape)
