"""A folder of augmented data, written in shards by a program that may be killed at any moment.

    output_dir/
        manifest.json                        settings from the start, counts at the end
        augmented-00000-of-00012.jsonl, …    one object per line: a row, then its copies

Shard i of S contains the rows from N i / S to N (i + 1) / S, so the concatenated shards are the
same bytes for any S. A shard gets its name once it is complete; a restart writes the missing ones.
"""

import glob
import json
import os
from typing import Any

from absl import logging

from kbert.core.contexts import repeatable
from kbert.core.types import PathLike
from kbert.data import Table
from kbert.data.readers import read_table
from kbert.distillation.augmentation.augmenter import Augmenter
from kbert.io import atomic, fingerprints
from kbert.io.outputs import Output, read_note
from kbert.io.paths import Path, exists
from kbert.io.progress import Progress

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
# Default number of table rows in a shard: what a kill costs at most.
ROWS_OF_A_SHARD = 1024


def write_augmented(
    output_dir: PathLike,
    augmenter: Augmenter,
    *,
    shards: int | None = None,
    verbose: bool = False,
) -> dict[str, Any]:
    """Writes an augmented table to a folder.

    After a kill, another call with the same arguments resumes, and the files have the same bytes as
    those of an uninterrupted run. If the folder is finished, nothing is written.

    Args:
        output_dir: folder to write to, created if missing.
        augmenter: augmenter with the table.
        shards: number of files to write; None = one for every 1,024 rows.
        verbose: whether to show a progress bar.

    Returns:
        The manifest: `settings`, `columns`, `counts` (`rows` of the table, `copies`, `lines`) and
        `shards` (`file`, `lines`, `bytes`, `crc32` of each).

    Raises:
        ValueError: the folder contains an augmentation of other data, by another model or with
            other settings; or `shards` is out of range.
        OSError: the disk is full or not writable; finished shards are kept.
    """
    output_dir = os.fspath(output_dir)
    size = len(augmenter.table)
    shards = -(-size // ROWS_OF_A_SHARD) if shards is None else shards
    if not 1 <= shards <= size:
        raise ValueError(
            f"shards must be between 1 and {size:,} (the number of rows). Received: shards={shards}"
        )
    settings = {**augmenter.identity(), "shards": shards}
    with atomic.only_one(output_dir), repeatable():
        output = Output(
            output_dir,
            {"format_version": FORMAT_VERSION, "settings": settings},
            os.path.join(output_dir, MANIFEST),
            finished=False,
            columns=list(augmenter.table.columns),
        )
        if output.finished:
            logging.info("%s is finished already", output_dir)
            return output.state
        output.save()
        atomic.remove_leftovers(output_dir)
        names = [f"augmented-{number:05d}-of-{shards:05d}.jsonl" for number in range(shards)]
        with Progress("augmenting", size, " rows", verbose=int(verbose)) as bar:
            for number, name in enumerate(names):
                start, stop = size * number // shards, size * (number + 1) // shards
                path = os.path.join(output_dir, name)
                if not exists(path):
                    _write_shard(path, augmenter, start, stop, bar)
                bar.show(stop)
        entries = [_describe(output_dir, name) for name in names]
        lines = sum(shard["lines"] for shard in entries)
        counts = {"rows": size, "copies": lines - size, "lines": lines}
        output.save(finished=True, counts=counts, shards=entries)
        return output.state


def read_augmented(folder: PathLike) -> Table:
    """Loads what `write_augmented` has written: each row of the table, followed by its copies.

    Args:
        folder: finished folder of `write_augmented`.

    Returns:
        A table with the same columns as the augmented one.

    Raises:
        FileNotFoundError: the manifest or a shard is missing.
        ValueError: the folder is not finished, or a shard was changed after it was written.
    """
    folder = os.fspath(folder)
    manifest = _read(folder)
    if not manifest["finished"]:
        raise ValueError(
            "An augmentation must be complete to be read: run the same command again to finish it. "
            f"Received: {folder}, in which shards are missing"
        )
    for shard in manifest["shards"]:
        path = os.path.join(folder, shard["file"])
        if not exists(path):
            raise FileNotFoundError(f"{path} is named in the manifest but does not exist")
        actual = _describe(folder, shard["file"])
        if actual != shard:
            raise ValueError(
                f"{path} is truncated or was changed: the manifest has {shard['lines']} lines, "
                f"{shard['bytes']} bytes, checksum {shard['crc32']}. Received: {actual['lines']} "
                f"lines, {actual['bytes']} bytes, checksum {actual['crc32']}"
            )
    files = os.path.join(glob.escape(folder), f"augmented-*-of-{len(manifest['shards']):05d}.jsonl")
    return read_table(files, columns={name: name for name in manifest["columns"]})


def _write_shard(path: str, augmenter: Augmenter, start: int, stop: int, bar: Progress) -> None:
    """Writes rows `start` to `stop` (exclusive) of the table and their copies, whole or not."""
    with atomic.writing(path) as file:
        for row in augmenter.rows(range(start, stop)):
            for record in augmenter.versions(row):
                file.write(_line(augmenter.table, row.number, record).encode())
            bar.show(row.number)


def _line(table: Table, row: int, record: dict[str, Any]) -> str:
    """Returns a record as a JSON line; ValueError, with the place of `row`, if JSON cannot."""
    try:
        return json.dumps(record, ensure_ascii=False) + "\n"
    except TypeError as error:
        raise ValueError(
            f"{table.place(row)}: columns must be texts, numbers or lists of them: {error}"
        ) from None


def _describe(folder: str, name: str) -> dict[str, Any]:
    """Returns the manifest's entry for the shard `name`: `file`, `lines`, `bytes` and `crc32`."""
    lines = checksum = size = 0
    with Path(folder, name).open("rb") as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            checksum = fingerprints.crc32([block], checksum)
            size += len(block)
    return {"file": name, "lines": lines, "bytes": size, "crc32": f"{checksum:08x}"}


def _read(folder: str) -> dict[str, Any]:
    """Returns the manifest; FileNotFoundError without one, ValueError for another format."""
    path = os.path.join(folder, MANIFEST)
    manifest = read_note(path, "The manifest of an augmentation")
    if manifest is None:
        raise FileNotFoundError(
            f"No {MANIFEST} in the folder: kbert-augment writes one at its start. "
            f"Received: {folder}"
        )
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(f"{path}: format_version must be {FORMAT_VERSION}. Received: {version!r}")
    return manifest
