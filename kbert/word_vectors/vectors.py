"""Static word vectors: one vector for every word, whatever its context.

Shapes: W words, D width, N texts.
"""

import functools
import os
import re
from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np

from kbert.core.types import PathLike
from kbert.inference import as_texts
from kbert.io.paths import Path
from kbert.search.index import Index
from kbert.word_vectors import formats
from kbert.word_vectors.fasttext import MAGIC, Subwords, read_fasttext, write_fasttext

_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
FORMATS = ("text", "binary", "glove", "fasttext")


def split_words(text: str | bytes, lowercase: bool = True) -> list[str]:
    """Splits a text into words and punctuation marks.

    Args:
        text: string or UTF-8 bytes, of any length.
        lowercase: whether to convert the text to lower case.

    Example:
        >>> split_words("Don't stick it there!")
        ["don't", 'stick', 'it', 'there', '!']
    """
    text = text.decode("utf-8", "ignore") if isinstance(text, bytes) else text
    if not isinstance(text, str):
        raise ValueError(f"A text must be a string, not yet split. Received: {text!r:.80}")
    return _WORD.findall(text.lower() if lowercase else text)


def format_of(path: PathLike, format: str | None) -> str:
    """Returns the format of a file to write.

    Args:
        path: path of the file.
        format: one of `FORMATS`; None = "binary" for the suffix `.bin`, else "text".

    Raises:
        ValueError: the format is unknown or contradicts the suffix, or the path ends with `.gz`.

    Example:
        >>> format_of("words.bin", None), format_of("words.txt", "glove")
        ('binary', 'glove')
    """
    is_binary = os.fspath(path).endswith(".bin")
    format = ("binary" if is_binary else "text") if format is None else format
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}. Received: {format!r}")
    if os.fspath(path).endswith(".gz") or is_binary != (format in ("binary", "fasttext")):
        raise ValueError(
            "The suffix must fit the format, because a file is loaded by its suffix: `.bin` "
            'for "binary" and "fasttext", others, such as `.txt`, for text; `.gz` is not '
            f"supported for writing. Received: {os.fspath(path)} with format={format!r}"
        )
    return format


