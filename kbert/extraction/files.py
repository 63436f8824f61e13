"""Files of features: the TFRecord format, and reading at constant memory.

Shapes: `N` texts, `T` tokens of a text, `D` width of the features.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.io.formats import Array, Format
from kbert.io.npy import read_npy
from kbert.io.paths import local_only


class RecordFile(Format):
    """`.tfrecord` files: one `tf.train.Example` a text, with its `vectors` and their `shape`.

    Args:
        width: width of the features, D; unused, since each record has its shape.
        ragged: whether each text has its own number of vectors; unused for the same reason.
        dtype: dtype of the numbers in the file.
    """

    holds_vectors = True

    def __init__(self, width: int, ragged: bool = False, dtype: str = "float32") -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")

    def encode(self, records: Any, ends: Sequence[int]) -> list[bytes]:
        # TensorFlow writes records to files only; TFRecord files can be concatenated.
        name = f"ram://kbert/{id(self)}"
        with tf.io.TFRecordWriter(name) as writer:
            for row in records:
                writer.write(_example(row.astype(self.dtype)))
        with tf.io.gfile.GFile(name, "rb") as file:
            chunk = file.read()
        tf.io.gfile.remove(name)
        return [chunk]

    def sizes(self, paths: Sequence[str], records: int) -> list[int]:
        with open(paths[0], "rb") as file:
            for _ in range(records):
                length = int.from_bytes(file.read(8), "little")
                file.seek(4 + length + 4, os.SEEK_CUR)  # checksum of the length, data, checksum
            return [file.tell()]


FORMATS = {".npy": Array, ".tfrecord": RecordFile}


def _example(vectors: np.ndarray) -> bytes:
    """Returns the vectors (D,) or (T, D) of a text as a serialised `tf.train.Example`."""
    shape = tf.train.Feature(int64_list=tf.train.Int64List(value=vectors.shape))
    raw = tf.train.Feature(bytes_list=tf.train.BytesList(value=[vectors.tobytes()]))
    features = tf.train.Features(feature={"shape": shape, "vectors": raw})
    # Without `deterministic` the order of a map's entries can differ between processes.
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


class TokenVectors(Sequence):
    """A sequence of N arrays (T, D): the token vectors of texts, in memory-mapped files.

    Args:
        vectors: vectors of the tokens of all texts, (all tokens, D).
        ends: (N,), the position in `vectors` after each text's last vector.
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
    """Opens a file that `write_features` wrote, without loading it into memory.

    Args:
        path: path of the file.
        dtype: dtype that a `.tfrecord` was written with; a `.npy` file stores its own.

    Returns:
        For `.npy` a memory-mapped array (N, D), or `TokenVectors`: a sequence of N arrays (T, D).
        For `.tfrecord` a `tf.data.Dataset` of arrays (D,) or (T, D).

    Raises:
        ValueError: the file is of another format, or a `.npy` file is incomplete.

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
        raise ValueError(f"A file of features must be {' or '.join(FORMATS)}. Received: {path}")
    spec = {
        "shape": tf.io.VarLenFeature(tf.int64),
        "vectors": tf.io.FixedLenFeature([], tf.string),
    }

    def parse(record: tf.Tensor) -> tf.Tensor:
        example = tf.io.parse_single_example(record, spec)
        raw = tf.io.decode_raw(example["vectors"], dtype)
        return tf.reshape(raw, example["shape"].values)

    return tf.data.TFRecordDataset(path).map(parse)
