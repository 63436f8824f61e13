"""A corpus as numbers: the vocabulary with its counts, and the words of all sentences.

Shapes: W words, N tokens.
"""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np

from kbert.core.in_memory import column_or_rows
from kbert.io import fingerprints
from kbert.word_vectors.vectors import split_words


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Sentences of numbered words; rare words are left out.

    Attributes:
        words: W words, the most frequent first, those of one count in alphabetical order.
        counts: count of each word, (W,).
        ids: word of each token, (N,) int32.
        sentences: sentence of each token, (N,) int32.
    """

    words: list[str]
    counts: np.ndarray
    ids: np.ndarray
    sentences: np.ndarray

    def fingerprint(self) -> int:
        """Returns a checksum of the words and of the sentences."""
        return fingerprints.crc32(["\n".join(self.words), self.ids, self.sentences])


def read_corpus(texts: Iterable[str], min_count: int, lowercase: bool) -> Corpus:
    """Splits sentences into words and numbers them; the sentences are read once.

    Args:
        texts: sentences.
        min_count: fewest occurrences of a word; tokens of rarer words are left out.
        lowercase: whether words are converted to lower case.

    Raises:
        ValueError: fewer than two words are frequent enough, or `texts` is one string.

    Example:
        >>> corpus = read_corpus(["one fish", "two fish"], min_count=1, lowercase=True)
        >>> corpus.words, corpus.ids.tolist(), corpus.sentences.tolist()
        (['fish', 'one', 'two'], [1, 0, 2, 0], [0, 0, 1, 1])
    """
    if isinstance(texts, str):
        raise ValueError(f"`texts` must be several texts. Received: one string, {texts!r:.60}")
    known_words: dict[str, int] = {}
    blocks: list[np.ndarray] = []
    lengths: list[int] = []
    for text in column_or_rows(texts):
        word_ids = [
            known_words.setdefault(word, len(known_words)) for word in split_words(text, lowercase)
        ]
        blocks.append(np.array(word_ids, np.int32))
        lengths.append(len(word_ids))
    ids = np.concatenate(blocks) if blocks else np.zeros(0, np.int32)
    counts = np.bincount(ids, minlength=len(known_words))
    names = [*known_words]
    order = [row for row in range(len(names)) if counts[row] >= min_count]
    order.sort(key=lambda row: (-counts[row], names[row]))
    if len(order) < 2:
        raise ValueError(
            f"At least two words must occur {min_count} times (`min_count`). Received: "
            f"{len(order)} of {len(names)} words, {len(ids)} tokens"
        )
    number = np.full(len(names), -1, np.int32)
    number[order] = np.arange(len(order))
    sentences = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    ids = number[ids]
    is_frequent = ids >= 0
    words = [names[row] for row in order]
    return Corpus(words, counts[order], ids[is_frequent], sentences[is_frequent])


def neighbours(sentences: np.ndarray, window: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each distance, and the tokens that have a token of their sentence so far behind them.

    Args:
        sentences: sentence of each token, (N,).
        window: largest distance.

    Example:
        >>> [(d, left.tolist()) for d, left in neighbours(np.array([0, 0, 0, 1, 1]), 5)]
        [(1, [0, 1, 3]), (2, [0]), (3, []), (4, [])]
    """
    for distance in range(1, min(window, len(sentences) - 1) + 1):
        yield distance, np.flatnonzero(sentences[:-distance] == sentences[distance:])


def keep_probabilities(counts: np.ndarray, subsample: float) -> np.ndarray:
    """Returns the probability (W,) that a token of each word is kept, as in word2vec.c.

    Args:
        counts: count of each word, (W,).
        subsample: share of all tokens above which a word's tokens are left out; 1 = never.
    """
    ratios = subsample / (counts / counts.sum())
    return np.minimum(np.sqrt(ratios) + ratios, 1.0)
