"""Skip-gram with negative sampling: words learn to distinguish neighbours from random words.

(Mikolov et al. 2013, https://arxiv.org/abs/1310.4546: subsampling of section 2.3, negatives sampled
by the counts to the power of 3/4; windows of a random width as in word2vec.c.) word2vec updates
after each pair; here a batch of pairs is one step of Adagrad, which lowers the learning rate of
words with many pairs.

Shapes: W words, D width, N tokens, P pairs of a batch, K negatives of each pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from kbert.core.graphs import graph
from kbert.core.in_memory import column_or_rows
from kbert.core.late import tf
from kbert.io.progress import Progress
from kbert.word_vectors.vectors import WordVectors, split_words

_BLOCK = 1 << 19  # tokens whose pairs are in memory and shuffled together
_POWER = 0.75
_ACCUMULATED = 0.1  # Adagrad's initial sum of squares
_LEAST_RATE = 1e-4  # lowest learning rate, as a share of the first


def train_skip_gram(
    texts: Iterable[str],
    *,
    width: int = 100,
    window: int = 5,
    negatives: int = 5,
    min_count: int = 5,
    subsample: float | None = 1e-3,
    epochs: int = 5,
    learning_rate: float = 0.1,
    batch_size: int = 4096,
    lowercase: bool = True,
    seed: int = 0,
    verbose: str | int = "auto",
) -> WordVectors:
    """Learns a vector for each word of texts.

    The same seed gives the same vectors. Training needs 8 bytes of memory for each token of the
    texts (its word and its sentence) and 16 for each number of the vectors.

    Args:
        texts: sentences; the words of one are each other's context. They are read once. For files
            and `docs:` see `kbert.text.documents`, which yields a list of sentences per document.
        width: width of the vectors, D.
        window: most words on either side that count as context.
        negatives: negatives of each pair, K.
        min_count: fewest occurrences of a word; rarer words are removed from the texts.
        subsample: share of all tokens above which a word's tokens are left out at random; None =
            no token is left out.
        epochs: passes over the texts.
        learning_rate: first learning rate of Adagrad; it decays linearly to almost zero.
        batch_size: pairs of a batch, P.
        lowercase: whether words are converted to lower case.
        seed: seed of all random numbers.
        verbose: progress bar: 1 = always, 0 = never, "auto" = if training takes over 2 seconds.

    Returns:
        The vectors, the most frequent words first.

    Raises:
        ValueError: a setting is out of range, or there are fewer than two words.

    Example:
        >>> texts = ["the cat eats fish", "the dog eats meat"] * 20
        >>> vectors = train_skip_gram(texts, width=8, epochs=2)
        >>> vectors.words[:2], vectors.matrix.shape
        (['eats', 'the'], (6, 8))
    """
    for name, value in (("width", width), ("window", window), ("negatives", negatives)):
        _check(name, value)
    for name, value in (("min_count", min_count), ("epochs", epochs), ("batch_size", batch_size)):
        _check(name, value)
    if (subsample is not None and not 0 < subsample < 1) or learning_rate <= 0:
        raise ValueError(
            "`subsample` must be above 0 and below 1, or None, and `learning_rate` above 0. "
            f"Received: subsample={subsample!r}, learning_rate={learning_rate!r}"
        )
    words, counts, ids, sentences = _encoded(texts, min_count, lowercase)
    shares = counts / counts.sum()
    keep_shares = np.ones(len(words))
    if subsample is not None:
        keep_shares = np.minimum(np.sqrt(subsample / shares) + subsample / shares, 1.0)
    drawn = np.cumsum(counts**_POWER)
    tables = _Tables(len(words), width, negatives, seed)
    starts = range(0, len(ids), _BLOCK)
    with Progress("", epochs * len(ids), " tokens", verbose=verbose) as bar:
        for epoch in range(epochs):
            for block, start in enumerate(starts):
                rng = np.random.default_rng([seed, epoch, block])
                part = slice(start, start + _BLOCK)
                pairs = _pairs(ids[part], sentences[part], keep_shares, window, rng)
                tokens_before = epoch * len(ids) + start
                for i in range(0, len(pairs), batch_size):
                    share = (tokens_before + len(ids[part]) * i / len(pairs)) / (epochs * len(ids))
                    batch = pairs[i : i + batch_size]
                    random = rng.random((len(batch), negatives)) * drawn[-1]
                    negative_ids = np.searchsorted(drawn, random, side="right").astype(np.int32)
                    rate = learning_rate * max(1 - share, _LEAST_RATE)
                    tables.step(batch[:, 0], batch[:, 1], negative_ids, rate)
                bar.show(tokens_before + len(ids[part]))
    return WordVectors(words, tables.words.numpy())


class _Tables:
    """Word vectors, context vectors, and Adagrad's sums of squares."""

    def __init__(self, count: int, width: int, negatives: int, seed: int) -> None:
        limit = 0.5 / width
        drawn = np.random.default_rng(seed).uniform(-limit, limit, (count, width))
        self.words = tf.Variable(drawn.astype(np.float32))
        self.contexts = tf.Variable(tf.zeros([count, width]))
        self._squares = [tf.Variable(tf.fill([count, width], _ACCUMULATED)) for _ in range(2)]
        pair, rate = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.float32)
        negative_ids = tf.TensorSpec([None, negatives], tf.int32)
        self._run = graph(
            self._step, autograph=False, input_signature=[pair, pair, negative_ids, rate]
        )

    def step(self, centre: Any, context: Any, others: Any, rate: float) -> None:
        """Runs one update on P pairs.

        Args:
            centre: ids (P,) of the words.
            context: id (P,) of a context word of each.
            others: ids (P, K) of negatives of each.
            rate: learning rate.
        """
        self._run(centre, context, others, np.float32(rate))

    def _step(
        self, centre: tf.Tensor, context: tf.Tensor, others: tf.Tensor, rate: tf.Tensor
    ) -> None:
        """Computes the update of `step` in a graph; the arguments are the same."""
        ids = tf.concat([context[:, None], others], 1)  # (P, 1 + K)
        vectors, targets = tf.gather(self.words, centre), tf.gather(self.contexts, ids)
        scores = tf.linalg.matvec(targets, vectors)
        is_right = tf.one_hot(tf.zeros_like(centre), tf.shape(ids)[1])
        # A negative can be the right word by chance; it is then left out of the loss.
        counted = tf.maximum(is_right, tf.cast(ids != context[:, None], tf.float32))
        slope = (tf.sigmoid(scores) - is_right) * counted  # (P, 1 + K)
        of_centre = tf.linalg.matvec(targets, slope, transpose_a=True)
        of_targets = slope[:, :, None] * vectors[:, None]
        _adagrad(self.words, self._squares[0], centre, of_centre, rate)
        width = self.words.shape[1]
        flat = tf.reshape(ids, [-1]), tf.reshape(of_targets, [-1, width])
        _adagrad(self.contexts, self._squares[1], *flat, rate)


