"""Softmax over a vocabulary of words, full or sampled.

Shapes: `...` any leading axes, `N` positions, `P` width, `V` vocabulary, `S` negatives.
"""

import math
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.token_embeddings import TokenOutput

# Replaces logits that must not count. Not infinity: if all negatives equal the target, the gradient
# of the log-sum-exp would be NaN.
_NEVER = -1e9


class WordSoftmax(keras.layers.Layer):
    """`x @ kernel.T + bias` with a kernel row for each word, and a loss on a sample of the rows.

    (`_build_loss` in bilm/training.py of allenai/bilm-tf.) Computes in float32 under any policy:
    a product in bfloat16 would round each logit to eight bits.

    Args:
        vocabulary_size: number of words, V. For `sampled` the words must be sorted by falling
            frequency.
        projection_size: width of the input, P.

    Example:
        >>> softmax = WordSoftmax(vocabulary_size=100, projection_size=8)
        >>> x = ops.ones((5, 8))
        >>> tuple(softmax(x).shape)
        (5, 100)
        >>> seed = keras.random.SeedGenerator(0)
        >>> tuple(softmax.sampled(x, ops.arange(5), negatives=20, seed_generator=seed).shape)
        (5,)
    """

    def __init__(self, vocabulary_size: int, projection_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.projection_size = projection_size
        self.build()

    def build(self, *shapes: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.vocabulary_size, self.projection_size),
            initializer=keras.initializers.RandomNormal(stddev=math.sqrt(1 / self.projection_size)),
            autocast=False,
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.vocabulary_size,), initializer="zeros", autocast=False
        )

    def call(self, x: Tensor) -> Tensor:
        """Returns the logits of all words.

        Args:
            x: (..., P).

        Returns:
            (..., V), float32.
        """
        return self.token_output(x).logits()

    def token_output(self, x: Tensor) -> TokenOutput:
        """Returns what `call` multiplies, for losses that compute logits in chunks."""
        return TokenOutput(x, self.kernel, self.bias)

    def sampled(
        self,
        x: Tensor,
        targets: Tensor,
        negatives: int,
        seed_generator: keras.random.SeedGenerator,
    ) -> Tensor:
        """Returns the cross-entropy of each target against a sample of the other words.

        All positions share the sample. Each logit is lowered by the logarithm of the expected count
        of its word in a sample, and the target is masked among the negatives. So the loss is
        minimal for the logits of the full softmax. (Jean et al. 2015,
        https://arxiv.org/abs/1412.2007; `tf.nn.sampled_softmax_loss`.)

        Args:
            x: (N, P).
            targets: (N,) integers in [0, V).
            negatives: size of the sample, smaller than the vocabulary.
            seed_generator: source of the sample's random numbers.

        Returns:
            Losses (N,), float32.

        Raises:
            ValueError: no negatives, or as many as words or more.
        """
        sampler = LogUniformSampler(self.vocabulary_size, negatives)
        targets = ops.cast(targets, "int32")
        sample = sampler.draw(seed_generator)  # (S,)
        ids = ops.concatenate([targets, sample])
        rows = ops.take(self.kernel, ids, axis=0)  # (N + S, P)
        biases = ops.take(self.bias, ids) - sampler.log_expected(ids)
        count = ops.shape(targets)[0]
        x = ops.cast(x, "float32")
        true = ops.sum(x * rows[:count], axis=-1) + biases[:count]  # (N,)
        negative_logits = ops.matmul(x, ops.transpose(rows[count:])) + biases[count:]  # (N, S)
        negative_logits = ops.where(targets[:, None] == sample, _NEVER, negative_logits)
        # log(e^true + Σ e^others) - true, without a joined copy of the logits.
        return ops.softplus(ops.logsumexp(negative_logits, axis=-1) - true)


class LogUniformSampler:
    """Draws words roughly by Zipf's law: word i with p(i) ~ log((i + 2) / (i + 1)).

    The original draws until it has enough distinct words (TensorFlow's log-uniform candidate
    sampler with `unique`). Here the number of draws is fixed, so that shapes are static. The first
    words, which nearly any sample of this size would contain, are always included. The range of the
    other words is split into as many parts of equal probability as there are draws left, with one
    draw in each. So the expected count of word i is exactly min(1, t · p(i)).

    Args:
        vocabulary_size: number of words, which are sorted by falling frequency.
        draws: number of words in a sample.

    Raises:
        ValueError: `draws` is not in [1, vocabulary_size).

    Example:
        >>> sampler = LogUniformSampler(vocabulary_size=1000, draws=50)
        >>> sample = sampler.draw(keras.random.SeedGenerator(0))
        >>> tuple(sample.shape), sampler.certain
        ((50,), 8)
    """

    def __init__(self, vocabulary_size: int, draws: int) -> None:
        if not 0 < draws < vocabulary_size:
            raise ValueError(
                "A sample must have at least one word and fewer than the vocabulary of "
                f"{vocabulary_size}; for all words, use the whole softmax. Received: {draws}"
            )
        self.vocabulary_size = vocabulary_size
        self.draws = draws
        self.certain = next(i for i in range(draws) if self._draws_of(i, i) <= 1)

    def _draws_of(self, word: int, certain: int) -> float:
        """Returns the expected count of `word` in the draws after the first `certain` words.

        Those words are in every sample, and the other `draws - certain` are drawn.
        """
        span = math.log((self.vocabulary_size + 1) / (certain + 1))
        return (self.draws - certain) * math.log((word + 2) / (word + 1)) / span

    def draw(self, seed_generator: keras.random.SeedGenerator) -> Tensor:
        """Returns a sample of word ids (S,) int32, in rising order; S is `draws`.

        The first `certain` words are in every sample. A drawn word may occur twice.
        """
        count = self.draws - self.certain
        points = ops.arange(count, dtype="float32")
        points = (points + keras.random.uniform((count,), seed=seed_generator)) / count
        span = math.log((self.vocabulary_size + 1) / (self.certain + 1))
        drawn = ops.floor((self.certain + 1) * ops.exp(points * span)) - 1
        # Rounding may move a draw at either end one word too far.
        drawn = ops.clip(ops.cast(drawn, "int32"), self.certain, self.vocabulary_size - 1)
        return ops.concatenate([ops.arange(self.certain, dtype="int32"), drawn])

    def log_expected(self, ids: Tensor) -> Tensor:
        """Returns the logarithm of each word's expected count in a sample: float32, as `ids`."""
        ids = ops.cast(ids, "float32")
        span = math.log((self.vocabulary_size + 1) / (self.certain + 1))
        draws = (self.draws - self.certain) * ops.log1p(1 / (ids + 1)) / span
        return ops.where(ids < self.certain, 0.0, ops.log(draws))