class WordVectors:
    """Words with one vector each, such as those of word2vec, GloVe and fastText.

    Args:
        words: W different words.
        vectors: (W, D) finite numbers.
        subwords: n-grams that give vectors to unseen words; None = unseen words have no vector.

    Raises:
        ValueError: a word occurs twice, the shape is another, or a number is not finite.

    Example:
        >>> vectors = WordVectors(["man", "woman", "king", "queen"],
        ...                       [[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]])
        >>> [word for word, _ in vectors.analogy("man", "king", "woman", k=1)]
        ['queen']
    """

    def __init__(
        self, words: Sequence[str], vectors: np.ndarray, subwords: Subwords | None = None
    ) -> None:
        self.words = list(words)
        self.matrix = np.asarray(vectors, np.float32)
        self.subwords = subwords
        self._rows = {word: row for row, word in enumerate(self.words)}
        if len(self._rows) != len(self.words) or self.matrix.shape[:1] != (len(self.words),):
            raise ValueError(
                f"Words must be unique, with one vector for each. Received: {len(self.words)} "
                f"words, {len(self._rows)} of them different, and vectors of shape "
                f"{self.matrix.shape}"
            )
        if self.matrix.ndim != 2 or not self.matrix.size or not np.isfinite(self.matrix).all():
            raise ValueError(
                "Vectors must be finite numbers of shape (words, width), and not empty. Received: "
                f"shape {self.matrix.shape}"
            )

    @classmethod
    def load(cls, path: PathLike, *, limit: int | None = None) -> Self:
        """Loads a file in the format of word2vec (text or binary), GloVe or fastText.

        Args:
            path: path of the file. `.bin` means fastText's models or word2vec's binary format, and
                `.bin.gz` the latter. Any other suffix, also with `.gz`, means text, such as
                fastText's `.vec`.
            limit: number of words to read from the start, the most frequent ones; None = all. With
                a fastText model, later words get the vectors of their n-grams only.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged; the message has the position. Nothing is unpickled.

        Example:
            >>> import tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "glove.txt")
            >>> with open(path, "w") as file:
            ...     _ = file.write("film 0.1 0.2\\nmovie 0.1 0.3\\n")
            >>> WordVectors.load(path).words
            ['film', 'movie']
        """
        path = os.fspath(path)
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise ValueError(
                f"`limit` must be a whole number, 1 or more, or None. Received: limit={limit!r}"
            )
        if not path.removesuffix(".gz").endswith(".bin"):
            return cls(*formats.read_text(path, limit))
        with Path(path).open("rb") as file:
            is_fasttext = file.read(len(MAGIC)) == MAGIC
        if is_fasttext:
            return cls(*read_fasttext(path, limit))
        return cls(*formats.read_binary(path, limit))

    def save(self, path: PathLike, format: str | None = None) -> None:
        """Saves the words and their vectors, and with format="fasttext" the n-grams.

        Args:
            path: path of the file; `load` reads `.bin` as binary and any other suffix as text.
            format: "binary" or "text" (word2vec's formats) or "glove" (text without a header),
                or "fasttext" (a `.bin` model of words and n-grams). None = "binary" for the suffix
                `.bin`, else "text".

        Raises:
            ValueError: the format is unknown or contradicts the suffix, the path ends with `.gz`
                (which is read but not written), the format cannot represent a word, or it is
                "fasttext" and there are no n-grams.

        Example:
            >>> import tempfile
            >>> path = os.path.join(tempfile.mkdtemp(), "vectors.txt")
            >>> WordVectors(["film", "movie"], [[1, 0], [1, 1]]).save(path)
            >>> WordVectors.load(path).vectors(["movie"]).tolist()
            [[1.0, 1.0]]
        """
        format = format_of(path, format)
        if format == "fasttext":
            if self.subwords is None:
                raise ValueError(
                    'format="fasttext" requires vectors with n-grams (`subwords`). Received: none'
                )
            write_fasttext(path, self.words, self.matrix, self.subwords)
        elif format == "binary":
            formats.write_binary(path, self.words, self.matrix)
        else:
            formats.write_text(path, self.words, self.matrix, header=format == "text")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    @property
    def width(self) -> int:
        """Width of the vectors, D."""
        return self.matrix.shape[1]

    def vectors(self, words: Sequence[str]) -> np.ndarray:
        """Returns the vectors of words.

        Args:
            words: words of the vocabulary; with `subwords` also unseen words.

        Returns:
            (len(words), D) float32.

        Raises:
            KeyError: a word has no vector.
        """
        words = [words] if isinstance(words, str) else list(words)
        array = np.zeros((len(words), self.width), np.float32)
        missing = []
        for row, word in enumerate(words):
            if (vector := self._vector(word if isinstance(word, str) else word.decode())) is None:
                missing.append(word)
            else:
                array[row] = vector
        if missing:
            shown = ", ".join(map(repr, missing[:5]))
            raise KeyError(f"Words must have a vector. Received: {shown}")
        return array

    def text_vectors(self, texts: Iterable[str], lowercase: bool = True) -> np.ndarray:
        """Returns the mean word vector of each text: features for a classifier.

        Args:
            texts: N texts.
            lowercase: whether words are looked up in lower case.

        Returns:
            (N, D) float32; zeros for a text in which no word has a vector.
        """
        array = np.zeros((len(texts := as_texts(texts)), self.width), np.float32)
        for row, text in enumerate(texts):
            vectors = [self._vector(word) for word in split_words(text, lowercase)]
            if vectors := [vector for vector in vectors if vector is not None]:
                array[row] = np.mean(vectors, axis=0)
        return array

    def nearest(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """Returns the words with the highest cosine to a word, without the word itself.

        Args:
            word: word that has a vector.
            k: number of words to return.

        Returns:
            Words and cosines, the nearest first.

        Raises:
            KeyError: the word has no vector.
        """
        return self._found(self.vectors([word])[0], {word}, k)

    def analogy(self, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
        """Returns the words that are to `c` as `b` is to `a`: those nearest to b - a + c.

        (Mikolov et al. 2013, https://aclanthology.org/N13-1090.) Vectors are scaled to length 1,
        and the three words themselves are left out.

        Args:
            a: word that has a vector, the first of the known pair.
            b: word that has a vector, the second of the known pair.
            c: word that has a vector, the first of the searched pair.
            k: number of words to return.

        Returns:
            Words and cosines, the nearest first.

        Raises:
            KeyError: a word has no vector.
        """
        vectors = self.vectors([a, b, c])
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return self._found(vectors[1] - vectors[0] + vectors[2], {a, b, c}, k)

    def _found(self, query: np.ndarray, left_out: set[str], k: int) -> list[tuple[str, float]]:
        """Returns the `k` words nearest to a vector (D,) and their cosines, without `left_out`."""
        if k < 1:
            raise ValueError(f"`k` must be at least 1. Received: k={k}")
        hits = self._index.search(query[None], k=k + len(left_out))
        pairs = zip(hits.ids[0].tolist(), hits.scores[0].tolist(), strict=True)
        named = ((self.words[row], score) for row, score in pairs)
        return [pair for pair in named if pair[0] not in left_out][:k]

    @functools.cached_property
    def _index(self) -> Index:
        return Index(self.matrix)

    def _vector(self, word: str) -> np.ndarray | None:
        """Returns the vector (D,) of a word, from n-grams if it is unseen; None if it has none."""
        if (row := self._rows.get(word)) is not None:
            return self.matrix[row]
        if self.subwords is None or not self.subwords.rows(word):
            return None
        return self.subwords.vector(word)
