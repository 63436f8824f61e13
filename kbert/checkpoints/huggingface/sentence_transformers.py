"""Reads and writes folders of sentence-transformers: a Hugging Face model with modules on top.

The modules turn the hidden states into one embedding per text. A reranker's folder (since version
5.4) has a single module, the model with its head.

modules.json            the modules in order, with their folders
sentence_bert_config.json   the maximum sequence length
config_sentence_transformers.json   prompts, and a reranker's activation
1_Pooling/config.json   how token embeddings are pooled
2_Dense/…               optional: config.json and weights of a dense layer
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.huggingface.weights import read_weights
from kbert.core.types import Arrays
from kbert.io import atomic
from kbert.io.arrays import WEIGHTS_FILE, write_safetensors
from kbert.io.json_file import parse_json, read_json
from kbert.io.paths import Path, read_settings

KIND = "embed"  # kind of the task of an embedder
RERANKERS = ("regress", "classify")  # kinds of tasks of a reranker
MODULES_FILE = "modules.json"
_LENGTHS_FILE, _PROMPTS_FILE = "sentence_bert_config.json", "config_sentence_transformers.json"
_CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer_config.json"
_HEAD = "projection/"
_TYPES = "sentence_transformers.models."
# kbert's name of a pooling -> its value of `pooling_mode`, and the ending of its own flag.
_POOLINGS = {
    "mean": ("mean", "mean_tokens"),
    "cls": ("cls", "cls_token"),
    "max": ("max", "max_tokens"),
    "weighted": ("weightedmean", "weightedmean_tokens"),
}
_SWITCHES = (*(ending for _, ending in _POOLINGS.values()), "mean_sqrt_len_tokens", "lasttoken")
_ACTIVATIONS = {
    None: "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
}
_PROMPTS = ("query", "document")


def is_folder(folder: Path) -> bool:
    """Whether a Hugging Face folder is also a folder of sentence-transformers."""
    return (folder / MODULES_FILE).is_file()


def extended(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """Returns the checkpoint of a model extended by the task and the weights of the modules.

    Args:
        checkpoint: checkpoint of the Hugging Face model in the folder.
        folder: folder with `modules.json`.

    Raises:
        ValueError: kbert does not have a module or a setting.
    """
    settings = row_settings(folder, checkpoint.config.max_positions)
    modules = read_modules(folder)
    if modules == [("Transformer", folder)] and (checkpoint.task or {}).get("kind") in RERANKERS:
        if prompts := [name for name in settings if name.endswith("_prompt")]:
            logging.warning(
                "%s: not used, as kbert does not support prompts for texts of a pair: %s",
                *(folder / _PROMPTS_FILE, ", ".join(prompts)),
            )
        own = {k: v for k, v in (checkpoint.task or {}).items() if k != "max_length"}
        limit = {k: v for k, v in settings.items() if k == "max_length"}
        return dataclasses.replace(checkpoint, task={**own, **limit})
    task: dict[str, Any] = {"kind": KIND, "normalize": False, **settings}
    arrays = dict(checkpoint.arrays)
    for name, place in modules:
        if name == "Transformer" and not place.parts[len(folder.parts) :]:
            continue
        if name == "Pooling" and "token_pooling" not in task:
            task["token_pooling"] = _read_pooling(place)
        elif name == "Dense" and "token_pooling" in task and "projection" not in task:
            settings, dense = _read_dense(place)
            task |= settings
            arrays |= dense
        elif name == "Normalize" and "token_pooling" in task and not task["normalize"]:
            task["normalize"] = True
        else:
            raise ValueError(
                "A folder of sentence-transformers must have a Transformer in the folder itself, "
                f"then Pooling, and optionally one Dense and Normalize. Received: {name} in "
                f"{place}, according to {folder / MODULES_FILE}"
            )
    if "token_pooling" not in task:
        raise ValueError(f"The folder must have a module Pooling. Received: none in {folder}")
    return dataclasses.replace(checkpoint, task=task, arrays=arrays, labels=None, foreign_head=None)


def split(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Splits weights into those of the model and those of the modules."""
    own = {name: x for name, x in arrays.items() if name.startswith(_HEAD)}
    return {name: x for name, x in arrays.items() if name not in own}, own


