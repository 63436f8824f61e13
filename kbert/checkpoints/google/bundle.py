"""Finds the TensorFlow checkpoint of a folder and reads its variables."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from kbert.io.paths import Path

_NAMED = re.compile(r'^model_checkpoint_path:\s*"(.*)"', re.MULTILINE)


def holds_checkpoint(folder: Path) -> bool:
    """Whether `folder` has a file of a TensorFlow checkpoint, which may be incomplete."""
    return any(re.search(r"\.(index|data-\d+-of-\d+)$", path.name) for path in _files(folder))


def find_checkpoint(folder: Path) -> Path:
    """Returns the prefix of the checkpoint in a folder.

    Args:
        folder: folder with `PREFIX.index` and `PREFIX.data-…`. If there are several checkpoints,
            also with the file `checkpoint` that names one, as `tf.train.Saver` writes it.

    Returns:
        The path without `.index`, as TensorFlow expects it.

    Raises:
        ValueError: there is no index, or there are several and the file `checkpoint` names none of
            them.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> folder.joinpath("model.ckpt-best.index").touch()
        >>> find_checkpoint(folder).name
        'model.ckpt-best'
    """
    prefixes = sorted(p.name.removesuffix(".index") for p in _files(folder) if p.suffix == ".index")
    if not prefixes:
        raise ValueError(
            "A TensorFlow checkpoint must have an .index file and .data files; the .index file is "
            f"missing. Received: {folder}"
        )
    if len(prefixes) == 1:
        return folder / prefixes[0]
    state = folder / "checkpoint"
    match = _NAMED.search(state.read_text(encoding="utf-8")) if state.is_file() else None
    # A path on the machine that trained the model: only its last part is valid here.
    named = match and re.split(r"[/\\]", match[1])[-1]
    if named is None or named not in prefixes:
        raise ValueError(
            "With several checkpoints in a folder, the file `checkpoint` must name one, such as "
            f'`model_checkpoint_path: "{prefixes[-1]}"`. Received: {folder} with '
            f"{', '.join(prefixes)}" + (f", where it names {named}" if named else "")
        )
    return folder / named


def variable_names(prefix: Path) -> list[str]:
    """Returns the names of all variables of a checkpoint.

    `prefix` is the path of the checkpoint without `.index`. The checkpoint must be intact:
    `read_tensors` raises a useful error for a damaged one.
    """
    import tensorflow as tf

    return [name for name, _ in tf.train.list_variables(str(prefix))]


def read_tensors(prefix: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """Reads the variables of a checkpoint whose names `wanted` accepts.

    Args:
        prefix: path of the checkpoint without `.index`.
        wanted: function of a variable's name: whether to read the variable.

    Returns:
        Name -> array.

    Raises:
        ValueError: a file is missing, truncated or damaged.
    """
    import tensorflow as tf

    values = [p for p in _files(prefix.parent) if p.name.startswith(f"{prefix.name}.data-")]
    if not values:
        raise ValueError(
            "A TensorFlow checkpoint must have .data files with its values; they are missing. "
            f"Received: {prefix}.index alone"
        )
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
        names = [name for name in shapes if wanted(name)]
        types = reader.get_variable_to_dtype_map()
        # TensorFlow allocates memory for a shape before it reads the values.
        declared = sum(math.prod(shapes[name]) * types[name].size for name in names)
        stored = sum(path.stat().st_size for path in values)
        if declared > stored:  # values are not compressed
            raise ValueError(f"{declared:,} bytes declared, {stored:,} stored")
        return {name: _as_array(reader.get_tensor(name)) for name in sorted(names)}
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        reason = getattr(error, "message", None) or str(error)
        raise ValueError(
            f"The TensorFlow checkpoint is damaged or truncated ({reason}). Received: {prefix}"
        ) from error


def _as_array(value: Any) -> np.ndarray:
    """Converts a value to an array; bytes become one object, as NumPy would drop trailing zeros."""
    return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]
