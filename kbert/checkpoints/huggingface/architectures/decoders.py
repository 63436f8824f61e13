"""Base class of Hugging Face's GPT and GPT-2, whose kernels are not transposed."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from absl import logging

from kbert.checkpoints.huggingface.architectures.base import (
    IGNORED,
    REQUIRED,
    Architecture,
    dense,
    norm,
)
from kbert.checkpoints.renames import Rule
from kbert.configs.decoder import DecoderConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

# Attention masks and position numbers in files of older versions.
_BUFFERS = r"(^|\.)(h\.\d+\.attn\.(masked_)?bias|position_ids)$"


class DecoderArchitecture(Architecture):
    """A causal language model whose output matrix is tied to the token table."""

    config_class = DecoderConfig
    root = "decoder"
    task = "causal_lm"
    prefix = "transformer"
    # Sequence classifiers read only a text's last token, through a layer without bias; the text has
    # no input tokens around it.
    classifier_settings: ClassVar[Mapping[str, Any]] = {
        "dropout": 0.0,
        "both_orders": False,
        "auxiliary_lm_weight": 0.0,
        "input_tokens": False,
    }
    head_dropouts: ClassVar[Mapping[str, Any]] = {}
    heads = ("lm_head.", "multiple_choice_head.", "score.", "classifier.", "qa_outputs.")
    unread = _BUFFERS
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocabulary_size",
        "n_embd": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_positions": "max_positions",
        "embd_pdrop": "dropout",
        "resid_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
        "layer_norm_epsilon": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
    }
    required: ClassVar[Mapping[str, tuple]] = REQUIRED
    # Settings of the multiple-choice head; n_ctx repeats n_positions; no code reads the others.
    ignored = IGNORED | frozenset(
        "n_ctx n_special predict_special_tokens "
        "summary_activation summary_first_dropout summary_proj_to_labels summary_type "
        "summary_use_proj".split()
    )
    unsaid: ClassVar[Mapping[str, Any]] = {}
    own_fields: ClassVar[tuple[str, ...]] = ()
    # Names in transformers of token and position table; names in kbert of a layer's two norms.
    tables: tuple[str, str]
    norms: tuple[str, str]

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        token, position = (f"{self.prefix}.{table}.weight" for table in self.tables)
        table = [
            Rule("decoder/embeddings/token", (token,), aliases=("lm_head.weight",)),
            Rule("decoder/positions/position", (position,)),
        ]
        for i in range(config.num_layers):
            layer, their_layer = f"decoder/layers/{i}", f"{self.prefix}.h.{i}"
            parts = {
                "attention/qkv": "attn.c_attn",
                "attention/output": "attn.c_proj",
                "feed_forward/intermediate": "mlp.c_fc",
                "feed_forward/output": "mlp.c_proj",
            }
            for name, source in parts.items():
                table += kernel(f"{layer}/{name}", f"{their_layer}.{source}")
            for number, name in enumerate(self.norms, start=1):
                table += norm(f"{layer}/{name}", f"{their_layer}.ln_{number}")
        return [*table, *(dense("classifier/dense", "score") if head else ())]

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        return "classifier" if "score.weight" in arrays else None

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        folded = dict(arrays)
        token = f"{self.prefix}.{self.tables[0]}.weight"
        if token not in arrays and "lm_head.weight" in arrays:  # the tied copy instead
            folded[token] = folded.pop("lm_head.weight")
        if "score.weight" in arrays:
            weight = arrays["score.weight"]
            folded["score.bias"] = np.zeros(len(weight), weight.dtype)
        return folded

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        unfolded = dict(arrays)
        bias = unfolded.pop("score.bias", None)
        if bias is not None and bias.any():
            raise ValueError(
                f"A classifier on Hugging Face's {self.title} must have no bias. Received: a bias "
                f"of up to {np.abs(bias).max():.3g}"
            )
        return unfolded

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        embeddings = content.get("embd_pdrop", self.defaults["embd_pdrop"])
        if embeddings != fields["dropout"]:
            logging.warning(
                "kbert's decoder has one dropout rate, that of %s's resid_pdrop, %s; embd_pdrop "
                "is not used: %s in %s",
                *(self.title, fields["dropout"], embeddings, source),
            )
        return fields

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = {key: getattr(config, field) for key, field in self.fields.items()}
        if tokenizer is None:
            return fields
        # transformers stops generation at the end token.
        fields |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
        # Its classifiers find the last token by the padding id.
        return fields if tokenizer.pad_id is None else {**fields, "pad_token_id": tokenizer.pad_id}

    def misfits(self, config: Any) -> list[str]:
        return []


def kernel(name: str, source: str) -> tuple[Rule, Rule]:
    """Returns the rules of transformers' `Conv1D`, a dense layer: (inputs, outputs) as in kbert.

    Args:
        name: kbert's name of the layer.
        source: name of the layer in transformers.
    """
    return Rule(f"{name}/kernel", (f"{source}.weight",)), Rule(f"{name}/bias", (f"{source}.bias",))


def four_times(hidden_size: Any) -> Any:
    """Returns the usual width of the feed-forward part, four times the hidden width.

    A value that is not a number is returned unchanged: the config raises for it.
    """
    return 4 * hidden_size if isinstance(hidden_size, int) else hidden_size
