"""Files of word vectors: word2vec's text and binary formats, GloVe's and fastText's text.

Each file is read in one pass, with memory only for the vectors that are kept. A file that ends
early, a vector of another width, a number that is not finite and a word that is not UTF-8 raise an
error with the position. Of a duplicate word the first vector is kept; a warning reports how many.

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
_ROWS = 4096  # vectors per block


class Collected:
    """Collects words and vectors in blocks while a file is read.

    Args:
        path: path of the file, for messages.
    """

    def __init__(self, path: str) -> None:
        self.rows: dict[str, int] = {}
        self._path = path
        self._blocks: list[np.ndarray] = []
        self._twice = 0

    def add(self, word: str, vector: np.ndarray, where: str) -> None:
        """Adds a word and its vector (D,); a repeated word is only counted.

        Args:
            word: the word.
            vector: its vector.
            where: place in the file, for the message.

        Raises:
            ValueError: the vector has a number that is not finite.
        """
        if not np.isfinite(vector).all():
            raise ValueError(
                f"{where}: a vector must have finite numbers. Received: "
                f"{vector[~np.isfinite(vector)][0]} for {word!r:.80}"
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
        """Returns the words and their vectors (W, D), and frees the blocks.

        Raises:
            ValueError: there are no words.
        """
        if not self.rows:
            raise ValueError(f"{self._path} must have at least one word with its vector")
        if self._twice:
            logging.warning(
                "%s has %d repeated words: only the first vector of each word is used",
                self._path,
                self._twice,
            )
        vectors = np.empty((len(self.rows), self._blocks[0].shape[1]), np.float32)
        for start in range(0, len(vectors), _ROWS):
            part = vectors[start : start + _ROWS]
            part[:] = self._blocks[start // _ROWS][: len(part)]
            self._blocks[start // _ROWS] = part  # frees the block's memory
        return [*self.rows], vectors


def read_text(path: str, limit: int | None) -> tuple[list[str], np.ndarray]:
    """Reads lines of a word and its numbers, with or without a header.

    The header is word2vec's, which fastText's .vec has too.

    Args:
        path: path of the file; `.gz` is unpacked while reading.
        limit: number of words to read; None = all.

    Returns:
        W words and their vectors (W, D) float32.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file ends early, a vector has another width or a number that is not finite,
            or a word is not UTF-8.
    """
    collected = Collected(path)
    declared = width = None
    read = 0
    for number, line in DataFile(path).numbered_lines(_MAX_LINE_BYTES, "a word and its vector"):
        text = line.decode().rstrip("\r\n ")
        where = f"{path}, line {number}"
        if number == 1 and (sizes := _header(text)) is not None:
            declared, width = sizes
            continue
        if limit is not None and read == limit:
            return collected.result()
        word, vector = _parsed(where, text, width)
        width = len(vector)
        collected.add(word, vector, where)
        read += 1
    if declared is not None and read != declared:
        raise ValueError(
            f"{path} must have as many vectors as its header declares, {declared}. Received: {read}"
        )
    return collected.result()


def read_binary(path: str, limit: int | None) -> tuple[list[str], np.ndarray]:
    """Reads word2vec's binary file.

    It is a header, then for each word the word, a blank, and float32 in little endian.

    Args:
        path: path of the file; `.gz` is unpacked while reading.
        limit: number of words to read; None = all.

    Returns:
        W words and their vectors (W, D) float32.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file ends early, a vector has a number that is not finite, or a word is not
            UTF-8.
    """
    collected = Collected(path)
    with _opened(path) as file:
        header = file.readline(_MAX_WORD_BYTES).decode("ascii", "replace")
        if (sizes := _header(header.rstrip())) is None:
            raise ValueError(
                f"{path} must begin with the number of words and the width. Received: "
                f"{header!r:.80}"
            )
        declared, width = sizes
        for number in range(declared if limit is None else min(declared, limit)):
            where = f"{path}, word {number + 1} of {declared}"
            word = _read_word(file, where)
            content = file.read(4 * width)
            if len(content) != 4 * width:
                raise ValueError(
                    f"{where}: a vector must have {4 * width} bytes. Received: {len(content)}, "
                    "then the file ends"
                )
            collected.add(word, np.frombuffer(content, "<f4"), where)
    return collected.result()


def write_text(path: PathLike, words: list[str], vectors: np.ndarray, header: bool) -> None:
    """Writes word2vec's text file, or GloVe's, which has no header. The write is atomic.

    Args:
        path: path of the file.
        words: W words.
        vectors: their vectors (W, D).
        header: whether the first line has W and D, as in word2vec's format.

    Raises:
        ValueError: a word is empty or has a blank, an end of line or a NUL character, or the file
            would begin with a byte order mark.
    """
    _check_words(words, " \n\r\0")
    if not header and words and words[0].startswith("\ufeff"):
        raise ValueError(
            "The first word of a file without a header must not begin with U+FEFF, which is read "
            f"as a byte order mark: write word2vec's format. Received: {words[0]!r:.80}"
        )
    with atomic.writing(os.fspath(path)) as file:
        if header:
            file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors, strict=True):
            # As many digits as distinguish each float32 from its neighbours.
            file.write(f"{word} {' '.join(map(str, vector))}\n".encode())


def write_binary(path: PathLike, words: list[str], vectors: np.ndarray) -> None:
    """Writes W words and their vectors (W, D) as word2vec's binary file, in an atomic write.

    ValueError for a word that is empty or has a blank or an end of line.
    """
    _check_words(words, " \n\r")
    with atomic.writing(os.fspath(path)) as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors.astype("<f4"), strict=True):
            file.write(word.encode() + b" " + vector.tobytes() + b"\n")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Opens a file to read bytes; damaged gzip data raises ValueError."""
    with Path(path).open("rb") as file:
        if not path.endswith(".gz"):
            yield file
            return
        try:
            yield gzip.GzipFile(fileobj=file)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} must be a complete gzip file. Received: {error}") from error


