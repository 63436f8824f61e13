"""Nearest neighbours of words, as candidates for words of several subwords.

Shapes: `W` words, `D` width.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Self, cast

import numpy as np

from kbert.distillation.augmentation.sentences import is_word
from kbert.io import fingerprints
from kbert.tokenizers.base import Tokenizer
from kbert.word_vectors import WordVectors

# Number of similarities in memory at a time.
_BLOCK = 16 << 20
# Additional words that the product in float32 selects; float64 then ranks all. So the result does
# not depend on the shape of a block.
_SPARE = 64


class Neighbours:
    """Words of letters with vectors, and a search for the nearest ones.

    Args:
        words: W distinct words of letters.
        vectors: vectors of the words, (W, D).
        other_names: other spelling of a word -> row of that word.

    Example:
        >>> found = Neighbours(["film", "movie", "pen"], np.array([[1, 0.1], [1, 0], [0, 1]]))
        >>> found.nearest(["film", "Movie", "unknown"], 1)
        [['movie'], ['film'], []]
    """

    def __init__(
        self,
        words: Sequence[str],
        vectors: np.ndarray,
        other_names: dict[str, int] | None = None,
    ) -> None:
        self.words = list(words)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        # A zero vector has no direction and no neighbours.
        self._directions = np.divide(vectors, norms, where=norms > 0, out=np.zeros_like(vectors))
        self._directions = self._directions.astype(np.float32)
        self._has_direction = norms[:, 0] > 0
        self._rows = {**(other_names or {}), **{word: row for row, word in enumerate(words)}}
        self._folded = [word.casefold() for word in self.words]

    @classmethod
    def among(cls, vectors: WordVectors) -> Self:
        """Creates neighbours among the words that consist of letters and have a vector.

        Raises:
            ValueError: there is no such word.
        """
        rows = [row for row, word in enumerate(vectors.words) if is_word(word)]
        if not rows:
            raise ValueError(
                "At least one word of letters must have a vector, since only these replace words. "
                f"Received: vectors of {len(vectors):,} others, such as {vectors.words[0]!r}"
            )
        return cls([vectors.words[row] for row in rows], vectors.matrix[rows])

    def __len__(self) -> int:
        return len(self.words)

    @functools.cached_property
    def checksum(self) -> str:
        """CRC-32 of words and directions, in hexadecimal."""
        words = "\n".join(self.words)
        return f"{fingerprints.crc32([words, self._directions]):08x}"

    def row(self, word: str) -> int | None:
        """Returns the row of a word, or of its lower case; None if neither has a vector but 0."""
        row = self._rows.get(word, self._rows.get(word.lower()))
        return row if row is not None and self._has_direction[row] else None

    def nearest(self, words: Sequence[str], count: int) -> list[list[str]]:
        """Returns the words with the largest cosine similarity, without the word's own spellings.

        Args:
            words: words whose neighbours are searched.
            count: number of neighbours per word.

        Returns:
            For each word at most `count` words, the nearest first; none if it has no vector.
        """
        rows = [self.row(word) for word in words]
        nearest: list[list[str]] = [[] for _ in words]
        known_numbers = [number for number, row in enumerate(rows) if row is not None]
        step = max(1, _BLOCK // max(len(self), 1))
        for block in (known_numbers[i : i + step] for i in range(0, len(known_numbers), step)):
            similarities = self._directions[[rows[number] for number in block]] @ self._directions.T
            similarities[:, ~self._has_direction] = -np.inf
            for number, cosines in zip(block, similarities, strict=True):
                nearest[number] = self._best(words[number], cast(int, rows[number]), cosines, count)
        return nearest

    def _best(self, word: str, row: int, cosines: np.ndarray, count: int) -> list[str]:
        """Returns the nearest words of one word, without its own spellings.

        Args:
            word: the word.
            row: row of the word.
            cosines: its similarities to all words, (W,) float32; -inf for words without a vector.
            count: number of neighbours.
        """
        num_selected = min(count + _SPARE, len(cosines))
        near = np.argpartition(-cosines, num_selected - 1)[:num_selected]
        near = np.sort(near[np.isfinite(cosines[near])])
        exact = self._directions[near].astype(np.float64) @ self._directions[row].astype(np.float64)
        # Rounded, so that words with equal vectors keep their order.
        order = np.argsort(-np.round(exact, 9), kind="stable")
        spellings = {word.casefold(), self._folded[row]}
        ranked_rows = (near[i] for i in order if self._folded[near[i]] not in spellings)
        return [self.words[number] for number, _ in zip(ranked_rows, range(count), strict=False)]


def model_neighbours(task: Any, words: Iterable[str]) -> Neighbours:
    """Returns neighbours by a model's token embeddings, averaged over the subwords of a word.

    Args:
        task: task with a tokenizer and an encoder that has a token table.
        words: words of letters in addition to those of the vocabulary.

    Returns:
        Neighbours among the vocabulary's whole words and `words`. Spellings with the same subwords
        ("Film" and "film" for an uncased model) are one entry. A word that contains [UNK] has no
        vector.
    """
    tokenizer = task.tokenizer
    names = sorted({*whole_words(tokenizer), *words} - {""}, key=lambda x: (x != x.lower(), x))
    pieces = tokenizer.encode_words(names).to_list() if names else []
    table = np.asarray(task.encoder.token_embedding, np.float32)
    rows: dict[tuple[int, ...], int] = {}
    kept_names: list[str] = []
    vectors: list[np.ndarray] = []
    other_names: dict[str, Any] = {}
    for name, ids in zip(names, pieces, strict=True):
        if tokenizer.unk_id in ids:
            continue
        key = tuple(ids)
        if key in rows:
            other_names[name] = rows[key]
            continue
        rows[key] = len(kept_names)
        kept_names.append(name)
        vectors.append(table[ids].mean(0))
    return Neighbours(kept_names, np.stack(vectors) if kept_names else table[:0], other_names)


def whole_words(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the words of letters that are a single, word-initial token: word -> id."""
    special = set(tokenizer.special_ids)
    ids = [
        number
        for number, continues in enumerate(tokenizer.continuation.tolist())
        if not continues and number not in special
    ]
    word_ids: dict[str, int] = {}
    for number, text in zip(ids, tokenizer.decode([[i] for i in ids]), strict=True):
        word = text.strip()
        if is_word(word):
            word_ids.setdefault(word, number)
    return word_ids
