"""Pairs of a source text and its target: from aligned files, from columns, or from tfds."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kbert.text import sources
from kbert.text.pair_readers import (
    AlignedFiles,
    ColumnarPairs,
    Columns,
    JsonLines,
    Pairs,
    TabSeparated,
    TfdsPairs,
)

SPLITS = ("train", "held_out")
_Path = str | os.PathLike


def read_pairs(
    source: _Path | Sequence[_Path],
    target: _Path | Sequence[_Path] | None = None,
    *,
    columns: Columns = None,
    on_bad_utf8: str = "fail",
) -> Pairs:
    """Opens a source of text pairs; the texts are read during iteration.

    Args:
        source: one of
            a text file, plain or `.gz`, with one text per line; the lines of `target` are the
            translations;
            a file of tab-separated columns, with both sides in a line (quotes have no meaning);
            a `.jsonl` file, with one object per line;
            a `.parquet`, `.arrow` or `.feather` file, with one pair per row;
            `tfds:NAME[/CONFIG][:SPLIT]`, a TensorFlow data set.
            Patterns and lists of files are read one after the other; files of a pattern are
            sorted by name.
        target: file or files of the other side, as many as in `source`.
        columns: the two columns of source and target. For a file of columns: numbers from 0 if it
            has no header, or the names in its first line; None is (0, 1). For JSON lines: keys of
            the objects. For Parquet and Arrow: names, or `COLUMN.FIELD` inside a struct, such as
            "translation.en". For a data set: features; None is its declared input and target.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.

    Returns:
        The pairs. Iterating raises ValueError, with file and line, for files of unequal length, a
        row with too few columns, or bad UTF-8.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a file is empty or of an unsupported format, or columns are missing.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "pairs.tsv")
        >>> with open(path, "w") as file:
        ...     _ = file.write("Go.\\tGeh.\\nRun!\\tLauf!\\nHush\\t\\n")
        >>> pairs = read_pairs(path)
        >>> list(pairs), pairs.empty
        ([('Go.', 'Geh.'), ('Run!', 'Lauf!')], 1)
    """
    if columns is not None:
        _check_columns(columns)
    if target is not None:
        if columns is not None:
            raise ValueError(
                "columns must not be passed with `target`: they name the two sides of one file. "
                f"Received: columns={columns!r}, target={target!r}"
            )
        return AlignedFiles(_expand(source), _expand(target), on_bad_utf8)
    if isinstance(source, str) and source.startswith("tfds:"):
        return TfdsPairs(source.removeprefix("tfds:"), columns, on_bad_utf8)
    paths = _expand(source)
    forms = {sources.form_of(path) for path in paths}
    if len(forms) > 1:
        raise ValueError(
            "Files must all be of one format: columns, JSON lines, or Parquet and Arrow. "
            f"Received: {paths}"
        )
    readers: dict[str, Any] = {"text": TabSeparated, "json": JsonLines, "columnar": ColumnarPairs}
    return readers[forms.pop()](paths, columns, on_bad_utf8)


def split_pairs(
    pairs: Iterable[tuple[str, str]], split: str = "train", held_out_share: float = 0.0
) -> Iterator[tuple[str, str]]:
    """Yields the pairs of one split, chosen by a hash of the source text.

    All translations of a text are therefore in the same split, whatever the order of the pairs.

    Args:
        pairs: pairs of (source, target).
        split: "train" or "held_out".
        held_out_share: share of source texts in "held_out"; all others are in "train".

    Raises:
        ValueError: unknown split, or a share that is negative, 1 or more.

    Example:
        >>> pairs = [(f"sentence {n}", f"Satz {n}") for n in range(1000)]
        >>> [len(list(split_pairs(pairs, split, 0.1))) for split in ("train", "held_out")]
        [906, 94]
    """
    if split not in SPLITS or not 0 <= held_out_share < 1:
        raise ValueError(
            f"split must be one of {SPLITS}, and held_out_share at least 0 and below 1. Received: "
            f"split={split!r}, held_out_share={held_out_share}"
        )
    return _of_split(pairs, split == "held_out", round(held_out_share * 2**64))


def _of_split(
    pairs: Iterable[tuple[str, str]], held_out: bool, limit: int
) -> Iterator[tuple[str, str]]:
    """Yields the pairs of one split, chosen by a hash of the source text.

    Args:
        pairs: pairs of (source, target).
        held_out: whether the held-out pairs are yielded, not the others.
        limit: hashes of 64 bits below this number are held out.
    """
    for pair in pairs:
        digest = hashlib.blake2b(pair[0].encode(), digest_size=8).digest()
        if (int.from_bytes(digest, "big") < limit) == held_out:
            yield pair


def _expand(paths: _Path | Sequence[_Path]) -> list[str]:
    """Returns the files that match paths or patterns, sorted for each pattern.

    No path at all raises ValueError.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    file_paths = [path for pattern in paths for path in sorted(sources.expand(os.fspath(pattern)))]
    if not file_paths:
        raise ValueError("Pairs require at least one file. Received: an empty list")
    return file_paths


def _check_columns(columns: Any) -> None:
    """Raises ValueError unless columns are two different names, or numbers from 0."""
    kinds = {type(column) for column in columns} if not isinstance(columns, str) else set()
    if (
        kinds not in ({str}, {int})
        or len(columns) != 2
        or columns[0] == columns[1]
        or (kinds == {int} and min(columns) < 0)
    ):
        raise ValueError(
            "columns must be two different names or numbers from 0, for source and target. "
            f"Received: {columns!r}"
        )
