"""Hugging Face's T5, with its version 1.1 and FLAN, and mT5.

(Raffel et al. 2020, https://arxiv.org/abs/1910.10683; Xue et al. 2021,
https://arxiv.org/abs/2010.11934.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from kbert.checkpoints.huggingface.architectures.encoder_decoders import EncoderDecoder
from kbert.checkpoints.renames import Rule
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_GATED, _GATED_GELU = "gated-", "gated-gelu"  # the second means the tanh form of GELU
_OUTPUT = "lm_head.weight"
_SHARED = "shared.weight"


class T5(EncoderDecoder):
    """T5: RMS norms before each part, no biases, and relative positions.

    Version 1.0 has ReLU, and logits of scaled states by the token table. Version 1.1 has gated GELU
    and a table of the output alone; its configs say `tie_word_embeddings: false`. The keys have no
    longest sequence but `n_positions` of old files, which no code reads there; without it kbert's
    is 512, and `config.replace(max_positions=…)` makes it longer without new weights.
    """

    model_type = "t5"
    title = "T5"
    class_prefix = "T5"
    prefix = ""
    heads = ("lm_head.", "classification_head.", "qa_outputs.")
    unread = r"EncDecAttention\.relative_attention_bias\.weight$"  # in old files
    fields: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocabulary_size",
        "d_model": "hidden_size",
        "num_layers": "num_layers",
        "num_decoder_layers": "num_decoder_layers",
        "num_heads": "num_heads",
        "d_ff": "intermediate_size",
        "d_kv": "head_size",
        "n_positions": "max_positions",
        "relative_attention_num_buckets": "num_buckets",
        "relative_attention_max_distance": "max_distance",
        "feed_forward_proj": "feed_forward",
        "dense_act_fn": "activation",
        "dropout_rate": "dropout",
        "layer_norm_epsilon": "layer_norm_epsilon",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_decoder_layers": None,
        "n_positions": 512,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "dense_act_fn": None,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
    }
    # The factor of initial values; the others are read below.
    ignored = EncoderDecoder.ignored | frozenset(
        "initializer_factor is_gated_act scale_decoder_outputs".split()
    )
    own_fields = ("attention_dropout", "activation_dropout", "output")
    fixed: ClassVar[Mapping[str, Any]] = {
        "positions": "relative",
        "block": "pre_norm",
        "norm": "rms",
        "use_bias": False,
        "scale_scores": False,
        "scale_embeddings": False,
        "output_dropout": True,
    }

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
        if config.output != "untied":
            copies.append(_OUTPUT)
        table = [Rule("seq2seq/embeddings/token", (_SHARED,), aliases=tuple(copies))]
        if config.output == "untied":
            table.append(Rule("seq2seq/output_table/token", (_OUTPUT,)))
        sides = {"encoder": config.num_layers, "decoder": config.decoder_layers}
        for side, layers in sides.items():
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            table.append(Rule(f"seq2seq/{side}_bias/table", (bias,)))
            table.append(Rule(f"seq2seq/{side}_norm/gamma", (f"{side}.final_layer_norm.weight",)))
            for i in range(layers):
                block, their_block = f"seq2seq/{side}_layers/{i}", f"{side}.block.{i}.layer"
                parts: list[tuple[str, str, dict[str, tuple[str, ...]]]] = [
                    ("attention", "SelfAttention", {"qkv": ("q", "k", "v"), "output": ("o",)})
                ]
                if side == "decoder":
                    crossed = {"query": ("q",), "key_value": ("k", "v"), "output": ("o",)}
                    parts.append(("cross_attention", "EncDecAttention", crossed))
                inner: tuple[str, ...] = ("wi",)
                if config.feed_forward == "gated":
                    inner = ("wi_0", "wi_1")
                parts.append(
                    ("feed_forward", "DenseReluDense", {"intermediate": inner, "output": ("wo",)})
                )
                for number, (part, theirs, kernels) in enumerate(parts):
                    layer = f"{their_block}.{number}"
                    for name, sources in kernels.items():
                        weights = tuple(f"{layer}.{theirs}.{x}.weight" for x in sources)
                        table.append(Rule(f"{block}/{part}/{name}/kernel", weights, transpose=True))
                    scale = (f"{layer}.layer_norm.weight",)
                    table.append(Rule(f"{block}/{part}_input_norm/gamma", scale))
        return table

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        if fields["hidden_size"] == fields["head_size"] * fields["num_heads"]:
            fields["head_size"] = None
        rate = fields["dropout"]
        # transformers derives `dense_act_fn` and `is_gated_act` from `feed_forward_proj`, but their
        # own keys replace what it says.
        projection = str(fields["feed_forward"])
        name = "gelu_new" if projection == _GATED_GELU else projection.removeprefix(_GATED)
        gated = content.get("is_gated_act", projection.startswith(_GATED))
        return {
            **fields,
            "activation": content.get("dense_act_fn", name),
            "feed_forward": "gated" if gated else "dense",
            "attention_dropout": rate,
            "activation_dropout": rate,
            "output": self._output(content),
        }

    def _output(self, content: Mapping[str, Any]) -> str:
        """Returns the `output` of the config; `settled` corrects it if the weights are tied.

        transformers 5 ties them whatever the config says, unless a file has two tables. There
        `tie_word_embeddings` only decides whether states are scaled; a later file repeats that in
        `scale_decoder_outputs`.
        """
        scaled = content.get("scale_decoder_outputs")
        if scaled is None:
            scaled = content.get("tie_word_embeddings", True) is not False
        return "tied_scaled" if scaled else "untied"

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        fields = super().write_fields(config, tokenizer)
        projection = next(x for x, name in self.activations.items() if name == config.activation)
        if config.feed_forward == "gated":
            projection = _GATED_GELU if projection == "gelu_new" else f"{_GATED}{projection}"
        return {
            **fields,
            "feed_forward_proj": projection,
            "d_kv": config.head_size or config.hidden_size // config.num_heads,
            "tie_word_embeddings": config.output == "tied_scaled",
        }

    def misfits(self, config: Any) -> list[str]:
        reasons = []
        rates = {config.dropout, config.attention_dropout, config.activation_dropout}
        if len(rates) > 1:
            reasons.append("it has one dropout rate")
        return reasons

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        folded = dict(arrays)
        output, shared = folded.get(_OUTPUT), folded.get(_SHARED)
        if output is not None and shared is not None and np.array_equal(output, shared):
            del folded[_OUTPUT]  # a copy
        return folded

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        # Versions before 5 scale states unless the tables are said to be two: so both are written.
        if content["tie_word_embeddings"] or _SHARED not in arrays:
            return arrays
        return {_OUTPUT: arrays[_SHARED], **arrays}

    def settled(self, config: Any, arrays: Arrays, content: Mapping[str, Any]) -> Any:
        has_output = "seq2seq/output_table/token" in arrays
        is_tied = config.output == "untied" and not has_output
        return config.replace(output="tied") if is_tied else config


class MT5(T5):
    """mT5: states are never scaled."""

    model_type = "mt5"
    title = "mT5"
    class_prefix = "MT5"
    defaults: ClassVar[Mapping[str, Any]] = {**T5.defaults, "feed_forward_proj": "gated-gelu"}

    def _output(self, content: Mapping[str, Any]) -> str:
        return "untied"

    def misfits(self, config: Any) -> list[str]:
        scaled = ["it does not scale states"] if config.output == "tied_scaled" else []
        return [*super().misfits(config), *scaled]