def remove_modules(folder: Path) -> None:
    """Removes the files of sentence-transformers, before another model is written to the folder."""
    for name in (MODULES_FILE, _LENGTHS_FILE, _PROMPTS_FILE):
        atomic.remove(folder / name)


def write_modules(folder: Path, arrays: Arrays, task: Mapping[str, Any], width: int) -> None:
    """Writes the modules to the folder of a model.

    `modules.json` comes last: without it no module is read.

    Args:
        folder: folder of the model.
        arrays: weights of the modules.
        task: settings of a `TextEmbedder`.
        width: hidden width of the model.
    """
    places = ["", "1_Pooling"]
    kinds = ["Transformer", "Pooling"]
    _, own = _POOLINGS[task["token_pooling"]]
    pooling = {f"pooling_mode_{ending}": ending == own for ending in _SWITCHES}
    _write(folder / "1_Pooling", {"word_embedding_dimension": width, **pooling})
    if task["projection"] is not None:
        place = folder / "2_Dense"
        activation = _ACTIVATIONS[task["projection_activation"]]
        sizes = {"in_features": width, "out_features": task["projection"]}
        _write(place, {**sizes, "bias": True, "activation_function": activation})
        kernel, bias = (arrays[_HEAD + name] for name in ("kernel", "bias"))
        write_safetensors(
            place / WEIGHTS_FILE,
            {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias},
        )
        kinds.append("Dense")
        places.append(place.name)
    if task["normalize"]:
        kinds.append("Normalize")
        places.append(f"{len(places)}_Normalize")
        (folder / places[-1]).mkdir(exist_ok=True)
    lengths = {"max_seq_length": task["max_length"], "do_lower_case": False}
    _write(folder, lengths, _LENGTHS_FILE)
    write_prompts(folder, task)
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"{_TYPES}{kind}"}
        for i, (kind, place) in enumerate(zip(kinds, places, strict=True))
    ]
    atomic.write(folder / MODULES_FILE, json.dumps(modules, indent=2).encode() + b"\n")


def write_prompts(folder: Path, task: Mapping[str, Any]) -> None:
    """Writes the prompts, which are prepended to texts.

    Args:
        folder: folder with `modules.json`.
        task: settings of a `TextEmbedder`.
    """
    prompts = {k: found for k in _PROMPTS if (found := task.get(f"{k}_prompt")) is not None}
    _write(folder, {"prompts": prompts, "default_prompt_name": None}, _PROMPTS_FILE)


