"""Hugging Face's MPNet: RoBERTa's inputs and heads without segments, and relative biases.

(Song et al. 2020, https://arxiv.org/abs/2004.09297.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import REQUIRED
from kbert.checkpoints.huggingface.architectures.roberta import Roberta
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike

# Default options of the part:
USUAL = {"num_buckets": 32, "max_distance": 128}
_PAD_ID = 1


class MpNet(Roberta):
    """MPNet: all layers share one table of relative biases."""

    model_type = "mpnet"
    part = "relative_bias"
    title = "MPNet"
    class_prefix = "MPNet"
    prefix = "mpnet"
    replaced_pooler = ("mpnet.pooler.dense.weight", "mpnet.pooler.dense.bias")
    fields: ClassVar[Mapping[str, str]] = {
        key: field for key, field in Roberta.fields.items() if field != "num_segments"
    }
    # The code there ignores the config's number of buckets and always uses this one.
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        "relative_attention_num_buckets": (USUAL["num_buckets"],),
    }
    ignored = Roberta.ignored | {"type_vocab_size"}  # there are no segments
    own_fields = (*Roberta.own_fields, "part")
    fixed: ClassVar[Mapping[str, Any]] = {"num_segments": 0}
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = {}

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = [_renamed(rule) for rule in super().rules(config, head)]
        source = "mpnet.encoder.relative_attention_bias.weight"
        return [*table, Rule("encoder/shared/table", (source,))]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        _check_padding(content.get("pad_token_id", _PAD_ID), source)
        return {**super().read_fields(content, source), "part": {"name": self.part}}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        if tokenizer is not None:
            _check_padding(tokenizer.pad_id, "the tokenizer")
        return super().write_fields(config, tokenizer)

    def misfits(self, config: Any) -> list[str]:
        misfits = super().misfits(config)
        if {**USUAL, **(config.part or {})} != {**USUAL, "name": self.part}:
            misfits.append(f"its part is {self.part!r} with the default buckets")
        if config.padding_id not in (None, _PAD_ID):
            misfits.append(f"its padding id is {_PAD_ID}")
        return misfits


def _check_padding(pad_id: Any, source: str) -> None:
    if pad_id != _PAD_ID:
        raise ValueError(
            f"The padding id must be {_PAD_ID}, as in every MPNet of Hugging Face, where "
            f"positions start after it. Received: {pad_id!r} in {source}"
        )


def _renamed(rule: Rule) -> Rule:
    """Returns a rule for RoBERTa's weights with MPNet's names of the attention."""
    sources = []
    for source in rule.sources:
        for old, new in _ATTENTION.items():
            source = source.replace(old, new)
        sources.append(source)
    return Rule(rule.name, tuple(sources), transpose=rule.transpose, aliases=rule.aliases)


_ATTENTION = {
    **{
        f".attention.self.{name}.": f".attention.attn.{name[0]}."
        for name in ("query", "key", "value")
    },
    ".attention.output.dense.": ".attention.attn.o.",
    ".attention.output.LayerNorm.": ".attention.LayerNorm.",
}
