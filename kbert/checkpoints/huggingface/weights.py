"""The weights of a Hugging Face folder, in whichever of the library's formats they lie."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kbert.checkpoints.huggingface.foreign import read_flax, read_tensorflow
from kbert.checkpoints.huggingface.shards import INDEX_SUFFIX, read_shards
from kbert.checkpoints.pytorch.file import read_pytorch
from kbert.checkpoints.safetensors import WEIGHTS_FILE, read_safetensors
from kbert.files import Path


class _Format(NamedTuple):
    """A file's name, which with `INDEX_SUFFIX` is that of the index of several, and its reader."""

    file: str
    read: Callable[[Path], dict[str, np.ndarray]]


# In the order of asking: where several are there, one is a copy of the other.
_FORMATS = (
    _Format(WEIGHTS_FILE, read_safetensors),
    _Format("pytorch_model.bin", read_pytorch),
    _Format("tf_model.h5", read_tensorflow),
    _Format("flax_model.msgpack", read_flax),
)
# All names that mark weights, with which a folder is told from others.
FILES = tuple(name for kind in _FORMATS for name in (kind.file, kind.file + INDEX_SUFFIX))


def has_weights(folder: Path) -> bool:
    """Whether there are weights that `read_weights` reads."""
    return any((folder / name).is_file() for name in FILES)


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of a folder for which `has_weights` holds, under the names of PyTorch's classes.

    Where the weights lie both in one file and in several, the one file counts, as it does for
    transformers.

    Args:
        folder: of the model, or of a module of sentence-transformers.

    Raises:
        ValueError: a file is damaged, missing, or not understood.
    """
    for kind in _FORMATS:
        index = kind.file + INDEX_SUFFIX
        if (folder / kind.file).is_file():
            return kind.read(folder / kind.file)
        if (folder / index).is_file():
            return read_shards(folder, index, kind.read)
    raise ValueError(f"A folder of a model holds one of {', '.join(FILES)}. Received: {folder}")
