"""Hugging Face's DeBERTa-v2, which DeBERTa-v3's checkpoints are of.

(He et al. 2021, https://arxiv.org/abs/2111.09543.) The sizes of version 2 above large have a
convolution beside the first layer, which kbert has not.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

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
from kbert.tokenizers.protocol import TokenizerLike
from kbert.types import Arrays

PART = "disentangled"  # of `kbert.models.parts`, whose defaults these are:
USUAL: dict[str, Any] = {
    "position_buckets": 256,
    "max_distance": 512,
    "terms": ("content_to_position", "position_to_content"),
}
_TERMS = {"p2c": "position_to_content", "c2p": "content_to_position"}
# Keys that must be there with this value: absent, transformers takes another.
_ATTENTION = {
    "relative_attention": True,
    "position_biased_input": False,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}
# The masked-LM head of `legacy` files and of Microsoft's own, of one function.
_HEAD, _OTHER_HEAD = "cls.predictions.transform.", "lm_predictions.lm_head."
_BIAS, _OTHER_BIAS = "cls.predictions.bias", "lm_predictions.lm_head.bias"


class DebertaV2(Architecture):
    """Disentangled attention, no positions besides, and the pooler a part of the classifiers."""

    model_type = "deberta-v2"
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
    # Of the replaced-token detection of version 3: a head with a norm that no class there reads.
    unread = rf"{UNREAD}|^mask_predictions\."
    fields = Bert.fields
    defaults: ClassVar[Mapping[str, Any]] = {
        **Bert.defaults,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        **{key: (value,) for key, value in _ATTENTION.items()},
        "conv_kernel_size": (0, None),
    }
    # Read in `read_fields`, but for the first two lines: they are of the convolution, of the names
    # of the masked-LM head, and of training.
    ignored = IGNORED | frozenset(
        "conv_act conv_groups legacy cls_dropout pooler_dropout "
        "embedding_size max_relative_positions pooler_hidden_act pooler_hidden_size pos_att_type "
        "position_buckets".split()
    )
    own_fields = (*Architecture.own_fields, "part")
    fixed: ClassVar[Mapping[str, Any]] = {"positions": "none"}
    head_dropouts = dict.fromkeys(("classifier", "choice"), ("cls_dropout", None))
    pooler_activations = ("gelu", *sorted({*ACTIVATIONS.values()} - {"gelu"}))
    min_segments = 0

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = encoder_rules(config, "deberta", tied=("cls.predictions.decoder.weight",))
        return [
            *(_renamed(rule) for rule in table),
            Rule("encoder/shared/table", ("deberta.encoder.rel_embeddings.weight",)),
            *norm("encoder/shared/norm", "deberta.encoder.LayerNorm"),
            *dense("encoder/pooler", "pooler.dense"),
            *dense("masked_lm/transform", f"{_HEAD}dense"),
            *norm("masked_lm/norm", f"{_HEAD}LayerNorm"),
            Rule("masked_lm/bias", (_BIAS,), aliases=("cls.predictions.decoder.bias",)),
            *fine_tuned_rules(head, "classifier"),
        ]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        found = super().read_fields(content, source)
        for key, value in _ATTENTION.items():
            if key not in content:
                raise ValueError(
                    f"`{key}` must be {value!r} in a config of Hugging Face's {self.title} that "
                    f"kbert reads. Received: none in {source}"
                )
        for key in ("embedding_size", "pooler_hidden_size"):
            if content.get(key) not in (None, found["hidden_size"]):
                raise ValueError(
                    f"`{key}` must be the hidden size, {found['hidden_size']!r}. "
                    f"Received: {content[key]!r} in {source}"
                )
        if content.get("pooler_dropout", 0) != 0:
            logging.warning(
                "kbert's pooler has no dropout before it; not used: pooler_dropout, %s, in %s",
                *(content["pooler_dropout"], source),
            )
        distance = _count(content, "max_relative_positions", -1, source)
        buckets = _count(content, "position_buckets", -1, source)
        if buckets < 1:
            raise ValueError(
                "`position_buckets` must be given: kbert's disentangled attention has buckets of "
                f"distances. Received: {buckets} in {source}"
            )
        part: dict[str, Any] = {
            "name": PART,
            "position_buckets": buckets,
            "max_distance": found["max_positions"] if distance < 1 else distance,
        }
        terms = _read_terms(content.get("pos_att_type"), source)
        if len(terms) < len(_TERMS):
            part["terms"] = terms
        return {**found, "part": part}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        options = {**USUAL, **config.part}
        distance = options["max_distance"]
        return {
            **super().write_fields(config, tokenizer),
            **_ATTENTION,
            "position_buckets": options["position_buckets"],
            "max_relative_positions": -1 if distance == config.max_positions else distance,
            "pos_att_type": "|".join(
                there for there, here in _TERMS.items() if here in options["terms"]
            ),
            "pooler_dropout": 0,
            "pooler_hidden_act": next(
                there
                for there, here in ACTIVATIONS.items()
                if here == (config.pooler_activation or "gelu")
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
        found = super().misfits(config)
        if config.part is None or config.part["name"] != PART:
            found.append(f"its part is {PART!r}")
        return found


def _renamed(rule: Rule) -> Rule:
    """The rule of BERT's with the names that projections have here."""
    inner = ".attention.self."
    sources = []
    for source in rule.sources:
        before, found, after = source.partition(inner)
        part, _, kind = after.partition(".")
        sources.append(f"{before}{inner}{part}_proj.{kind}" if found else source)
    return Rule(rule.name, tuple(sources), transpose=rule.transpose, aliases=rule.aliases)


def _of_legacy(name: str) -> str:
    if name == _OTHER_BIAS:
        return _BIAS
    known = name.startswith(_OTHER_HEAD)
    return _HEAD + name.removeprefix(_OTHER_HEAD) if known else name


def _count(content: Mapping[str, Any], key: str, absent: int, source: str) -> int:
    value = content.get(key, absent)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"`{key}` must be a whole number. Received: {value!r} in {source}")
    return value


def _read_terms(said: Any, source: str) -> list[str]:
    """`pos_att_type`, a list or with bars between, in the order of the part's."""
    names = [x.strip() for x in said.lower().split("|")] if isinstance(said, str) else said
    if not isinstance(names, list) or not names or any(x not in list(_TERMS) for x in names):
        raise ValueError(
            f"`pos_att_type` must name {' or '.join(_TERMS)}, or both. "
            f"Received: {said!r:.80} in {source}"
        )
    return [term for term in USUAL["terms"] if any(_TERMS[name] == term for name in names)]
