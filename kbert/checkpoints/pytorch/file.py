"""Reads files of `torch.save`: a zip archive of a pickle and storages, or (before 1.6) one stream.

The zip's records are `NAME/data.pkl`, `NAME/data/KEY` for each storage, and `NAME/byteorder`; none
is compressed. The stream is five pickles (a magic number, the version, the machine, the value, the
keys of the storages) followed by the storages. Each storage is a length of eight bytes and its
elements. (torch/serialization.py.)
"""

import dataclasses
import math
import mmap
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any, cast

import ml_dtypes
import numpy as np

from kbert.checkpoints.pytorch.pickles import Pickle, Record, Tensor, read_pickle, shown
from kbert.checkpoints.sizes import check_ratio
from kbert.core.types import PathLike
from kbert.io.arrays import widened
from kbert.io.paths import Path, local_copy

_ZIP, _LOCAL_HEADER = b"PK\x03\x04", 30
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_MOST_BYTES = 1 << 24  # limit of a pickle; `pickles` raises for longer ones
_LARGEST = 1 << 62


@dataclasses.dataclass(frozen=True)
class _Region:
    """Byte range of a storage in the file, and its CRC-32 if the file has one."""

    start: int
    size: int
    checksum: int | None = None


def read_pytorch(path: PathLike, below: str | None = None) -> dict[str, np.ndarray]:
    """Reads all arrays of a file of `torch.save`, without unpickling it.

    Args:
        path: path of a file with a dict of tensors, as returned by `model.state_dict()`.
        below: key of that dict, if the file contains other values too; None = the whole file.

    Returns:
        Name -> array; bfloat16 and float16 are cast to float32. Tied weights share one array.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, damaged or not written by `torch.save`, or contains
            anything but tensors and plain containers. No name in it is ever looked up or called.

    Example:
        >>> import tempfile, torch
        >>> path = tempfile.mkdtemp() + "/pytorch_model.bin"
        >>> torch.save({"x": torch.arange(2)}, path)
        >>> read_pytorch(path)["x"].tolist()
        [0, 1]
    """
    file = open_pytorch(path, below)
    # The file contains tied weights once; memory should too.
    array_of_tensor: dict[Tensor, np.ndarray] = {}
    arrays = {}
    for name in file.keys():  # noqa: SIM118 (as of safetensors, the file is no mapping)
        tensor = file.describe(name)
        if tensor not in array_of_tensor:
            array_of_tensor[tensor] = widened(file.get_tensor(name))
        arrays[name] = array_of_tensor[tensor]
    return arrays


