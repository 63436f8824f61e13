"""Hugging Face's DeBERTa-v2, also used by DeBERTa-v3's checkpoints, and the first DeBERTa.

(He et al. 2021, https://arxiv.org/abs/2111.09543, and 2020, https://arxiv.org/abs/2006.03654.) The
sizes of version 2 above large have a convolution next to the first layer, which kbert lacks.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from absl import logging

from kbert.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    IGNORED,
    REQUIRED,
    UNREAD,
    Architecture,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.huggingface.architectures.bert import Bert, encoder_rules
from kbert.checkpoints.keys import known_activation
from kbert.checkpoints.renames import Rule
from kbert.configs.encoder import EncoderConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

# Default options of the part:
USUAL: dict[str, Any] = {
    "position_buckets": 256,
    "max_distance": 512,
    "terms": ("content_to_position", "position_to_content"),
    "shared_projections": True,
    "table_norm": True,
}
_TERMS = {"p2c": "position_to_content", "c2p": "content_to_position"}
_RELATIVE = "relative_attention"  # transformers' default is False
# The masked-LM heads of `legacy` files and of Microsoft's own files compute the same.
_HEAD, _OTHER_HEAD = "cls.predictions.transform.", "lm_predictions.lm_head."
# Names in an attention of the first version -> names in the second version.
_FIRST_NAMES = {
    "q_bias": "query_proj.bias",
    "v_bias": "value_proj.bias",
    **{f"pos_q_proj.{kind}": f"pos_query_proj.{kind}" for kind in ("weight", "bias")},
}
_BIAS, _OTHER_BIAS = "cls.predictions.bias", "lm_predictions.lm_head.bias"


class DebertaV2(Architecture):
    """DeBERTa-v2: disentangled attention; the pooler is a part of the classifiers."""

    model_type = "deberta-v2"
    part = "disentangled"
    title = "DeBERTa-v2"
    class_prefix = "DebertaV2"
    prefix = "deberta"
    heads = (
        "cls.",
        "lm_predictions.",
        "mask_predictions.",
        "pooler.",
        "classifier.",
        "qa_outputs.",
    )
    # Version 3's replaced-token detection head has a norm, and no class there reads it.
    unread = rf"{UNREAD}|^mask_predictions\."
    fields = Bert.fields
    defaults: ClassVar[Mapping[str, Any]] = {
        **Bert.defaults,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        _RELATIVE: (True,),
        "position_biased_input": (True, False),
        "share_att_key": (False, True),
        "norm_rel_ebd": ("none", "layer_norm"),
        "conv_kernel_size": (0, None),
    }
    # The first line is not read: keys of the convolution, of the masked-LM head's names and of
    # training. The others are read in `read_fields`.
    ignored = IGNORED | frozenset(
        "conv_act conv_groups legacy cls_dropout pooler_dropout "
        "embedding_size max_relative_positions pooler_hidden_act pooler_hidden_size pos_att_type "
        "position_buckets".split()
    )
    own_fields = (*Architecture.own_fields, "part", "positions")
    head_dropouts = dict.fromkeys(("classifier", "choice"), ("cls_dropout", None))
    pooler_activations = ("gelu", *sorted({*ACTIVATIONS.values()} - {"gelu"}))
    min_segments = 0

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = encoder_rules(config, "deberta", tied=("cls.predictions.decoder.weight",))
        return [
            *(_renamed(rule) for rule in table),
            Rule("encoder/shared/table", ("deberta.encoder.rel_embeddings.weight",)),
            *norm("encoder/shared/norm", "deberta.encoder.LayerNorm"),
            *(
                rule
                for i in range(config.num_layers)
                for name in ("key", "query")
                for rule in dense(
                    f"encoder/layers/{i}/attention/distance_{name}",
                    f"deberta.encoder.layer.{i}.attention.self.pos_{name}_proj",
                )
            ),
            *dense("encoder/pooler", "pooler.dense"),
            *dense("masked_lm/transform", f"{_HEAD}dense"),
            *norm("masked_lm/norm", f"{_HEAD}LayerNorm"),
            Rule("masked_lm/bias", (_BIAS,), aliases=("cls.predictions.decoder.bias",)),
            *fine_tuned_rules(head, "classifier"),
        ]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        if _RELATIVE not in content:
            raise ValueError(
                f"`{_RELATIVE}` must be True in a config of Hugging Face's {self.title} that "
                f"kbert reads. Received: none in {source}"
            )
        for key in ("embedding_size", "pooler_hidden_size"):
            if content.get(key) not in (None, fields["hidden_size"]):
                raise ValueError(
                    f"`{key}` must be the hidden size, {fields['hidden_size']!r}. "
                    f"Received: {content[key]!r} in {source}"
                )
        if content.get("pooler_dropout", 0) != 0:
            logging.warning(
                "pooler_dropout is not used, as kbert has no dropout before the pooler: %s in %s",
                *(content["pooler_dropout"], source),
            )
        distance = _count(content, "max_relative_positions", -1, source)
        part: dict[str, Any] = {
            "name": self.part,
            "position_buckets": max(_count(content, "position_buckets", -1, source), 0),
            "max_distance": fields["max_positions"] if distance < 1 else distance,
        }
        terms = _read_terms(content.get("pos_att_type"), source)
        if len(terms) < len(_TERMS):
            part["terms"] = terms
        part |= self._read_table(content)
        positions = "learned" if content.get("position_biased_input", True) else "none"
        return {**fields, "part": part, "positions": positions}

    def _read_table(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the part's options on distance embeddings that differ from the defaults.

        They are the norm and the projections; `content` is the config.json.
        """
        return {
            **({} if content.get("share_att_key", False) else {"shared_projections": False}),
            **({} if content.get("norm_rel_ebd") == "layer_norm" else {"table_norm": False}),
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        options = {**USUAL, **config.part}
        distance = options["max_distance"]
        return {
            **super().write_fields(config, tokenizer),
            _RELATIVE: True,
            "position_biased_input": config.positions == "learned",
            "share_att_key": options["shared_projections"],
            "norm_rel_ebd": "layer_norm" if options["table_norm"] else "none",
            "position_buckets": options["position_buckets"] or -1,
            "max_relative_positions": -1 if distance == config.max_positions else distance,
            "pos_att_type": "|".join(
                key for key, name in _TERMS.items() if name in options["terms"]
            ),
            "pooler_dropout": 0,
            "pooler_hidden_act": next(
                key
                for key, name in ACTIVATIONS.items()
                if name == (config.pooler_activation or "gelu")
            ),
            "pooler_hidden_size": config.hidden_size,
            "legacy": True,
        }

    def pooler_activation(self, content: Mapping[str, Any], head: str | None) -> str:
        name = content.get("pooler_hidden_act", "gelu")
        return known_activation(name, ACTIVATIONS, "`pooler_hidden_act`", "the config")

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        if _OTHER_BIAS not in arrays or _BIAS in arrays:
            return arrays
        return {_of_legacy(name): array for name, array in arrays.items()}

    def misfits(self, config: EncoderConfig) -> list[str]:
        misfits = super().misfits(config)
        if config.part is None or config.part["name"] != self.part:
            misfits.append(f"its part is {self.part!r}")
        if config.positions not in ("learned", "none"):
            misfits.append("its positions are learned or none")
        return misfits


class Deberta(DebertaV2):
    """DeBERTa: an embedding for every distance, with separate projections; keys have no bias."""

    model_type = "deberta"
    title = "DeBERTa"
    class_prefix = "Deberta"
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        _RELATIVE: (True,),
        "position_biased_input": (True, False),
        "talking_head": (False, None),
    }
    ignored = (DebertaV2.ignored - {"position_buckets"}) | {"padding_idx"}

    def _read_table(self, content: Mapping[str, Any]) -> dict[str, Any]:
        return {"shared_projections": False, "table_norm": False}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = super().write_fields(config, tokenizer)
        absent_keys = ("share_att_key", "norm_rel_ebd", "position_buckets")
        return {key: value for key, value in fields.items() if key not in absent_keys}

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        """Renames weights of the first version to those of DeBERTa-v2.

        `in_proj.weight`, ordered by heads, is split into query, key and value. Keys get biases of
        zeros.
        """
        heads = content["num_attention_heads"]
        folded: dict[str, np.ndarray] = {}
        for name, array in super().fold(arrays, content).items():
            prefix, inner, kind = name.partition(".attention.self.")
            attention = prefix + inner
            if kind == "in_proj.weight" and len(array) % (3 * heads) == 0:
                parts = array.reshape(heads, 3, -1, array.shape[1]).swapaxes(0, 1)
                for part, rows in zip(("query", "key", "value"), parts, strict=True):
                    folded[f"{attention}{part}_proj.weight"] = rows.reshape(-1, array.shape[1])
                folded[f"{attention}key_proj.bias"] = np.zeros(len(array) // 3, array.dtype)
            elif kind == "pos_proj.weight":
                folded[f"{attention}pos_key_proj.weight"] = array
                folded[f"{attention}pos_key_proj.bias"] = np.zeros(len(array), array.dtype)
            else:
                folded[attention + _FIRST_NAMES.get(kind, kind)] = array
        return folded

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        heads = content["num_attention_heads"]
        names = {second: first for first, second in _FIRST_NAMES.items()}
        unfolded: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            prefix, inner, kind = name.partition(".attention.self.")
            attention = prefix + inner
            if kind in ("key_proj.bias", "pos_key_proj.bias"):
                if np.any(array):
                    raise ValueError(
                        f"{self.title} has no key biases: pass architecture='deberta-v2' to write "
                        f"the model as DeBERTa-v2. Received: {name} of up to "
                        f"{np.abs(array).max():.3g}"
                    )
            elif kind == "query_proj.weight":
                parts = [
                    arrays[f"{attention}{part}_proj.weight"] for part in ("query", "key", "value")
                ]
                stacked = np.stack([x.reshape(heads, -1, x.shape[1]) for x in parts], axis=1)
                unfolded[f"{attention}in_proj.weight"] = stacked.reshape(-1, array.shape[1])
            elif kind == "pos_key_proj.weight":
                unfolded[f"{attention}pos_proj.weight"] = array
            elif kind not in ("key_proj.weight", "value_proj.weight"):
                unfolded[attention + names.get(kind, kind)] = array
        return unfolded

    def misfits(self, config: EncoderConfig) -> list[str]:
        misfits = super().misfits(config)
        options = {**USUAL, **(config.part or {})}
        if any(options[x] for x in ("position_buckets", "shared_projections", "table_norm")):
            misfits.append(
                "it has position_buckets=0, shared_projections=False and table_norm=False"
            )
        return misfits


def _renamed(rule: Rule) -> Rule:
    """Returns a rule for BERT's weights with DeBERTa's names of the attention projections."""
    inner = ".attention.self."
    sources = []
    for source in rule.sources:
        prefix, separator, suffix = source.partition(inner)
        part, _, kind = suffix.partition(".")
        sources.append(f"{prefix}{inner}{part}_proj.{kind}" if separator else source)
    return Rule(rule.name, tuple(sources), transpose=rule.transpose, aliases=rule.aliases)


def _of_legacy(name: str) -> str:
    """Returns Hugging Face's name of a weight, for a weight in Microsoft's masked-LM head.

    Other names are returned unchanged.
    """
    if name == _OTHER_BIAS:
        return _BIAS
    is_head = name.startswith(_OTHER_HEAD)
    return _HEAD + name.removeprefix(_OTHER_HEAD) if is_head else name


def _count(content: Mapping[str, Any], key: str, absent: int, source: str) -> int:
    value = content.get(key, absent)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"`{key}` must be a whole number. Received: {value!r} in {source}")
    return value


def _read_terms(said: Any, source: str) -> list[str]:
    """Returns the part's `terms`, in kbert's order, from the value `said` of `pos_att_type`.

    It is a list, or a string such as "p2c|c2p"; anything else raises ValueError. `source` is for
    messages.
    """
    names = [x.strip() for x in said.lower().split("|")] if isinstance(said, str) else said
    if not isinstance(names, list) or not names or any(x not in list(_TERMS) for x in names):
        raise ValueError(
            f"`pos_att_type` must name {' or '.join(_TERMS)}, or both. "
            f"Received: {said!r:.80} in {source}"
        )
    return [term for term in USUAL["terms"] if any(_TERMS[name] == term for name in names)]
