"""Hugging Face's BART, and the models whose code there is BART's: mBART, Marian, PEGASUS.

(Lewis et al. 2020, https://arxiv.org/abs/1910.13461; Liu et al. 2020,
https://arxiv.org/abs/2001.08210; Junczys-Dowmunt et al. 2018, https://arxiv.org/abs/1804.00344;
Zhang et al. 2020, https://arxiv.org/abs/1912.08777.)
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.huggingface.architectures.base import (
    UNREAD,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.huggingface.architectures.encoder_decoders import (
    EncoderDecoder,
    flat_bias,
)
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays
from kbert.layers.positions import sinusoids

_OFFSET = 2  # rows of the position tables before that of the first token; no token reads them
_SIDES = ("encoder", "decoder")
_EPSILON = 1e-5  # PyTorch's default
_HALF = 2.0**-8  # largest rounding error of bfloat16 below 1
_NO_LAYER_DROP = (0.0, 0, None)
_END_ID = 2  # BART's, with which its targets also begin
_HEADS = ("classification_head.", "qa_outputs.")  # of classes and of answers


def _fixed(normalize_before: bool, normalize_embedding: bool, sines: bool) -> dict[str, tuple]:
    """Returns keys of old configs, whose code was one class for all four models."""
    return {
        "normalize_before": (normalize_before,),
        "add_final_layer_norm": (normalize_before,),
        "normalize_embedding": (normalize_embedding,),
        "static_position_embeddings": (sines,),
        "add_bias_logits": (False,),
        "do_blenderbot_90_layernorm": (False, None),
    }


class Bart(EncoderDecoder):
    """BART: norms after each part, and normalised embeddings with learned positions.

    Of a classifier, `classification_head.dense` is the pooler of `kbert.models.Seq2SeqEncoder`.
    """

    model_type = "bart"
    title = "BART"
    class_prefix = "Bart"
    prefix = "model"
    heads = ("lm_head.", "final_logits_bias", *_HEADS)
    unread = rf"{UNREAD}|^model\.(encoder|decoder)\.version$"  # the latter in old files
    head_dropouts: ClassVar[Mapping[str, Any]] = {"classifier": ("classifier_dropout", 0.0)}
    # Whether rows of its classifiers and readers are those of `kbert.models.Seq2SeqEncoder`.
    reads_rows: ClassVar[bool] = True
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocabulary_size",
        "d_model": "hidden_size",
        "encoder_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "encoder_attention_heads": "num_heads",
        "encoder_ffn_dim": "intermediate_size",
        "max_position_embeddings": "max_positions",
        "activation_function": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
        "init_std": "initializer_range",
        "scale_embedding": "scale_embeddings",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 1024,
        "activation_function": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "init_std": 0.02,
        "scale_embedding": False,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **EncoderDecoder.required,
        **_fixed(normalize_before=False, normalize_embedding=True, sines=False),
        "encoder_layerdrop": _NO_LAYER_DROP,
        "decoder_layerdrop": _NO_LAYER_DROP,
        "tie_word_embeddings": (True, None),
    }
    # The decoder's sizes are compared with the encoder's; the last two repeat other keys.
    ignored = EncoderDecoder.ignored | frozenset(
        "decoder_attention_heads decoder_ffn_dim extra_pos_embeddings "
        "force_bos_token_to_be_generated".split()
    )
    own_fields: ClassVar[tuple[str, ...]] = ("output_bias",)
    fixed: ClassVar[Mapping[str, Any]] = {
        "positions": "learned",
        "embeddings": "normalised",
        "block": "post_norm",
        "layer_norm_epsilon": _EPSILON,
    }
    unsaid: ClassVar[Mapping[str, Any]] = {"output_bias": False}

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        copies = tuple(f"model.{side}.embed_tokens.weight" for side in _SIDES)
        if config.target_vocabulary_size is None:
            aliases = (*copies, "lm_head.weight")
            table = [Rule("seq2seq/embeddings/token", ("model.shared.weight",), aliases=aliases)]
        else:
            table = [
                Rule("seq2seq/embeddings/token", copies[:1]),
                Rule("seq2seq/target_embeddings/token", copies[1:], aliases=("lm_head.weight",)),
            ]
        table.append(Rule("seq2seq/output_bias/bias", ("final_logits_bias",)))
        slot = {"post_norm": "_norm", "pre_norm": "_input_norm"}[config.block]
        layers = {"encoder": config.num_layers, "decoder": config.decoder_layers}
        for side in _SIDES:
            here, there = f"seq2seq/{side}", f"model.{side}"
            positions = (f"{there}.embed_positions.weight",)
            if config.positions == "learned":
                table.append(Rule(f"{here}_positions/position", positions))
            table += norm(f"{here}_embedding_norm", f"{there}.layernorm_embedding")
            table += norm(f"{here}_norm", f"{there}.layer_norm")
            for i in range(layers[side]):
                block, layer = f"{here}_layers/{i}", f"{there}.layers.{i}"
                queries = [f"{layer}.self_attn.{x}_proj" for x in "qkv"]
                table += dense(f"{block}/attention/qkv", *queries)
                table += dense(f"{block}/attention/output", f"{layer}.self_attn.out_proj")
                table += norm(f"{block}/attention{slot}", f"{layer}.self_attn_layer_norm")
                table += dense(f"{block}/feed_forward/intermediate", f"{layer}.fc1")
                table += dense(f"{block}/feed_forward/output", f"{layer}.fc2")
                table += norm(f"{block}/feed_forward{slot}", f"{layer}.final_layer_norm")
                if side == "decoder":
                    cross, other = f"{block}/cross_attention", f"{layer}.encoder_attn"
                    table += dense(f"{cross}/query", f"{other}.q_proj")
                    table += dense(f"{cross}/key_value", f"{other}.k_proj", f"{other}.v_proj")
                    table += dense(f"{cross}/output", f"{other}.out_proj")
                    table += norm(f"{cross}{slot}", f"{layer}.encoder_attn_layer_norm")
        return [*table, *(self._head_rules(head) if self.reads_rows else ())]

    def _head_rules(self, head: str | None) -> list[Rule]:
        """Returns the rules of the heads of classes and answers; `head` is that of `rules`."""
        inner = dense("pooler", "classification_head.dense") if head == "classifier" else ()
        return [*inner, *fine_tuned_rules(head, "classification_head.out_proj")]

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        has_classes = self.reads_rows and "classification_head.out_proj.weight" in arrays
        return "classifier" if has_classes else None

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        sizes = {"attention_heads": "num_heads", "ffn_dim": "intermediate_size"}
        for key, field in sizes.items():
            size = content.get(f"decoder_{key}", fields[field])
            if size != fields[field]:
                raise ValueError(
                    f"`decoder_{key}` must be equal to `encoder_{key}` in a config of "
                    f"{self.title} that kbert supports. Received: {size!r} and {fields[field]!r} "
                    f"in {source}"
                )
        if fields["scale_embeddings"] is False:
            fields["scale_embeddings"] = None  # the default with this `initializer_range`
        return fields

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        return {
            **super().write_fields(config, tokenizer),
            "decoder_attention_heads": config.num_heads,
            "decoder_ffn_dim": config.intermediate_size,
            "scale_embedding": config.embedding_scale != 1.0,
        }

    def misfits(self, config: Any) -> list[str]:
        return [] if config.initializer_range else ["it has an initializer_range"]

    def head_keys(self, arrays: Arrays, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        if tokenizer is None or not {"classifier/dense/kernel", "span/dense/kernel"} & {*arrays}:
            return {}
        return {"decoder_start_token_id": tokenizer.sep_id}

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        start, end = (content.get(f"{x}_token_id", _END_ID) for x in ("decoder_start", "eos"))
        if self.reads_rows and _has_heads(arrays) and start != end:
            raise ValueError(
                f"A head of {self.title} requires targets that begin with the end token: "
                "`decoder_start_token_id` must be equal to `eos_token_id`. Received: "
                f"{start!r} and {end!r}"
            )
        folded = flat_bias(arrays)
        for side in _SIDES:
            name = f"model.{side}.embed_positions.weight"
            if self.fixed["positions"] == "learned" and name in folded:
                folded[name] = folded[name][_OFFSET:]
        return folded

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        unfolded = dict(arrays)
        rows = len(unfolded.get("lm_head.weight", ())) or content["vocab_size"]
        if not _has_heads(arrays):
            unfolded.setdefault("final_logits_bias", np.zeros(rows, np.float32))
        if "final_logits_bias" in unfolded:
            unfolded["final_logits_bias"] = unfolded["final_logits_bias"].reshape(1, -1)
        for side in _SIDES:
            name = f"model.{side}.embed_positions.weight"
            if name in unfolded:
                unfolded[name] = np.pad(unfolded[name], ((_OFFSET, 0), (0, 0)))
        return unfolded

    def settled(self, config: Any, arrays: Arrays, content: Mapping[str, Any]) -> Any:
        return config.replace(output_bias="seq2seq/output_bias/bias" in arrays)


def _has_heads(names: Iterable[str]) -> bool:
    """Whether names in transformers include a head of classes or of answers."""
    return any(name.startswith(_HEADS) for name in names)


class MBart(Bart):
    """mBART: norms before each part and on each side's output.

    Its rows end in the code of a language, and its classifiers read the token before it.
    """

    model_type = "mbart"
    title = "mBART"
    class_prefix = "MBart"
    reads_rows = False
    required: ClassVar[Mapping[str, tuple]] = {
        **Bart.required,
        **_fixed(normalize_before=True, normalize_embedding=True, sines=False),
    }
    fixed: ClassVar[Mapping[str, Any]] = {**Bart.fixed, "block": "pre_norm"}


class Pegasus(Bart):
    """PEGASUS: norms before each part, and sinusoidal positions."""

    model_type = "pegasus"
    title = "PEGASUS"
    class_prefix = "Pegasus"
    reads_rows = False
    unread = r"(^|\.)embed_positions\.weight$"
    required: ClassVar[Mapping[str, tuple]] = {
        **Bart.required,
        **_fixed(normalize_before=True, normalize_embedding=False, sines=True),
    }
    fixed: ClassVar[Mapping[str, Any]] = {
        **Bart.fixed,
        "positions": "sinusoidal_halves",
        "embeddings": "plain",
        "block": "pre_norm",
    }

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        folded = super().fold(arrays, content)
        for side in _SIDES:
            table = folded.get(f"model.{side}.embed_positions.weight")
            if table is None:
                continue
            rows, width = table.shape
            computed = sinusoids(rows, width, halves=True)
            if not np.allclose(table.astype("float32"), computed, atol=_HALF):
                raise ValueError(
                    f"The positions of {self.title} must be sines and cosines, which kbert "
                    f"computes. Received: other values in model.{side}.embed_positions.weight"
                )
        return folded


class Marian(Pegasus):
    """Marian: norms after each part; source and target may have a vocabulary each."""

    model_type = "marian"
    title = "Marian"
    class_prefix = "Marian"
    class_ending = "MTModel"
    required: ClassVar[Mapping[str, tuple]] = {
        **Bart.required,
        **_fixed(normalize_before=False, normalize_embedding=False, sines=True),
        "tie_word_embeddings": (True, None),
    }
    ignored = Pegasus.ignored | frozenset(
        ("decoder_vocab_size", "share_encoder_decoder_embeddings", "num_beam_hyps")
    )
    own_fields = (*Bart.own_fields, "target_vocabulary_size")
    fixed: ClassVar[Mapping[str, Any]] = {**Pegasus.fixed, "block": "post_norm"}

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        rows = content.get("decoder_vocab_size") or content["vocab_size"]
        if content.get("share_encoder_decoder_embeddings", True):
            if rows != content["vocab_size"]:
                raise ValueError(
                    "`decoder_vocab_size` must be equal to `vocab_size` if source and target "
                    f"share their embeddings. Received: {rows!r} in {source}"
                )
            return fields
        return {**fields, "target_vocabulary_size": rows}

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        settings = {} if tokenizer is None else tokenizer.settings
        language = settings.get("target_language")
        if tokenizer is not None and tokenizer.kind == "marian" and language:
            raise ValueError(
                "transformers' MarianTokenizer does not put a language before each text: write the "
                "code in the texts, and load the tokenizer with target_language=None before "
                f"writing. Received: a tokenizer with target_language={language!r}"
            )
        return {
            **super().write_fields(config, tokenizer),
            "decoder_vocab_size": config.target_rows,
            "share_encoder_decoder_embeddings": config.target_vocabulary_size is None,
        }
