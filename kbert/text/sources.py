"""Resolves a user's paths and names (`corpus/*.txt.gz`, `tfds:…`, `docs:`) to text sources."""

import os
from collections.abc import Iterator
from typing import Any

from kbert.core.in_memory import is_table
from kbert.io.paths import Path, exists, glob, is_dir, is_file
from kbert.text import documentation, files, sentences, tfds
from kbert.text.source import Source

# Known formats that are not supported: refusing the name is clearer than "invalid UTF-8 at byte 1".
_OTHER_FORMATS = (".bz2", ".xz", ".zst", ".zip", ".tar", ".orc", ".pdf", ".docx")


def open_sources(
    sources: Any,
    *,
    field: str = "text",
    on_bad_utf8: str = "fail",
) -> list[Source]:
    """Resolves patterns to sources, each file once, in a fixed order.

    Args:
        sources: one or several of
            a path or glob of text files, `.txt` or `.txt.gz`: a blank line between documents,
            one sentence per line or running text;
            a path or glob of `.jsonl` or `.jsonl.gz`: one document per line;
            a path or glob of `.parquet`, `.arrow` or `.feather`: one document per row;
            `tfds:NAME[/CONFIG][:SPLIT]`: a TensorFlow data set;
            `docs:`: the docstrings of the standard library and the installed packages, or
            `docs:NAME` for one of them;
            a table in memory: a `datasets.Dataset`, a frame of pandas or polars, a table of
            pyarrow, a dict of columns;
            an open source, such as the pairs of `read_pairs`.
        field: name of the column or field with the text: in JSON lines, in Parquet and Arrow files
            (`COLUMN.FIELD` inside a struct), in TensorFlow data sets, and in memory.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.

    Raises:
        FileNotFoundError: a pattern matches no file.
        ValueError: an empty file, a folder, an unsupported format, or a table without the column.
    """
    if isinstance(sources, (str, os.PathLike, Source)) or is_table(sources):
        sources = [sources]
    opened: dict[str, Source] = {}
    for entry in sources:
        if is_table(entry):
            entry = _columnar().MemoryColumn(entry, field, on_bad_utf8)
        if isinstance(entry, Source):
            opened[entry.name] = entry
            continue
        pattern = os.fspath(entry)
        if pattern.startswith("tfds:"):
            opened[pattern] = tfds.TfdsSplit(pattern.removeprefix("tfds:"), field, on_bad_utf8)
        elif pattern.startswith("docs:"):
            opened[pattern] = documentation.Documentation(pattern.removeprefix("docs:"))
        else:
            for path in expand(pattern):
                opened[os.fspath(Path(path).resolve())] = _open_file(path, field, on_bad_utf8)
    if not opened:
        raise ValueError("No sources: pass at least one file, pattern, tfds:… or docs:")
    return [opened[key] for key in sorted(opened)]


def expand(pattern: str) -> list[str]:
    """Returns the files that a path or pattern names, at least one, in any order.

    Without a matching file it raises FileNotFoundError, for a folder ValueError.
    """
    # A file whose name contains brackets matches by its name before it is read as a pattern.
    if is_dir(pattern):
        raise ValueError(
            f"A source must be a file or a pattern of files, such as {pattern.rstrip('/')}/*.txt. "
            f"Received: the folder {pattern!r}"
        )
    if exists(pattern):
        return [pattern]
    paths = [path for path in glob(pattern) if is_file(path)]
    if not paths:
        raise FileNotFoundError(f"No file matches. Received: {pattern!r}")
    return paths


def check_format(path: str) -> None:
    """Raises ValueError if a file has an unsupported extension, or if the path is a pipe."""
    if path.endswith(_OTHER_FORMATS):
        raise ValueError(
            "A source must be text or JSON lines, plain or .gz, or a Parquet or Arrow file. "
            f"Received: {path!r}"
        )
    if files.is_stream(path):
        raise ValueError(
            "A corpus is read several times, but a pipe can be read only once: write it to a "
            f"file. Received: {path!r}"
        )


def form_of(path: str) -> str:
    """Returns the form of a file by its extension, also with .gz: "json", "columnar" or "text"."""
    plain = path.lower().removesuffix(".gz")
    is_columnar = plain.endswith(files.COLUMNAR)
    return "columnar" if is_columnar else "json" if plain.endswith((".jsonl", ".json")) else "text"


def _open_file(path: str, field: str, on_bad_utf8: str) -> Source:
    check_format(path)
    form = form_of(path)
    if form == "json":
        return files.JsonLinesFile(path, field, on_bad_utf8)
    if form == "columnar":
        return _columnar().ColumnarFile(path, field, on_bad_utf8)
    return files.TextFile(path, on_bad_utf8)


def _columnar() -> Any:
    from kbert.text import columnar

    return columnar


def documents(
    sources: Any,
    *,
    field: str = "text",
    on_bad_utf8: str = "fail",
) -> Iterator[list[str]]:
    """Yields documents as lists of sentences, at constant memory.

    Args:
        sources: paths, patterns, `tfds:` or `docs:` names, tables in memory, or open sources; see
            `open_sources`.
        field: name of the column or field with the text.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "two.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("It rained. We stayed.\\n\\nNext morning the sun shone.\\n")
        >>> list(documents(path))
        [['It rained.', 'We stayed.'], ['Next morning the sun shone.']]
    """
    for source in open_sources(sources, field=field, on_bad_utf8=on_bad_utf8):
        for text in source.documents():
            yield sentences.split_sentences(text.decode())