def _header(text: str) -> tuple[int, int] | None:
    """Returns the number of words and the width in a first line; None if it is not a header."""
    fields = text.split(" ")  # not split(): a line that begins with a blank is not a header
    if len(fields) != 2 or not all(field.isascii() and field.isdecimal() for field in fields):
        return None
    if max(map(len, fields)) > 18:
        return None
    words, width = map(int, fields)
    return (words, width) if 0 < width <= _MAX_WIDTH else None


def _parsed(where: str, text: str, width: int | None) -> tuple[str, np.ndarray]:
    """Splits a line into a word and its vector (D,); ValueError if it is malformed.

    Args:
        where: place of the line, for the message.
        text: the line.
        width: width D of the vectors; None for the first line.
    """
    # Split from the right: some GloVe files have words with blanks in them.
    word, *fields = text.split(" ") if width is None else text.rsplit(" ", width)
    if not word or not fields or (width is not None and len(fields) != width):
        rule = "numbers" if width is None else f"{width} numbers"
        raise ValueError(
            f"{where}: a line must be a word and {rule}, separated by blanks. Received: "
            f"{text!r:.80}"
        )
    if " " in word and math.isfinite(_number(word.rpartition(" ")[2])):
        raise ValueError(
            f"{where}: a line must be a word and {width} numbers, like the first line, and "
            f"nothing more. Received: {text!r:.80}"
        )
    with np.errstate(over="ignore"):  # an overflow becomes infinite, which raises below
        numbers = np.array([_number(field) for field in fields], np.float32)
    if not np.isfinite(numbers).all():
        bad = fields[int(np.argmin(np.isfinite(numbers)))]
        raise ValueError(
            f"{where}: a vector must have finite numbers. Received: {bad!r:.40} for {word!r:.80}"
        )
    return word, numbers


def _number(field: str) -> float:
    """Returns the number that a text spells; NaN if it spells none."""
    try:
        return float(field)
    except ValueError:
        return math.nan


def _read_word(file: BinaryIO, where: str) -> str:
    """Reads a word and the blank after it from a binary file; ValueError, at `where`, else."""
    content = bytearray()
    for byte in _bytes(file):
        if byte == b" ":
            break
        if byte != b"\n" or content:  # some programs write a newline after each vector
            content += byte
        if len(content) > _MAX_WORD_BYTES:
            break
    else:
        raise ValueError(f"{where}: the file is truncated. Received: {bytes(content)!r:.80}")
    try:
        word = content.decode()
    except UnicodeDecodeError:
        word = ""
    if not word or len(content) > _MAX_WORD_BYTES:
        raise ValueError(
            f"{where}: a word must be UTF-8, followed by a blank. Received: "
            f"{bytes(content[:60])!r:.80}"
        )
    return word


def _bytes(file: BinaryIO) -> Iterator[bytes]:
    while byte := file.read(1):
        yield byte


def _check_words(words: list[str], forbidden: str) -> None:
    """Raises ValueError for an empty word, or one with one of the characters of `forbidden`."""
    for word in words:
        if not word or not {*forbidden}.isdisjoint(word):
            raise ValueError(
                "Words must have no blanks, no line breaks and, in a text file, no NUL character "
                f"to be written to a file. Received: {word!r:.80}"
            )
