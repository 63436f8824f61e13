"""Hugging Face's BERT: its `config.json` and its weight names, in both directions.

(transformers, models/bert/configuration_bert.py and modeling_bert.py.)
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.checkpoints.renames import Rule, read_arrays, write_arrays
from kbert.config import EncoderConfig

# Key there -> field here.
_FIELDS = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_segments",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
}
# What transformers takes for a key that is absent.
_DEFAULTS = {
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
}
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
# Keys that change the model unless they have this value.
_REQUIRED = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "tie_word_embeddings": (True, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
# Keys that say nothing about the encoder's function.
_IGNORED = frozenset(
    "_name_or_path architectures bos_token_id chunk_size_feed_forward classifier_dropout "
    "cross_attention_hidden_size directionality dtype eos_token_id finetuning_task "
    " gradient_checkpointing id2label label2id num_labels output_attentions "
    "output_hidden_states output_past pad_token_id pooler_fc_size pooler_num_attention_heads "
    "pooler_num_fc_layers pooler_size_per_head pooler_type prefix problem_type return_dict "
    "sep_token_id task_specific_params tokenizer_class torch_dtype torchscript "
    "transformers_version use_bfloat16 use_cache _attn_implementation_autoset".split()
)
# Weights of heads that an encoder leaves alone, and buffers that hold no knowledge.
_OTHER_HEADS = re.compile(r"^(cls|classifier|qa_outputs)\.")
_BUFFERS = re.compile(r"(^|\.)embeddings\.(position_ids|token_type_ids)$")


def read_config(content: Mapping[str, Any], source: str) -> EncoderConfig:
    """A BERT `config.json` -> EncoderConfig. Every key is used or known to say nothing.

    `hidden_act` decides the form of GELU: "gelu" is the erf form there.

    Args:
        content: the JSON object.
        source: where it is from, for messages.

    Returns:
        The config, with a pooler; whether the weights hold one is another matter.

    Raises:
        ValueError: an unknown key, or a value that kbert's encoder has no equal for.

    Example:
        >>> read_config({"model_type": "bert", "vocab_size": 10, "hidden_size": 4,
        ...              "num_hidden_layers": 1, "num_attention_heads": 2,
        ...              "intermediate_size": 8}, "memory").activation
        'gelu'
    """
    for key, allowed in _REQUIRED.items():
        if key in content and content[key] not in allowed:
            raise ValueError(
                f"`{key}` must be {allowed[0]!r} in a Hugging Face config that kbert reads. "
                f"Received: {content[key]!r} in {source}"
            )
    unknown = [k for k in content if not (k in _FIELDS or k in _REQUIRED or k in _IGNORED)]
    if unknown:
        raise ValueError(
            "Every key of a config must be understood, or the model may be another one. "
            f"Received: unknown {', '.join(unknown)} in {source}"
        )
    missing = [k for k in _FIELDS if k not in content and k not in _DEFAULTS]
    if missing:
        raise ValueError(f"A BERT config must give {', '.join(missing)}. Received: {source}")
    fields = {field: content.get(key, _DEFAULTS.get(key)) for key, field in _FIELDS.items()}
    if fields["activation"] not in _ACTIVATIONS:
        raise ValueError(
            f"`hidden_act` must be one of {', '.join(_ACTIVATIONS)}. "
            f"Received: {fields['activation']!r} in {source}"
        )
    fields["activation"] = _ACTIVATIONS[fields["activation"]]
    return EncoderConfig(**fields)


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """EncoderConfig -> the content of a BERT `config.json`, the reverse of `read_config`.

    Args:
        config: the encoder's; no more than Hugging Face's BERT can be.

    Returns:
        The JSON object.

    Raises:
        ValueError: the encoder has factorised embeddings, shared layers or another pooler.
    """
    same = config.embedding_width == config.hidden_size and config.num_blocks == config.num_layers
    if not same or config.pooler_activation not in ("tanh", None) or not config.num_segments:
        raise ValueError(
            "Hugging Face's BERT has embeddings of the hidden width, segments, a block for each "
            f"layer and a pooler with tanh or none. Received: {config}"
        )
    activations = {here: there for there, here in reversed(_ACTIVATIONS.items())}
    fields = {key: getattr(config, field) for key, field in _FIELDS.items()}
    return {"model_type": "bert", **fields, "hidden_act": activations[config.activation]}


def rules(config: EncoderConfig) -> list[Rule]:
    """The table of names: encoder, masked-LM head and next-sentence head.

    Args:
        config: the encoder's; says how many layers there are.
    """
    table = [
        Rule(
            "encoder/embeddings/token",
            ("bert.embeddings.word_embeddings.weight",),
            aliases=("cls.predictions.decoder.weight",),
        ),
        Rule("encoder/embeddings/position", ("bert.embeddings.position_embeddings.weight",)),
        Rule("encoder/embeddings/segment", ("bert.embeddings.token_type_embeddings.weight",)),
        *_norm("encoder/embeddings/norm", "bert.embeddings.LayerNorm"),
    ]
    for i in range(config.num_layers):
        here, there = f"encoder/layers/{i}", f"bert.encoder.layer.{i}"
        parts = [f"{there}.attention.self.{part}" for part in ("query", "key", "value")]
        table += [
            *_dense(f"{here}/attention/qkv", *parts),
            *_dense(f"{here}/attention/output", f"{there}.attention.output.dense"),
            *_norm(f"{here}/attention_norm", f"{there}.attention.output.LayerNorm"),
            *_dense(f"{here}/feed_forward/intermediate", f"{there}.intermediate.dense"),
            *_dense(f"{here}/feed_forward/output", f"{there}.output.dense"),
            *_norm(f"{here}/feed_forward_norm", f"{there}.output.LayerNorm"),
        ]
    return [
        *table,
        *_dense("encoder/pooler", "bert.pooler.dense"),
        *_dense("masked_lm/transform", "cls.predictions.transform.dense"),
        *_norm("masked_lm/norm", "cls.predictions.transform.LayerNorm"),
        Rule(
            "masked_lm/bias", ("cls.predictions.bias",), aliases=("cls.predictions.decoder.bias",)
        ),
        *_dense("sentence/dense", "cls.seq_relationship"),
    ]


def read_weights(
    config: EncoderConfig, arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Hugging Face's arrays -> kbert's names.

    Takes files with or without the prefix `bert.`, and with the `gamma`/`beta` of old ones.

    Args:
        config: the encoder's.
        arrays: name there -> array.

    Returns:
        name here -> array (encoder, and the heads that are there), and what is left: nothing but
        heads of other tasks if the file is a BERT of this config.
    """
    normalised = {_modern_name(name): array for name, array in arrays.items()}
    if not any(name.startswith("bert.") for name in normalised):
        normalised = {
            name if _OTHER_HEADS.match(name) else f"bert.{name}": array
            for name, array in normalised.items()
        }
    here, rest = read_arrays(rules(config), normalised)
    unread = {
        name: array
        for name, array in rest.items()
        if not (_BUFFERS.search(name) or _OTHER_HEADS.match(name))
    }
    return here, unread


def write_weights(config: EncoderConfig, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """kbert's arrays -> Hugging Face's names, the reverse of `read_weights`."""
    return write_arrays(rules(config), arrays)


def _dense(name, *sources):
    return (
        Rule(f"{name}/kernel", tuple(f"{source}.weight" for source in sources), transpose=True),
        Rule(f"{name}/bias", tuple(f"{source}.bias" for source in sources)),
    )


def _norm(name, source):
    return Rule(f"{name}/gamma", (f"{source}.weight",)), Rule(f"{name}/beta", (f"{source}.bias",))


def _modern_name(name):
    return re.sub(
        r"LayerNorm\.(gamma|beta)$",
        lambda match: "LayerNorm." + {"gamma": "weight", "beta": "bias"}[match[1]],
        name,
    )
