"""Reads RoBERTa and XLM-R in fairseq's format: a folder with `model.pt`, a pickle never executed.

The file is a dict with `args` (an argparse.Namespace; newer files have `cfg`) and `model`, the
weights. It may contain training state too. The vocabulary's files next to it do not describe the
model. (fairseq/checkpoint_utils.py, models/roberta/model.py.)
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.checkpoints.checkpoint import Checkpoint, default_labels
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.checkpoints.pytorch.file import open_pytorch
from kbert.checkpoints.pytorch.pickles import Record
from kbert.core.types import Arrays
from kbert.io.arrays import widened
from kbert.io.paths import Path

MODEL_FILE = "model.pt"
READS = f"a RoBERTa of fairseq ({MODEL_FILE})"
# Key of fairseq's settings -> key of Hugging Face's config.
_SIZES = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
}
_OTHERS = {
    "activation_fn": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
# Setting -> the only value that is supported: any other is another model.
_REQUIRED = {
    "encoder_normalize_before": False,
    "untie_weights_roberta": False,
    "encoder_learned_pos": True,
    "no_token_positional_embeddings": False,
    "encoder_layers_to_keep": None,
    "spectral_norm_classification_head": False,
    "layernorm_embedding": True,
    "no_scale_embedding": True,
}
_REQUIRED_OF_HEADS = {"pooler_activation_fn": "tanh"}  # of the layer before the class logits
_ENCODER = re.compile(r"^(decoder|encoder)\.(sentence_encoder\.)?")
_LAYER = re.compile(r"^layers\.(\d+)\.(.+)\.(weight|bias)$")
_PACKED = re.compile(r"^layers\.(\d+)\.self_attn\.in_proj_(weight|bias)$")
_HEAD = re.compile(r"^classification_heads\.([^.]+)\.(dense|out_proj)\.(weight|bias)$")
_PARTS = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
_TABLES = {
    "embed_tokens": "embeddings.word_embeddings",
    "embed_positions": "embeddings.position_embeddings",
    # Before version 0.10, and since then.
    "emb_layer_norm": "embeddings.LayerNorm",
    "layernorm_embedding": "embeddings.LayerNorm",
}
_WORDS = "roberta.embeddings.word_embeddings.weight"
_POSITIONS = "roberta.embeddings.position_embeddings.weight"


def is_folder(folder: Path) -> bool:
    """Whether the folder has a file `model.pt`."""
    return (folder / MODEL_FILE).is_file()


def read_folder(folder: Path) -> Checkpoint:
    """Reads a fairseq folder, one for which `is_folder` is true.

    Args:
        folder: folder with `model.pt`.

    Returns:
        The checkpoint, including the head of a classifier if there is one.

    Raises:
        ValueError: the file is damaged, contains objects other than weights and settings, or has
            another model.
    """
    path = folder / MODEL_FILE
    file = open_pytorch(path, below="model")
    settings = _settings(file.beside, str(path))
    _require(_REQUIRED, settings, str(path))
    arrays: dict[str, np.ndarray] = {}
    unread_names = []
    classifiers = set()
    for name in file.keys():  # noqa: SIM118 (a file is no mapping)
        short = _ENCODER.sub("", name)
        if head := _HEAD.match(short):
            classifiers.add(head[1])
        if re.search(r"(^|\.)(version|_float_tensor)$", name):  # buffers of its layers
            unread_names.append(name)
        else:
            arrays |= _renamed(short, widened(file.get_tensor(name)))
    if len(classifiers) > 1:
        raise ValueError(
            "A model of fairseq must have at most one head for classes. Received: "
            f"{', '.join(sorted(classifiers))} in {path}"
        )
    for name in (_WORDS, _POSITIONS):
        if name not in arrays or arrays[name].ndim != 2:
            raise ValueError(
                "A RoBERTa of fairseq must have tables of tokens and positions. Received: no "
                f"{name} among {len(arrays)} arrays in {path}"
            )
    content = _config(settings, arrays)
    segment = np.zeros((1, arrays[_WORDS].shape[1]), np.float32)  # fairseq has no segments
    arrays["roberta.embeddings.token_type_embeddings.weight"] = segment
    if classifiers:
        _require(_REQUIRED_OF_HEADS, settings, str(path))
        content["architectures"] = ["RobertaForSequenceClassification"]
        bias = arrays.get("classifier.out_proj.bias", np.zeros(0))
        content["id2label"] = dict(enumerate(default_labels(bias.size)))
    checkpoint = import_model(content, arrays, str(path))
    return dataclasses.replace(checkpoint, left=(*checkpoint.left, *unread_names))


def _settings(beside: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Returns the model's settings, setting -> value, from `args` or else from `model` of `cfg`.

    Raises ValueError if the file has neither, or if a size of the model is missing or not an int.

    Args:
        beside: values of the file other than the weights, by key.
        source: name of the file, for the error message.
    """
    settings = beside.get("args")
    if settings is None and isinstance(beside.get("cfg"), dict):
        settings = beside["cfg"].get("model")
    if isinstance(settings, Record):
        settings = settings.state
    if not isinstance(settings, dict):
        raise ValueError(
            "A file of fairseq must contain the model's settings in `args`, or in `model` of "
            f"`cfg`. Received: neither in {source}"
        )
    missing = [key for key in _SIZES if type(settings.get(key)) is not int]
    if missing:
        raise ValueError(
            f"The settings of a RoBERTa of fairseq must include {', '.join(_SIZES)}. Received: no "
            f"{', '.join(missing)} in {source}"
        )
    return settings


