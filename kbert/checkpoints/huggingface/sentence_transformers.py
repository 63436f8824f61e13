"""Reads and writes folders of sentence-transformers: a Hugging Face model with modules on top.

The modules turn the hidden states into one embedding per text. A reranker's folder (since version
5.4) has a single module, the model with its head.

modules.json            the modules in order, with their folders
sentence_bert_config.json   the maximum sequence length (old names: sentence_roberta_config.json, …)
config_sentence_transformers.json   prompts, and a reranker's activation
1_Pooling/config.json   how token embeddings are pooled
2_Dense/…               optional: config.json and weights of a dense layer
"""

import dataclasses
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
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
# The first one is written; of all, the first one with settings is read, as in their code.
_LENGTHS_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_PROMPTS_FILE = "config_sentence_transformers.json"
# Settings of that file that limit the length of a row; the first one counts.
_LENGTHS = (
    "processing_kwargs.common.max_length",
    "processing_kwargs.text.max_length",
    "tokenizer_args.model_max_length",
    "processor_kwargs.model_max_length",
    "max_seq_length",
)
# Patterns of its other settings that change no embedding, or that are checked elsewhere.
_HARMLESS = tuple(
    "do_lower_case transformer_task module_output_name modality_config* unpad_inputs backend "
    "processing_kwargs.audio* processing_kwargs.image* processing_kwargs.video* *.padding "
    "*.pad_to_multiple_of *.return_tensors *.logits_to_keep *.trust_remote_code *.revision "
    "*.token *.subfolder *.cache_dir *.local_files_only *.use_fast *.dtype *.torch_dtype "
    "*.attn_implementation *.device_map *.low_cpu_mem_usage *.use_safetensors "
    "*.add_pooling_layer *.clean_up_tokenization_spaces".split()
)
# Further ones -> their values that change nothing.
_DEFAULTS = {
    "truncation": (True, "longest_first"),
    "add_special_tokens": (True,),
    "padding_side": ("right",),
}
_CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer_config.json"
# Groups of settings that override those of another file.
_OVERRIDDEN = {
    "tokenizer_args": TOKENIZER_FILE,
    "processor_kwargs": TOKENIZER_FILE,
    "config_args": _CONFIG_FILE,
    "config_kwargs": _CONFIG_FILE,
}
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
    """Returns the checkpoint of a model with the task and the weights of the modules added.

    A reranker, whose only module is the model, just gets its maximum length.

    Args:
        checkpoint: checkpoint of the Hugging Face model in the folder.
        folder: folder with `modules.json`.

    Raises:
        ValueError: kbert does not support a module, the order of the modules or a setting.
    """
    settings = row_settings(folder, checkpoint.config.max_positions)
    modules = read_modules(folder)
    if modules == [("Transformer", folder)] and (checkpoint.task or {}).get("kind") in RERANKERS:
        if prompts := [name for name in settings if name.endswith("_prompt")]:
            logging.warning(
                "%s: not used, as kbert does not support prompts for texts of a pair: %s",
                *(folder / _PROMPTS_FILE, ", ".join(prompts)),
            )
        model_settings = {k: v for k, v in (checkpoint.task or {}).items() if k != "max_length"}
        limit = {k: v for k, v in settings.items() if k == "max_length"}
        return dataclasses.replace(checkpoint, task={**model_settings, **limit})
    task: dict[str, Any] = {"kind": KIND, "normalize": False, **settings}
    arrays = dict(checkpoint.arrays)
    for name, module_folder in modules:
        if name == "Transformer" and not module_folder.parts[len(folder.parts) :]:
            continue
        if name == "Pooling" and "token_pooling" not in task:
            task["token_pooling"] = _read_pooling(module_folder)
        elif (
            name == "Dense"
            and "token_pooling" in task
            and "projection" not in task
            and not task["normalize"]  # a TextEmbedder normalises last
        ):
            settings, dense = _read_dense(module_folder)
            task |= settings
            arrays |= dense
        elif name == "Normalize" and "token_pooling" in task and not task["normalize"]:
            task["normalize"] = True
        else:
            raise ValueError(
                "A folder of sentence-transformers must have a Transformer in the folder itself, "
                f"then Pooling, and optionally one Dense and then Normalize. Received: {name} in "
                f"{module_folder}, according to {folder / MODULES_FILE}"
            )
    if "token_pooling" not in task:
        raise ValueError(f"The folder must have a module Pooling. Received: none in {folder}")
    return dataclasses.replace(checkpoint, task=task, arrays=arrays, labels=None, foreign_head=None)


