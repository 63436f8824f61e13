"""Reading a folder, whoever wrote it: told apart by the files in it."""

import os
from pathlib import Path

import keras

from kbert.checkpoints import google, huggingface, keras_hub, preset
from kbert.checkpoints.checkpoint import Checkpoint

# In the order of asking. Each has `is_folder(path)` and `read_folder(path) -> Checkpoint`.
_FORMATS = (preset, huggingface, keras_hub, google)
_READ = (
    "a kbert folder (kbert.json), a Hugging Face one (config.json + model.safetensors), a KerasHub "
    "one (config.json + model.weights.h5) or a Google one (*_config.json + *.ckpt.index, "
    "TensorFlow 1)"
)


def read_checkpoint(folder: str | os.PathLike | keras.Model) -> Checkpoint:
    """Reads config and weights from a folder, or from a model of KerasHub's.

    Args:
        folder: a kbert preset folder, a Hugging Face folder with `model.safetensors`, a KerasHub
            preset or a Google TF1 folder, with or without pooler and heads; or a KerasHub
            backbone in memory.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is of another kind, or its files are damaged or not understood.
    """
    if not isinstance(folder, str | os.PathLike):
        return keras_hub.read_backbone(folder)
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no such folder; kbert reads {_READ}. Received: {folder}")
    for format_ in _FORMATS:
        if format_.is_folder(folder):
            return format_.read_folder(folder)
    raise ValueError(f"{_why_not(folder)} kbert reads {_READ}. Received: {folder}")


def _why_not(folder):
    files = {path.name for path in folder.iterdir()}
    if "model.safetensors.index.json" in files:
        return "Weights in several safetensors files are not read yet: save them as one."
    if "pytorch_model.bin" in files:
        return (
            "pytorch_model.bin is a pickle, which can run any code, so it is never opened: save "
            "the model anew with transformers' save_pretrained(safe_serialization=True)."
        )
    return "The folder holds no model that kbert knows."
