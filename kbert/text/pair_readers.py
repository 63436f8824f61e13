"""Readers of text pairs: aligned files, columns, JSON lines, Parquet, TensorFlow data sets."""

import abc
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from kbert.text import files, source, sources, tfds

Columns = Sequence[str] | Sequence[int] | None
_Line = tuple[int, bytes]  # number and text
# The origin of a pair (a file or data set, and a number in it), and its two texts.
_Row = tuple[str, int, bytes, bytes]


class Pairs(source.Source, abc.ABC):
    """Pairs of texts on disk, which can be iterated over repeatedly at constant memory.

    A pass yields (source, target) in the order of the files, without surrounding white space. A
    pair with an empty side is skipped and counted; the first pass logs a warning. As a source of
    documents (for example to train a tokenizer) it gives the texts of both sides.

    Attributes:
        empty: number of pairs that the last whole pass skipped because a side was empty.
    """

    unit = "line"

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name, size)
        self.empty = 0
        self._warned = False

    def __iter__(self) -> Iterator[tuple[str, str]]:
        empty, first_empty = 0, ""
        for name, number, *texts in self._rows():
            first_text, second_text = (text.decode().strip() for text in texts)
            if first_text and second_text:
                yield first_text, second_text
                continue
            empty += 1
            first_empty = first_empty or f"{name}, {self.unit} {number}"
        self.empty = empty
        if empty and not self._warned:
            self._warned = True
            logging.warning(
                "%s: %d pairs with an empty side are skipped; the first: %s",
                self.name, empty, first_empty,
            )  # fmt: skip

    def aligned_documents(self) -> "AlignedDocuments":
        """Returns a source with one document per pair, for `kbert.data.prepare_corpus`."""
        return AlignedDocuments(self)

    def documents(self) -> Iterator[bytes]:
        for number, pair in enumerate(self, 1):
            for text in pair:
                yield from self.parts(
                    text.encode(), functools.partial("{}, pair {}".format, self.name, number)
                )

    @abc.abstractmethod
    def _rows(self) -> Iterator[_Row]:
        """Yields (file or data set, number in it, source, target) for every pair, even empty ones.

        The texts are UTF-8. Updates `consumed` and `replaced_characters`.
        """


class AlignedDocuments(source.Source):
    """Pairs of texts as documents of two lines, for models that read both sides in one row.

    Args:
        pairs: pairs of texts to read.

    Example:
        >>> import os, tempfile
        >>> from kbert.text import read_pairs
        >>> path = os.path.join(tempfile.mkdtemp(), "pairs.tsv")
        >>> with open(path, "w") as file:
        ...     _ = file.write("Go.\\tGeh.\\n")
        >>> list(read_pairs(path).aligned_documents().documents())
        [b'Go.\\nGeh.']
    """

    aligned = True

    def __init__(self, pairs: Pairs) -> None:
        super().__init__(f"the pairs of {pairs.name}", pairs.size)
        self.pairs = pairs

    def documents(self) -> Iterator[bytes]:
        for number, pair in enumerate(self.pairs, 1):
            self.consumed = self.pairs.consumed
            # White space is normalised, so each text is exactly one line of the document.
            text = "\n".join(" ".join(side.split()) for side in pair).encode()
            if len(text) > source.MAX_DOCUMENT_BYTES:
                raise ValueError(
                    f"A text with its translation must have at most {source.MAX_DOCUMENT_BYTES} "
                    f"bytes. Received: {len(text)} in pair {number} of {self.pairs.name}"
                )
            yield text
        self.replaced_characters = self.pairs.replaced_characters

    def identity(self) -> dict:
        return {"aligned": self.pairs.identity()}

    def expansion(self) -> float:
        return self.pairs.expansion()


class _FilePairs(Pairs):
    """Base class of pairs from files. Each pass opens the files again."""

    def __init__(self, name: str, paths: list[str], on_bad_utf8: str) -> None:
        for path in paths:
            sources.check_format(path)
        opened = [files.File(path, on_bad_utf8) for path in paths]
        super().__init__(name, sum(file.size for file in opened))
        self.on_bad_utf8 = on_bad_utf8
        self._opened = opened

    def identity(self) -> dict:
        return {"name": self.name, "files": [file.identity() for file in self._opened]}

    def expansion(self) -> float:
        text = sum(file.size * file.expansion() for file in self._opened)
        return text / self.size

    def _note(self, done: int, *reading: files.File) -> None:
        """Sets `consumed` to `done`, the bytes of finished files, plus those read of open files."""
        self.consumed = done + sum(file.consumed for file in reading)


