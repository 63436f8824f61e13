"""Adapter folders: `adapter.json` and the adapter's weights, without those of the base."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from kbert.checkpoints.preset import CONFIG_FILE, refuse_other
from kbert.core import registry
from kbert.core.types import Arrays, PathLike
from kbert.edit.adapters.base import (
    Adapter,
    base_weights,
    encoder_of,
    inserting,
    known,
    running,
)
from kbert.edit.adapters.files import ADAPTER_FILE
from kbert.hub import locate
from kbert.io import fingerprints
from kbert.io.arrays import WEIGHTS_FILE, check_finite, read_safetensors, write_model
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.models import Decoder, DecoderEncoder
from kbert.models.generators.decoder_encoder import INPUT_TOKENS
from kbert.models.weights import get_arrays, set_arrays, set_parts
from kbert.tasks import Task
from kbert.tasks.loading import find_class
from kbert.tokenizers import load_tokenizer

FORMAT_VERSION = 1
_INPUT_TOKENS = "encoder/input_tokens"
_KEYS = {"format_version", "adapter", "base", "name", "task", "labels"}


def save(model: Any, folder: PathLike, *, name: str | None = None) -> None:
    """Saves an adapter, and the heads of the task it was trained with, to a folder.

    Args:
        model: a task with an adapter; or an encoder or decoder, to save the adapter without heads.
            The embeddings of a decoder's input tokens (`kbert.models.DecoderEncoder`), which are
            newly initialised for each task, are saved with the adapter.
        folder: folder to write to, created if missing.
        name: name of the adapter; None = the active one.

    Raises:
        ValueError: there is no such adapter, a weight is NaN or infinite, or the folder contains a
            model, whose weights would be overwritten.
    """
    encoder = encoder_of(model)
    name = running(model) if name is None else name
    if name is None:
        raise ValueError(
            "Pass the `name` of the adapter to save, as none is active. Received: name=None"
        )
    adapter = known(encoder, name).added[name]
    for file, what in ((CONFIG_FILE, "a preset"), ("config.json", "a Hugging Face model")):
        refuse_other(Path(folder), file, what)
    arrays = _of_adapter(encoder, name, adapter)
    content: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "name": name,
        "adapter": {"kind": adapter.kind, **adapter.to_dict()},
        "base": {
            "checksum": checksum(encoder, adapter, _input_rows(model)),
            encoder.config.kind: encoder.config.to_dict(),
        },
    }
    if (rows := _input_rows(model)) > 0:
        arrays[_INPUT_TOKENS] = _table(encoder)[-rows:]
    if isinstance(model, Task):
        record = dict(model.record)
        if (labels := record.pop("labels", None)) is not None:
            content["labels"] = list(labels)
        content["task"] = record
        for prefix, part in _heads(model).items():
            arrays |= get_arrays(part, prefix)
    check_finite(arrays, os.fspath(folder))
    write_model(folder, arrays, ADAPTER_FILE, (json.dumps(content, indent=2) + "\n").encode())


def load(model: Any, folder: PathLike, *, name: str | None = None) -> Any:
    """Loads the adapter of a folder into the encoder it was trained on.

    Args:
        model: the encoder or decoder; or a task, whose heads are loaded too if the folder has some.
        folder: folder that `save` has written.
        name: name of the adapter in the model; None = the name in the folder.

    Returns:
        The model, with the adapter active.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is damaged, the adapter was trained on another base, or its heads are
            not those of the task; then the model is unchanged.
    """
    content, arrays = _read(folder)
    encoder, source = encoder_of(model), os.fspath(folder)
    adapter = _adapter(content, source)
    _check_base(model, adapter, content, source)
    table = _with_input_tokens(model, arrays.get(_INPUT_TOKENS), source)
    arrays = {name: array for name, array in arrays.items() if name != _INPUT_TOKENS}
    is_task = isinstance(model, Task)
    heads = _heads(model) if is_task else {}
    head_arrays = {k: v for k, v in arrays.items() if not k.startswith("encoder/")}
    if is_task:
        _check_task(model, content, source)
    name = content["name"] if name is None else name
    with inserting(model, adapter, name):
        _set(
            encoder,
            name,
            adapter,
            {k: v for k, v in arrays.items() if k not in head_arrays},
            source,
        )
        set_parts(heads, head_arrays, source)
    if table is not None:
        encoder.token_embedding.assign(table)
    return model


def load_task(
    base: Any, folder: PathLike, *, tokenizer: Any = None, name: str | None = None
) -> Task:
    """Loads the task of a folder: its heads and its adapter, on the base they were trained on.

    Args:
        base: preset of the base, in any form that `from_preset` accepts; or its encoder, a
            `kbert.models.DecoderEncoder` or a `kbert.Decoder`, which several tasks may share.
        folder: folder that `save` has written for a task.
        tokenizer: tokenizer of the encoder, if `base` is an encoder.
        name: name of the adapter in the task; None = the name in the folder.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder contains an adapter without a task, is damaged, or the adapter was
            trained on another base.

    Example:
        >>> import tempfile, kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=7))
        >>> task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
        >>> folder = tempfile.mkdtemp()
        >>> kbert.edit.adapters.save(kbert.edit.adapters.add(task, "lora", name="reviews"), folder)
        >>> again = load_task(encoder, folder, tokenizer=tokenizer, name="copy")
        >>> again.variant, task.variant, again.labels
        ('copy', 'reviews', ['no', 'yes'])
    """
    content, _ = _read(folder)
    source = os.fspath(folder)
    if "task" not in content:
        raise ValueError(
            "The folder must contain the task that the adapter was trained in; use "
            f"kbert.edit.adapters.load to load the adapter alone. Received: {source}"
        )
    settings = registry.current(content["task"])
    if "labels" in content:
        settings["labels"] = list(content["labels"])
    task_class: Any = find_class(Task, settings.pop("kind"), settings.pop("module", None), source)
    reads_input_tokens = settings.pop("input_tokens", True)
    if isinstance(base, str | os.PathLike) and not reads_input_tokens:
        folder_of_base = locate(base)
        decoder = Decoder.from_preset(folder_of_base)
        base = DecoderEncoder(decoder, input_tokens=False)
        tokenizer = load_tokenizer(folder_of_base)
    if isinstance(base, str | os.PathLike):
        head_options = {"new_head": True} if task_class.has_head else {}
        task = task_class.from_preset(base, **head_options, **settings)
    else:
        encoder_of(base)  # raises if it is none
        if isinstance(base, Task) and tokenizer is None:
            tokenizer = base.tokenizer
        if tokenizer is None:
            raise ValueError(
                "With an encoder instead of a folder, pass its tokenizer too: load_task(encoder, "
                "folder, tokenizer=…). Received: tokenizer=None"
            )
        task = task_class(base.model if isinstance(base, Task) else base, tokenizer, **settings)
    return load(task, folder, name=name)


def checksum(encoder: Any, adapter: Adapter, input_rows: int = 0) -> str:
    """Returns a checksum of the weights that an adapter was trained on: names, shapes and values.

    It excludes the pooler if the adapter has trained it, because the folder contains it whole. It
    also excludes a decoder's last `input_rows` rows of the token table: the embeddings of these
    tokens are newly initialised for a task.
    """
    return fingerprints.blake2b(_base_weights(encoder, adapter, input_rows))


def _base_weights(encoder: Any, adapter: Adapter, input_rows: int) -> Iterator[fingerprints.Part]:
    """Yields name and shape, then the values, of each weight that `checksum` includes."""
    base_ids = {id(weight) for weight in base_weights(encoder)}
    if adapter.pooler:
        base_ids -= {id(weight) for weight in encoder.pooler.weights}
    included_weights = [x for x in encoder.weights if id(x) in base_ids]
    for weight in sorted(included_weights, key=lambda x: x.path.removeprefix(encoder.path)):
        path = weight.path.removeprefix(encoder.path)
        array = np.ascontiguousarray(keras.ops.convert_to_numpy(weight.value), "float32")
        if input_rows and len(array) == encoder.config.vocabulary_size:  # the bias of logits too
            array = array[:-input_rows]
        yield f"{path} {array.shape}\n"
        yield array


def _heads(task: Any) -> dict[str, keras.layers.Layer]:
    """Returns prefix of names -> layer, for the parts of a task beside its model."""
    return {prefix: part for prefix, part in task.parts.items() if prefix not in task.model_parts}


def _of_adapter(encoder: Any, name: str, adapter: Adapter) -> dict[str, np.ndarray]:
    """Returns the weights of the adapter `name` by name in a folder, which leaves out `name`.

    If the adapter trains the pooler, the pooler's values are returned instead of differences.
    """
    marker = f"/adapter_{name}/"
    arrays = {
        key.replace(marker, "/adapter/"): array
        for key, array in get_arrays(encoder, "encoder").items()
        if marker in key
    }
    if adapter.pooler:  # saved whole, because its base may have been randomly initialised
        for part in ("kernel", "bias"):
            if (key := f"encoder/pooler/adapter/{part}") in arrays:
                base = keras.ops.convert_to_numpy(getattr(encoder.pooler, part).value)
                arrays[key] = arrays[key] + base
    return arrays


def _set(encoder: Any, name: str, adapter: Adapter, arrays: Arrays, source: str) -> None:
    """Sets the weights of the adapter `name` in an encoder; reverses `_of_adapter`.

    Args:
        encoder: encoder with the adapter.
        name: name of the adapter in the encoder.
        adapter: its options.
        arrays: its weights by name in a folder.
        source: folder, for messages.

    Raises:
        ValueError: a weight is missing, superfluous or of another shape.
    """
    values = dict(arrays)
    if adapter.pooler:
        for part in ("kernel", "bias"):
            if (key := f"encoder/pooler/adapter/{part}") in values:
                base = keras.ops.convert_to_numpy(getattr(encoder.pooler, part).value)
                if values[key].shape == base.shape:
                    values[key] = values[key] - base
    adapter_arrays = {key.replace("/adapter/", f"/adapter_{name}/"): x for key, x in values.items()}
    other_arrays = {
        key: array
        for key, array in get_arrays(encoder, "encoder").items()
        if f"/adapter_{name}/" not in key
    }
    set_arrays(encoder, "encoder", {**other_arrays, **adapter_arrays}, source)


def _read(folder: PathLike) -> tuple[dict[str, Any], Arrays]:
    """Returns the content of a folder's `adapter.json`, and its weights by name.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, of another format version, or has wrong keys.
    """
    path = Path(folder) / ADAPTER_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"A folder of an adapter must contain {ADAPTER_FILE}. Received: {os.fspath(folder)}"
        )
    content = read_json(path)
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"This version of kbert supports adapters of format {FORMAT_VERSION}. Received: "
            f"format_version={version!r} in {path}"
        )
    kinds: dict[str, type] = {"adapter": dict, "base": dict, "name": str}
    kinds |= {key: kind for key, kind in (("task", dict), ("labels", list)) if key in content}
    wrong_keys = [key for key, kind in kinds.items() if not isinstance(content.get(key), kind)]
    if wrong_keys or set(content) - _KEYS:
        raise ValueError(
            f"{ADAPTER_FILE} must have the keys {', '.join(sorted(_KEYS))}. Received: "
            f"{', '.join(content)}; missing, unknown or of another type: "
            f"{', '.join([*wrong_keys, *sorted(set(content) - _KEYS)])} in {path}"
        )
    return content, read_safetensors(Path(folder) / WEIGHTS_FILE)


def _adapter(content: Mapping[str, Any], source: str) -> Adapter:
    """Returns the adapter that `content`, a folder's `adapter.json`, describes.

    Raises:
        ValueError: its kind or an option is unknown; the message names `source`.
    """
    options = dict(content["adapter"])
    try:
        adapter_class: Any = registry.get("adapter", options.pop("kind", ""))
        return adapter_class(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The adapter is not supported: {error} in {source}") from error


def _check_base(model: Any, adapter: Adapter, content: Mapping[str, Any], source: str) -> None:
    """Raises ValueError unless a model has the base weights that an adapter was trained on.

    Args:
        model: an encoder, a decoder or a task on one.
        adapter: the adapter of the folder.
        content: content of the folder's `adapter.json`.
        source: folder, for the message.
    """
    encoder = encoder_of(model)
    expected_checksum = content["base"].get("checksum")
    actual_checksum = checksum(encoder, adapter, _input_rows(model))
    if expected_checksum != actual_checksum:
        config = content["base"].get(encoder.config.kind)
        is_same_config = config == encoder.config.to_dict()
        raise ValueError(
            "The encoder must have the weights that the adapter was trained on. Received: an "
            f"encoder with {'other weights' if is_same_config else 'another config'} (checksum "
            f"{actual_checksum}, not {expected_checksum}), for the adapter in {source}"
        )


def _input_rows(model: Any) -> int:
    """Returns how many rows of a decoder's token table belong to input tokens, or 0.

    Input tokens are newly initialised for a task, see `kbert.models.DecoderEncoder`.
    """
    host = getattr(model, "encoder", model)
    return len(INPUT_TOKENS) if getattr(host, "has_input_tokens", False) else 0


def _table(encoder: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(encoder.token_embedding.value)


def _with_input_tokens(model: Any, rows: np.ndarray | None, source: str) -> np.ndarray | None:
    """Returns a decoder's token table (V, H) with a folder's rows of input tokens at its end.

    Args:
        model: an encoder, a decoder or a task on one.
        rows: the folder's embeddings of the input tokens; None if it has none.
        source: folder, for messages.

    Returns:
        The table, or None if neither the folder nor the model has input tokens.

    Raises:
        ValueError: only one of folder and model has such embeddings, their shapes differ, or
            adapters on the decoder were trained with other ones.
    """
    encoder, number = encoder_of(model), _input_rows(model)
    if rows is None and not number:
        return None
    table = _table(encoder)
    shape = (number, table.shape[1])
    if rows is None or rows.shape != shape:
        raise ValueError(
            "The adapter and the model must have the same input tokens, or both none. Received: "
            f"embeddings {None if rows is None else rows.shape} of input tokens, where the model "
            f"has {shape}, in {source}"
        )
    if encoder.variants.added and not np.array_equal(table[-number:], rows):
        raise ValueError(
            "Adapters of one decoder share the embeddings of its input tokens, but the folder has "
            "other ones: load its adapter on a separate decoder. Received: "
            f"{', '.join(encoder.variants.added)} on the decoder, {source}"
        )
    return np.concatenate([table[:-number], rows])


def _check_task(task: Any, content: Mapping[str, Any], source: str) -> None:
    """Raises ValueError unless the heads of a folder are of the task's kind and have its classes.

    `content` is that of the folder's `adapter.json`; the message names `source`.
    """
    kind = content.get("task", {}).get("kind")
    if kind is not None and kind != task.kind:
        raise ValueError(
            "The adapter's heads must be the task's. "
            f"Received: a task of kind {task.kind!r}, heads of {kind!r} in {source}"
        )
    labels, task_labels = content.get("labels"), getattr(task, "labels", None)
    if labels is not None and task_labels is not None and list(task_labels) != list(labels):
        raise ValueError(
            "The classes of the adapter's head must be those of the task, in the same order. "
            f"Received: {list(task_labels)!r:.80} and {labels!r:.80} in {source}"
        )
