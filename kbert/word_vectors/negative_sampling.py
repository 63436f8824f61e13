"""Skip-gram and CBOW with negative sampling, of whole words or of words with their n-grams.

Skip-gram predicts each word of a window from the word in its middle, CBOW the word in the middle
from the mean of the others: the right word gets a high score, randomly sampled ones a low score
(Mikolov et al. 2013, https://arxiv.org/abs/1310.4546: subsampling of section 2.3, negatives sampled
by the counts to the power of 3/4; windows of a random width as in word2vec.c). fastText is
skip-gram in which the vector of a word is the mean of its own and of its n-grams' (Bojanowski et
al. 2017, https://arxiv.org/abs/1607.04606). These programs update after each example; here a batch
is one step of Adagrad, which lowers the learning rate of words with many examples.

Shapes: W words, D width, N tokens, P examples of a batch, K negatives of each example, R rows of
the input table, G groups of rows (each with the vector that predicts).
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.core.options import option
from kbert.word_vectors.corpus import Corpus, keep_probabilities, neighbours
from kbert.word_vectors.fasttext import Subwords, ngram_rows
from kbert.word_vectors.learner import Learner, Table, first_vectors
from kbert.word_vectors.options import TrainingOptions
from kbert.word_vectors.vectors import WordVectors

_BLOCK = 1 << 19  # tokens whose examples are in memory and shuffled together
_POWER = 0.75
_ACCUMULATED = 0.1  # Adagrad's initial sum of squares
_LEAST_RATE = 1e-4  # lowest learning rate, as a share of the first
_WORDS = 4096  # words whose n-grams are summed together


class NegativeSampling(TrainingOptions):
    """Settings of the methods with negatives; the learning rate decays linearly to almost zero.

    Args:
        {options}
    """

    negatives: int = option(5, help="Random words for each right word.", at_least=1)
    subsample: float | None = option(
        1e-3,
        help="Share of all tokens above which a word's tokens are left out at random; 1 or "
        "None = no token is left out.",
        above=0,
        at_most=1,
    )


class SkipGram(NegativeSampling):
    """word2vec's skip-gram: a word predicts the words around it.

    Args:
        {options}
    """

    kind = "skip_gram"

    def learner(self, corpus: Corpus) -> Learner:
        return SkipGramLearner(self, corpus)


class Cbow(NegativeSampling):
    """word2vec's continuous bag of words: the mean of the words around it predicts a word.

    Args:
        {options}
    """

    kind = "cbow"

    def learner(self, corpus: Corpus) -> Learner:
        return CbowLearner(self, corpus)


class FastText(NegativeSampling):
    """fastText: skip-gram of words with their character n-grams, so unseen words get vectors.

    Args:
        {options}
    """

    kind = "fasttext"
    shortest_ngram: int = option(
        3, help='Fewest characters of an n-gram, counting the "<" and ">" around the word.'
    )
    longest_ngram: int = option(6, help="Most characters of an n-gram, counted in the same way.")
    buckets: int = option(
        2_000_000,
        help="Rows of the table of n-grams; n-grams with the same hash share one.",
        at_least=1,
        at_most=2**31 - 1,
    )

    def check(self) -> None:
        """Raises ValueError unless there are lengths of n-grams."""
        if not 1 <= self.shortest_ngram <= self.longest_ngram:
            raise ValueError(
                "`shortest_ngram` must be at least 1 and at most `longest_ngram`. Received: "
                f"shortest_ngram={self.shortest_ngram}, longest_ngram={self.longest_ngram}"
            )

    def learner(self, corpus: Corpus) -> Learner:
        return FastTextLearner(self, corpus)


@dataclasses.dataclass(frozen=True)
class Examples:
    """E examples: words that predict a word.

    Attributes:
        inputs: words that predict, those of one example in sequence.
        starts: first of the `inputs` of each example, and their number, (E + 1,).
        targets: word to predict, (E,).
    """

    inputs: np.ndarray
    starts: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)


class _NegativeSamplingLearner(Learner):
    """The loss and its update; subclasses make examples and group the rows of their inputs.

    Args:
        options: the settings.
        corpus: the corpus.
        rows: rows of the input table, R.
    """

    unit = " tokens"

    def __init__(self, options: NegativeSampling, corpus: Corpus, rows: int) -> None:
        self.options, self.corpus = options, corpus
        self.amount = len(corpus.ids)
        self.num_blocks = -(-self.amount // _BLOCK)
        self._kept = keep_probabilities(corpus.counts, options.subsample or 1.0)
        self._drawn = np.cumsum(corpus.counts**_POWER)
        contexts = np.zeros((len(corpus.words), options.width), np.float32)
        self.tables = {
            "inputs": Table(first_vectors(rows, options.width, options.seed), _ACCUMULATED),
            "contexts": Table(contexts, _ACCUMULATED),
        }
        flat, others = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
        signature = [flat, flat, flat, flat, others, tf.TensorSpec([], tf.float32)]
        self._run = graph(self._step, autograph=False, input_signature=signature)

    def examples(self, epoch: int, block: int) -> Examples:
        """Draws the examples of a block; see the base class."""
        rng = np.random.default_rng([self.options.seed, epoch, block])
        edges = np.linspace(0, self.amount, self.num_blocks + 1).astype(int)
        part = slice(edges[block], edges[block + 1])
        ids, sentences = self.corpus.ids[part], self.corpus.sentences[part]
        is_kept = rng.random(len(ids)) < self._kept[ids]
        ids, sentences = ids[is_kept], sentences[is_kept]
        widths = rng.integers(1, self.options.window + 1, len(ids))
        centres, contexts = pairs(sentences, widths, self.options.window)
        return self._examples(ids, centres, contexts, rng)

    def _examples(
        self, ids: np.ndarray, centres: np.ndarray, contexts: np.ndarray, rng: np.random.Generator
    ) -> Examples:
        """Makes examples of tokens and the tokens in their windows.

        Args:
            ids: word of each token, (N,).
            centres: a token, for each pair.
            contexts: a token in its window, for each pair.
            rng: random generator, for the order.
        """
        raise NotImplementedError

    def _groups(
        self, inputs: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns rows of the input table, the group of each, and the group of each example (P,).

        The vector that predicts is the mean of a group.

        Args:
            inputs: words of the examples, in sequence.
            lengths: number of words of each example, (P,).
        """
        raise NotImplementedError

    def step(self, examples: Examples, part: slice, rng: np.random.Generator, share: float) -> None:
        """Learns from a batch; see the base class."""
        starts = examples.starts[part.start : part.stop + 1]
        inputs, targets = examples.inputs[starts[0] : starts[-1]], examples.targets[part]
        negatives = self.draw(rng, (len(targets), self.options.negatives))
        rate = self.options.learning_rate * max(1 - share, _LEAST_RATE)
        self._run(*self._groups(inputs, np.diff(starts)), targets, negatives, np.float32(rate))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Returns random words, drawn by their counts to the power of 3/4."""
        random = rng.random(shape) * self._drawn[-1]
        return np.searchsorted(self._drawn, random, side="right").astype(np.int32)

    def _step(
        self,
        rows: tf.Tensor,
        groups: tf.Tensor,
        group_of_example: tf.Tensor,
        targets: tf.Tensor,
        negatives: tf.Tensor,
        rate: tf.Tensor,
    ) -> None:
        """Computes the update of a batch in a graph.

        Args:
            rows: rows of the input table.
            groups: group of each row, ascending.
            group_of_example: group that predicts, (P,).
            targets: word to predict, (P,).
            negatives: other words, (P, K).
            rate: learning rate.
        """
        inputs, contexts = self.tables["inputs"], self.tables["contexts"]
        ids = tf.concat([targets[:, None], negatives], 1)  # (P, 1 + K)
        means = tf.math.segment_mean(tf.gather(inputs.values, rows), groups)  # (G, D)
        vectors, others = tf.gather(means, group_of_example), tf.gather(contexts.values, ids)
        scores = tf.linalg.matvec(others, vectors)
        is_right = tf.one_hot(tf.zeros_like(targets), tf.shape(ids)[1])
        # A negative can be the right word by chance; it is then left out of the loss.
        counted = tf.maximum(is_right, tf.cast(ids != targets[:, None], tf.float32))
        slope = (tf.sigmoid(scores) - is_right) * counted  # (P, 1 + K)
        of_vectors = tf.linalg.matvec(others, slope, transpose_a=True)
        of_others = slope[:, :, None] * vectors[:, None]
        # As in word2vec.c and fastText, each row gets the gradient of the whole mean.
        of_groups = tf.math.unsorted_segment_sum(of_vectors, group_of_example, tf.shape(means)[0])
        inputs.update(rows, tf.gather(of_groups, groups), rate)
        width = self.options.width
        contexts.update(tf.reshape(ids, [-1]), tf.reshape(of_others, [-1, width]), rate)

    def word_vectors(self) -> WordVectors:
        """Returns the rows of the input table, one for each word."""
        return WordVectors(self.corpus.words, self.tables["inputs"].values.numpy())


class SkipGramLearner(_NegativeSamplingLearner):
    """Skip-gram: an example is a pair of words. A word's vector is the mean of its rows.

    Args:
        options: the settings.
        corpus: the corpus.
        rows_of_words: rows of the input table of each word; None = one row for each word.
    """

    def __init__(
        self,
        options: NegativeSampling,
        corpus: Corpus,
        rows_of_words: list[np.ndarray] | None = None,
    ) -> None:
        if rows_of_words is None:
            self._rows = np.arange(len(corpus.words), dtype=np.int32)
            self._lengths = np.ones(len(corpus.words), np.int64)
        else:
            self._rows = np.concatenate(rows_of_words)
            self._lengths = np.array([len(rows) for rows in rows_of_words])
        self._starts = np.cumsum(self._lengths) - self._lengths
        super().__init__(options, corpus, int(self._rows.max()) + 1)

    def _examples(
        self, ids: np.ndarray, centres: np.ndarray, contexts: np.ndarray, rng: np.random.Generator
    ) -> Examples:
        order = rng.permutation(len(centres))
        return Examples(ids[centres[order]], np.arange(len(order) + 1), ids[contexts[order]])

    def _groups(
        self, inputs: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        words, group_of_example = np.unique(inputs, return_inverse=True)
        counts = self._lengths[words]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1]) + np.repeat(self._starts[words] - ends + counts, counts)
        groups = np.repeat(np.arange(len(words), dtype=np.int32), counts)
        return self._rows[places], groups, group_of_example.astype(np.int32)


class FastTextLearner(SkipGramLearner):
    """Skip-gram in which a word's rows are its own and those of its n-grams.

    Only the n-grams of the vocabulary have rows while they are trained; the others of the buckets
    are zero at the end.

    Args:
        options: the settings.
        corpus: the corpus.
    """

    def __init__(self, options: FastText, corpus: Corpus) -> None:
        lengths = (options.shortest_ngram, options.longest_ngram)
        buckets = [np.array(ngram_rows(w, options.buckets, *lengths), int) for w in corpus.words]
        self._buckets = np.unique(np.concatenate(buckets))  # their rows follow those of the words
        first = len(corpus.words)
        rows_of_words = [
            np.append(row, first + np.searchsorted(self._buckets, ngrams)).astype(np.int32)
            for row, ngrams in enumerate(buckets)
        ]
        super().__init__(options, corpus, rows_of_words)
        self._subwords = (options.buckets, *lengths)

    def word_vectors(self) -> WordVectors:
        """Returns the words with their vectors, and the n-grams."""
        values = self.tables["inputs"].values.numpy()
        buckets, shortest, longest = self._subwords
        count, width = len(self.corpus.words), values.shape[1]
        vectors = np.empty((count, width), np.float32)
        edges = [*range(0, count, _WORDS), count]
        ends = [*self._starts, len(self._rows)]
        for start, stop in itertools.pairwise(edges):
            rows = values[self._rows[ends[start] : ends[stop]]]
            sums = np.add.reduceat(rows, self._starts[start:stop] - ends[start])
            vectors[start:stop] = sums / self._lengths[start:stop, None]
        table = np.zeros((buckets, width), np.float32)
        table[self._buckets] = values[count:]
        return WordVectors(self.corpus.words, vectors, Subwords(table, shortest, longest))


class CbowLearner(_NegativeSamplingLearner):
    """CBOW: an example is a token, predicted by the mean of the words in its window.

    Args:
        options: the settings.
        corpus: the corpus.
    """

    def __init__(self, options: Cbow, corpus: Corpus) -> None:
        super().__init__(options, corpus, len(corpus.words))

    def _examples(
        self, ids: np.ndarray, centres: np.ndarray, contexts: np.ndarray, rng: np.random.Generator
    ) -> Examples:
        places = rng.permutation(len(ids))  # place of each token in the new order
        order = np.argsort(places[centres], kind="stable")
        lengths = np.bincount(places[centres], minlength=len(ids))
        targets = np.empty_like(ids)
        targets[places] = ids
        has_context = lengths > 0
        starts = np.concatenate([[0], np.cumsum(lengths[has_context])])
        return Examples(ids[contexts[order]], starts, targets[has_context])

    def _groups(
        self, inputs: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        examples = np.arange(len(lengths), dtype=np.int32)
        return inputs, np.repeat(examples, lengths), examples


def pairs(sentences: np.ndarray, widths: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns all pairs of a token and a token of its sentence in its window.

    Args:
        sentences: sentence of each token, (N,).
        widths: largest distance that each token reaches, (N,).
        window: largest of all possible widths.

    Example:
        >>> pairs(np.array([0, 0, 0, 1]), np.array([2, 1, 1, 2]), 2)
        (array([0, 1, 1, 2, 0]), array([1, 2, 0, 1, 2]))
    """
    centres, contexts = [np.zeros(0, int)], [np.zeros(0, int)]
    for distance, left in neighbours(sentences, window):
        for centre, context in ((left, left + distance), (left + distance, left)):
            is_reached = widths[centre] >= distance
            centres.append(centre[is_reached])
            contexts.append(context[is_reached])
    return np.concatenate(centres), np.concatenate(contexts)