class AlignedFiles(_FilePairs):
    """Pairs from parallel files with one text per line: a source file and its target file.

    `first` are the paths of the source files, `second` those of their target files, in order.
    """

    def __init__(self, first: list[str], second: list[str], on_bad_utf8: str) -> None:
        if len(first) != len(second):
            raise ValueError(
                f"Every source file must have a target file. Received: {len(first)} files and "
                f"{len(second)}: {first} and {second}"
            )
        for path in (*first, *second):
            if sources.form_of(path) != "text":
                raise ValueError(
                    "JSON lines, Parquet and Arrow files must have both sides in one file: pass it "
                    f"alone, with columns=(…, …). Received: {path!r}"
                )
        names = ", ".join(f"{a} and {b}" for a, b in zip(first, second, strict=True))
        super().__init__(names, [*first, *second], on_bad_utf8)
        self._couples = list(zip(first, second, strict=True))

    def _rows(self) -> Iterator[_Row]:
        """Yields the pairs of equal lines; raises ValueError if a file has more lines."""
        bytes_done = replaced = 0
        for couple in self._couples:
            first_file, second_file = (files.File(path, self.on_bad_utf8) for path in couple)
            lines = (_text_lines(file) for file in (first_file, second_file))
            for ours, theirs in itertools.zip_longest(*lines):
                if ours is None or theirs is None:
                    raise ValueError(_unequal(first_file, second_file, ours, theirs))
                self._note(bytes_done, first_file, second_file)
                yield first_file.path, ours[0], ours[1], theirs[1]
            bytes_done += first_file.size + second_file.size
            replaced += first_file.replaced_characters + second_file.replaced_characters
        self._note(bytes_done)
        self.replaced_characters = replaced


class _ColumnPairs(_FilePairs):
    """Base class of pairs from files with both sides in one line."""

    def __init__(self, paths: list[str], columns: Columns, on_bad_utf8: str) -> None:
        super().__init__(", ".join(paths), paths, on_bad_utf8)
        self.columns: list[Any] = list(columns or (0, 1))

    def identity(self) -> dict:
        return {**super().identity(), "columns": self.columns}

    def _rows(self) -> Iterator[_Row]:
        """Yields the pairs of all files, in order."""
        bytes_done = replaced = 0
        for path in (file.path for file in self._opened):
            for file, number, first, second in self._of_file(path):
                self._note(bytes_done, file)
                yield path, number, first, second
            bytes_done += file.size
            replaced += file.replaced_characters
        self._note(bytes_done)
        self.replaced_characters = replaced

    @abc.abstractmethod
    def _of_file(self, path: str) -> Iterator[tuple[files.File, int, bytes, bytes]]:
        """Yields (open file, line number, source, target) for each line of a file; UTF-8 texts."""


class TabSeparated(_ColumnPairs):
    """Pairs from files of tab-separated columns, chosen by number or by the header's names."""

    def __init__(self, paths: list[str], columns: Columns, on_bad_utf8: str) -> None:
        for path in paths:
            if path.removesuffix(".gz").endswith(".csv"):
                raise ValueError(
                    "Columns must be separated by tabs. Read CSV with kbert.data.read_table, and "
                    f"make a list of pairs of its columns. Received: {path!r}"
                )
        super().__init__(paths, columns, on_bad_utf8)

    def _of_file(self, path: str) -> Iterator[tuple[files.File, int, bytes, bytes]]:
        """Yields (file, line from 1, source, target) for each row; "" for a blank line.

        A row with too few columns raises ValueError.
        """
        file = files.File(path, self.on_bad_utf8)
        lines = _text_lines(file)
        columns = self.columns
        if isinstance(columns[0], str):
            _, header = next(lines, (1, b""))
            columns = _positions(path, columns, header.decode().rstrip("\r").split("\t"))
        min_columns = max(columns) + 1
        for number, line in lines:
            fields = line.split(b"\t")
            if len(fields) < min_columns:
                if line.strip():
                    raise ValueError(
                        f"{path}, line {number}: a row must have at least {min_columns} columns, "
                        "separated by tabs; if the sides are in two files, pass both. Received: "
                        f"{len(fields)} columns: {line[:80].decode(errors='replace')!r}"
                    )
                fields = [b""] * min_columns  # a blank line, counted as an empty pair
            yield file, number, fields[columns[0]], fields[columns[1]]


class _NamedPairs(_ColumnPairs):
    """Base class of pairs from files whose columns have names only."""

    def __init__(self, paths: list[str], columns: Columns, on_bad_utf8: str) -> None:
        if columns is None or not isinstance(columns[0], str):
            raise ValueError(
                "JSON lines, Parquet and Arrow files require the names of source and target, such "
                f"as columns=('en', 'de'). Received: columns={columns!r} for {', '.join(paths)}"
            )
        super().__init__(paths, columns, on_bad_utf8)


