"""Hugging Face's MobileBERT. transformers has no class for its teacher, IB-BERT.

(Sun et al. 2020, https://arxiv.org/abs/2004.02984.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.architectures.base import (
    IGNORED,
    REQUIRED,
    Architecture,
    dense,
    fine_tuned_rules,
    norm,
)
from kbert.checkpoints.huggingface.architectures.bert import Bert, embedding_rules
from kbert.checkpoints.renames import Rule
from kbert.configs.encoder import IDENTITY, EncoderConfig
from kbert.core.protocols import TokenizerLike

# Default options of the part:
USUAL: dict[str, Any] = {
    "width": 128,
    "num_feed_forwards": 4,
    "attention_input": "own_bottleneck",
    "no_norm": True,
}
# (use_bottleneck_attention, key_query_shared_bottleneck) -> `attention_input`. With both, a layer
# would be unused.
_INPUTS = {
    (False, True): "own_bottleneck",
    (True, False): "bottleneck",
    (False, False): "whole",
}
_NORMS = {"no_norm": True, "layer_norm": False}
# Epsilon of LayerNorm there: two norms of each layer and that of the embeddings use PyTorch's
# default with any config.
_EPSILON = 1e-5
# Queries and keys read the hidden states, but their layers there have the bottleneck's width.
_NO_TEACHER = (
    "`intra_bottleneck_size` must be the hidden size without `use_bottleneck_attention` and "
    "`key_query_shared_bottleneck`: transformers' class supports no other"
)
_READ = {
    "intra_bottleneck_size": 128,
    "use_bottleneck_attention": False,
    "key_query_shared_bottleneck": True,
    "num_feedforward_networks": 4,
    "normalization_type": "no_norm",
    "classifier_activation": True,
}


class MobileBert(Architecture):
    """MobileBERT: layers with another width inside, and an optional pooler."""

    model_type = "mobilebert"
    part = "bottleneck"
    title = "MobileBERT"
    class_prefix = "MobileBert"
    prefix = "mobilebert"
    heads = Bert.heads
    fields: ClassVar[Mapping[str, str]] = {**Bert.fields, "embedding_size": "embedding_size"}
    defaults: ClassVar[Mapping[str, Any]] = {
        **Bert.defaults,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.0,
        "embedding_size": 128,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        "trigram_input": (True, None),
        "use_bottleneck": (True, None),
        "use_bottleneck_attention": (False, True),
        "key_query_shared_bottleneck": (True, False),
        "normalization_type": tuple(_NORMS),
        "classifier_activation": (True, False),
    }
    # Read in `read_fields`; the last one follows from the others.
    ignored = IGNORED | {
        "intra_bottleneck_size",
        "num_feedforward_networks",
        "true_hidden_size",
    }
    unsaid: ClassVar[Mapping[str, Any]] = {}
    own_fields = (*Architecture.own_fields, "part", "pooler_activation")
    head_dropouts = Bert.head_dropouts
    pooler_activations = ("tanh", IDENTITY)
    factorised = True
    sentence_objective = "next_sentence"
    sentence_class = "ForNextSentencePrediction"

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        transform = "cls.predictions.transform"
        return [
            *embedding_rules("mobilebert.embeddings", ("cls.predictions.decoder.weight",)),
            Rule(
                "encoder/embeddings/segment",
                ("mobilebert.embeddings.token_type_embeddings.weight",),
            ),
            *dense(
                "encoder/embeddings/projection", "mobilebert.embeddings.embedding_transformation"
            ),
            *(rule for layer in range(config.num_layers) for rule in _layer(config, layer)),
            *dense("encoder/pooler", "mobilebert.pooler.dense"),
            *dense("masked_lm/transform", f"{transform}.dense"),
            *norm("masked_lm/norm", f"{transform}.LayerNorm"),
            Rule("masked_lm/columns", ("cls.predictions.dense.weight",), transpose=True),
            Rule(
                "masked_lm/bias",
                ("cls.predictions.bias",),
                aliases=("cls.predictions.decoder.bias",),
            ),
            *dense("sentence/dense", "cls.seq_relationship"),
            *fine_tuned_rules(head, "classifier"),
        ]

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        values = {key: content.get(key, usual) for key, usual in _READ.items()}
        inputs = values["use_bottleneck_attention"], values["key_query_shared_bottleneck"]
        if inputs not in _INPUTS:
            raise ValueError(
                "`use_bottleneck_attention` and `key_query_shared_bottleneck` must not both be "
                f"true: the layer of the second would not be used. Received: both in {source}"
            )
        width, hidden = values["intra_bottleneck_size"], fields["hidden_size"]
        if _INPUTS[inputs] == "whole" and width != hidden:
            raise ValueError(f"{_NO_TEACHER}. Received: {width!r} and {hidden!r} in {source}")
        no_norm = _NORMS[values["normalization_type"]]
        if not no_norm and fields["layer_norm_epsilon"] != _EPSILON:
            raise ValueError(
                f"`layer_norm_eps` must be {_EPSILON} with normalization_type='layer_norm': some "
                f"norms of Hugging Face's {self.title} have this epsilon with any config, and all "
                "of kbert's norms have the same one. Received: "
                f"layer_norm_eps={fields['layer_norm_epsilon']!r} in {source}"
            )
        options = {
            "width": values["intra_bottleneck_size"],
            "num_feed_forwards": values["num_feedforward_networks"],
            "attention_input": _INPUTS[inputs],
            "no_norm": no_norm,
        }
        part = {name: value for name, value in options.items() if value != USUAL[name]}
        return {
            **fields,
            "part": {"name": self.part, **part},
            # None = the weights decide.
            "pooler_activation": None if values["classifier_activation"] else IDENTITY,
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        options = {**USUAL, **config.part}
        inputs = {name: keys for keys, name in _INPUTS.items()}[options["attention_input"]]
        return {
            **super().write_fields(config, tokenizer),
            "embedding_size": config.embedding_width,
            "intra_bottleneck_size": options["width"],
            "use_bottleneck_attention": inputs[0],
            "key_query_shared_bottleneck": inputs[1],
            "num_feedforward_networks": options["num_feed_forwards"],
            "normalization_type": "no_norm" if options["no_norm"] else "layer_norm",
            "classifier_activation": config.pooler_activation != IDENTITY,
        }

    def misfits(self, config: EncoderConfig) -> list[str]:
        misfits = super().misfits(config)
        if config.part is None or config.part["name"] != self.part:
            return [*misfits, f"its part is {self.part!r}"]
        options = {**USUAL, **config.part}
        if options["attention_input"] == "whole" and options["width"] != config.hidden_size:
            misfits.append("its `width` is the hidden size with attention_input='whole'")
        if not options["no_norm"] and config.layer_norm_epsilon != _EPSILON:
            misfits.append(f"some of its norms have the epsilon {_EPSILON} without NoNorm")
        if not config.output_columns:
            misfits.append("its embeddings are narrower than its layers")
        return misfits


def _layer(config: EncoderConfig, layer: int) -> list[Rule]:
    """Returns the rules for all weights of layer number `layer`."""
    path, module = f"encoder/layers/{layer}", f"mobilebert.encoder.layer.{layer}"
    options = {**USUAL, **(config.part or {})}
    attention = f"{module}.attention.self"
    table = [
        *dense(f"{path}/bottleneck", f"{module}.bottleneck.input.dense"),
        *norm(f"{path}/bottleneck/norm", f"{module}.bottleneck.input.LayerNorm"),
        *dense(f"{path}/attention/output", f"{module}.attention.output.dense"),
        *norm(f"{path}/attention_norm", f"{module}.attention.output.LayerNorm"),
        *dense(f"{path}/feed_forward/intermediate", f"{module}.intermediate.dense"),
        *dense(f"{path}/feed_forward/output", f"{module}.output.dense"),
        *norm(f"{path}/feed_forward_norm", f"{module}.output.LayerNorm"),
        *dense(f"{path}/output", f"{module}.output.bottleneck.dense"),
        *norm(f"{path}/output_norm", f"{module}.output.bottleneck.LayerNorm"),
    ]
    if options["attention_input"] == "own_bottleneck":
        own_bottleneck = f"{path}/attention/bottleneck"
        table += [
            *dense(own_bottleneck, f"{module}.bottleneck.attention.dense"),
            *norm(f"{own_bottleneck}/norm", f"{module}.bottleneck.attention.LayerNorm"),
            *dense(f"{path}/attention/query_key", f"{attention}.query", f"{attention}.key"),
            *dense(f"{path}/attention/value", f"{attention}.value"),
        ]
    else:
        parts = (f"{attention}.{part}" for part in ("query", "key", "value"))
        table += dense(f"{path}/attention/qkv", *parts)
    for i in range(options["num_feed_forwards"] - 1):
        stacked, stacked_module = f"{path}/stacked_{i}", f"{module}.ffn.{i}"
        table += [
            *dense(f"{stacked}/intermediate", f"{stacked_module}.intermediate.dense"),
            *dense(f"{stacked}/output", f"{stacked_module}.output.dense"),
            *norm(f"{stacked}_norm", f"{stacked_module}.output.LayerNorm"),
        ]
    return table
