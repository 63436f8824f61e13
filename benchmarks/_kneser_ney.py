"""The baseline of a language model: three-grams with interpolated, modified Kneser-Ney smoothing.

(Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling".) Over a
closed vocabulary: the last step of the interpolation is the same share for every word that can
follow, so every word has a probability and all of them sum to 1.

Shapes: N words of a text, V words of the vocabulary, G different n-grams.
"""

import numpy as np


class KneserNey:
    """A model of the next word by the two before, within a sentence.

    Args:
        words: (N,) ids of sentences one after the other, each with `end` behind it.
        vocabulary_size: V.
        begin: id of what stands before a sentence; it never follows anything.
        end: id of what stands behind a sentence.

    Example:
        >>> model = KneserNey(np.array([3, 4, 0, 3, 5, 0]), vocabulary_size=6, begin=1, end=0)
        >>> every = np.array([0, 2, 3, 4, 5])
        >>> float(model.probabilities(np.full(5, 1), np.full(5, 3), every).sum().round(9))
        1.0
    """

    def __init__(self, words: np.ndarray, vocabulary_size: int, begin: int, end: int):
        self.size, self.begin, self.end = vocabulary_size, begin, end
        first, second = self._before(words)
        # The highest order counts how often, the lower ones behind how many different words.
        triples, counts = np.unique(self._code(first, second, words), return_counts=True)
        pairs, behind_pairs = np.unique(triples % self.size**2, return_counts=True)
        singles, behind_words = np.unique(pairs % self.size, return_counts=True)
        self.orders = [
            _Order(singles, behind_words, self.size),
            _Order(pairs, behind_pairs, self.size),
            _Order(triples, counts, self.size),
        ]

    def perplexity(self, words: np.ndarray) -> float:
        """Of a text in the form of the constructor's."""
        probabilities = self.probabilities(*self._before(words), words)
        return float(np.exp(-np.mean(np.log(probabilities))))

    def probabilities(self, first: np.ndarray, second: np.ndarray, words: np.ndarray) -> np.ndarray:
        """p(words | first, second), three arrays of equal length; `begin` has none."""
        found = np.full(len(words), 1 / (self.size - 1))
        codes = words, self._code(second, words), self._code(first, second, words)
        for order, code in zip(self.orders, codes, strict=True):
            found = order(code, found)
        return found

    def _before(self, words):
        """The two words before each; `begin` twice before a sentence."""
        previous = np.concatenate([[self.end], words[:-1]])
        second = np.where(previous == self.end, self.begin, previous)
        first = np.concatenate([[self.begin], second[:-1]])
        return np.where(second == self.begin, self.begin, first), second

    def _code(self, *words):
        """One integer for an n-gram."""
        code = np.zeros(len(words[0]), np.int64)
        for column in words:
            code = code * self.size + column
        return code


class _Order:
    """One order of the interpolation.

    Args:
        codes: (G,) n-grams, sorted.
        counts: (G,) of each.
        size: V.
    """

    def __init__(self, codes: np.ndarray, counts: np.ndarray, size: int):
        self.codes, self.counts, self.size = codes, counts, size
        n = [np.sum(counts == k) for k in range(1, 5)]
        share = n[0] / (n[0] + 2 * n[1])
        later = [k - (k + 1) * share * n[k] / max(n[k - 1], 1) for k in (1, 2, 3)]
        self.discounts = np.clip([0.0, *later], 0.0, None)
        self.contexts, row = np.unique(codes // size, return_inverse=True)
        self.totals = np.bincount(row, counts)
        # What the discounts take away is what the order below shares out.
        self.left = np.bincount(row, self.discounts[np.minimum(counts, 3)]) / self.totals

    def __call__(self, codes: np.ndarray, below: np.ndarray) -> np.ndarray:
        counts = _look_up(self.codes, self.counts, codes)
        own = counts - self.discounts[np.minimum(counts, 3)]
        totals = _look_up(self.contexts, self.totals, codes // self.size)
        left = _look_up(self.contexts, self.left, codes // self.size)
        return np.where(totals > 0, own / np.maximum(totals, 1) + left * below, below)


def _look_up(keys, values, wanted):
    """The value of each wanted key, 0 where there is none."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], values.dtype.type(0))
