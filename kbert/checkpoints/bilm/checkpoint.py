"""Reads and writes ELMo's weights in bilm-tf's format: `*options.json` and `*weights.hdf5`.

(`_pretrained_initializer` and `BidirectionalLanguageModelGraph` in bilm/model.py; `dump_weights` in
bilm/training.py of allenai/bilm-tf.) The files contain no softmax. The character table has 261
rows, without the zeros of padding, whether the options say 261 or 262.
"""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from kbert.checkpoints.bilm.names import places
from kbert.checkpoints.bilm.options import read_options, write_options
from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.hdf5 import open_datasets
from kbert.checkpoints.preset import CONFIG_FILE, refuse_other
from kbert.checkpoints.sizes import check_size
from kbert.configs.elmo import ElmoConfig
from kbert.core.types import Arrays, PathLike
from kbert.io import atomic
from kbert.io.arrays import check_arrays
from kbert.io.json_file import read_json
from kbert.io.paths import Path

OPTIONS_FILE, WEIGHTS_FILE = "options.json", "lm_weights.hdf5"  # names for writing
_OPTIONS, _WEIGHTS = "*options.json", "*weights.hdf5"  # patterns for reading

READS = "an ELMo folder (*options.json + *weights.hdf5)"
TAKES = ("task",)


def is_folder(folder: Path) -> bool:
    """Whether the folder has a file `*options.json` or `*weights.hdf5`."""
    return bool(_files(folder, _OPTIONS) or _files(folder, _WEIGHTS))


def read_folder(folder: Path) -> Checkpoint:
    """Reads an ELMo, options and weights, from a folder in bilm-tf's format.

    Args:
        folder: folder with one file of each kind; their names may have any prefix before
            "options.json" and "weights.hdf5".

    Returns:
        The checkpoint, with weights under kbert's names.

    Raises:
        ValueError: a file is missing or damaged, there are several of a kind, an option is not
            understood, or the weights are not exactly those that the options require.
    """
    options, weights = _only(folder, _OPTIONS), _only(folder, _WEIGHTS)
    config = read_options(read_json(options), str(options))
    stored_arrays = _read_hdf5(weights)
    # Checked before the table of names is made, whose length depends on the options.
    check_size(config, sum(array.size for array in stored_arrays.values()), str(folder))
    table = places(config)
    check_arrays({place.theirs: place.shape for place in table}, stored_arrays, str(weights))
    arrays = {place.ours: place.to_ours(stored_arrays[place.theirs]) for place in table}
    return Checkpoint(config=config, arrays=arrays, task=None, source=str(folder))


def write_folder(
    folder: PathLike,
    config: ElmoConfig,
    arrays: Arrays,
    task: Mapping[str, Any] | None = None,
) -> None:
    """Writes `options.json` and `lm_weights.hdf5`, both or neither.

    The format has no softmax, so that of `arrays` is left out, with a warning.

    Args:
        folder: folder to write to; created if missing. Other files in it are kept.
        config: config of the model.
        arrays: weight name -> array, under kbert's names.
        task: settings of the model's task; must be None, because the format cannot store them.

    Raises:
        ValueError: bilm-tf has no such model, there is a task, or the folder holds a model in
            another format or under other file names.
    """
    if task is not None:
        raise ValueError(
            "A folder of a biLM can only contain a language model: save the task as 'kbert', or "
            f"save its Elmo. Received: a {task.get('kind')}"
        )
    folder = Path(folder)
    refuse_other(folder, CONFIG_FILE, "a kbert preset")
    refuse_other(folder, "config.json", "a model of the BERT family")
    for pattern, file_name in ((_OPTIONS, OPTIONS_FILE), (_WEIGHTS, WEIGHTS_FILE)):
        for path in folder.glob(pattern):
            if path.name != file_name:
                refuse_other(folder, path.name, "another biLM")
    options = json.dumps(write_options(config), indent=2) + "\n"
    if config.vocabulary_size is not None:
        logging.warning("%s: saved without the softmax, which the format does not support", folder)
    table = places(config)
    named = {place.theirs: place.to_theirs(arrays[place.ours]) for place in table}
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_together(
        {folder / WEIGHTS_FILE: _hdf5_bytes(named), folder / OPTIONS_FILE: options.encode()}
    )


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def _only(folder: Path, pattern: str) -> Path:
    """Returns the only file of a folder that matches a pattern.

    Raises ValueError if no file or several match.
    """
    files = _files(folder, pattern)
    if len(files) != 1:
        raise ValueError(
            f"A folder of a biLM must have one {_OPTIONS} and one {_WEIGHTS}. Received: "
            f"{', '.join(path.name for path in files) or f'no {pattern}'} in {folder}"
        )
    return files[0]


def _read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Returns name -> array of the datasets in an HDF5 file; raises ValueError for non-numbers."""
    with open_datasets(path) as datasets:
        for name, dataset in datasets.items():
            if dataset.dtype.kind not in "fiu":
                raise ValueError(
                    f"Weights must be numbers. Received: {name} ({dataset.dtype}) in {path}"
                )
        return {name: np.asarray(dataset[()]) for name, dataset in datasets.items()}


def _hdf5_bytes(arrays: Arrays) -> bytes:
    """Returns the content of an HDF5 file with arrays, by their names there, in float32."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=np.asarray(array, "float32"))
    return buffer.getvalue()
