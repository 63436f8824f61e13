"""Reading a folder, whoever wrote it: told apart by the files in it."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kbert.checkpoints import huggingface, preset
from kbert.checkpoints.safetensors import WEIGHTS_FILE, read_safetensors, write_model
from kbert.config import EncoderConfig

_READ = "a kbert folder (kbert.json) or a Hugging Face one (config.json + model.safetensors)"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a folder holds.

    Attributes:
        config: the encoder's.
        arrays: weight name -> array, under kbert's names: "encoder/…" and whatever heads there are.
        task: settings of the task it was saved from, or None.
        source: the folder, for messages.
    """

    config: EncoderConfig
    arrays: dict[str, np.ndarray]
    task: dict[str, Any] | None
    source: str

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with `prefix`, e.g. "encoder/"."""
        return {name: array for name, array in self.arrays.items() if name.startswith(prefix)}


def read_checkpoint(folder: str | os.PathLike) -> Checkpoint:
    """Reads config and weights from a folder.

    Args:
        folder: a kbert preset folder, or a Hugging Face folder of a BERT with
            `model.safetensors`, with or without pooler and heads.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is of another kind, or its files are damaged or not understood.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no such folder; kbert reads {_READ}. Received: {folder}")
    if (folder / preset.CONFIG_FILE).is_file():
        return Checkpoint(*preset.read_preset(folder), source=str(folder))
    weights = folder / WEIGHTS_FILE
    if (folder / "config.json").is_file() and weights.is_file():
        return _read_huggingface(folder, weights)
    raise ValueError(f"{_why_not(folder)} kbert reads {_READ}. Received: {folder}")


def _read_huggingface(folder, weights):
    path = folder / "config.json"
    config = huggingface.read_config(preset.read_json(path), str(path))
    arrays, unread = huggingface.read_weights(config, read_safetensors(weights))
    if "encoder/pooler/kernel" not in arrays:
        config = config.replace(pooler_activation=None)
    # Left in under their own names: whoever loads them lists them as unexpected.
    return Checkpoint(config, {**arrays, **_as_encoder(unread)}, None, str(folder))


def write_huggingface(
    folder: str | os.PathLike, config: EncoderConfig, arrays: Mapping[str, np.ndarray]
) -> None:
    """Writes a folder that transformers loads as a BERT.

    Args:
        folder: made where it is missing. Other files in it are left alone.
        config: the encoder's.
        arrays: weight name -> array, under kbert's names; heads as far as there are any.

    Raises:
        ValueError: Hugging Face's BERT cannot be this model, or the folder holds a preset.
    """
    preset.refuse_other(Path(folder), preset.CONFIG_FILE, "a kbert preset")
    text = json.dumps(huggingface.write_config(config), indent=2) + "\n"
    renamed = huggingface.write_weights(config, arrays)
    write_model(folder, renamed, "config.json", text.encode())


def _as_encoder(unread):
    return {f"encoder/{name}": array for name, array in unread.items()}


def _why_not(folder):
    files = {path.name for path in folder.iterdir()}
    if "model.safetensors.index.json" in files:
        return "Weights in several safetensors files are not read yet: save them as one."
    if "pytorch_model.bin" in files:
        return (
            "pytorch_model.bin is a pickle, which can run any code, so it is never opened: save "
            "the model anew with transformers' save_pretrained(safe_serialization=True)."
        )
    if any(name.endswith(".ckpt.index") for name in files):
        return "Google's TF1 checkpoints are not read yet: convert to Hugging Face's format."
    return "The folder holds no model that kbert knows."
