"""Named arrays: their safetensors files, and whether they are what a model takes.

A file has no pickle and a header that is checked, and is written whole or not at all.
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
# What NumPy can hold, by its names. The format also has numbers of eight and of four bits.
_TYPES = {
    **{f"{kind.upper()}{8 * size}": f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    **{"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "bfloat16", "BOOL": "bool"},
}
_SHOWN = 5  # names in an error
_LEVELS = 127  # of 8 bits, of either sign


def read_safetensors(path: PathLike) -> dict[str, np.ndarray]:
    """All arrays of a file.

    Args:
        path: the file.

    Returns:
        name -> array; bfloat16 and float16 are widened to float32.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is cut short or is no safetensors file, or holds numbers of a type
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
    """As `read_safetensors`, but that an array is read when it is used, and takes no memory before.

    The arrays are parts of the file, mapped: they cannot be written to, and are for a caller that
    copies them soon, since a file that another program writes to changes them.
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
    found = {}
    for name, x in header.items():
        offset = start + x["data_offsets"][0]
        array = np.ndarray(x["shape"], np.dtype(_TYPES[x["dtype"]]), content, offset)
        found[name] = widened(array if array.flags.aligned else array.copy())
    return found


def release(array: np.ndarray) -> None:
    """Gives back the memory of the file that `array` is a part of; what is used is read again."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def open_safetensors(path: PathLike) -> Any:
    """A file whose header is checked, to be read in parts: `safetensors.safe_open`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is cut short or is no safetensors file.
    """
    with _local(path) as local:
        return _open(local, path)


def _local(path: PathLike) -> contextlib.AbstractContextManager[str]:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no such safetensors file. Received: {path}")
    return local_copy(path)


def _open(local: str, path: PathLike) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(local, framework="np")
    except SafetensorError as error:
        raise ValueError(
            f"The file is damaged, cut short, or no safetensors file ({error}). Received: {path}"
        ) from error


def write_safetensors(path: PathLike, arrays: Arrays) -> None:
    """Writes arrays under a temporary name beside `path`, then renames: whole or not at all.

    Args:
        path: the file; its folder must exist.
        arrays: name -> array.

    Raises:
        OSError: the folder is missing or cannot be written, or the disk is full.
    """
    atomic.write(path, serialise(arrays))


def write_model(folder: PathLike, arrays: Arrays, config_file: str, config: bytes) -> None:
    """Writes weights and config so that the two never come from different saves.

    Whenever the process dies the folder holds the old model, the new one, or (for the moment of
    two renames) none.

    Args:
        folder: made where it is missing. Other files in it are left alone.
        arrays: name -> array, for `model.safetensors`.
        config_file: name of the config's file.
        config: its bytes.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_together({folder / WEIGHTS_FILE: serialise(arrays), folder / config_file: config})


def _check_types(types: Mapping[str, str], path: PathLike) -> None:
    lacking = [f"{name} ({kind})" for name, kind in types.items() if kind not in _TYPES]
    if lacking:
        raise ValueError(
            "Quantised files are not supported: save the model in float32 or bfloat16. "
            f"Received: {', '.join(lacking)} in {path}"
        )


def serialise(arrays: Arrays) -> bytes:
    """The content of a file."""
    from safetensors.numpy import save

    # In a shuffled dict the same arrays would make another file.
    ordered = {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
    # "format" is what transformers asks for before it loads a file.
    return save(ordered, metadata={"format": "pt"})


def widened(array: np.ndarray) -> np.ndarray:
    """bfloat16 and float16 as float32; other arrays as they are."""
    # ml_dtypes' bfloat16 is of kind "V" to NumPy.
    small = array.dtype.kind in "fV" and array.dtype.itemsize < 4
    return array.astype(np.float32) if small else array


@dataclasses.dataclass(frozen=True)
class Differences:
    """What a load that is not strict leaves.

    Attributes:
        missing: names that nothing was found for; they keep their values.
        unexpected: names that were found and are not used.
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
    """Refuses arrays that are not exactly the expected ones.

    Args:
        expected: name -> shape.
        found: name -> array.
        source: where the arrays are from, for the message.
        strict: False lets missing and unexpected names pass, as long as one is expected.

    Returns:
        The missing and unexpected names: none where it is strict.

    Raises:
        ValueError: listing every missing (-) and unexpected (+) name, every shape that differs
            (!), and every array that holds NaN or infinity.

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
    """Refuses weights that hold NaN or infinity: no file of them would be of use.

    Args:
        arrays: name -> array.
        what: what was to be written, for the message.

    Raises:
        ValueError: naming the weights.

    Example:
        >>> try:
        ...     check_finite({"a": np.zeros(2), "b": np.array([1.0, np.nan])}, "a preset")
        ... except ValueError as error:
        ...     print(str(error)[-35:])
        a preset, with NaN or infinity in b
    """
    bad = [name for name, x in arrays.items() if x.dtype.kind == "f" and not np.isfinite(x).all()]
    if bad:
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise ValueError(
            "Weights must be finite to be written: nothing is. "
            f"Received: {what}, with NaN or infinity in {', '.join(bad[:_SHOWN])}{more}"
        )


def to_8_bits(values: np.ndarray, axis: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as multiples of a scale, of which the largest in absolute value is 127 of them.

    Args:
        values: finite floats of any shape.
        axis: along which numbers share a scale.

    Returns:
        int8 of that shape, and the scales, whose product with them gives the numbers, rounded.

    Example:
        >>> codes, scale = to_8_bits(np.array([[1.0, -0.5], [0.0, 0.0]]), axis=-1)
        >>> codes.tolist()
        [[127, -64], [0, 0]]
    """
    largest = np.abs(values).max(axis=axis, keepdims=True)
    scale = (np.where(largest > 0, largest, 1) / _LEVELS).astype(values.dtype)
    return np.round(values / scale).astype("int8"), scale
