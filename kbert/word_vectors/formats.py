"""Files of word vectors: word2vec's text and binary ones, GloVe's and fastText's text.

All are read in one pass and memory for the vectors that are kept, and checked: a file that ends
early, a vector of another width, what is no finite number and words that are not UTF-8 raise, with
the place. Of a word that stands there twice the first vector counts, and a warning says how many.

Shapes: W words, D width.
"""

import contextlib
import gzip
import math
import os
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from absl import logging

from kbert.core.types import PathLike
from kbert.data.readers.content import DataFile
from kbert.io import atomic
from kbert.io.paths import Path

_MAX_LINE_BYTES = 1 << 20
_MAX_WORD_BYTES = 1 << 16
_MAX_WIDTH = 1 << 16
_ROWS = 4096  # vectors of a block


class Collected:
    """Words and vectors as they are read, in blocks.

    Args:
        path: the file, for messages.
    """

    def __init__(self, path: str) -> None:
        self.rows: dict[str, int] = {}
        self._path = path
        self._blocks: list[np.ndarray] = []
        self._twice = 0

    def add(self, word: str, vector: np.ndarray, where: str) -> None:
        """Keeps a word, unless it is there already.

        Raises:
            ValueError: the vector has what is no finite number.
        """
        if not np.isfinite(vector).all():
            raise ValueError(
                f"{where}: a vector is of finite numbers. "
                f"Received: {vector[~np.isfinite(vector)][0]} for {word!r:.80}"
            )
        if word in self.rows:
            self._twice += 1
            return
        number = len(self.rows)
        if number % _ROWS == 0:
            self._blocks.append(np.empty((_ROWS, len(vector)), np.float32))
        self._blocks[-1][number % _ROWS] = vector
        self.rows[word] = number

    def result(self) -> tuple[list[str], np.ndarray]:
        """The words, and their vectors (W, D).

        Raises:
            ValueError: there are none.
        """
        if not self.rows:
            raise ValueError(f"{self._path} holds no vector of a word")
        if self._twice:
            logging.warning(
                "%s has %d words twice or more: the first vector of each is kept",
                self._path,
                self._twice,
            )
        vectors = np.empty((len(self.rows), self._blocks[0].shape[1]), np.float32)
        for start in range(0, len(vectors), _ROWS):
            part = vectors[start : start + _ROWS]
            part[:] = self._blocks[start // _ROWS][: len(part)]
            self._blocks[start // _ROWS] = part  # the block's memory is free
        return [*self.rows], vectors


def read_text(path: str, limit: int | None) -> tuple[list[str], np.ndarray]:
    """Lines of a word and its numbers, with word2vec's header (as in fastText's .vec) or without.

    Args:
        path: the file; `.gz` is unpacked while reading.
        limit: words to read; None = all.

    Returns:
        W words and (W, D) float32.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: see the module.
    """
    found = Collected(path)
    declared = width = None
    read = 0
    for number, line in DataFile(path).numbered_lines(_MAX_LINE_BYTES, "a word and its vector"):
        text = line.decode().rstrip("\r\n ")
        where = f"{path}, line {number}"
        if number == 1 and (sizes := _header(text)) is not None:
            declared, width = sizes
            continue
        if limit is not None and read == limit:
            return found.result()
        word, vector = _parsed(where, text, width)
        width = len(vector)
        found.add(word, vector, where)
        read += 1
    if declared is not None and read != declared:
        raise ValueError(
            f"The header of {path} says how many vectors follow: {declared}. Received: {read}"
        )
    return found.result()


def read_binary(path: str, limit: int | None) -> tuple[list[str], np.ndarray]:
    """word2vec's binary file: a header, then each word, a blank, and float32 in little endian.

    Args:
        path: the file; `.gz` is unpacked while reading.
        limit: words to read; None = all.

    Returns:
        W words and (W, D) float32.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: see the module.
    """
    found = Collected(path)
    with _opened(path) as file:
        header = file.readline(_MAX_WORD_BYTES).decode("ascii", "replace")
        if (sizes := _header(header.rstrip())) is None:
            raise ValueError(
                f"{path} begins with the number of words and the width. Received: {header!r:.80}"
            )
        declared, width = sizes
        for number in range(declared if limit is None else min(declared, limit)):
            where = f"{path}, word {number + 1} of {declared}"
            word = _read_word(file, where)
            content = file.read(4 * width)
            if len(content) != 4 * width:
                raise ValueError(
                    f"{where}: a vector has {4 * width} bytes. Received: {len(content)}, then the "
                    "file ends"
                )
            found.add(word, np.frombuffer(content, "<f4"), where)
    return found.result()


def write_text(path: PathLike, words: list[str], vectors: np.ndarray, header: bool) -> None:
    """word2vec's text file, or GloVe's, which has no header; whole or not at all.

    Args:
        path: the file.
        words: W of them.
        vectors: (W, D).
        header: whether the first line says W and D.

    Raises:
        ValueError: a word that such a line cannot hold.
    """
    _check_words(words)
    with atomic.writing(os.fspath(path)) as file:
        if header:
            file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors, strict=True):
            # As many digits as tell each float32 from its neighbours.
            file.write(f"{word} {' '.join(map(str, vector))}\n".encode())


def write_binary(path: PathLike, words: list[str], vectors: np.ndarray) -> None:
    """word2vec's binary file, whole or not at all; arguments as of `write_text`."""
    _check_words(words)
    with atomic.writing(os.fspath(path)) as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors.astype("<f4"), strict=True):
            file.write(word.encode() + b" " + vector.tobytes() + b"\n")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """A file to read bytes of; unsound gzip data raises ValueError."""
    with Path(path).open("rb") as file:
        if not path.endswith(".gz"):
            yield file
            return
        try:
            yield gzip.GzipFile(fileobj=file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is a whole gzip file. Received: {error}") from error


def _header(text: str) -> tuple[int, int] | None:
    """How many words, and the width; None where the line is none."""
    fields = text.split(" ")  # not of blanks: a line that begins with one has no word
    if len(fields) != 2 or not all(field.isascii() and field.isdecimal() for field in fields):
        return None
    if max(map(len, fields)) > 18:
        return None
    words, width = map(int, fields)
    return (words, width) if 0 < width <= _MAX_WIDTH else None


def _parsed(where: str, text: str, width: int | None) -> tuple[str, np.ndarray]:
    # From the right: some files of GloVe have words with blanks in them.
    word, *fields = text.split(" ") if width is None else text.rsplit(" ", width)
    if not word or not fields or (width is not None and len(fields) != width):
        rule = "numbers" if width is None else f"{width} numbers"
        raise ValueError(
            f"{where}: a line is a word and {rule}, blanks between them. Received: {text!r:.80}"
        )
    if " " in word and math.isfinite(_number(word.rpartition(" ")[2])):
        raise ValueError(
            f"{where}: a line is a word and {width} numbers, as the first one is, and has no more. "
            f"Received: {text!r:.80}"
        )
    with np.errstate(over="ignore"):  # infinite then, and refused
        numbers = np.array([_number(field) for field in fields], np.float32)
    if not np.isfinite(numbers).all():
        bad = fields[int(np.argmin(np.isfinite(numbers)))]
        raise ValueError(
            f"{where}: a vector is of finite numbers. Received: {bad!r:.40} for {word!r:.80}"
        )
    return word, numbers


def _number(field: str) -> float:
    try:
        return float(field)
    except ValueError:
        return math.nan


def _read_word(file: BinaryIO, where: str) -> str:
    content = bytearray()
    for byte in _bytes(file):
        if byte == b" ":
            break
        if byte != b"\n" or content:  # some programs end vectors with one
            content += byte
        if len(content) > _MAX_WORD_BYTES:
            break
    else:
        raise ValueError(f"{where}: the file ends. Received: {bytes(content)!r:.80}")
    try:
        word = content.decode()
    except UnicodeDecodeError:
        word = ""
    if not word or len(content) > _MAX_WORD_BYTES:
        raise ValueError(
            f"{where}: a word is in UTF-8, and a blank behind it. "
            f"Received: {bytes(content[:60])!r:.80}"
        )
    return word


def _bytes(file: BinaryIO) -> Iterator[bytes]:
    while byte := file.read(1):
        yield byte


def _check_words(words: list[str]) -> None:
    for word in words:
        if not word or set(word) & {" ", "\n", "\r"}:
            raise ValueError(
                f"Such files have words without blanks and ends of lines. Received: {word!r:.80}"
            )