def split(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Splits weights, name -> array, into those of the model and those of the modules."""
    module_arrays = {name: x for name, x in arrays.items() if name.startswith(_HEAD)}
    return {name: x for name, x in arrays.items() if name not in module_arrays}, module_arrays


def remove_modules(folder: Path) -> None:
    """Removes the files of sentence-transformers, before another model is written to the folder."""
    for name in (MODULES_FILE, *_LENGTHS_FILES, _PROMPTS_FILE):
        atomic.remove(folder / name)


def write_modules(folder: Path, arrays: Arrays, task: Mapping[str, Any], width: int) -> None:
    """Writes the modules to the folder of a model.

    `modules.json` comes last: without it no module is read.

    Args:
        folder: folder of the model.
        arrays: weights of the modules, the second result of `split`.
        task: settings of a `TextEmbedder`.
        width: hidden width of the model.
    """
    module_paths = ["", "1_Pooling"]
    kinds = ["Transformer", "Pooling"]
    _, switch = _POOLINGS[task["token_pooling"]]
    pooling = {f"pooling_mode_{ending}": ending == switch for ending in _SWITCHES}
    _write(folder / "1_Pooling", {"word_embedding_dimension": width, **pooling})
    if task["projection"] is not None:
        module_path = folder / "2_Dense"
        activation = _ACTIVATIONS[task["projection_activation"]]
        sizes = {"in_features": width, "out_features": task["projection"]}
        _write(module_path, {**sizes, "bias": True, "activation_function": activation})
        kernel, bias = (arrays[_HEAD + name] for name in ("kernel", "bias"))
        write_safetensors(
            module_path / WEIGHTS_FILE,
            {"linear.weight": np.ascontiguousarray(kernel.T), "linear.bias": bias},
        )
        kinds.append("Dense")
        module_paths.append(module_path.name)
    if task["normalize"]:
        kinds.append("Normalize")
        module_paths.append(f"{len(module_paths)}_Normalize")
        (folder / module_paths[-1]).mkdir(exist_ok=True)
    lengths = {"max_seq_length": task["max_length"], "do_lower_case": False}
    _write(folder, lengths, _LENGTHS_FILES[0])
    write_prompts(folder, task)
    modules = [
        {"idx": i, "name": str(i), "path": module_path, "type": f"{_TYPES}{kind}"}
        for i, (kind, module_path) in enumerate(zip(kinds, module_paths, strict=True))
    ]
    atomic.write(folder / MODULES_FILE, json.dumps(modules, indent=2).encode() + b"\n")


def write_prompts(folder: Path, task: Mapping[str, Any]) -> None:
    """Writes the prompts, which are prepended to texts.

    Args:
        folder: folder with `modules.json`.
        task: settings of a `TextEmbedder`.
    """
    prompts = {k: prompt for k in _PROMPTS if (prompt := task.get(f"{k}_prompt")) is not None}
    _write(folder, {"prompts": prompts, "default_prompt_name": None}, _PROMPTS_FILE)


def _write(folder: Path, content: Mapping[str, Any], name: str = _CONFIG_FILE) -> None:
    folder.mkdir(exist_ok=True)
    atomic.write(folder / name, json.dumps(content, indent=2).encode() + b"\n")


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Returns (class name, folder) of each module in `modules.json`, in order; at least one.

    Raises:
        ValueError: the file is damaged or lists no module, or a module is neither in `folder`
            itself nor in a folder directly below it.
    """
    path = folder / MODULES_FILE
    try:
        entries = parse_json(read_settings(path))
        modules = [(module["type"].rpartition(".")[2], module["path"]) for module in entries]
        modules[0]  # raises if there is none
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{path} must be a list of modules with `type` and `path` ({error})"
        ) from error
    for _, module_path in modules:
        if not isinstance(module_path, str) or "/" in module_path.strip("/") or ".." in module_path:
            raise ValueError(
                f"The modules must be in folders next to {path}. Received: a path {module_path!r}"
            )
    module_paths = [module_path.strip("/").removeprefix(".") for _, module_path in modules]
    return [
        (name, folder / module_path if module_path else folder)
        for (name, _), module_path in zip(modules, module_paths, strict=True)
    ]


def activation(folder: Path) -> str | None:
    """Returns the class name of a reranker's activation, or None.

    It is read from `config_sentence_transformers.json`, which may be missing.
    """
    path = folder / _PROMPTS_FILE
    return read_json(path).get("activation_fn") if path.is_file() else None


def row_settings(folder: Path, max_positions: int) -> dict[str, Any]:
    """Returns the maximum sequence length and the prompts, as settings of a `TextEmbedder`.

    Settings that the folder lacks are left out; see `longest_row` and `prompt_settings`.

    Args:
        folder: folder with `modules.json`.
        max_positions: number of positions of the model.

    Raises:
        ValueError: a setting is invalid, or kbert does not support it.
    """
    path, content = _read_lengths(folder)
    named = _named(content)
    longest = next((named[name] for name in _LENGTHS if named.get(name) is not None), None)
    settings = longest_row(folder, max_positions, longest)
    for name, value in named.items():
        group, _, key = name.rpartition(".")
        unchanged = _read(folder, _OVERRIDDEN.get(group, "")).get(key)
        if (
            name not in _LENGTHS
            and not any(fnmatchcase(name, pattern) for pattern in _HARMLESS)
            and value not in (None, {}, unchanged, *_DEFAULTS.get(key, ()))
        ):
            raise ValueError(
                "Settings of texts and of the model must stand in the files of the tokenizer and "
                f"the model, or be removed. Received: {name}={value!r} in {path}"
            )
    if content.get("do_lower_case") and not _read(folder, TOKENIZER_FILE).get("do_lower_case"):
        raise ValueError(
            f"Texts must be lowercased by the tokenizer. Received: do_lower_case in {path}, and "
            "not in tokenizer_config.json"
        )
    return settings | prompt_settings(folder)