class ColumnarPairs(_NamedPairs):
    """Pairs from Parquet and Arrow files, chosen by the columns of the two sides.

    `translation.en` is the field "en" of a struct, as `datasets` stores translations.
    """

    unit = "row"

    def _of_file(self, path: str) -> Iterator[tuple[files.File, int, bytes, bytes]]:
        """Yields (file, row from 0, source, target) for each row."""
        from kbert.text.columnar import ColumnarFile

        file = ColumnarFile(path, on_bad_utf8=self.on_bad_utf8)
        for row, (first, second) in enumerate(file.texts(self.columns)):
            yield file, row, first, second


class JsonLines(_NamedPairs):
    """Pairs from files of JSON lines, chosen by the keys of the two sides."""

    def _of_file(self, path: str) -> Iterator[tuple[files.File, int, bytes, bytes]]:
        """Yields (file, line from 1, source, target) for each line; "" for a blank line."""
        # Two readers of one key each; the lines come from the first.
        sides = [files.JsonLinesFile(path, key, self.on_bad_utf8) for key in self.columns]
        file = sides[0]
        lines = file.numbered_lines(files.MAX_JSON_LINE_BYTES, "a line of JSON")
        for number, line in lines:
            if line.strip():
                where = f"{path}, line {number}"
                texts = [side.text(line, where) for side in sides]
            else:
                texts = [b"", b""]
            yield file, number, texts[0], texts[1]
        file.replaced_characters += sides[1].replaced_characters


class TfdsPairs(Pairs):
    """Pairs from two features, `columns`, of a split of a TensorFlow data set.

    None means the data set's own input and target (`supervised_keys`).
    """

    unit = "example"

    def __init__(self, spec: str, columns: Columns, on_bad_utf8: str) -> None:
        builder, split = tfds.open_split(spec)
        columns = columns or builder.info.supervised_keys
        if columns is None or len(columns) != 2 or not all(isinstance(x, str) for x in columns):
            raise ValueError(
                f"tfds:{spec} has the features {sorted(builder.info.features)}; name those of "
                f"source and target, such as columns=('en', 'de'). Received: columns={columns!r}"
            )
        self._sides = [tfds.TfdsSplit(spec, str(name), on_bad_utf8) for name in columns]
        self._read = builder, split
        first = self._sides[0]
        super().__init__(first.name, first.size)

    def identity(self) -> dict:
        first, second = (side.identity() for side in self._sides)
        return {**first, "field": [first["field"], second["field"]]}

    def _rows(self) -> Iterator[_Row]:
        """Yields the pairs of the data set's split, numbered from 0."""
        keys = [side.field for side in self._sides]
        for side in self._sides:
            side.replaced_characters = 0
        examples = tfds.read_split(*self._read).map(lambda example: [example[k] for k in keys])
        for number, values in enumerate(examples.as_numpy_iterator()):
            self.consumed = self.size * (number + 1) // self._sides[0].examples
            where = f"{self.name}, example {number}"
            sides = zip(self._sides, values, strict=True)
            ours, theirs = (side.decoded(value, where, side.field) for side, value in sides)
            yield self.name, number, ours, theirs
        self.replaced_characters = sum(side.replaced_characters for side in self._sides)


def _positions(path: str, names: Sequence[str], header: list[str]) -> list[int]:
    """Returns the positions of the named columns in a header.

    `path` is the file, for the message. A name that the header lacks or repeats raises ValueError.
    """
    for name in names:
        if header.count(name) != 1:
            raise ValueError(
                f"{path}, line 1: exactly one column must be named {name!r}; select columns "
                f"without names by numbers, such as columns=(0, 1). Received: {header!s:.80}"
            )
    return [header.index(name) for name in names]


def _text_lines(file: files.File) -> Iterator[_Line]:
    return file.numbered_lines(source.MAX_DOCUMENT_BYTES, "a line of a pair")


def _unequal(one: files.File, other: files.File, ours: _Line | None, theirs: _Line | None) -> str:
    """Returns the error message about parallel files with different numbers of lines.

    `ours` and `theirs` are the next lines of `one` and `other`; None marks the file that has ended.
    Reads the longer file to its end, to report both lengths.
    """
    longer, shorter = (other, one) if ours is None else (one, other)
    number = next(line for line in (ours, theirs) if line is not None)[0]
    total = sum(1 for _ in _text_lines(files.File(longer.path, "replace")))
    return (
        f"{one.path} and {other.path} must have the same number of lines: line {number} of "
        f"{longer.path} is the first without a partner. Received: {total} lines in {longer.path}, "
        f"{number - 1} in {shorter.path}"
    )