def _write(folder: Path, content: Mapping[str, Any], name: str = _CONFIG_FILE) -> None:
    folder.mkdir(exist_ok=True)
    atomic.write(folder / name, json.dumps(content, indent=2).encode() + b"\n")


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Returns the class name and the folder of each module, at least one."""
    path = folder / MODULES_FILE
    try:
        found = parse_json(read_settings(path))
        modules = [(module["type"].rpartition(".")[2], module["path"]) for module in found]
        modules[0]  # raises if there is none
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{path} must be a list of modules with `type` and `path` ({error})"
        ) from error
    for _, place in modules:
        if not isinstance(place, str) or "/" in place.strip("/") or ".." in place:
            raise ValueError(
                f"The modules must be in folders next to {path}. Received: a path {place!r}"
            )
    places = [place.strip("/").removeprefix(".") for _, place in modules]
    return [
        (name, folder / place if place else folder)
        for (name, _), place in zip(modules, places, strict=True)
    ]


def activation(folder: Path) -> str | None:
    """Returns the class of a reranker's activation, if the folder's own file has it; else None."""
    path = folder / _PROMPTS_FILE
    return read_json(path).get("activation_fn") if path.is_file() else None


def row_settings(folder: Path, max_positions: int) -> dict[str, Any]:
    """Returns the maximum sequence length and the prompts, as settings of a `TextEmbedder`."""
    path = folder / _LENGTHS_FILE
    content = read_json(path) if path.is_file() else {}
    settings = longest_row(folder, max_positions, content.get("max_seq_length"))
    if content.get("do_lower_case") and not _of_tokenizer(folder).get("do_lower_case"):
        raise ValueError(
            f"Texts must be lowercased by the tokenizer. Received: do_lower_case in {path}, and "
            "not in tokenizer_config.json"
        )
    return settings | prompt_settings(folder)


def longest_row(folder: Path, max_positions: int, longest: Any = None) -> dict[str, Any]:
    """Returns `max_length` as a task setting, or nothing if the model's positions are the limit.

    Args:
        folder: folder of the model.
        max_positions: positions of the model.
        longest: maximum length in another file; None = read it from the tokenizer's config
            (`max_len` until version 2 of transformers). Since version 6 of sentence-transformers
            it is always there.

    Raises:
        ValueError: the length is not a whole number.
    """
    path = folder / _LENGTHS_FILE
    if longest is None:
        path = folder / TOKENIZER_FILE
        content = _of_tokenizer(folder)
        # Null means no limit, even if there is a `max_len`.
        longest = content.get("model_max_length", content.get("max_len"))
    is_number = isinstance(longest, int | float) and not isinstance(longest, bool)
    if longest is None or (is_number and longest >= max_positions):  # 1e30 means no limit
        return {}
    if not is_number or longest % 1 != 0:  # also true for NaN
        raise ValueError(
            f"The maximum sequence length must be a whole number of tokens. Received: {longest!r} "
            f"for {path}"
        )
    return {"max_length": int(longest)}


def prompt_settings(folder: Path) -> dict[str, Any]:
    """Returns the prompts as settings of a `TextEmbedder`; warns of a similarity but the cosine."""
    path = folder / _PROMPTS_FILE
    if not path.is_file():
        return {}
    content = read_json(path)
    prompts = {k: v for k, v in (content.get("prompts") or {}).items() if v}
    usual = content.get("default_prompt_name")
    if unknown := sorted({*prompts} - {*_PROMPTS}) or ([usual] if usual else []):
        raise ValueError(
            f"Prompts must be {' and '.join(_PROMPTS)}, and there must be no default prompt. "
            f"Received: {', '.join(unknown)} in {path}"
        )
    if (width := content.get("truncate_dim")) is not None:
        raise ValueError(
            "`truncate_dim` must be null, as a TextEmbedder returns whole embeddings: change it "
            "in the file, and truncate them with vectors[:, :n]. Received: "
            f"truncate_dim={width!r} in {path}"
        )
    if (similarity := content.get("similarity_fn_name")) not in (None, "cosine"):
        logging.warning(
            "kbert's similarity is the cosine; sentence-transformers uses %r, according to %s",
            similarity,
            path,
        )
    return {f"{name}_prompt": text for name, text in prompts.items()}


def _of_tokenizer(folder: Path) -> dict[str, Any]:
    path = folder / TOKENIZER_FILE
    return read_json(path) if path.is_file() else {}


def _read_pooling(folder: Path) -> str:
    path = folder / _CONFIG_FILE
    content = read_json(path)
    switches = [name for name in _SWITCHES if content.get(f"pooling_mode_{name}")]
    said = content.get("pooling_mode", switches[0] if len(switches) == 1 else switches)
    for name, theirs in _POOLINGS.items():
        if said in theirs and content.get("include_prompt", True):
            return name
    raise ValueError(
        f"The pooling must be one of {', '.join(_POOLINGS)}, prompts included. Received: {said}, "
        f"include_prompt={content.get('include_prompt', True)} in {path}"
    )


def _read_dense(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads settings and weights of a dense layer."""
    path = folder / _CONFIG_FILE
    content = read_json(path)
    said = content.get("activation_function")
    names = {theirs.rpartition(".")[2]: name for name, theirs in _ACTIVATIONS.items()}
    kind = said.rpartition(".")[2] if isinstance(said, str) else said
    if kind not in names or content.get("use_residual"):
        raise ValueError(
            f"The activation of a Dense must be one of {', '.join(names)}, without a residual "
            f"connection. Received: {said!r}, use_residual={content.get('use_residual', False)} "
            f"in {path}"
        )
    found = read_weights(folder)
    if not {"linear.weight"} <= {*found} <= {"linear.weight", "linear.bias"}:
        raise ValueError(
            "A Dense must have linear.weight and optionally linear.bias. Received: "
            f"{', '.join(sorted(found))} in {folder}"
        )
    kernel = found["linear.weight"].T
    bias = found.get("linear.bias", np.zeros(kernel.shape[1:], kernel.dtype))
    settings = {"projection": kernel.shape[1], "projection_activation": names[kind]}
    return settings, {f"{_HEAD}kernel": kernel, f"{_HEAD}bias": bias}
