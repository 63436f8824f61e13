"""The record schema of a prepared corpus: one place, used by the writer and by the reader.

A shard is an uncompressed TFRecord file. Each record is a *block*: whole documents, about 64k
tokens together, as a `tf.train.Example` of three byte features that hold raw little-endian arrays:

    tokens     (tokens,)     uint16, or int32 when an id needs more than 16 bits
    sentences  (sentences,)  int32: tokens of each sentence, all above 0
    documents  (documents,)  int32: sentences of each document, all above 0

Next to each shard is `*.index.npy`, int64 (blocks, 4): the byte offset of each record, and the
numbers of tokens, sentences and documents in the block. So a reader can plan an epoch, and open any
block, without reading the others. No pairs and no masks are stored: they are drawn during training.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from kbert.core.late import tf
from kbert.io import atomic
from kbert.io.npy import read_npy
from kbert.io.paths import Path, exists

BLOCK_TOKENS = 65_536
FEATURES = ("tokens", "sentences", "documents")
INDEX_COLUMNS = ("offset", *FEATURES)
# A TFRecord wraps its payload in an 8-byte length and two 4-byte checksums.
RECORD_OVERHEAD = 16


def token_dtype(vocabulary_size: int) -> str:
    """Returns the smaller of two types, "uint16" and "int32", that stores all ids of a vocabulary.

    `tf.io.decode_raw` can read both.

    >>> token_dtype(30_522), token_dtype(119_547)
    ('uint16', 'int32')
    """
    return "uint16" if vocabulary_size <= 2**16 else "int32"


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Serialises arrays (name -> array) as a `tf.train.Example` of their little-endian bytes.

    Shapes and types are not stored; `parse_arrays` returns flat arrays. Equal arrays give equal
    bytes.
    """
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[_little(x).tobytes()]))
                for name, x in arrays.items()
            }
        )
    )
    # Without `deterministic`, the order of a map's entries may differ between processes.
    return example.SerializeToString(deterministic=True)


