"""Reads the weights of a Hugging Face folder in any of the library's formats."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kbert.checkpoints.huggingface.foreign import read_flax, read_tensorflow
from kbert.checkpoints.huggingface.shards import INDEX_FILE, read_shards
from kbert.checkpoints.pytorch.file import read_pytorch
from kbert.io.arrays import WEIGHTS_FILE, map_safetensors
from kbert.io.paths import Path


class _Format(NamedTuple):
    """One format of weights.

    Attributes:
        file: name of the file.
        read: function that reads one file; returns name -> array.
        several: name of the index of shards; None = kbert does not read shards of this format.
    """

    file: str
    read: Callable[[Path], dict[str, np.ndarray]]
    several: str | None = None


# In order of preference: several formats in a folder are copies of each other.
_FORMATS = (
    _Format(WEIGHTS_FILE, map_safetensors, INDEX_FILE),
    _Format("pytorch_model.bin", read_pytorch, "pytorch_model.bin.index.json"),
    _Format("tf_model.h5", read_tensorflow),
    _Format("flax_model.msgpack", read_flax),
)
# File names of weights, and those of them that transformers reads since version 5.
FILES = tuple(name for kind in _FORMATS for name in (kind.file, kind.several) if name)
OF_PYTORCH = tuple(name for kind in _FORMATS[:2] for name in (kind.file, kind.several) if name)


def has_weights(folder: Path) -> bool:
    """Whether the folder has weights that `read_weights` reads."""
    return any((folder / name).is_file() for name in FILES)


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a folder with weights, under the names of transformers' PyTorch classes.

    If the folder has both one file and shards, the one file is read, as in transformers. Of several
    formats the first in `_FORMATS` is read.

    Args:
        folder: folder of the model, or of a module of sentence-transformers; one for which
            `has_weights` is true.

    Raises:
        ValueError: a file is damaged, missing, or not understood.
    """
    for kind in _FORMATS:
        if (folder / kind.file).is_file():
            return kind.read(folder / kind.file)
        if kind.several is not None and (folder / kind.several).is_file():
            return read_shards(folder, kind.several, kind.read)
    raise ValueError(
        f"The folder of a model must contain one of {', '.join(FILES)}. Received: {folder}"
    )
