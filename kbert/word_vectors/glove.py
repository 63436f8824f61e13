"""GloVe: vectors whose products are the logarithms of how often words occur together.

(Pennington et al. 2014, https://aclanthology.org/D14-1162: two words that are d words apart count
1 / d; weighted least squares of equations 8 and 9, by AdaGrad; the result is the sum of the word
vectors and the context vectors.) The original program updates after each pair; here a batch is one
step.

Shapes: W words, D width, N tokens, C cells of the matrix of counts, P cells of a batch.
"""

from __future__ import annotations

import numpy as np

from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.core.options import option
from kbert.word_vectors.corpus import Corpus, neighbours
from kbert.word_vectors.learner import Learner, Table, first_vectors
from kbert.word_vectors.options import TrainingOptions
from kbert.word_vectors.vectors import WordVectors

_BLOCK = 1 << 20  # tokens whose pairs are counted together
_ACCUMULATED = 1.0  # AdaGrad's initial sum of squares


class Glove(TrainingOptions):
    """GloVe; an example is a pair of words, with the count of all places where they are together.

    Args:
        {options}
    """

    kind = "glove"
    window: int = TrainingOptions.with_default("window", 10)
    epochs: int = TrainingOptions.with_default("epochs", 50)
    learning_rate: float = TrainingOptions.with_default("learning_rate", 0.05)
    x_max: float = option(100.0, help="Count from which on a pair has the full weight 1.", above=0)
    alpha: float = option(
        0.75, help="Exponent of the weight of a rarer pair, (count / x_max) ** alpha.", at_least=0
    )

    def learner(self, corpus: Corpus) -> Learner:
        return GloveLearner(self, corpus)


class GloveLearner(Learner):
    """Weighted least squares; the last number of each row is its bias.

    Args:
        options: the settings.
        corpus: the corpus.

    Raises:
        ValueError: no two words occur together.
    """

    unit = " pairs"
    num_blocks = 1

    def __init__(self, options: Glove, corpus: Corpus) -> None:
        self._options, self._words = options, corpus.words
        self._rows, self._columns, counts = cooccurrences(corpus, options.window)
        self.amount = len(counts)
        if not self.amount:
            raise ValueError("Some words must occur together. Received: sentences of one word each")
        self._logs = np.log(counts).astype(np.float32)
        self._weights = np.minimum((counts / options.x_max) ** options.alpha, 1).astype(np.float32)
        words, contexts = np.split(
            first_vectors(2 * len(self._words), options.width + 1, options.seed), 2
        )
        self.tables = {
            "words": Table(words, _ACCUMULATED),
            "contexts": Table(contexts, _ACCUMULATED),
        }
        ids, numbers = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.float32)
        signature = [ids, ids, numbers, numbers, tf.TensorSpec([], tf.float32)]
        self._run = graph(self._step, autograph=False, input_signature=signature)

    def examples(self, epoch: int, block: int) -> np.ndarray:
        """Returns all cells (C,) in random order; see the base class."""
        return np.random.default_rng([self._options.seed, epoch]).permutation(self.amount)

    def step(
        self, examples: np.ndarray, part: slice, rng: np.random.Generator, share: float
    ) -> None:
        """Learns from a batch of cells, at a constant learning rate; see the base class."""
        cells = examples[part]
        rows, columns = self._rows[cells], self._columns[cells]
        rate = np.float32(self._options.learning_rate)
        self._run(rows, columns, self._logs[cells], self._weights[cells], rate)

    def _step(
        self,
        rows: tf.Tensor,
        columns: tf.Tensor,
        logs: tf.Tensor,
        weights: tf.Tensor,
        rate: tf.Tensor,
    ) -> None:
        """Computes the update of a batch in a graph.

        Args:
            rows: words (P,).
            columns: words that occur together with them, (P,).
            logs: logarithms of the counts, (P,).
            weights: weights in the loss, (P,).
            rate: learning rate.
        """
        words, contexts = self.tables["words"], self.tables["contexts"]
        ones = tf.ones_like(logs)[:, None]
        word, context = tf.gather(words.values, rows), tf.gather(contexts.values, columns)
        left, left_bias = word[:, :-1], word[:, -1]
        right, right_bias = context[:, :-1], context[:, -1]
        errors = tf.reduce_sum(left * right, 1) + left_bias + right_bias - logs
        # The gradient of half the squared error, as in the original program.
        slope = (weights * errors)[:, None]  # (P, 1)
        words.update(rows, slope * tf.concat([right, ones], 1), rate)
        contexts.update(columns, slope * tf.concat([left, ones], 1), rate)

    def word_vectors(self) -> WordVectors:
        """Returns the sums of word vectors and context vectors, without biases."""
        sums = sum(table.values.numpy()[:, :-1] for table in self.tables.values())
        return WordVectors(self._words, np.asarray(sums))


def cooccurrences(corpus: Corpus, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts which words occur together: 1 / d for two words of a sentence, d words apart.

    The matrix is symmetric: each pair of tokens counts for both orders of its words.

    Args:
        corpus: the corpus.
        window: largest distance of two words.

    Returns:
        Rows and columns of the cells that are not 0, (C,) int32, and their counts (C,) float64.

    Example:
        >>> corpus = Corpus(["a", "b"], np.array([2, 1]), np.array([0, 1, 0]), np.zeros(3, int))
        >>> cooccurrences(corpus, 2)
        (array([0, 1, 0], dtype=int32), array([1, 0, 0], dtype=int32), array([2., 2., 1.]))
    """
    count, ids = len(corpus.words), corpus.ids.astype(np.int64)
    keys, sums = np.zeros(0, np.int64), np.zeros(0)
    for start in range(0, len(ids), _BLOCK):
        part = slice(start, start + _BLOCK + window)  # windows reach into the next block
        new_keys, new_sums = [keys], [sums]
        for distance, left in neighbours(corpus.sentences[part], window):
            left = left[left < _BLOCK] + start
            one, other = ids[left], ids[left + distance]
            new_keys.append(np.minimum(one, other) * count + np.maximum(one, other))
            new_sums.append(np.full(len(left), 1 / distance))
        keys, positions = np.unique(np.concatenate(new_keys), return_inverse=True)
        sums = np.bincount(positions, np.concatenate(new_sums), len(keys))
    rows, columns = (part.astype(np.int32) for part in np.divmod(keys, count))
    apart = rows != columns
    sums[~apart] *= 2
    return (
        np.concatenate([rows[apart], columns[apart], rows[~apart]]),
        np.concatenate([columns[apart], rows[apart], columns[~apart]]),
        np.concatenate([sums[apart], sums[apart], sums[~apart]]),
    )
