"""Reads and writes LoRA in peft's format: `adapter_config.json`, `adapter_model.safetensors`.

(Format: peft 0.17, `src/peft/tuners/lora/config.py` and `utils/save_and_load.py`.)
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import keras
import numpy as np
from absl import logging

from kbert.checkpoints.huggingface.architectures import architectures, infer
from kbert.checkpoints.huggingface.architectures.base import CLASSIFIERS
from kbert.checkpoints.renames import read_arrays
from kbert.core.types import Arrays, PathLike
from kbert.edit.adapters.base import encoder_of, inserting, known, running, slot
from kbert.edit.adapters.files import FOREIGN_FILE
from kbert.edit.adapters.foreign import check_only, read_adapter_files, write_adapter_files
from kbert.edit.adapters.lora import Lora, columns
from kbert.edit.adapters.sites import sites
from kbert.io.paths import Path
from kbert.models import Encoder
from kbert.models.weights import set_parts

WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
# Settings that change what LoRA computes and that kbert does not support: any other value raises an
# error.
_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("use_dora", "use_rslora", "fan_in_fan_out", "lora_bias"), (None, False)),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), (None, {})),
    **dict.fromkeys(("layers_to_transform", "layers_pattern", "layer_replication"), (None, [])),
    **dict.fromkeys(("bias",), (None, "none")),
    **dict.fromkeys(("trainable_token_indices", "target_parameters"), (None, [])),
    # Others, such as "pissa" and "olora", also change the kernels of the base.
    "init_lora_weights": ("gaussian", "eva", "orthogonal", None, False, True),
}
# peft's defaults, if the folder does not contain these settings.
_RANK = _ALPHA = 8
# Settings that kbert reads, or that have no effect once the weights are loaded. Any other setting
# must be unset, because its effect is unknown here.
_READ = {
    *("peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path"),
    *("revision", "inference_mode", "r", "lora_alpha", "lora_dropout", "target_modules"),
    *("exclude_modules", "modules_to_save", "megatron_config", "megatron_core", "eva_config"),
    *("loftq_config", "corda_config", "lora_ga_config", "qalora_group_size", "ensure_weight_tying"),
}


def read_peft(model: Any, folder: PathLike, *, name: str = "peft") -> Any:
    """Loads the LoRA of a folder that peft has written into a model.

    Args:
        model: a `kbert.Encoder` with the weights of the adapter's base, or a task on one. If the
            folder contains the head of a fine-tuned model (`modules_to_save`), pass a task, such as
            `TextClassifier.from_preset(base, labels=[…], new_head=True)`, which gets that head. The
            folder has no names of classes.
        folder: folder with `adapter_config.json` and `adapter_model.safetensors`.
        name: name of the adapter in the model.

    Returns:
        The model, with the adapter active.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the adapter is not LoRA, has options that kbert does not support, or weights
            that do not fit the encoder; then the model is unchanged.
    """
    encoder = encoder_of(model)
    content, arrays = read_adapter_files(folder, WEIGHTS_FILE, "peft")
    folder = Path(folder)
    if content.get("peft_type") != "LORA":
        raise ValueError(
            "peft_type must be LORA; kbert supports no other kind of peft. Received: "
            f"peft_type={content.get('peft_type')!r} in {folder / FOREIGN_FILE}"
        )
    check_only(content, _ONLY, "peft's LoRA", folder / FOREIGN_FILE)
    if unknown := sorted(key for key in set(content) - _READ - set(_ONLY) if content[key]):
        raise ValueError(
            "kbert does not support these options of peft's LoRA. Received: "
            f"{', '.join(f'{key}={content[key]!r:.40}' for key in unknown)} in "
            f"{folder / FOREIGN_FILE}"
        )
    kernels = list(_places(encoder))
    lora_pairs: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}
    other_names = set(arrays)
    for path, target, module, rows in kernels:
        pair = [_find(arrays, module, part) for part in "AB"]
        if all(pair):
            a, b = (np.transpose(arrays[cast(str, key)]) for key in pair)
            if rows is not None and b.shape[-1] <= rows.max():
                raise ValueError(
                    f"{pair[1]} must cover all columns of {path}. Received: {b.shape[-1]} in "
                    f"{folder / WEIGHTS_FILE}"
                )
            lora_pairs[path, target] = a, b if rows is None else b[:, rows]
            other_names -= set(pair)
    source = str(folder / WEIGHTS_FILE)
    parts, heads = _saved_modules(model, {key: arrays[key] for key in other_names}, source)
    if not lora_pairs:
        raise ValueError(
            "The file must contain LoRA weights of the encoder's kernels. Received: none in "
            f"{source}"
        )
    targets = tuple(dict.fromkeys(target for _, target in lora_pairs))
    expected_kernels = {(path, target) for path, target, *_ in kernels if target in targets}
    if missing_kernels := expected_kernels - set(lora_pairs):
        raise ValueError(
            "LoRA must adapt the same kernels in every layer. Received: none for "
            f"{sorted(missing_kernels)[:3]} in {folder / WEIGHTS_FILE}"
        )
    rank = content.get("r", _RANK)
    adapter = Lora(
        rank=cast(int, rank),  # checked by `Lora`
        alpha=content.get("lora_alpha", _ALPHA),
        dropout=content.get("lora_dropout") or 0.0,
        targets=targets,
        pooler=False,
    )
    wrong_ranks = [
        key for key, (a, b) in lora_pairs.items() if a.shape[1] != rank or b.shape[0] != rank
    ]
    if wrong_ranks:
        raise ValueError(
            f"`r` must be the rank of the weights. Received: r={rank}, another rank of "
            f"{wrong_ranks[0]}"
        )
    with inserting(model, adapter, name):
        for dense in sites(encoder, "product"):
            low_rank = slot(dense, name)
            for (target, *_), pair in (
                zip(low_rank.chosen, low_rank.pairs, strict=True) if low_rank else ()
            ):
                for weight, array in zip(pair, lora_pairs[dense.path, target], strict=True):
                    if tuple(weight.shape) != array.shape:
                        raise ValueError(
                            f"The weights of {dense.path} must be of shape {tuple(weight.shape)}. "
                            f"Received: {array.shape} in {folder / WEIGHTS_FILE}"
                        )
                    weight.assign(array)
        set_parts(parts, heads, source)
    return model


def _saved_modules(
    model: Any, saved: Arrays, source: str
) -> tuple[dict[str, keras.layers.Layer], Arrays]:
    """Returns the layers of the model that peft saved whole, and their weights.

    Args:
        model: an encoder or a task.
        saved: the weights that do not belong to LoRA, under their names in the folder.
        source: file of the weights, for the message.

    Raises:
        ValueError: a weight does not belong to any of these layers.
    """
    encoder = encoder_of(model)
    parts = dict(model.parts) if model is not encoder else {}
    parts = {prefix: part for prefix, part in parts.items() if prefix not in model.model_parts}
    if parts and encoder.pooler is not None:
        parts["encoder/pooler"] = encoder.pooler
    head = next((name for name in CLASSIFIERS if name in parts), None)
    architecture = architectures()[infer(encoder.config, (), None)]
    ending = "ForQuestionAnswering" if head is None else CLASSIFIERS[head]
    content = {
        **architecture.write_fields(encoder.config, None),
        "architectures": [f"{architecture.class_prefix}{ending}"],
    }
    named_arrays = {key.removeprefix(_PREFIX): array for key, array in saved.items()}
    rules = architecture.rules(encoder.config, head)
    arrays, unknown_arrays = read_arrays(rules, architecture.fold(named_arrays, content))
    unplaced_names = [
        key for key in arrays if not key.startswith(tuple(f"{prefix}/" for prefix in parts))
    ]
    if unknown_arrays or unplaced_names:
        remedy = (
            ""
            if parts
            else ": pass the task, such as TextClassifier.from_preset(base, "
            "labels=[…], new_head=True)"
        )
        raise ValueError(
            "Each weight must belong to LoRA of a kernel of the encoder, or to the head of the "
            f"task{remedy}. Received: {', '.join(sorted([*unknown_arrays, *unplaced_names])[:6])} "
            f"in {source}"
        )
    saved_prefixes = {
        prefix for prefix in parts if any(key.startswith(f"{prefix}/") for key in arrays)
    }
    if saved_prefixes and encoder.pooler_is_new and "encoder/pooler" not in saved_prefixes:
        logging.warning(
            "%s: the pooler under the head stays newly initialised, as the folder has no pooler",
            source,
        )
    return {prefix: part for prefix, part in parts.items() if prefix in saved_prefixes}, arrays


def write_peft(model: Any, folder: PathLike, *, name: str | None = None) -> None:
    """Writes a LoRA in peft's format, for the base in transformers' class without a head.

    Args:
        model: an encoder, or a task on one.
        folder: folder to write to, created if missing.
        name: name of the adapter; None = the active one.

    Raises:
        ValueError: the adapter is not LoRA, or trains the pooler too; or Hugging Face has no
            architecture for the encoder.
    """
    encoder = encoder_of(model)
    name = running(model) if name is None else name
    adapter = known(encoder, name).added.get(name or "")
    if not isinstance(adapter, Lora) or adapter.pooler:
        raise ValueError(
            "A folder of peft can only contain LoRA, without pooler=True. Received: "
            f"{None if adapter is None else adapter.to_dict()}"
        )
    arrays: dict[str, np.ndarray] = {}
    modules: dict[str, str] = {}
    kernels = list(_places(encoder))
    module_of = {(path, target): module for path, target, module, rows in kernels if rows is None}
    for dense in sites(encoder, "product"):
        low_rank = slot(dense, str(name))
        for (target, *_), pair in (
            zip(low_rank.chosen, low_rank.pairs, strict=True) if low_rank else ()
        ):
            module = module_of.get((dense.path, target))
            if module is None:
                raise ValueError(
                    "A folder of peft can only contain LoRA of kernels that transformers has too; "
                    f"it may join query, key and value into one. Received: {target!r} of "
                    f"{dense.path}"
                )
            modules[target] = re.sub(r"^.*\.\d+\.", "", module)
            for part, weight in zip("AB", pair, strict=True):
                array = np.transpose(np.asarray(weight.value, "float32"))
                arrays[f"{_PREFIX}{module}.lora_{part}.weight"] = array
    content = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "r": adapter.rank,
        "lora_alpha": adapter.scale * adapter.rank,
        "lora_dropout": adapter.dropout,
        "target_modules": sorted(modules.values()),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "base_model_name_or_path": None,
    }
    write_adapter_files(folder, content, arrays, WEIGHTS_FILE)


def _places(encoder: Any) -> Iterator[tuple[str, str, str, np.ndarray | None]]:
    """Yields (layer path, target, PEFT module, rows) for each kernel that LoRA can adapt.

    The path is that of a dense layer of `encoder`; a target, such as "query", is one of
    `lora.TARGETS`. The rows are the target's in a module that joins several, and otherwise None.

    Raises:
        ValueError: the model is a decoder.
    """
    if not isinstance(encoder, Encoder):
        raise ValueError(
            f"Folders of peft are supported only for encoders. Received: a {type(encoder).__name__}"
        )
    architecture = architectures()[infer(encoder.config, (), None)]
    prefix = f"{architecture.prefix}." if architecture.prefix else ""
    content = architecture.write_fields(encoder.config, None)
    rules = {rule.name: rule for rule in architecture.rules(encoder.config, None)}
    for dense in sites(encoder, "product"):
        targets = [target for target, *_ in columns(dense)]
        kernel_path = re.sub(
            r"layers_(\d+)/", r"layers/\1/", dense.path.removeprefix(f"{encoder.path}/")
        )
        rule = rules.get(f"encoder/{kernel_path}/kernel")
        if not targets or rule is None or not rule.transpose:
            continue
        modules = [source.removesuffix(".weight").removeprefix(prefix) for source in rule.sources]
        if len(modules) == len(targets):
            for target, module in zip(targets, modules, strict=True):
                yield dense.path, target, module, None
        elif len(modules) == 1:
            (name,) = rule.sources  # the architecture may order its rows differently
            rows = architecture.fold({name: np.arange(dense.units)[:, None]}, content)[name][:, 0]
            for target, first, end in columns(dense):
                yield dense.path, target, modules[0], rows[first:end]


def _find(arrays: Mapping[str, Any] | Arrays, module: str, part: str) -> str | None:
    """Returns the name in peft's file of the A or B of a kernel, or None if it is missing.

    Names may have the additional prefix of a model with a head.

    Args:
        arrays: arrays of the file by name.
        module: name of the kernel's layer in peft, such as "encoder.layer.0.attention.self.query".
        part: "A" or "B".
    """
    end = f"{module}.lora_{part}.weight"
    for key in arrays:
        head, _, tail = key.partition(_PREFIX)
        if not head and (tail == end or (tail.endswith(f".{end}") and tail.count(end) == 1)):
            return key
    return None