def longest_row(folder: Path, max_positions: int, longest: Any = None) -> dict[str, Any]:
    """Returns {"max_length": tokens}, or {} if the positions of the model are the limit.

    Args:
        folder: folder of the model.
        max_positions: number of positions of the model.
        longest: maximum length in another file; None = read it from the tokenizer's config
            (`max_len` until version 2 of transformers). Since version 6 of sentence-transformers
            the tokenizer's config always has it.

    Raises:
        ValueError: the length is not a whole number.
    """
    if longest is None:
        path = folder / TOKENIZER_FILE
        content = _read(folder, TOKENIZER_FILE)
        # Null means no limit, even if there is a `max_len`.
        longest = content.get("model_max_length", content.get("max_len"))
    else:
        path, _ = _read_lengths(folder)
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
    """Returns the prompts of a folder as settings of a `TextEmbedder`; empty if it has none.

    A similarity other than the cosine logs a warning.

    Raises:
        ValueError: there are prompts other than "query" and "document", a default prompt, or a
            `truncate_dim`.
    """
    path = folder / _PROMPTS_FILE
    if not path.is_file():
        return {}
    content = read_json(path)
    prompts = {k: v for k, v in (content.get("prompts") or {}).items() if v}
    default_prompt = content.get("default_prompt_name")
    if unknown := sorted({*prompts} - {*_PROMPTS}) or ([default_prompt] if default_prompt else []):
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


def _read_lengths(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Returns the path and the content of the file of the maximum length; {} if there is none."""
    paths = [folder / name for name in _LENGTHS_FILES]
    contents = ((path, read_json(path)) for path in paths if path.is_file())
    return next((x for x in contents if x[1]), (paths[0], {}))


def _named(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the settings of nested objects: {"a": {"b": 1}} -> {"a.b": 1}."""
    named: dict[str, Any] = {}
    for key, value in content.items():
        is_nested = isinstance(value, Mapping) and value
        named |= _named(value, f"{prefix}{key}.") if is_nested else {prefix + key: value}
    return named


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file, {} if it is missing."""
    path = folder / name
    return read_json(path) if path.is_file() else {}


def _read_pooling(folder: Path) -> str:
    """Returns kbert's name of the pooling of a Pooling module; raises ValueError if it has none."""
    path = folder / _CONFIG_FILE
    content = read_json(path)
    switches = [name for name in _SWITCHES if content.get(f"pooling_mode_{name}")]
    mode = content.get("pooling_mode", switches[0] if len(switches) == 1 else switches)
    for name, theirs in _POOLINGS.items():
        if mode in theirs and content.get("include_prompt", True):
            return name
    raise ValueError(
        f"The pooling must be one of {', '.join(_POOLINGS)}, prompts included. Received: {mode}, "
        f"include_prompt={content.get('include_prompt', True)} in {path}"
    )


def _read_dense(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads a Dense module: settings of a `TextEmbedder`, and kbert's weight name -> array.

    A missing bias becomes zeros. Raises ValueError for an unknown activation, a residual connection
    or other arrays.
    """
    path = folder / _CONFIG_FILE
    content = read_json(path)
    class_name = content.get("activation_function")
    names = {theirs.rpartition(".")[2]: name for name, theirs in _ACTIVATIONS.items()}
    kind = class_name.rpartition(".")[2] if isinstance(class_name, str) else class_name
    if kind not in names or content.get("use_residual"):
        raise ValueError(
            f"The activation of a Dense must be one of {', '.join(names)}, without a residual "
            f"connection. Received: {class_name!r}, "
            f"use_residual={content.get('use_residual', False)} in {path}"
        )
    arrays = read_weights(folder)
    if not {"linear.weight"} <= {*arrays} <= {"linear.weight", "linear.bias"}:
        raise ValueError(
            "A Dense must have linear.weight and optionally linear.bias. Received: "
            f"{', '.join(sorted(arrays))} in {folder}"
        )
    kernel = arrays["linear.weight"].T
    bias = arrays.get("linear.bias", np.zeros(kernel.shape[1:], kernel.dtype))
    settings = {"projection": kernel.shape[1], "projection_activation": names[kind]}
    return settings, {f"{_HEAD}kernel": kernel, f"{_HEAD}bias": bias}
