"""fastText's .bin files: vectors of words and of their n-grams, which unseen words are made of.

(Bojanowski et al. 2017, https://arxiv.org/abs/1607.04606; the layout is that of
`FastText::saveModel`, version 12, in facebookresearch/fastText.)

Shapes: W words, B buckets of n-grams, D width.
"""

import os
import struct
from typing import BinaryIO

import numpy as np

from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.io.paths import local_only
from kbert.word_vectors.formats import Collected

MAGIC = struct.pack("<i", 793712314)
_VERSION = 12
_ARGUMENTS = struct.Struct("<12id")
_COUNTS = struct.Struct("<3i2q")
_MAX_WORD_BYTES = 1 << 16
_ROWS = 4096  # table rows written at once
_END_OF_SENTENCE = "</s>"  # has no n-grams


def ngram_rows(word: str, buckets: int, shortest: int, longest: int) -> list[int]:
    """Returns the table rows of a word's n-grams: their hashes modulo the number of rows.

    Args:
        word: the word.
        buckets: number of rows, B.
        shortest: fewest characters of an n-gram, counting the "<" and ">" around the word.
        longest: most characters of an n-gram, counted in the same way.

    Example:
        >>> ngram_rows("où", 1000, 3, 3)
        [388, 676]
    """
    if word == _END_OF_SENTENCE or not buckets:
        return []
    letters = [letter.encode() for letter in f"<{word}>"]
    hashes = []
    for start in range(len(letters)):
        value = 2166136261  # FNV-1a, with bytes above 127 as negative numbers
        for count, letter in enumerate(letters[start : start + longest], 1):
            for byte in letter:
                byte = byte if byte < 128 else byte | 0xFFFFFF00
                value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
            at_the_edge = start == 0 or start + count == len(letters)
            if count >= shortest and not (count == 1 and at_the_edge):
                hashes.append(value % buckets)
    return hashes


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
        return ngram_rows(word, len(self.table), self.shortest, self.longest)

    def vector(self, word: str) -> np.ndarray:
        """Returns the vector (D,) of an unseen word: the mean over its n-grams, zeros without any.

        ValueError if that is not finite.
        """
        rows = self.rows(word)
        if not rows:
            return np.zeros(self.table.shape[1], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
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
        grams = subwords.rows(word)
        with np.errstate(over="ignore", invalid="ignore"):  # `add` raises for NaN and infinity
            total = table[number] + subwords.table[grams].sum(0) if grams else table[number]
            vector = total / np.float32(1 + len(grams))
        collected.add(word, vector, f"{path}, word {number + 1}")
    return *collected.result(), subwords


def write_fasttext(
    path: PathLike, words: list[str], vectors: np.ndarray, subwords: Subwords
) -> None:
    """Writes a model that `read_fasttext` reads back: words and n-grams. The write is atomic.

    A word's table row is what gives its vector as the mean with its n-grams' rows. Word counts and
    the output matrix are not known: each count is 1 and the matrix 0, so the file serves vectors,
    but fastText cannot continue its training.

    Args:
        path: path of the file.
        words: W words.
        vectors: their vectors (W, D).
        subwords: the n-grams.

    Raises:
        ValueError: a word is empty or has a NUL character.
    """
    for word in words:
        if not word or "\0" in word:
            raise ValueError(
                "Words must not be empty or have NUL characters to be written to a file. Received: "
                f"{word!r:.80}"
            )
    (count, width), bucket = vectors.shape, len(subwords.table)
    # fastText's defaults: window 5, 5 epochs, min_count 1, 5 negatives, skip-gram (2).
    training = (5, 5, 1, 5, 1, 2, 2)
    lengths = (bucket, subwords.shortest, subwords.longest)
    with atomic.writing(path) as file:
        file.write(MAGIC + struct.pack("<i", _VERSION))
        file.write(_ARGUMENTS.pack(width, *training, *lengths, 100, 1e-4))
        file.write(_COUNTS.pack(count, count, 0, count, -1))
        for word in words:
            file.write(word.encode() + b"\0" + struct.pack("<qb", 1, 0))
        file.write(b"\0" + struct.pack("<2q", count + bucket, width))
        for word, vector in zip(words, vectors, strict=True):
            grams = subwords.rows(word)
            row = vector * (1 + len(grams)) - subwords.table[grams].sum(0) if grams else vector
            file.write(row.astype("<f4").tobytes())
        for start in range(0, bucket, _ROWS):
            file.write(subwords.table[start : start + _ROWS].astype("<f4").tobytes())
        file.write(b"\0" + struct.pack("<2q", count, width))
        for _ in range(count):
            file.write(bytes(4 * width))


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
