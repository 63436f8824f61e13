"""Rows on disk, for tables larger than memory: written part by part, read window by window.

Records have the format of a corpus. Each is a *block* of rows: a `tf.train.Example` of raw
little-endian arrays. An index of byte offsets is next to each shard. A block contains:

- for a dense column, its values;
- for a ragged column, its values and, under "NAME/0", "NAME/1", …, the lengths of its rows;
- under "row/length", the lengths by which rows are grouped.
`rows.json` records the source of the rows, the progress of writing, and the columns.

An epoch visits every row once. Its blocks are permuted like those of a corpus, so it can begin
anywhere without reading what comes before. A window is a range of the rows in that order.

Shapes: N rows, W rows of a window.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.data.corpus import records
from kbert.data.corpus.blocks import block_order, read_records
from kbert.data.tables.rows import Rows, gather
from kbert.data.tables.table import Table
from kbert.io import atomic, fingerprints
from kbert.io.outputs import Output, changes, read_note

FORMAT_VERSION = 1
FILE_NAME = "rows.json"
BLOCK_ROWS = 256
SHARD_BYTES = 64 << 20
# Size of a window: 64 blocks from anywhere in the data, or fewer if rows are long.
WINDOW_ROWS = 64 * BLOCK_ROWS
WINDOW_BYTES = 64 << 20
_INDEX_COLUMNS = ("offset", "rows")
# The types that `tf.io.decode_raw` supports.
_DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64")
_DTYPES += ("float16", "float32", "float64")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """Layout of a column in a block.

    Attributes:
        name: name of the column.
        dtype: type of the values.
        shape: shape of one value; () for a number.
        levels: number of ragged axes after the axis of the rows.
        lengths: type of the row lengths of ragged axes.

    Example:
        >>> Column.of("first", tf.ragged.constant([[1, 2], [3]]))
        Column(name='first', dtype='int32', shape=(), levels=1, lengths='int64')
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    levels: int = 0
    lengths: str = "int64"

    @classmethod
    def of(cls, name: str, column: Any) -> Column:
        """Returns the layout of a column, an array or a ragged tensor (N, …), under this name.

        Raises:
            ValueError: a record cannot store values of this type.
        """
        levels, lengths = 0, "int64"
        while isinstance(column, tf.RaggedTensor):
            levels, lengths = levels + 1, column.row_splits.dtype.name
            column = column.values
        dtype = tf.as_dtype(column.dtype).name
        if dtype not in _DTYPES:
            raise ValueError(
                f"Stored rows must contain numbers: {', '.join(_DTYPES)}. Received: a column "
                f"{name!r} of {dtype}"
            )
        shape = tuple(column.shape[1:])
        return cls(name=name, dtype=dtype, shape=shape, levels=levels, lengths=lengths)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Column:
        """Rebuilds a layout from the fields of `dataclasses.asdict`, loaded from JSON."""
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    @property
    def dtypes(self) -> dict[str, str]:
        """Name -> type of each array of the column in a block."""
        lengths = {f"{self.name}/{level}": self.lengths for level in range(self.levels)}
        return {**lengths, self.name: self.dtype}

    def cut(self, column: Any) -> Callable[[int, int], dict[str, np.ndarray]]:
        """Returns a function that gives the arrays of some rows of a column (N, …), for a block.

        From (begin, end) it makes name -> array of the rows `begin … end - 1`, with the names in
        `dtypes`.
        """
        splits = []
        while isinstance(column, tf.RaggedTensor):
            splits.append(column.row_splits.numpy())
            column = column.values
        values = np.asarray(column)

        def arrays(begin: int, end: int) -> dict[str, np.ndarray]:
            row_lengths = {}
            for level, ends in enumerate(splits):
                row_lengths[f"{self.name}/{level}"] = np.diff(ends[begin : end + 1])
                begin, end = ends[begin], ends[end]
            return {**row_lengths, self.name: values[begin:end]}

        return arrays

    def join(self, arrays: Mapping[str, tf.Tensor], size: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Rebuilds a column of `size` rows from blocks; runs in a graph or eagerly.

        `arrays` is name -> flat values of all blocks together, for the names in `dtypes`.
        """
        lengths = [arrays[f"{self.name}/{level}"] for level in range(self.levels)]
        size = tf.cast(tf.reduce_sum(lengths[-1]) if lengths else size, tf.int64)
        column = tf.reshape(arrays[self.name], [size, *self.shape])
        column = tf.ensure_shape(column, [None, *self.shape])
        for row_lengths in reversed(lengths):
            column = tf.RaggedTensor.from_row_lengths(column, row_lengths, validate=False)
        return column


_LENGTHS = Column(name="row/length", dtype="int64")  # the lengths of rows, in every block


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Rows on disk, written by `write_rows` and opened by `read_rows`; only the index is in memory.

    Attributes:
        folder: folder of the shards.
        note: content of `rows.json`.
        index: (blocks, 3) int64: number of the shard, byte offset, number of rows.
    """

    folder: str
    note: Mapping[str, Any]
    index: np.ndarray

    def __len__(self) -> int:
        return self.note["rows"]

    def __repr__(self) -> str:
        return f"StoredRows({len(self):,} rows of {self.num_examples:,} examples in {self.folder})"

    @property
    def num_examples(self) -> int:
        """Number of examples in the table from which the rows were made."""
        return self.note["examples"]

    @property
    def cut(self) -> int:
        """Number of examples that were truncated."""
        return self.note["cut"]

    @property
    def checksum(self) -> int:
        """CRC-32 of all records."""
        return self.note["checksum"]

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """Layouts of the columns."""
        return tuple(map(Column.from_dict, self.note["columns"]))

    @property
    def paths(self) -> list[str]:
        """Paths of the shards, in order."""
        return [_shard_path(self.folder, number) for number in range(len(self.note["shards"]))]

    @functools.cached_property
    def window_rows(self) -> int:
        """Number of rows in a window, for which batches are planned together in memory."""
        size = sum(shard["bytes"] for shard in self.note["shards"])
        return max(1, min(WINDOW_ROWS, WINDOW_BYTES * len(self) // size))

    def check(self, identity: Mapping[str, Any]) -> None:
        """Raises ValueError unless the rows were made with this `identity`, see `write_rows`."""
        if changed := changes(self.note, identity):
            raise ValueError(
                f"The rows in {self.folder} were prepared for another task, tokenizer or "
                "settings: use the same ones, or prepare the data again in another folder. "
                f"Received: {'; '.join(changed)}"
            )

    def first(self, count: int) -> Rows:
        """Loads the first rows on disk, at most `count`, into memory.

        Their `examples` are numbered 0, 1, …, since the origin of a row is not stored.
        """
        stop = min(count, len(self))
        order = self.order(tf.constant(0), None)
        columns, lengths, _ = next(iter(self.window(order, tf.constant(0), tf.constant(stop))))
        ragged = {c.name: columns[c.name] for c in self.columns if c.levels}
        dense = {c.name: columns[c.name].numpy() for c in self.columns if not c.levels}
        return Rows(ragged=ragged, dense=dense, lengths=lengths.numpy(), examples=np.arange(stop))

    def order(self, epoch: tf.Tensor, seed: int | None) -> tuple[tf.Tensor, ...]:
        """Returns the block order of an epoch, for `window`; runs in a graph or eagerly.

        Args:
            epoch: number of the epoch.
            seed: seed of the orders; None keeps the order on disk.

        Returns:
            The blocks in order, and the number within the epoch of each block's first row,
            (blocks,) int64 each.
        """
        block = tf.range(len(self.index), dtype=tf.int64)
        if seed is not None:
            block = block_order(seed, tf.cast(epoch, tf.int64), len(self.index), block)
        return block, tf.cumsum(tf.gather(self._blocks[2], block), exclusive=True)

    def window(
        self, order: tuple[tf.Tensor, ...], first: tf.Tensor, stop: tf.Tensor
    ) -> tf.data.Dataset:
        """Reads a window of an epoch; runs in a graph or eagerly.

        Args:
            order: block order of the epoch, from `order`.
            first: number of the window's first row in this order.
            stop: number of the row after the window's last one.

        Returns:
            A dataset of one element: the columns (W, …), the lengths (W,) int64, and the numbers
            (W,) int64 of the rows, ascending.
        """
        first, stop = tf.cast(first, tf.int64), tf.cast(stop, tf.int64)
        begin = tf.searchsorted(order[1], first[None], side="right")[0] - 1
        end = tf.searchsorted(order[1], stop[None], side="left")[0]
        block, block_start = (x[begin:end] for x in order)
        by_number = tf.argsort(block)
        block, block_start = (tf.gather(x, by_number) for x in (block, block_start))
        shard, offset, size, begin = (tf.gather(x, block) for x in self._blocks)
        # The blocks at both ends also contain rows of the neighbouring windows.
        low, high = tf.maximum(first - block_start, 0), tf.minimum(stop - block_start, size)
        rows_before = tf.cumsum(size, exclusive=True)
        index = tf.ragged.range(rows_before + low, rows_before + high).values
        numbers = tf.ragged.range(begin + low, begin + high).values

        def parse(serialized: tf.Tensor) -> tuple[dict[str, Any], tf.Tensor, tf.Tensor]:
            columns = (*self.columns, _LENGTHS)
            dtypes = {name: x for column in columns for name, x in column.dtypes.items()}
            arrays = records.parse_arrays(serialized, dtypes)
            rows = tf.reduce_sum(size)
            joined = {column.name: column.join(arrays, rows) for column in columns}
            joined = gather(joined, index)
            return joined, joined.pop(_LENGTHS.name), numbers

        serialized = read_records(tf.gather(self.paths, shard), offset).batch(
            tf.size(block, tf.int64)
        )
        return serialized.map(tf.autograph.experimental.do_not_convert(parse))

    def verify(self) -> None:
        """Reads every record and verifies the checksum.

        Raises:
            ValueError: a record cannot be read (the message names shard and record), or the records
                are not those that were written.
        """
        checksum = 0
        for number, path in enumerate(self.paths):
            serialized = iter(tf.data.TFRecordDataset(path))
            for offset in self.index[self.index[:, 0] == number, 1]:
                try:
                    checksum = fingerprints.crc32([next(serialized).numpy()], checksum)
                except (tf.errors.DataLossError, StopIteration) as error:
                    raise ValueError(
                        f"{path}, record at byte {offset} is corrupt or missing. Received: {error}"
                    ) from error
        if checksum != self.checksum:
            raise ValueError(
                f"The records in {self.folder} must have the CRC-32 that {FILE_NAME} lists, "
                f"{self.checksum}. Received: {checksum}"
            )

    @functools.cached_property
    def _blocks(self) -> tuple[tf.Tensor, ...]:
        """Shard, byte offset, number of rows and number of the first row of each block."""
        shard, offset, size = self.index.T
        with tf.init_scope():  # eager tensors, not constants inside the graph
            return tuple(map(tf.constant, (shard, offset, size, np.cumsum(size) - size)))


class _RowsOutput(Output):
    def _is_begun(self, state: Mapping[str, Any]) -> bool:
        return bool(state["shards"])  # before the first shard, other settings lose no work


def write_rows(
    folder: PathLike,
    tables: Iterable[Table],
    rows_of: Callable[[Table], Rows],
    identity: Mapping[str, Any],
) -> StoredRows:
    """Writes the rows of tables into shards, one table after the other; resumable.

    A resumed call reads the tables again, but makes no rows for those already in shards.

    Args:
        folder: folder for the shards; empty, or the folder of an earlier call.
        tables: parts of a table, of some thousand rows each; one is in memory at a time.
        rows_of: function that makes the rows of a part; all parts must have the same columns.
        identity: settings that the rows depend on in addition to the tables; must be valid JSON.

    Raises:
        ValueError: the folder contains rows of other tables or settings; no table has a row; parts
            differ in their columns.

    Example:
        >>> import tempfile
        >>> def rows_of(table):
        ...     ids = tf.strings.unicode_decode(table["text"], "UTF-8")
        ...     lengths = ids.row_lengths().numpy()
        ...     return Rows(ragged={"first": ids}, dense={}, lengths=lengths,
        ...                 examples=np.arange(len(table)))
        >>> tables = [Table({"text": ["ab", ""]}), Table({"text": ["c"]})]
        >>> rows = write_rows(tempfile.mkdtemp(), tables, rows_of, {"made": "of letters"})
        >>> len(rows), rows.first(3).ragged["first"].to_list()
        (3, [[97, 98], [], [99]])
    """
    folder = os.fspath(folder)
    with atomic.only_one(folder):
        output = _RowsOutput(
            folder,
            {"format_version": FORMAT_VERSION, **identity},
            os.path.join(folder, FILE_NAME),
            finished=False,
            tables=0,
            source=0,
            examples=0,
            rows=0,
            cut=0,
            checksum=0,
            columns=None,
            shards=[],
        )
        remaining_tables = _rest(output, (table for table in tables if len(table)))
        if not output.finished:
            output.save()
            atomic.remove_leftovers(folder)
            for table in remaining_tables:
                _write_shard(output, itertools.chain([table], remaining_tables), rows_of)
            if not output.state["rows"]:
                raise ValueError(
                    f"Training requires at least one row. Received: {output.state['examples']} "
                    "examples without rows"
                )
            output.save(finished=True)
    return read_rows(folder)


def read_rows(folder: PathLike) -> StoredRows:
    """Opens the rows that `kbert.tasks.prepare_rows` wrote, and checks that they are complete.

    Args:
        folder: folder of the shards.

    Raises:
        FileNotFoundError: the folder contains no rows, or a shard is missing.
        ValueError: the rows are unfinished, damaged, or of another format version.
    """
    folder = os.fspath(folder)
    path = os.path.join(folder, FILE_NAME)
    note = read_note(path, "The note of rows")
    if note is None:
        raise FileNotFoundError(
            f"Stored rows must be a folder with {FILE_NAME}, as kbert.tasks.prepare_rows writes "
            f"it; read a file with kbert.data.read_table. Received: {folder}"
        )
    version = note.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path}: this kbert reads format version {FORMAT_VERSION}. Received: {version!r}"
        )
    try:
        if not note["finished"]:
            raise ValueError(
                f"The rows in {folder} are unfinished: repeat the interrupted call of "
                f"prepare_rows to finish them. Received: {note['rows']:,} rows in "
                f"{len(note['shards'])} shards"
            )
        tables = [np.zeros((0, 3), np.int64)]
        for number, shard in enumerate(note["shards"]):
            file = _shard_path(folder, number)
            records.check_size(file, shard["bytes"])
            index = records.read_index(records.index_path(file), shard["blocks"], _INDEX_COLUMNS)
            tables.append(np.insert(index, 0, number, axis=1))
        rows = StoredRows(folder=folder, note=note, index=np.concatenate(tables))
        counts = [rows.num_examples, rows.cut, rows.checksum, len(rows.columns), len(rows)]
    except (TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is incomplete or was changed: it must contain everything that prepare_rows "
            f"wrote. Received: {type(error).__name__}: {error}"
        ) from error
    if rows.index[:, 2].sum() != counts[-1] or not 0 < counts[-1] < 2**31:
        raise ValueError(
            f"The number of rows in {path} must be that of the indexes, from 1 to 2^31 - 1. "
            f"Received: {counts[-1]} rows, {rows.index[:, 2].sum()} in the indexes"
        )
    return rows


def _rest(output: Output, tables: Iterator[Table]) -> Iterator[Table]:
    """Skips the tables whose rows are on disk, and returns an iterator over the others.

    Raises ValueError if the skipped tables have changed or are fewer than before, or if `output` is
    finished and others follow.
    """
    num_written, source, num_read = output.state["tables"], 0, 0
    for table in itertools.islice(tables, num_written):
        num_read, source = num_read + 1, _checksum(table, source)
    received = None
    if num_read < num_written:
        received = f"{num_read} parts, but the rows of {num_written} are already written"
    elif source != output.state["source"]:
        received = f"other examples among the first {output.state['examples']:,}"
    elif output.finished and next(tables, None) is not None:
        received = f"more than {output.state['examples']:,} examples"
    if received:
        raise ValueError(
            f"The rows in {output.path} were made from other data, or from the same data in other "
            f"parts: choose another folder or remove this one. Received: {received}"
        )
    return tables


def _checksum(table: Table, before: int) -> int:
    return fingerprints.crc32([str(table.checksum)], before)


def _write_shard(output: Output, tables: Iterable[Table], rows_of: Callable[[Table], Rows]) -> None:
    """Writes one shard, with the rows of as many tables as fill it, and updates `rows.json`.

    `output` has the state of the folder. `rows_of` makes the rows of a table. Tables that follow
    are not read.
    """
    state = dict(output.state)
    path = _shard_path(os.fspath(output.path), len(state["shards"]))
    with records.RecordWriter(path, _INDEX_COLUMNS) as writer:
        for table in tables:
            rows = rows_of(table)
            columns = {**rows.ragged, **rows.dense}
            layout = [Column.of(name, column) for name, column in columns.items()]
            layout_dicts = [dataclasses.asdict(column) for column in layout]
            state["columns"] = state["columns"] or layout_dicts
            if list(map(Column.from_dict, state["columns"])) != layout:
                raise ValueError(
                    f"{table.place(0)}: the rows of all parts must have the same columns. "
                    f"Received: {layout_dicts} after {state['columns']}"
                )
            for record, count in _records(rows, layout):
                writer.write(record, count)
                state["checksum"] = fingerprints.crc32([record], state["checksum"])
            state["source"] = _checksum(table, state["source"])
            added = {"tables": 1, "examples": len(table), "rows": len(rows), "cut": rows.cut}
            state |= {name: state[name] + count for name, count in added.items()}
            if writer.bytes >= SHARD_BYTES:
                break
    shard = {"bytes": writer.bytes, "blocks": len(writer.index)}
    output.save(**{**state, "shards": [*state["shards"], shard]})


def _records(rows: Rows, layout: Iterable[Column]) -> Iterator[tuple[bytes, int]]:
    """Yields (record, number of rows) for each block of at most `BLOCK_ROWS` rows.

    `layout` has all columns of the rows.
    """
    columns = {**rows.ragged, **rows.dense, _LENGTHS.name: rows.lengths.astype(np.int64)}
    cuts = [column.cut(columns[column.name]) for column in (*layout, _LENGTHS)]
    for begin in range(0, len(rows), BLOCK_ROWS):
        end = min(begin + BLOCK_ROWS, len(rows))
        arrays = {name: x for cut in cuts for name, x in cut(begin, end).items()}
        yield records.encode_arrays(arrays), end - begin


def _shard_path(folder: str, number: int) -> str:
    return os.path.join(folder, f"rows-{number:05d}.tfrecord")