def _require(required: Mapping[str, Any], settings: Mapping[str, Any], source: str) -> None:
    """Raises ValueError if a setting has another value than the required one.

    A setting that is absent or None passes.

    Args:
        required: setting -> required value.
        settings: setting -> value in the file.
        source: name of the file, for the error message.
    """
    for key, value in required.items():
        if settings.get(key, value) not in (value, None):
            raise ValueError(
                f"`{key}` must be {value!r} in a RoBERTa of fairseq that kbert supports. "
                f"Received: {settings[key]!r:.40} in {source}"
            )


def _config(settings: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Returns the content of a Hugging Face `config.json` for the same model.

    Args:
        settings: fairseq's settings of the model.
        arrays: name in Hugging Face's RoBERTa -> array; the tables give the vocabulary size and the
            number of positions.
    """
    return {
        "model_type": "roberta",
        "vocab_size": len(arrays[_WORDS]),
        "max_position_embeddings": len(arrays[_POSITIONS]),
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "layer_norm_eps": 1e-5,  # the default of PyTorch's LayerNorm, which fairseq uses
        **{config_key: settings[key] for key, config_key in _SIZES.items()},
        **{config_key: settings[key] for key, config_key in _OTHERS.items() if key in settings},
    }


def _renamed(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """Returns Hugging Face's name -> array for one weight of fairseq.

    Query, key and value packed in one array (before version 0.8) become three arrays. An unknown
    name stays unchanged.

    Args:
        name: name in fairseq, without the encoder's prefix.
        array: value of the weight.
    """
    if packed := _PACKED.match(name):  # before version 0.8
        layer, kind = packed.groups()
        parts = np.split(array, 3) if array.ndim and len(array) % 3 == 0 else [array] * 3
        return {
            f"roberta.encoder.layer.{layer}.{_PARTS[f'self_attn.{x}_proj']}.{kind}": part
            for x, part in zip("qkv", parts, strict=True)
        }
    if layer_match := _LAYER.match(name):
        layer, part, kind = layer_match.groups()
        if part in _PARTS:
            return {f"roberta.encoder.layer.{layer}.{_PARTS[part]}.{kind}": array}
    table, _, kind = name.rpartition(".")
    if table in _TABLES:
        return {f"roberta.{_TABLES[table]}.{kind}": array}
    if name == "lm_head.weight":
        return {"lm_head.decoder.weight": array}
    if head := _HEAD.match(name):
        return {f"classifier.{head[2]}.{head[3]}": array}
    return {name: array}
