"""Reads weights that KerasNLP published before it had presets (0.3 to 0.6): one file, `model.h5`.

The file is in Keras 2's format: one group per layer, with variables by name. The config was in the
library's code. So the class is inferred from the layers, and the sizes from the shapes. The number
of ALBERT's layers cannot be inferred, because they share weights. A `config.json` with `class_name`
and `config`, as in later presets, is used instead.
(keras_nlp 0.4.1, models/<name>/<name>_backbone.py and layers/transformer_encoder.py.)
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.hdf5 import open_datasets
from kbert.checkpoints.keras_hub.checkpoint import (
    CONFIG_FILE,
    make_checkpoint,
    read_config,
    read_config_file,
)
from kbert.checkpoints.keras_hub.names import BACKBONES, Backbone
from kbert.core.types import Arrays
from kbert.io.paths import Path

WEIGHTS_FILE = "model.h5"
READS = "a folder of KerasNLP before 0.7 (model.h5)"
_BLOCK = re.compile(r"(transformer_layer_\d+|group_\d+_inner_layer_0)/")
# Inside a block Keras 2 numbered layers of the same kind; the first has the lower number.
_PARTS = {
    "layer_normalization": ("self_attention_layer_norm", "feedforward_layer_norm"),
    "dense": ("feedforward_intermediate_dense", "feedforward_output_dense"),
    "multi_head_attention": ("self_attention_layer",),
}
_NUMBER = re.compile(r"_?(\d*)$")


def is_folder(folder: Path) -> bool:
    """Whether the folder has a `model.h5`."""
    return (folder / WEIGHTS_FILE).is_file()


def read_folder(folder: Path) -> Checkpoint:
    """Reads a KerasNLP folder, one for which `is_folder` is true.

    Args:
        folder: folder with `model.h5`; `config.json` is optional.

    Returns:
        The checkpoint.

    Raises:
        ValueError: a file is damaged, or of another model.
    """
    path = folder / WEIGHTS_FILE
    with open_datasets(path) as datasets:
        arrays = {name: np.asarray(dataset[()]) for name, dataset in datasets.items()}
    renamed_arrays = _renamed(arrays, path)
    if (folder / CONFIG_FILE).is_file():
        spec, config = read_config_file(folder / CONFIG_FILE)
    else:
        spec = _backbone(renamed_arrays, path)
        config = read_config(spec, _content(spec, renamed_arrays, path), str(path))
    return make_checkpoint(spec, config, renamed_arrays, str(path))


def _renamed(arrays: Arrays, path: Path) -> dict[str, np.ndarray]:
    """Renames the arrays of a file to the names in later versions; unknown layers keep their names.

    Raises ValueError if two arrays get the same name; `path` is for the message.
    """
    # "pooled_dense/pooled_dense/kernel:0": the layer names the group and is in the variable's name.
    names = {name: name.partition("/")[2].removesuffix(":0") for name in arrays}
    parts: dict[str, set[str]] = {}  # block -> the layers in it
    for name in names.values():
        if match := _BLOCK.match(name):
            parts.setdefault(match[1], set()).add(name.split("/")[1])
    later = {block: _later_parts(block_parts) for block, block_parts in parts.items()}
    renamed_arrays = {_later_name(name, later): arrays[stored] for stored, name in names.items()}
    if len(renamed_arrays) < len(arrays):
        raise ValueError(
            f"{WEIGHTS_FILE} must contain one model, whose layers have unique names. Received: "
            f"{path}, with {len(arrays) - len(renamed_arrays)} duplicate names"
        )
    return renamed_arrays


def _later_parts(parts: Iterable[str]) -> dict[str, str]:
    """Returns name in the file -> name in later versions, for the layers of one block."""
    later_names: dict[str, str] = {}
    for kind, names in _PARTS.items():
        same_kind = [part for part in parts if _NUMBER.sub("", part) == kind]
        same_kind.sort(key=lambda part: int("0" + _number(part)))
        later_names |= dict(zip(same_kind, names, strict=False))
    return later_names


def _later_name(name: str, later: dict[str, dict[str, str]]) -> str:
    """Returns the name of a weight in later versions.

    `later` maps each block to its layers: name in the file -> name in later versions.
    """
    layer, *parts = name.split("/")
    if layer in later:
        parts[0] = later[layer].get(parts[0], parts[0])
    elif len(parts) == 2:  # "embeddings/token_embedding2/embeddings"
        parts[0] = _NUMBER.sub("", parts[0])
    return "/".join((layer, *parts))


def _number(part: str) -> str:
    match = _NUMBER.search(part)
    return match[1] if match else ""


def _backbone(there: Arrays, path: Path) -> Backbone:
    """Returns the first backbone class with these layers; raises ValueError if there is none.

    RoBERTa and XLM-RoBERTa differ only in the tokenizer: this returns RoBERTa.

    Args:
        there: name of a weight in later versions -> array.
        path: path of the file, for the error message.
    """
    for spec in BACKBONES:
        tables = {f"{spec.tables}{kind}_embedding/embeddings" for kind in ("token", "position")}
        required_names = {*tables, f"{spec.block.format(0)}/self_attention_layer/query/kernel"}
        projects = spec.projection is None or f"{spec.projection}/kernel" in there
        if (
            required_names <= there.keys()
            and projects
            and spec.pooler == ("pooled_dense/kernel" in there)
        ):
            return spec
    shown = ", ".join(sorted(there)[:3])
    raise ValueError(
        f"{WEIGHTS_FILE} of KerasNLP must be one of "
        f"{', '.join(spec.class_name for spec in BACKBONES)}. Received: {path} with {shown}, …"
    )


def _content(spec: Backbone, there: Arrays, path: Path) -> dict[str, Any]:
    """Infers the config of a backbone class, key -> value, from the shapes of its weights.

    Raises ValueError for an ALBERT, whose number of layers the shapes do not show.

    Args:
        spec: class of the backbone.
        there: name of a weight in later versions -> array.
        path: path of the file, for the error message.
    """
    tables = [f"{spec.tables}{kind}_embedding/embeddings" for kind in ("token", "position")]
    block = spec.block.format(0)
    query = f"{block}/self_attention_layer/query/kernel"
    inner = f"{block}/feedforward_intermediate_dense/kernel"
    ranks = {**dict.fromkeys(tables, 2), query: 3, inner: 2}
    if "num_segments" in spec.more_keys:
        ranks["segment_embedding/embeddings"] = 2
    if wrong := [name for name, rank in ranks.items() if np.ndim(there.get(name, 0.0)) != rank]:
        raise ValueError(
            f"{WEIGHTS_FILE} must contain the weights whose shapes are the sizes of the model. "
            f"Received: {path}, where {', '.join(wrong)} is missing or of another rank"
        )
    words, positions = (there[table] for table in tables)
    pattern = re.compile(re.escape(spec.block).replace(r"\{\}", r"(\d+)") + "/")
    blocks = {match[1] for match in map(pattern.match, there) if match}
    shares = "num_groups" in spec.more_keys
    content = {
        spec.vocabulary_key: len(words),
        "num_heads": there[query].shape[1],
        "hidden_dim": there[query].shape[0],
        "intermediate_dim": there[inner].shape[1],
        "dropout": 0.0 if shares else 0.1,  # the class's default
        "max_sequence_length": len(positions),
    }
    if "num_segments" in spec.more_keys:
        content["num_segments"] = len(there["segment_embedding/embeddings"])
    if "embedding_dim" in spec.more_keys:
        content["embedding_dim"] = words.shape[1]
    if shares:
        config = {**content, "num_groups": len(blocks)}
        config_json = json.dumps({"class_name": spec.class_name, "config": config})
        raise ValueError(
            f"{WEIGHTS_FILE} does not contain how many layers share the weights of an ALBERT: "
            f"write {CONFIG_FILE} next to it, with `num_layers` added to {config_json}. "
            f"Received: {path}"
        )
    return {**content, "num_layers": len(blocks)}
