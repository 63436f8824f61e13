"""Hugging Face's XLNet."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import (
    CLASSIFIERS,
    IGNORED,
    REQUIRED,
    Architecture,
    check_head_size,
    dense,
    norm,
)
from kbert.checkpoints.keys import known_activation
from kbert.checkpoints.renames import Rule
from kbert.configs.encoder import EncoderConfig
from kbert.configs.xlnet import XlnetConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_ATTENTION = {"bi": "bidirectional", "uni": "causal"}
_PROJECTION = "logits_proj"  # output layer of text classifiers and multiple choice


class XlNet(Architecture):
    """XLNet: text classifiers have a dense layer on the last token, which is kbert's pooler.

    The keys have no maximum length, so kbert uses the config's default. kbert has no counterpart of
    the head with beam search over answers (`XLNetForQuestionAnswering`).
    """

    model_type = "xlnet"
    title = "XLNet"
    config_class = XlnetConfig
    class_prefix = "XLNet"
    prefix = "transformer"
    heads = (
        *("lm_loss.", "sequence_summary.", f"{_PROJECTION}.", "classifier.", "qa_outputs."),
        *("start_logits.", "end_logits.", "answer_class."),
    )
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocabulary_size",
        "d_model": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "d_inner": "intermediate_size",
        "ff_activation": "activation",
        "dropout": "dropout",
        "layer_norm_eps": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
        "same_length": "same_length",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "ff_activation": "gelu",
        "dropout": 0.1,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
        "same_length": False,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        "bi_data": (False, None),
        "untie_r": (True, None),
        "summary_type": ("last",),
        "summary_use_proj": (True,),
    }
    # Read in `read_fields` or with the heads, except the last line: settings of outputs.
    ignored = IGNORED | frozenset(
        "attn_type clamp_len d_head reuse_len summary_activation summary_last_dropout "
        "start_n_top end_n_top mem_len use_mems_eval use_mems_train".split()
    )
    head_dropouts = dict.fromkeys(("classifier", "choice"), ("summary_last_dropout", 0.1))
    own_fields = (
        *("num_segments", "attention_dropout", "max_positions", "attention", "clamp_length"),
        "reuse_length",
    )
    pooler_activations = ("tanh",)
    span_class = "ForQuestionAnsweringSimple"

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        heads = (config.num_heads, config.hidden_size // config.num_heads)
        square, split = (config.hidden_size, config.hidden_size), (config.hidden_size, *heads)
        tied = ("lm_loss.weight",)
        table = [
            Rule("encoder/embeddings/token", ("transformer.word_embedding.weight",), aliases=tied),
            Rule(
                "encoder/query/vector",
                ("transformer.mask_emb",),
                shapes=(square[:1], (1, 1, *square[:1])),
            ),
        ]
        biases = {"content": "r_w_bias", "distance": "r_r_bias", "segment": "r_s_bias"}
        for i in range(config.num_layers):
            path, module = f"encoder/layers/{i}", f"transformer.layer.{i}"
            attention, inner = f"{path}/attention", f"{module}.rel_attn"
            parts = tuple(f"{inner}.{part}" for part in "qkv")
            table += [
                Rule(f"{attention}/qkv/kernel", parts, shapes=(square, split)),
                Rule(f"{attention}/relative/kernel", (f"{inner}.r",), shapes=(square, split)),
                Rule(
                    f"{attention}/output/kernel",
                    (f"{inner}.o",),
                    shapes=(square, split),
                    transpose=True,
                ),
                *(
                    Rule(f"{attention}/{name}_bias", (f"{inner}.{source}",))
                    for name, source in biases.items()
                ),
                Rule(f"{attention}/segments", (f"{inner}.seg_embed",)),
                *norm(f"{path}/attention_norm", f"{inner}.layer_norm"),
                *dense(f"{path}/feed_forward/intermediate", f"{module}.ff.layer_1"),
                *dense(f"{path}/feed_forward/output", f"{module}.ff.layer_2"),
                *norm(f"{path}/feed_forward_norm", f"{module}.ff.layer_norm"),
            ]
        classes = "classifier" if head == "tokens" else _PROJECTION
        return [
            *table,
            *dense("encoder/pooler", "sequence_summary.summary"),
            Rule("permutation_lm/bias", ("lm_loss.bias",)),
            *dense("span/dense", "qa_outputs"),
            *(dense(f"{head}/dense", classes) if head else ()),
        ]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        kind = content.get("attn_type", "bi")
        if kind not in list(_ATTENTION):  # a list: `kind` may be unhashable
            raise ValueError(
                f"`attn_type` must be {' or '.join(_ATTENTION)}. Received: {kind!r} in {source}"
            )
        check_head_size("d_head", content, fields, source)
        clamp = content.get("clamp_len", -1)
        return {
            **fields,
            "attention_dropout": fields["dropout"],
            "attention": _ATTENTION[kind],
            "clamp_length": None if isinstance(clamp, int) and clamp < 1 else clamp,
            "reuse_length": content.get("reuse_len") or None,
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = {
            **super().write_fields(config, tokenizer),
            "d_head": config.hidden_size // config.num_heads,
            "attn_type": next(k for k, kind in _ATTENTION.items() if kind == config.attention),
            "clamp_len": -1 if config.clamp_length is None else config.clamp_length,
            "reuse_len": config.reuse_length,
            "mem_len": None,
            "summary_type": "last",
            "summary_use_proj": True,
            "summary_activation": "tanh",
        }
        if tokenizer is not None:
            fields |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
        return fields

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        if any(name.startswith("classifier.") for name in arrays):
            return "tokens"
        if not any(name.startswith(f"{_PROJECTION}.") for name in arrays):
            return None
        classes = content.get("architectures")
        names = [str(name) for name in classes] if isinstance(classes, list) else []
        is_choice = any(name.endswith(CLASSIFIERS["choice"]) for name in names)
        return "choice" if is_choice else "classifier"

    def pooler_activation(self, content: Mapping[str, Any], head: str | None) -> str:
        name = content.get("summary_activation", "tanh")
        return known_activation(name, {"tanh": "tanh"}, "`summary_activation`", "the config")

    def misfits(self, config: EncoderConfig) -> list[str]:
        misfits = super().misfits(config)
        if config.attention_dropout != config.dropout:
            misfits.append("its attention dropout equals its dropout")
        return misfits
