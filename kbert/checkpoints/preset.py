"""kbert's own folder format: `kbert.json` (config and task) and `model.safetensors` (weights).

A task adds the files of its tokenizer. The weight names are part of the format; they are listed in
`tests/golden/bert-tiny.json`. An ensemble is a folder with `ensemble.json` and a preset of each
member in a subfolder; tasks that were trained together are one with `multi_task.json` and a preset
of each task.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.keys import make_config
from kbert.configs.base import Config
from kbert.core import late, registry
from kbert.core.types import Arrays, PathLike
from kbert.io import atomic
from kbert.io.arrays import WEIGHTS_FILE, map_safetensors, write_model
from kbert.io.json_file import read_json
from kbert.io.paths import Path, check_folder

CONFIG_FILE = "kbert.json"
ENSEMBLE_FILE = "ensemble.json"
MULTI_TASK_FILE = "multi_task.json"
# Files of folders with a preset in each subfolder -> what such a folder contains.
_SEVERAL = {ENSEMBLE_FILE: "an ensemble", MULTI_TASK_FILE: "tasks that were trained together"}
# Their tokenizers have files of the same names.
_EXPORTS = {"export.json": "an export", "saved_model.pb": "a SavedModel"}
FORMAT_VERSION = 1
READS = f"a kbert folder ({CONFIG_FILE})"
TAKES = ("task", "labels", "edits")


def write_folder(
    folder: PathLike,
    config: Config,
    arrays: Arrays,
    task: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    edits: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Writes a preset folder, completely or not at all.

    Args:
        folder: folder to write to; created if missing. Other files in it are kept.
        config: config of the model.
        arrays: weight name -> array.
        task: settings of the model's task, JSON-serialisable; None = no task.
        labels: class names of a fine-tuned head.
        edits: changes to the model that are not in its config (see `Checkpoint`),
            JSON-serialisable.

    Raises:
        ValueError: the folder holds a model in another format.
    """
    _refuse_others(Path(folder))
    # The key of the config is the kind of model.
    content: dict[str, Any] = {"format_version": FORMAT_VERSION, config.kind: config.to_dict()}
    if task is not None:
        content["task"] = dict(task)
    if labels is not None:
        content["labels"] = list(labels)
    content |= edits
    write_model(folder, arrays, CONFIG_FILE, (json.dumps(content, indent=2) + "\n").encode())


def is_folder(folder: Path) -> bool:
    """Whether the folder is a kbert preset."""
    return (folder / CONFIG_FILE).is_file()


def why_not(files: Collection[str]) -> str | None:
    """Returns why a folder without `kbert.json` is no preset, by its files; None = not known."""
    if MULTI_TASK_FILE in files:
        return (
            "The folder contains several tasks on one encoder: load one of them, which are presets "
            "in subfolders."
        )
    if ENSEMBLE_FILE not in files:
        return None
    return (
        "The folder contains an ensemble of several models: load it with "
        "kbert.tasks.Task.from_preset, or one of its members, which are presets in subfolders."
    )


def member_folders(folder: Path) -> list[Path]:
    """Returns the presets in the folder of an ensemble or of several tasks; [] for other folders.

    Args:
        folder: any folder.

    Raises:
        ValueError: `ensemble.json` or `multi_task.json` is damaged or has a later format.
    """
    path = next((folder / file for file in _SEVERAL if (folder / file).is_file()), None)
    if path is None:
        return []
    content = read_json(path)
    _check_version(content, path)
    names = content.get("members")
    if not isinstance(names, list) or not all(re.fullmatch(r"[\w-]+", str(x)) for x in names):
        raise ValueError(
            f"`members` must be a list of names of subfolders. Received: {names!r:.80} in {path}"
        )
    return [folder / str(name) for name in names]


def task_folders(folder: Path) -> dict[str, Path]:
    """Returns name of a task -> its preset in the folder of several; {"": folder} for others."""
    if not (folder / MULTI_TASK_FILE).is_file():
        return {"": folder}
    return {path.name: path for path in member_folders(folder)}


def _check_version(content: Mapping[str, Any], path: Path) -> None:
    """Raises ValueError if the content of a file has another format than this version's."""
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"This version of kbert supports presets of format {FORMAT_VERSION}. Received: "
            f"format_version={version!r} in {path}"
        )