def _adagrad(
    table: tf.Variable, squares: tf.Variable, ids: tf.Tensor, slopes: tf.Tensor, rate: tf.Tensor
) -> None:
    """Updates rows of a table by Adagrad; the gradients of one row are summed first.

    Args:
        table: vectors, one row for each word.
        squares: sums of squared gradients, in the shape of the table.
        ids: rows to update, with repetitions.
        slopes: gradient of each of `ids`, (…, D).
        rate: learning rate.
    """
    rows, positions = tf.unique(ids)
    slopes = tf.math.unsorted_segment_sum(slopes, positions, tf.size(rows))
    squares.scatter_add(tf.IndexedSlices(slopes**2, rows))
    table.scatter_sub(
        tf.IndexedSlices(rate * slopes * tf.math.rsqrt(tf.gather(squares, rows)), rows)
    )


def _encoded(
    texts: Iterable[str], min_count: int, lowercase: bool
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Splits texts into words and numbers them.

    Args:
        texts: sentences.
        min_count: fewest occurrences of a word; tokens of rarer words are left out.
        lowercase: whether words are converted to lower case.

    Returns:
        W words, the most frequent first; their counts (W,); the word (N,) and the sentence (N,) of
        each token that is left.

    Raises:
        ValueError: fewer than two words are frequent enough, or `texts` is one string.
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
    return [names[row] for row in order], counts[order], ids[is_frequent], sentences[is_frequent]


def _pairs(
    ids: np.ndarray,
    sentences: np.ndarray,
    kept: np.ndarray,
    window: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws training pairs (…, 2) int32 in random order: a word, and a word in its window.

    Args:
        ids: word of each token, (N,).
        sentences: sentence of each token, (N,).
        kept: probability that a token of each word is kept, (W,).
        window: largest distance between the two tokens; each word draws one up to it.
        rng: random generator.
    """
    is_kept = rng.random(len(ids)) < kept[ids]
    ids, sentences = ids[is_kept], sentences[is_kept]
    widths = rng.integers(1, window + 1, len(ids))
    return rng.permutation(np.concatenate([*_sides(ids, sentences, widths, window)]))


def _sides(
    ids: np.ndarray, sentences: np.ndarray, widths: np.ndarray, window: int
) -> Iterator[np.ndarray]:
    """Yields training pairs (…, 2) of a word and a word in its window, for each distance.

    Args:
        ids: word of each token, (N,).
        sentences: sentence of each token, (N,); pairs are within one sentence.
        widths: largest distance that each token reaches, (N,).
        window: largest of all possible widths.
    """
    yield np.zeros((0, 2), np.int32)
    for apart in range(1, min(window, len(ids) - 1) + 1):
        left, right = slice(None, -apart), slice(apart, None)
        together = sentences[left] == sentences[right]
        for centre, context in ((left, right), (right, left)):
            reached = together & (widths[centre] >= apart)
            yield np.stack([ids[centre][reached], ids[context][reached]], 1)


def _check(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` must be a whole number, 1 or more. Received: {value!r}")
