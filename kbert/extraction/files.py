"""The files of features, written in parts and read at constant memory.

Shapes: `N` texts, `T` tokens of a text, `D` width of the features.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.io.npy import HEADER_BYTES, header, read_npy
from kbert.io.outputs import GrowingFiles
from kbert.io.paths import local_only

_PART = ".part"


class Format(GrowingFiles):
    """A file that grows chunk by chunk, under another name until it is whole.

    Args:
        path: of the finished file.
        width: D.
        ragged: whether each text has its own number of vectors.
        dtype: of the numbers in the file.
    """

    def __init__(self, path: str, width: int, ragged: bool, dtype: np.dtype) -> None:
        self.path = path
        self.width = width
        self.ragged = ragged
        self.dtype = dtype.newbyteorder("<")
        super().__init__(*(f"{name}{_PART}" for name in self.names()))

    def names(self) -> list[str]:
        """The finished files, the one that readers look for first."""
        return [self.path]

    def open(self, sizes: Any | None = None) -> None:
        for name, part in zip(self.names(), self.paths, strict=True):
            if os.path.exists(name) and not os.path.exists(part):
                os.replace(name, part)  # a kill came between the renames of `finish`
        super().open(sizes)

    def add(self, rows: Any) -> None:
        """Adds the features of a chunk, (N, D) or N arrays (T, D), and puts them on the disk."""
        self.append(*self.encode(rows))

    def finish(self, count: int) -> None:
        """Gives the finished file its name."""
        self.close()
        for name in self.names()[::-1]:
            atomic.publish(name + _PART, name)

    def encode(self, rows: Any) -> list[bytes]:
        """The bytes that each part gets."""
        raise NotImplementedError(f"{type(self).__name__} must define `encode`.")


class ArrayFile(Format):
    """`.npy`: the vectors; of ragged ones a second file says where each text ends."""

    def names(self) -> list[str]:
        return [self.path, f"{self.path}.ends.npy"] if self.ragged else [self.path]

    def open(self, sizes: Any | None = None) -> None:
        super().open(sizes)
        if sizes is None:
            for file in self.files:
                file.write(bytes(HEADER_BYTES))

    def encode(self, rows: Any) -> list[bytes]:
        if not self.ragged:
            return [rows.astype(self.dtype).tobytes()]
        vectors = b"".join(row.astype(self.dtype).tobytes() for row in rows)
        before = self._vectors()
        ends = before + np.cumsum([len(row) for row in rows])
        return [vectors, ends.astype("<i8").tobytes()]

    def finish(self, count: int) -> None:
        shapes = [(self.dtype, (self._vectors(), self.width)), (np.dtype("<i8"), (count,))]
        for file, path, shape in zip(self.files, self.paths, shapes, strict=False):
            with atomic.naming(path):
                file.seek(0)
                file.write(header(*shape))
                file.flush()
        super().finish(count)

    def _vectors(self) -> int:
        """How many are in the file."""
        return (self.sizes()[0] - HEADER_BYTES) // (self.width * self.dtype.itemsize)


class RecordFile(Format):
    """`.tfrecord`: one `tf.train.Example` a text."""

    def encode(self, rows: Any) -> list[bytes]:
        # TensorFlow writes records to files alone; files of records may follow each other in one.
        name = f"{self.path}.chunk"
        try:
            with atomic.naming(name), tf.io.TFRecordWriter(name) as writer:
                for row in rows:
                    writer.write(_example(row.astype(self.dtype)))
            with open(name, "rb") as file:
                return [file.read()]
        finally:
            atomic.remove(name)


FORMATS = {".npy": ArrayFile, ".tfrecord": RecordFile}


def _example(vectors: np.ndarray) -> bytes:
    shape = tf.train.Feature(int64_list=tf.train.Int64List(value=vectors.shape))
    raw = tf.train.Feature(bytes_list=tf.train.BytesList(value=[vectors.tobytes()]))
    features = tf.train.Features(feature={"shape": shape, "vectors": raw})
    # Without `deterministic` the order of a map's entries may differ from process to process.
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


class TokenVectors(Sequence):
    """The vectors of the tokens of N texts, in memory-mapped files: (T, D) arrays.

    Args:
        vectors: (all tokens, D).
        ends: (N,), the vectors before the end of each text.
    """

    def __init__(self, vectors: np.ndarray, ends: np.ndarray) -> None:
        self.vectors = vectors
        self.ends = ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(f"{number} of {len(self)} texts")
        number %= len(self)
        return self.vectors[self.ends[number - 1] if number else 0 : self.ends[number]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[number] for number in range(len(self)))


def read_features(path: PathLike, dtype: str = "float32") -> Any:
    """What `write_features` has written, without taking it into memory.

    Args:
        path: the file.
        dtype: that a `.tfrecord` was written with; a `.npy` file says it itself.

    Returns:
        Of `.npy` a memory-mapped array (N, D), or `TokenVectors`: a sequence of N arrays (T, D).
        Of `.tfrecord` a `tf.data.Dataset` of arrays (D,) or (T, D).

    Raises:
        ValueError: another kind of file, or a `.npy` that is not whole.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "two.npy")
        >>> np.save(path, np.ones((2, 4), "float32"))
        >>> read_features(path).shape
        (2, 4)
    """
    path = local_only(path, "A file of features")
    if path.endswith(".npy"):
        vectors = read_npy(path, mapped=True)
        ends = f"{path}.ends.npy"
        return TokenVectors(vectors, read_npy(ends)) if os.path.exists(ends) else vectors
    if not path.endswith(".tfrecord"):
        raise ValueError(f"Features are in {' or '.join(FORMATS)} files. Received: {path}")
    spec = {
        "shape": tf.io.VarLenFeature(tf.int64),
        "vectors": tf.io.FixedLenFeature([], tf.string),
    }

    def parse(record: tf.Tensor) -> tf.Tensor:
        example = tf.io.parse_single_example(record, spec)
        raw = tf.io.decode_raw(example["vectors"], dtype)
        return tf.reshape(raw, example["shape"].values)

    return tf.data.TFRecordDataset(path).map(parse)
