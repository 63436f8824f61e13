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
    there = _renamed(arrays, path)
    if (folder / CONFIG_FILE).is_file():
        spec, config = read_config_file(folder / CONFIG_FILE)
    else:
        spec = _backbone(there, path)
        config = read_config(spec, _content(spec, there, path), str(path))
    return make_checkpoint(spec, config, there, str(path))


def _renamed(arrays: Arrays, path: Path) -> dict[str, np.ndarray]:
    """Renames arrays to the names in later versions; unknown names stay unchanged."""
    # "pooled_dense/pooled_dense/kernel:0": the layer names the group and is in the variable's name.
    names = {name: name.partition("/")[2].removesuffix(":0") for name in arrays}
    parts: dict[str, set[str]] = {}  # block -> the layers in it
    for name in names.values():
        if match := _BLOCK.match(name):
            parts.setdefault(match[1], set()).add(name.split("/")[1])
    later = {block: _later_parts(found) for block, found in parts.items()}
    there = {_later_name(name, later): arrays[stored] for stored, name in names.items()}
    if len(there) < len(arrays):
        raise ValueError(
            f"{WEIGHTS_FILE} must contain one model, whose layers have unique names. Received: "
            f"{path}, with {len(arrays) - len(there)} duplicate names"
        )
    return there


def _later_parts(parts: Iterable[str]) -> dict[str, str]:
    """Returns layer of a block -> its name in later versions."""
    found: dict[str, str] = {}
    for kind, names in _PARTS.items():
        same = [part for part in parts if _NUMBER.sub("", part) == kind]
        same.sort(key=lambda part: int("0" + _number(part)))
        found |= dict(zip(same, names, strict=False))
    return found


def _later_name(name: str, later: dict[str, dict[str, str]]) -> str:
    layer, *rest = name.split("/")
    if layer in later:
        rest[0] = later[layer].get(rest[0], rest[0])
    elif len(rest) == 2:  # "embeddings/token_embedding2/embeddings"
        rest[0] = _NUMBER.sub("", rest[0])
    return "/".join((layer, *rest))


def _number(part: str) -> str:
    match = _NUMBER.search(part)
    return match[1] if match else ""


def _backbone(there: Arrays, path: Path) -> Backbone:
    """Returns the class with these layers; RoBERTa and XLM-RoBERTa differ only in the tokenizer."""
    for spec in BACKBONES:
        tables = {f"{spec.tables}{kind}_embedding/embeddings" for kind in ("token", "position")}
        wanted = {*tables, f"{spec.block.format(0)}/self_attention_layer/query/kernel"}
        projects = spec.projection is None or f"{spec.projection}/kernel" in there
        if wanted <= there.keys() and projects and spec.pooler == ("pooled_dense/kernel" in there):
            return spec
    shown = ", ".join(sorted(there)[:3])
    raise ValueError(
        f"{WEIGHTS_FILE} of KerasNLP must be one of "
        f"{', '.join(spec.class_name for spec in BACKBONES)}. Received: {path} with {shown}, …"
    )


def _content(spec: Backbone, there: Arrays, path: Path) -> dict[str, Any]:
    """Infers the config of the class from the shapes."""
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
        said = json.dumps({"class_name": spec.class_name, "config": config})
        raise ValueError(
            f"{WEIGHTS_FILE} does not contain how many layers share the weights of an ALBERT: "
            f"write {CONFIG_FILE} next to it, with `num_layers` added to {said}. Received: {path}"
        )
    return {**content, "num_layers": len(blocks)}
