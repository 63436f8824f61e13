"""Named arrays: safetensors files, and checks that the arrays fit a model.

A file contains no pickle, its header is checked, and it is written whole or not at all.
"""

import contextlib
import dataclasses
import json
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.core.types import Arrays, PathLike
from kbert.io import atomic
from kbert.io.paths import Path, local_copy

WEIGHTS_FILE = "model.safetensors"
# Types that NumPy has, with its names. The format also has floats of eight and of four bits.
_TYPES = {
    **{f"{kind.upper()}{8 * size}": f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    **{"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "bfloat16", "BOOL": "bool"},
}
_SHOWN = 5  # names in an error
_LEVELS = 127  # levels of 8 bits, of either sign


def read_safetensors(path: PathLike) -> dict[str, np.ndarray]:
    """Reads all arrays of a file.

    Args:
        path: the file.

    Returns:
        name -> array; bfloat16 and float16 are widened to float32.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, is not a safetensors file, or holds numbers of a type
            that NumPy lacks.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/x.safetensors"
        >>> write_safetensors(path, {"x": np.arange(2)})
        >>> read_safetensors(path)["x"].tolist()
        [0, 1]
    """
    arrays = map_safetensors(path)
    return {name: x if x.flags.writeable else np.array(x) for name, x in arrays.items()}


def map_safetensors(path: PathLike) -> dict[str, np.ndarray]:
    """Returns name -> array of a safetensors file, mapped: read, and in memory, only when used.

    Mapped arrays are read-only. They are for a caller that copies them soon: if another program
    writes to the file, they change. Arrays in bfloat16 or float16, which are widened, and unaligned
    arrays are copied at once. The errors are those of `read_safetensors`.
    """
    import ml_dtypes  # noqa: F401  (gives NumPy its bfloat16)

    with _local(path) as local:
        _open(local, path)  # checks sizes and offsets
        with open(local, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    _check_types({name: x["dtype"] for name, x in header.items()}, path)
    arrays = {}
    for name, x in header.items():
        offset = start + x["data_offsets"][0]
        array = np.ndarray(x["shape"], np.dtype(_TYPES[x["dtype"]]), content, offset)
        arrays[name] = widened(array if array.flags.aligned else array.copy())
    return arrays


def release(array: np.ndarray) -> None:
    """Frees the memory of the mapped file behind `array`; later uses read from the disk again."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def open_safetensors(path: PathLike) -> Any:
    """Checks the header of a safetensors file and opens it, to be read in parts.

    The result is that of `safetensors.safe_open`, for NumPy.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated or is not a safetensors file.
    """
    with _local(path) as local:
        return _open(local, path)


def _local(path: PathLike) -> contextlib.AbstractContextManager[str]:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No such safetensors file. Received: {path}")
    return local_copy(path)


def _open(local: str, path: PathLike) -> Any:
    """Opens a safetensors file; raises ValueError if it is damaged.

    `local` is a local copy of the file, `path` its name in the message.
    """
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(local, framework="np")
    except SafetensorError as error:
        raise ValueError(
            f"The file is damaged, truncated, or not in the safetensors format ({error}). "
            f"Received: {path}"
        ) from error


def write_safetensors(path: PathLike, arrays: Arrays) -> None:
    """Writes arrays under a temporary name next to `path`, then renames: whole or not at all.

    Args:
        path: the file; its folder must exist.
        arrays: name -> array.

    Raises:
        OSError: the folder is missing or cannot be written, or the disk is full.
    """
    atomic.write(path, serialise(arrays))


def write_model(folder: PathLike, arrays: Arrays, config_file: str, config: bytes) -> None:
    """Writes weights and config so that the two never come from different saves.

    Whenever the process dies, the folder holds the old model, the new one, or (between two renames)
    none.

    Args:
        folder: the folder; it is made if missing. Other files in it are kept.
        arrays: name -> array, for `model.safetensors`.
        config_file: name of the config file.
        config: content of the config file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_together({folder / WEIGHTS_FILE: serialise(arrays), folder / config_file: config})


def _check_types(types: Mapping[str, str], path: PathLike) -> None:
    """Raises ValueError if a tensor's type is not supported.

    `types` maps names of tensors to types as in a safetensors file; `path` is the file's name.
    """
    lacking = [f"{name} ({kind})" for name, kind in types.items() if kind not in _TYPES]
    if lacking:
        raise ValueError(
            "Quantised files are not supported: save the model in float32 or bfloat16. "
            f"Received: {', '.join(lacking)} in {path}"
        )


def serialise(arrays: Arrays) -> bytes:
    """Returns the content of a safetensors file with these arrays (name -> array)."""
    from safetensors.numpy import save

    # Sorted, so that the file does not depend on the order of the dict.
    ordered = {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
    # transformers requires "format" before it loads a file.
    return save(ordered, metadata={"format": "pt"})


def widened(array: np.ndarray) -> np.ndarray:
    """Casts bfloat16 and float16 to float32; returns other arrays unchanged."""
    # NumPy sees ml_dtypes' bfloat16 as kind "V".
    small = array.dtype.kind in "fV" and array.dtype.itemsize < 4
    return array.astype(np.float32) if small else array


@dataclasses.dataclass(frozen=True)
class Differences:
    """Names that a non-strict load left out.

    Attributes:
        missing: names that have no array; these weights keep their values.
        unexpected: names of arrays that are not used.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected)


def check_arrays(
    expected: Mapping[str, tuple[int, ...]],
    found: Arrays,
    source: str,
    strict: bool = True,
) -> Differences:
    """Checks that arrays fit a model: names, shapes, and no NaN or infinity.

    Args:
        expected: name -> shape.
        found: name -> array.
        source: where the arrays come from, for the message.
        strict: whether names must agree. False accepts missing and unexpected names, if at least
            one expected array is there.

    Returns:
        The missing and unexpected names; none if `strict`.

    Raises:
        ValueError: the arrays do not fit. The message lists every missing (-) and unexpected (+)
            name, every shape that differs (!), and every array with NaN or infinity.

    Example:
        >>> bool(check_arrays({"a": (2,)}, {"a": np.zeros(2)}, "memory"))
        False
        >>> check_arrays({"a": (2,)}, {"b": np.zeros(2)}, "memory")
        Traceback (most recent call last):
        ...
        ValueError: The weights do not fit the model. Received: memory
          - missing a (2,)
          + unexpected b (2,)
    """
    missing = tuple(name for name in expected if name not in found)
    unexpected = tuple(name for name in found if name not in expected)
    lines = []
    if strict or len(missing) == len(expected):
        lines += [f"- missing {name} {tuple(expected[name])}" for name in missing]
        lines += [f"+ unexpected {name} {found[name].shape}" for name in unexpected]
    for name in expected:
        if name not in found:
            continue
        if tuple(expected[name]) != found[name].shape:
            lines.append(
                f"! shape of {name}: expected {tuple(expected[name])}, is {found[name].shape}"
            )
        elif found[name].dtype.kind == "f" and not np.isfinite(found[name]).all():
            lines.append(f"! {name} holds NaN or infinity")
        release(found[name])
    if lines:
        listing = "".join(f"\n  {line}" for line in lines)
        raise ValueError(f"The weights do not fit the model. Received: {source}{listing}")
    return Differences(missing, unexpected)


def check_finite(arrays: Arrays, what: str) -> None:
    """Raises if weights contain NaN or infinity: a file of them would be useless.

    Args:
        arrays: name -> array.
        what: what was to be written, for the message.

    Raises:
        ValueError: weights are not finite; the message names them.

    Example:
        >>> try:
        ...     check_finite({"a": np.zeros(2), "b": np.array([1.0, np.nan])}, "a preset")
        ... except ValueError as error:
        ...     print(str(error)[-35:])
        a preset, with NaN or infinity in b
    """
    bad_names = [
        name for name, x in arrays.items() if x.dtype.kind == "f" and not np.isfinite(x).all()
    ]
    if bad_names:
        suffix = f" and {len(bad_names) - _SHOWN} more" if len(bad_names) > _SHOWN else ""
        raise ValueError(
            f"Weights must be finite; nothing was written. Received: {what}, with NaN or infinity "
            f"in {', '.join(bad_names[:_SHOWN])}{suffix}"
        )


def to_8_bits(values: np.ndarray, axis: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Quantises floats to int8, symmetrically: the largest absolute value becomes 127 or -127.

    Args:
        values: finite floats of any shape.
        axis: axis or axes along which numbers share a scale.

    Returns:
        int8 codes of the same shape, and the scales (their `axis` has size 1). Codes times scales
        are the rounded values.

    Example:
        >>> codes, scale = to_8_bits(np.array([[1.0, -0.5], [0.0, 0.0]]), axis=-1)
        >>> codes.tolist()
        [[127, -64], [0, 0]]
    """
    largest = np.abs(values).max(axis=axis, keepdims=True)
    scale = (np.where(largest > 0, largest, 1) / _LEVELS).astype(values.dtype)
    return np.round(values / scale).astype("int8"), scale
