"""Hugging Face's NomicBERT, and its files from before transformers had the code.

(Nussbaum et al. 2024, https://arxiv.org/abs/2402.01613; nomic-ai/contrastors.)
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.huggingface.architectures.base import (
    CLASSIFIERS,
    IGNORED,
    REQUIRED,
    Architecture,
    dense,
    norm,
)
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.huggingface.architectures.rotary.positions import read_base, write_base
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_USUAL = 1000.0
# Config key in old files -> in transformers.
_FORMER_KEYS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "activation_function": "hidden_act",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
}
# Pattern of weight names in old files -> replacement in transformers.
_FORMER_NAMES = (
    (r"^nomic_bert\.bert\.", "nomic_bert."),
    (r"\.encoder\.layers\.", ".layers."),
    (r"\.emb_ln\.", ".embeddings.LayerNorm."),
    (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.fc11\.", ".up_proj."),
    (r"\.fc12\.", ".gate_proj."),
    (r"\.fc2\.", ".down_proj."),
    (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."),
)
_QKV = ".attn.Wqkv.weight"
_HEAD = "cls.predictions."


class NomicBert(Architecture):
    """NomicBERT: BERT with rotary positions, SwiGLU, and biases only in heads."""

    model_type = "nomic_bert"
    title = "NomicBERT"
    class_prefix = "NomicBert"
    prefix = "nomic_bert"
    heads = ("cls.", "classifier.")
    fields = Bert.fields
    defaults: ClassVar[Mapping[str, Any]] = {
        **Bert.defaults,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        "prenorm": (False,),
        "parallel_block": (False,),
        "use_rms_norm": (False, None),
        "causal": (False,),
        "qkv_proj_bias": (False,),
        "mlp_fc1_bias": (False,),
        "mlp_fc2_bias": (False,),
        "rotary_emb_fraction": (1.0, 1),
        "rotary_emb_interleaved": (False,),
        "rotary_emb_scale_base": (None,),
        "rotary_scaling_factor": (None,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "num_experts": (0, None),
        "moe_every_n_layers": (0, None),
    }
    # Keys of how the model is computed and of GPT-2's heads, and keys that repeat others.
    ignored = IGNORED | frozenset(
        "auto_map dense_seq_output embd_pdrop fused_bias_fc fused_dropout_add_ln head_dim "
        "last_layer_subset max_trained_positions pad_vocab_size_multiple parallel_block_tied_norm "
        "reorder_and_upcast_attn rope_parameters rope_theta summary_activation "
        "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj "
        "use_flash_attn use_xentropy".split()
    )
    own_fields = (*Architecture.own_fields, "rotary_base")
    fixed: ClassVar[Mapping[str, Any]] = {
        "positions": "rotary",
        "feed_forward": "gated",
        "use_bias": False,
        "bias_exceptions": ("heads",),
    }
    activations: ClassVar[Mapping[str, str]] = {"silu": "silu", "swish": "silu", "swiglu": "silu"}
    head_dropouts = dict.fromkeys(CLASSIFIERS, ("classifier_dropout", None))

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        embeddings = "nomic_bert.embeddings"
        table = [
            Rule(
                "encoder/embeddings/token",
                (f"{embeddings}.word_embeddings.weight",),
                aliases=(f"{_HEAD}decoder.weight",),
            ),
            Rule("encoder/embeddings/segment", (f"{embeddings}.token_type_embeddings.weight",)),
            *norm("encoder/embeddings/norm", f"{embeddings}.LayerNorm"),
        ]
        for i in range(config.num_layers):
            layer, source = f"encoder/layers/{i}", f"nomic_bert.layers.{i}"
            parts = [f"{source}.self_attn.{part}_proj" for part in "qkv"]
            halves = [f"{source}.mlp.{part}_proj" for part in ("gate", "up")]
            table += [
                *dense(f"{layer}/attention/qkv", *parts),
                *dense(f"{layer}/attention/output", f"{source}.self_attn.o_proj"),
                *norm(f"{layer}/attention_norm", f"{source}.post_attention_layernorm"),
                *dense(f"{layer}/feed_forward/intermediate", *halves),
                *dense(f"{layer}/feed_forward/output", f"{source}.mlp.down_proj"),
                *norm(f"{layer}/feed_forward_norm", f"{source}.post_mlp_layernorm"),
            ]
        table += [
            *dense("encoder/pooler", "nomic_bert.pooler.dense"),
            *dense("masked_lm/transform", f"{_HEAD}transform.dense"),
            *norm("masked_lm/norm", f"{_HEAD}transform.layer_norm"),
            Rule("masked_lm/bias", (f"{_HEAD}bias",), aliases=(f"{_HEAD}decoder.bias",)),
        ]
        return [*table, *(dense(f"{head}/dense", "classifier") if head else ())]

    def modernised(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        return {_FORMER_KEYS.get(key, key): value for key, value in content.items()}

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        return {**fields, "rotary_base": read_base(content, _USUAL, source)}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        return {**super().write_fields(config, tokenizer), **write_base(config.rotary_base)}

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        folded: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            for pattern, new in _FORMER_NAMES:
                name = re.sub(pattern, new, name)
            if name.endswith(_QKV) and not len(array) % 3:
                layer = name.removesuffix(_QKV)
                for part, rows in zip("qkv", np.split(array, 3), strict=True):
                    folded[f"{layer}.self_attn.{part}_proj.weight"] = rows
            else:
                folded[name] = array
        # Old files have a head without biases, whose table is a copy.
        kernel = folded.get(f"{_HEAD}transform.dense.weight")
        if kernel is not None:
            folded.setdefault(f"{_HEAD}transform.dense.bias", np.zeros(len(kernel), kernel.dtype))
            if f"{_HEAD}decoder.bias" not in folded:
                size = content["vocab_size"]
                folded.setdefault(f"{_HEAD}bias", np.zeros(size, kernel.dtype))
        return folded
