"""fastText's .bin files: vectors of words and of their n-grams, which unseen words are made of.

(Bojanowski et al. 2017, https://arxiv.org/abs/1607.04606; the layout is that of
`FastText::saveModel`, version 12, in facebookresearch/fastText.)

Shapes: W words, B buckets of n-grams, D width.
"""

import os
import struct
from typing import BinaryIO

import numpy as np

from kbert.io.paths import local_only
from kbert.word_vectors.formats import Collected

MAGIC = struct.pack("<i", 793712314)
_VERSION = 12
_ARGUMENTS = struct.Struct("<12id")
_COUNTS = struct.Struct("<3i2q")
_MAX_WORD_BYTES = 1 << 16
_END_OF_SENTENCE = "</s>"  # has no n-grams


class Subwords:
    """Vectors of character n-grams, looked up by their hash.

    Args:
        table: vectors of the buckets, (B, D) float32.
        shortest: fewest characters of an n-gram, counting the "<" and ">" around the word.
        longest: most characters of an n-gram, counted in the same way.
    """

    def __init__(self, table: np.ndarray, shortest: int, longest: int) -> None:
        self.table = table
        self.shortest, self.longest = shortest, longest

    def rows(self, word: str) -> list[int]:
        """Returns the table rows of a word's n-grams.

        Example:
            >>> Subwords(np.zeros((1000, 2)), 3, 3).rows("où")
            [388, 676]
        """
        if word == _END_OF_SENTENCE or not len(self.table):
            return []
        letters = [letter.encode() for letter in f"<{word}>"]
        hashes = []
        for start in range(len(letters)):
            value = 2166136261  # FNV-1a, with bytes above 127 as negative numbers
            for count, letter in enumerate(letters[start : start + self.longest], 1):
                for byte in letter:
                    byte = byte if byte < 128 else byte | 0xFFFFFF00
                    value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
                at_the_edge = start == 0 or start + count == len(letters)
                if count >= self.shortest and not (count == 1 and at_the_edge):
                    hashes.append(value % len(self.table))
        return hashes

    def vector(self, word: str) -> np.ndarray:
        """Returns the vector (D,) of an unseen word: the mean over its n-grams, zeros without any.

        ValueError if that is not finite.
        """
        rows = self.rows(word)
        if not rows:
            return np.zeros(self.table.shape[1], np.float32)
        vector = self.table[rows].mean(0)
        if not np.isfinite(vector).all():  # a memory-mapped table is not checked on loading
            raise ValueError(
                "Vectors of n-grams must be finite numbers. Received: NaN or infinity in those of "
                f"{word!r:.80}"
            )
        return vector


def read_fasttext(path: str, limit: int | None) -> tuple[list[str], np.ndarray, Subwords]:
    """Reads words, their vectors, and the n-grams.

    The vector of a word is the mean of its table row and of its n-grams' rows, as fastText prints
    it. The tables stay on disk and are memory-mapped.

    Args:
        path: local path of the file.
        limit: number of words to read, the most frequent ones; None = all.

    Returns:
        W words, their vectors (W, D) float32, and the n-grams.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another version, is quantised, or its parts do not fit together.
    """
    path = local_only(path, "A fastText file, which is mapped into memory,")
    collected = Collected(path)
    with open(path, "rb") as file:
        magic, version = file.read(4), _read(file, struct.Struct("<i"), path)[0]
        if magic != MAGIC or version != _VERSION:
            raise ValueError(
                f"A fastText model must have version {_VERSION}. Received: version {version}, "
                f"first bytes {magic!r} in {path}"
            )
        width, *_, bucket, shortest, longest, _, _ = _read(file, _ARGUMENTS, path)
        size, num_words, labels, _, pruned = _read(file, _COUNTS, path)
        words = [_entry(file, path) for _ in range(_checked(size, num_words, labels, file, path))]
        if pruned >= 0 or file.read(1) != b"\0":
            raise ValueError(
                "Quantised and pruned models are not supported: save the model without "
                f"`quantize`. Received: {path}"
            )
        rows, columns = _read(file, struct.Struct("<2q"), path)
        start, length = file.tell(), os.fstat(file.fileno()).st_size
    if columns != width or width < 1 or bucket < 0 or rows != num_words + bucket:
        raise ValueError(
            f"The table must have {num_words} + {bucket} rows of {width} numbers. "
            f"Received: {rows} rows of {columns} in {path}"
        )
    if length < start + 4 * rows * columns:
        raise ValueError(
            f"The table must have {4 * rows * columns:,} bytes. Received: {length - start:,}, "
            f"then {path} ends"
        )
    if not 0 <= shortest <= longest and longest:
        raise ValueError(
            "The lengths of n-grams must be a range from the shortest to the longest. Received: "
            f"minn={shortest}, maxn={longest} in {path}"
        )
    table = np.memmap(path, "<f4", "r", start, (rows, columns))
    used = bucket if longest else 0
    subwords = Subwords(table[num_words : num_words + used], max(shortest, 1), longest)
    for number, word in enumerate(words[:num_words][:limit]):
        word_vector = table[number]
        grams = subwords.rows(word)
        total = word_vector + subwords.table[grams].sum(0) if grams else word_vector
        collected.add(word, total / np.float32(1 + len(grams)), f"{path}, word {number + 1}")
    return *collected.result(), subwords


def _checked(size: int, words: int, labels: int, file: BinaryIO, path: str) -> int:
    """Returns the number of entries `size` of a dictionary; ValueError for impossible numbers.

    Args:
        size: number of entries: words and labels.
        words: number of words.
        labels: number of labels.
        file: file at the first entry.
        path: path of the file, for the message.
    """
    bytes_left = os.fstat(file.fileno()).st_size - file.tell()
    if not 0 < words <= size or labels != size - words or 10 * size > bytes_left:
        raise ValueError(
            "A dictionary must have words, followed by labels, each of at least 10 bytes. "
            f"Received: {size} entries, {words} words, {labels} labels and {bytes_left} bytes in "
            f"{path}"
        )
    return size


def _read(file: BinaryIO, form: struct.Struct, path: str) -> tuple:
    """Reads and returns the values of the struct `form`; ValueError if the file is truncated."""
    content = file.read(form.size)
    if len(content) != form.size:
        raise ValueError(f"The file is truncated. Received: {path}, of {file.tell()} bytes")
    return form.unpack(content)


def _entry(file: BinaryIO, path: str) -> str:
    """Reads one entry of the dictionary and returns its word; ValueError if it is malformed."""
    content = bytearray()
    while (byte := file.read(1)) != b"\0":
        content += byte
        if not byte or len(content) > _MAX_WORD_BYTES:
            raise ValueError(
                f"A word must end with a NUL byte. Received: {bytes(content)!r:.80}, {path}"
            )
    _read(file, struct.Struct("<qb"), path)  # the word's count, and whether it is a label
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Words must be UTF-8. Received: {bytes(content)!r:.80} in {path}"
        ) from error