def _little(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def parse_arrays(serialized: tf.Tensor, dtypes: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Parses records to flat arrays: name -> 1-D tensor, joined in the order of the records.

    Args:
        serialized: (records,) string, as written by `encode_arrays`.
        dtypes: name -> type of each array, one that `tf.io.decode_raw` can read.
    """
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in dtypes}
    raw = tf.io.parse_example(serialized, features)
    # Joining the strings before decoding costs one copy; decoding each would pad to the longest.
    return {
        name: tf.io.decode_raw(tf.strings.reduce_join(raw[name]), dtype)
        for name, dtype in dtypes.items()
    }


def encode_block(tokens: np.ndarray, sentences: np.ndarray, documents: np.ndarray) -> bytes:
    """Serialises one block of documents; equal arrays give equal bytes.

    The arrays are the ids (tokens,) in their stored type, the tokens of each sentence (sentences,)
    and the sentences of each document (documents,).
    """
    lengths = {"sentences": sentences.astype(np.int32), "documents": documents.astype(np.int32)}
    return encode_arrays({"tokens": tokens, **lengths})


def parse_blocks(serialized: tf.Tensor, dtype: str = "uint16") -> dict[str, tf.Tensor]:
    """Parses blocks and joins them in the order given; runs in a graph and eagerly.

    Args:
        serialized: (blocks,) string, records of one or more shards.
        dtype: the manifest's `token_dtype`.

    Returns:
        `tokens` (tokens,) of `dtype`, `sentences` (sentences,) int32 and `documents` (documents,)
        int32, as described at the head of this file.

    Example:
        >>> block = encode_block(np.array([7, 8, 9], "uint16"), np.array([2, 1]), np.array([2]))
        >>> {name: array.numpy().tolist() for name, array in parse_blocks([block, block]).items()}
        {'tokens': [7, 8, 9, 7, 8, 9], 'sentences': [2, 1, 2, 1], 'documents': [2, 2]}
    """
    return parse_arrays(serialized, dict(zip(FEATURES, (dtype, "int32", "int32"), strict=True)))


class RecordWriter:
    """Writes records into one shard and its index; each file appears whole or not at all.

    Use it as a context manager. On a clean exit the index is renamed into place, then the shard. On
    an exception the partial file is removed.

    Args:
        path: path of the shard; the index is written to `index_path(path)`.
        columns: column names of the index: the byte offset of a record, then the counts of `write`.

    Attributes:
        index: one row of the index for each record so far.
        bytes: length of the shard so far.
    """

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        self.path = path
        self.columns = columns
        self.index: list[tuple[int, ...]] = []
        self.bytes = 0

    def write(self, record: bytes, *counts: int) -> None:
        """Appends a record, and its row of the index: its byte offset, then the `counts`."""
        with atomic.naming(self.path):
            self._writer.write(record)
        self.index.append((self.bytes, *counts))
        self.bytes += len(record) + RECORD_OVERHEAD

    def _flush(self) -> None:
        """Writes pending data as a record; subclasses that buffer override it."""

    def __enter__(self) -> Self:
        self._temporary = atomic.temporary_name(self.path)
        with atomic.naming(self.path):
            self._writer = tf.io.TFRecordWriter(self._temporary)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._flush()
            with atomic.naming(self.path):
                self._writer.close()
            if kind is None:
                self._publish()
        finally:
            atomic.remove(self._temporary)

    def _publish(self) -> None:
        """Writes the index, then renames the temporary file to its path.

        Raises:
            OSError: the file on the disk is shorter or longer than what was written.
        """
        size = Path(self._temporary).stat().st_size
        if size != self.bytes:
            raise OSError(f"{self.path}: {self.bytes} bytes were written, {size} arrived on disk")
        index = io.BytesIO()
        np.save(index, np.array(self.index, np.int64).reshape(-1, len(self.columns)))
        atomic.write(index_path(self.path), index.getvalue())
        atomic.publish(self._temporary, self.path)


class BlockWriter(RecordWriter):
    """Writes documents, in blocks, into one shard and its index; see `RecordWriter`.

    Args:
        path: path of the shard; the index is written to `index_path(path)`.
        dtype: type of the stored token ids, see `token_dtype`.
        block_tokens: number of tokens at which a block ends, after the document that reaches it.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/train-00000-of-00001.tfrecord"
        >>> with BlockWriter(path, "uint16", block_tokens=4) as writer:
        ...     writer.add(np.array([5, 6, 7]), np.array([2, 1]))
        ...     writer.add(np.array([8, 9]), np.array([2]))
        ...     writer.add(np.array([4]), np.array([1]))
        >>> np.load(index_path(path)).tolist()
        [[0, 5, 3, 2], [102, 1, 1, 1]]
    """

    def __init__(self, path: str, dtype: str, block_tokens: int = BLOCK_TOKENS) -> None:
        super().__init__(path, INDEX_COLUMNS)
        self.dtype = np.dtype(dtype)
        self.block_tokens = block_tokens
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[np.ndarray] = []
        self._sentences: list[np.ndarray] = []
        self._pending = 0

    def add(self, tokens: np.ndarray, sentences: np.ndarray) -> None:
        """Adds a document: its ids (tokens,) and the number of tokens per sentence (sentences,).

        Sentences that do not add up to the tokens raise ValueError when the block is written.
        """
        self._tokens.append(tokens)
        self._sentences.append(sentences)
        self._pending += len(tokens)
        if self._pending >= self.block_tokens:
            self._flush()

    def _flush(self) -> None:
        """Writes the documents collected since the last record as one record, if there are any.

        Raises:
            ValueError: a document or sentence is empty, or lengths do not add up to the tokens.
        """
        if not self._tokens:
            return
        tokens = np.concatenate(self._tokens).astype(self.dtype)
        sentences = np.concatenate(self._sentences)
        documents = np.array([len(lengths) for lengths in self._sentences])
        # Checked once per block: adding a document must cost no more than a list's append.
        if sentences.sum() != len(tokens) or (sentences < 1).any() or (documents < 1).any():
            raise ValueError(
                "A document must have at least one sentence, a sentence at least one token, and "
                f"the lengths of the sentences must add up to the tokens. Received: {len(tokens)} "
                f"tokens, sentences {[lengths.tolist() for lengths in self._sentences][:5]}"
            )
        record = encode_block(tokens, sentences, documents)
        self.write(record, len(tokens), len(sentences), len(documents))
        self._clear()

    def totals(self) -> dict[str, int]:
        """Returns name -> number of the blocks, tokens, sentences and documents written so far."""
        sums = np.array(self.index, np.int64).reshape(-1, 4).sum(axis=0)
        counts = zip(INDEX_COLUMNS[1:], sums[1:].tolist(), strict=True)
        return {"blocks": len(self.index), **dict(counts)}


def index_path(path: str) -> str:
    """Returns the path of a shard's index.

    `train-00000-of-00004.tfrecord` → `train-00000-of-00004.index.npy`.
    """
    return path.removesuffix(".tfrecord") + ".index.npy"


def read_index(path: str, count: int, columns: Sequence[str]) -> np.ndarray:
    """Reads the index of a shard of `count` records, (count, columns) int64; see `RecordWriter`.

    `path` is the path of the index, `columns` are the names of its columns.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, or has another number of records or columns.
    """
    if not exists(path):
        raise FileNotFoundError(f"{path} is listed in the manifest but does not exist")
    rule = f"it must have {count} rows of {len(columns)} int64 values"
    try:
        table = read_npy(path)
    except ValueError as error:
        raise ValueError(
            f"{path} is truncated or was changed: {rule}. Received: {Path(path).stat().st_size} "
            f"bytes. {error}"
        ) from error
    if table.shape != (count, len(columns)) or table.dtype != np.int64:
        raise ValueError(
            f"{path} does not match the manifest: {rule}. Received: shape {table.shape}, "
            f"{table.dtype}"
        )
    return table


def check_size(path: str, expected: int) -> None:
    """Checks that a file of a manifest exists and has the expected size in bytes.

    A missing file raises FileNotFoundError, another size ValueError.
    """
    if not exists(path):
        raise FileNotFoundError(f"{path} is listed in the manifest but does not exist")
    size = Path(path).stat().st_size
    if size != expected:
        raise ValueError(
            f"{path} is truncated or was changed: the manifest lists {expected} bytes. Received: "
            f"{size} bytes"
        )