def open_pytorch(path: PathLike, below: str | None = None) -> "TensorFile":
    """Opens a file of `torch.save`, whose tensors can then be read one by one.

    The pickle is read and all sizes are checked now, but no elements are read.

    Args:
        path: path of a file with a dict of tensors, as returned by `model.state_dict()`.
        below: key of that dict, if the file contains other values too; None = the whole file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, damaged or not written by `torch.save`, or contains
            other objects, see `read_pytorch`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no such file of torch.save. Received: {path}")
    with local_copy(path) as local, open(local, "rb") as opened:
        if path.stat().st_size == 0:
            raise _damaged("it is empty", str(path))
        content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    read = _read_zip if content[:4] == _ZIP else _read_stream
    value, regions, big = read(content, str(path))
    tensors = _tensors(value, below, str(path))
    beside = {} if below is None else {key: x for key, x in value.items() if key != below}
    return TensorFile(content, tensors, regions, big, str(path), beside)


class TensorFile:
    """Tensors of a memory-mapped file, read on request.

    Args:
        content: memory-mapped content of the file.
        tensors: name -> description of the tensor in the pickle.
        regions: key of a storage -> its byte range in the file.
        big_endian: whether elements are stored in big-endian byte order.
        source: name of the file, for messages.
        beside: other values of the pickle, by key: plain values, tensors and records.
    """

    def __init__(
        self,
        content: mmap.mmap,
        tensors: Mapping[str, Tensor],
        regions: Mapping[str, _Region],
        big_endian: bool,
        source: str,
        beside: Mapping[Any, Any],
    ) -> None:
        self.beside = beside
        self._content, self._tensors, self._regions = content, tensors, regions
        self._big_endian, self._source = big_endian, source
        self._verified: set[str] = set()
        for name, tensor in tensors.items():
            self._check(name, tensor)
        declared = sum(
            math.prod(tensor.shape) * _dtype(tensor.dtype).itemsize
            for tensor in {*tensors.values()}
        )
        check_ratio(declared, len(content), source)

    def keys(self) -> list[str]:
        """Returns the names of the tensors, in the order of the file."""
        return list(self._tensors)

    def describe(self, name: str) -> Tensor:
        """Returns the description of a tensor; equal for tensors that share the same elements."""
        return self._tensors[name]

    def get_tensor(self, name: str) -> np.ndarray:
        """Reads a tensor as a new array, in the dtype of the file.

        Raises:
            ValueError: the elements do not match the file's checksum.
        """
        tensor = self._tensors[name]
        region = self._verify(tensor.storage.key)
        dtype = _dtype(tensor.dtype)
        if 0 in tensor.shape:
            return np.zeros(tensor.shape, dtype)
        first, length = self._span(tensor)
        flat = np.frombuffer(self._content, dtype, length, region.start + first)
        # The stride of an axis of size 1 is never used, and may have any value.
        strides = [
            stride * dtype.itemsize if size > 1 else 0
            for size, stride in zip(tensor.shape, tensor.strides, strict=True)
        ]
        view = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
        array = np.array(view, order="C")
        return array.byteswap(inplace=True) if self._big_endian else array

    def _verify(self, key: str) -> _Region:
        """Returns the byte range of a storage after comparing the checksum, once for each storage.

        Raises ValueError if the checksum differs from the file's.
        """
        region = self._regions[key]
        if region.checksum is not None and key not in self._verified:
            with memoryview(self._content) as view:
                checksum = zlib.crc32(view[region.start : region.start + region.size])
            if checksum != region.checksum:
                raise _damaged(f"the numbers of data/{key} have another checksum", self._source)
            self._verified.add(key)
        return region

    def _span(self, tensor: Tensor) -> tuple[int, int]:
        """Returns the offset in bytes of a tensor in its storage, and how many elements it spans.

        The tensor must not be empty.
        """
        axes = zip(tensor.shape, tensor.strides, strict=True)
        length = 1 + sum((size - 1) * stride for size, stride in axes)
        storage_start = tensor.storage.start * _dtype(tensor.storage.dtype).itemsize
        return storage_start + tensor.offset * _dtype(tensor.dtype).itemsize, length

    def _check(self, name: str, tensor: Tensor) -> None:
        """Raises ValueError unless a tensor is within its storage, which has its declared size.

        Args:
            name: name of the tensor, for the message.
            tensor: description of the tensor in the pickle.
        """
        storage = tensor.storage
        region = self._regions.get(storage.key)
        if region is None:
            raise _damaged(f"no storage {shown(storage.key)} of {shown(name)}", self._source)
        width = _dtype(storage.dtype).itemsize
        if region.size != storage.length * width:
            raise _damaged(
                f"storage {shown(storage.key)} of {shown(name)} has {region.size:,} bytes, not "
                f"{storage.length:,} × {width}",
                self._source,
            )
        most = region.size
        if storage.part is not None:
            most = (storage.start + storage.part) * width
        if most > region.size or math.prod(size for size in tensor.shape if size) >= _LARGEST:
            raise _damaged(f"{shown(name)} is larger than its storage", self._source)
        if 0 not in tensor.shape:
            first, length = self._span(tensor)
            if first + length * _dtype(tensor.dtype).itemsize > most:
                raise _damaged(f"{shown(name)} is larger than its storage", self._source)


def _dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _damaged(reason: str, source: str) -> ValueError:
    """Returns the error, to be raised, for a damaged file; `reason` is put in parentheses."""
    return ValueError(
        f"The file is damaged, truncated or not written by torch.save ({reason}). Received: "
        f"{source}"
    )


def _tensors(value: Any, below: str | None, source: str) -> dict[str, Tensor]:
    """Returns name -> tensor from the value of a pickle, after checking its types.

    Raises ValueError unless the value is a dict of tensors.

    Args:
        value: value of the pickle.
        below: key of the dict of tensors in `value`; None = `value` itself.
        source: name of the file, for the error message.
    """
    if below is not None:
        if not isinstance(value, dict) or below not in value:
            raise ValueError(f"The file must contain weights as {below!r}. Received: {source}")
        value = value[below]
    if not isinstance(value, dict):
        what = value.name if isinstance(value, Record) else shown(value)
        raise ValueError(
            f"A file of weights must be a dict of tensors. Received: {what} in {source}"
        )
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            what = tensor.name if isinstance(tensor, Record) else shown(tensor)
            raise ValueError(
                "A file of weights must be a dict of tensors by name, as returned by "
                f"model.state_dict(). Received: {what} as {shown(name)} in {source}"
            )
    return value


def _read_zip(content: mmap.mmap, source: str) -> tuple[Any, dict[str, _Region], bool]:
    """Reads the pickle of a zip archive, without the storages.

    Raises ValueError if the archive is damaged.

    Returns:
        Value of the pickle, key of each storage -> byte range, and whether elements are big-endian.
    """
    try:
        # ZipFile only needs the methods of a file that a memory map has: read, seek and tell.
        with zipfile.ZipFile(cast(IO[bytes], content)) as archive:
            entries = archive.infolist()
    except (
        *(zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, struct.error),
        *(OverflowError, EOFError, IndexError, OSError),
    ) as error:
        raise _damaged(f"as a zip: {' '.join(str(error).split())}", source) from error
    records: dict[str, _Region] = {}
    for entry in entries:
        # The first part is the name of the file when it was saved.
        name = entry.filename.partition("/")[2]
        if name in records:
            raise _damaged(f"the record {shown(name)} exists twice", source)
        records[name] = _region(content, entry, source)
    if "data.pkl" not in records:
        raise _damaged("the zip has no record data.pkl", source)

    def read(name: str) -> bytes:
        region = records[name]
        if region.size > _MOST_BYTES:
            raise _damaged(f"{name} has {region.size:,} bytes", source)
        found = content[region.start : region.start + region.size]
        if zlib.crc32(found) != region.checksum:
            raise _damaged(f"{name} has another checksum", source)
        return found

    order = read("byteorder") if "byteorder" in records else b"little"
    if order not in (b"little", b"big"):
        raise _damaged("byteorder is neither little nor big", source)
    pickle = read("data.pkl")
    found = read_pickle(pickle, f"data.pkl in {source}")
    if found.length != len(pickle):
        raise _damaged("data.pkl continues after its pickle", source)
    regions = {
        name.removeprefix("data/"): region
        for name, region in records.items()
        if name.startswith("data/")
    }
    return found.value, regions, order == b"big"


def _region(content: mmap.mmap, entry: zipfile.ZipInfo, source: str) -> _Region:
    """Returns the byte range of a record in a zip archive, read from the header before the record.

    Raises ValueError if the record is compressed, or if header and index contradict each other.

    Args:
        content: memory-mapped content of the file.
        entry: entry of the record in the archive's index.
        source: name of the file, for the error message.
    """
    what = f"the record {shown(entry.filename)}"
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise _damaged(f"{what} is compressed or encrypted, which torch.save never does", source)
    start = entry.header_offset
    header = content[max(start, 0) : max(start, 0) + _LOCAL_HEADER]
    if start < 0 or len(header) < _LOCAL_HEADER or header[:4] != _ZIP:
        raise _damaged(f"{what} has no header", source)
    name, extra = struct.unpack("<HH", header[26:30])
    start += _LOCAL_HEADER + name + extra
    if entry.compress_size != entry.file_size or start + entry.file_size > len(content):
        raise _damaged(f"{what} goes beyond the end", source)
    return _Region(start, entry.file_size, entry.CRC)


def _read_stream(content: mmap.mmap, source: str) -> tuple[Any, dict[str, _Region], bool]:
    """Reads the pickle of a file from before version 1.6, without the storages.

    Raises ValueError if the file is damaged.

    Returns:
        Value of the pickle, key of each storage -> byte range, and False: elements are
        little-endian.
    """
    position = 0

    def read() -> Pickle:
        nonlocal position
        # One byte more than the limit, so that a longer pickle is detected.
        parsed = read_pickle(content[position : position + _MOST_BYTES + 1], source, position)
        position += parsed.length
        return parsed

    if content[:1] != b"\x80" or read().value != _MAGIC:
        raise _damaged("neither a zip nor the magic number of files before version 1.6", source)
    if read().value != _VERSION:
        raise _damaged(f"its version is not {_VERSION}", source)
    if not isinstance(read().value, dict):  # the machine; storages are always little-endian
        raise _damaged("its third pickle, about the machine that wrote it, is not a dict", source)
    pickle, keys = read(), read().value
    if not isinstance(keys, list) or any(not isinstance(key, str) for key in keys):
        raise _damaged("the keys of its storages are not a list of strings", source)
    regions = {}
    for key in keys:
        if key not in pickle.storages or key in regions:
            raise _damaged(f"storage {shown(key)} belongs to no tensor or exists twice", source)
        header = content[position : position + 8]
        length = int.from_bytes(header, "little", signed=True)
        size = length * _dtype(pickle.storages[key].dtype).itemsize
        if len(header) < 8 or length < 0 or position + 8 + size > len(content):
            raise _damaged(f"storage {shown(key)} goes beyond the end", source)
        regions[key] = _Region(position + 8, size)
        position += 8 + size
    if position != len(content):
        raise _damaged("it continues after its storages", source)
    return pickle.value, regions, False