def read_folder(folder: Path) -> Checkpoint:
    """Reads a preset folder.

    Args:
        folder: folder with `kbert.json`.

    Returns:
        The checkpoint.

    Raises:
        ValueError: a file is damaged, has a later format, or has keys unknown to this version.
    """
    path = folder / CONFIG_FILE
    content = read_json(path)
    _check_version(content, path)
    known_kinds = registry.names("config")
    kinds = [key for key in known_kinds if key in content]
    edits = list(late.TABLE["edits of a preset"])
    unknown = set(content) - {"format_version", *known_kinds, "task", "labels", *edits}
    if unknown or len(kinds) != 1:
        raise ValueError(
            "The kbert.json of a preset must have the keys format_version and "
            f"{' or '.join(known_kinds)}, and optionally task, labels and {', '.join(edits)}. "
            f"Received: {', '.join(content)} in {path}"
        )
    (kind,) = kinds
    for key in (kind, "task", *edits):
        if not isinstance(content.get(key, {}), dict):
            raise ValueError(
                f"`{key}` must be a JSON object. Received: {content[key]!r:.80} in {path}"
            )
    kind_of_task = content.get("task", {}).get("kind")
    if kind_of_task is not None and not isinstance(kind_of_task, str):
        raise ValueError(
            f"The `kind` of a task must be a string. Received: {kind_of_task!r:.80} in {path}"
        )
    labels = content.get("labels")
    if "labels" in content and not isinstance(labels, list):
        raise ValueError(f"`labels` must be a list. Received: {labels!r:.80} in {path}")
    config = make_config(cast(Any, registry.get("config", kind)), content[kind], str(path))
    return Checkpoint(
        config=config,
        arrays=map_safetensors(folder / WEIGHTS_FILE),
        task=registry.current(content["task"]) if "task" in content else None,
        source=str(folder),
        labels=None if labels is None else tuple(labels),
        edits={key: content[key] for key in edits if key in content},
    )


def check_target(folder: PathLike, kind: str | None) -> None:
    """Raises if `write_folder` would fail, or would overwrite the preset of another task.

    Args:
        folder: folder of the preset.
        kind: kind of the task that will be written; None = a model without a task, "multi_task" =
            several tasks in subfolders.

    Raises:
        NotADirectoryError: the path is a file.
        ValueError: the folder holds a model in another format, or another task.
    """
    check_folder(folder)
    folder = Path(folder)
    _refuse_others(folder)
    refuse_several_or_export(folder, but=MULTI_TASK_FILE if kind == "multi_task" else None)
    if not is_folder(folder):
        return
    task = read_json(folder / CONFIG_FILE).get("task")
    old_kind = registry.current(task).get("kind") if isinstance(task, dict) else None
    if old_kind != kind:
        raise ValueError(
            "The folder contains another model, which would be overwritten: choose another "
            f"folder. Received: {folder}, with {_of_task(old_kind)}, for {_of_task(kind)}"
        )


def _of_task(kind: str | None) -> str:
    return "a model without a task" if kind is None else f"one of the task {kind!r}"


def refuse_model(folder: Path) -> None:
    """Raises ValueError if `folder` holds a single model, of any format, or an edit."""
    _refuse_others(folder)
    refuse_other(folder, CONFIG_FILE, "a preset")


def refuse_several_or_export(folder: Path, but: str | None = None) -> None:
    """Raises ValueError if `folder` holds several models or an export, unless its file is `but`."""
    for file, what in {**_SEVERAL, **_EXPORTS}.items():
        if file != but:
            refuse_other(folder, file, what)


def write_several(folder: PathLike, file: str, models: Mapping[str, Any], **content: Any) -> None:
    """Writes several models: each to a subfolder that is a preset itself, then their names.

    Args:
        folder: the folder; created if missing.
        file: `ENSEMBLE_FILE` or `MULTI_TASK_FILE`.
        models: name of a subfolder -> what is saved there, by its `save_to_preset`.
        **content: further content of the file.

    Raises:
        ValueError: the folder holds another model, or a model cannot be saved.
    """
    folder = Path(folder)
    refuse_model(folder)
    refuse_several_or_export(folder, but=file)
    content = {"format_version": FORMAT_VERSION, "members": list(models), **content}
    text = json.dumps(content, indent=2) + "\n"
    with atomic.together():
        for name, model in models.items():
            model.save_to_preset(folder / name)
        atomic.write_together({folder / file: text.encode()})


def _refuse_others(folder: Path) -> None:
    """Raises ValueError if `folder` holds a KerasHub preset, a Hugging Face model or an edit."""
    refuse_other(folder, "model.weights.h5", "a KerasHub preset")
    refuse_other(folder, "config.json", "a Hugging Face model")
    for file, edit in late.load_each("file of an edit"):
        refuse_other(folder, file, edit.what)


def refuse_other(folder: Path, config_file: str, kind: str) -> None:
    """Raises ValueError if `folder` has a model in another format, whose weights could be lost.

    Args:
        folder: folder that will be written to.
        config_file: name of a file by which that format is recognised.
        kind: what such a folder contains, for the error message.
    """
    if (folder / config_file).exists():
        raise ValueError(
            f"The folder contains {kind}, whose weights would be overwritten: choose another "
            f"folder. Received: {folder}"
        )
