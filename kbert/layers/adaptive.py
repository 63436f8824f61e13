"""Adaptive embeddings and softmax: rare tokens have narrower embeddings.

(Grave et al. 2017, https://arxiv.org/abs/1609.04309, and Baevski and Auli 2018,
https://arxiv.org/abs/1809.10853, as Transformer-XL has them: `AdaptiveEmbedding` in
mem_transformer.py and `ProjectedAdaptiveLogSoftmax` in utils/proj_adaptive_softmax.py of
kimiyoung/transformer-xl.)

The vocabulary is sorted by falling frequency and split into clusters; the embeddings of cluster i
are `divisor ** i` times narrower than those of the first.

Shapes: `...` any leading axes, `H` hidden width, `V` vocabulary, `C` clusters after the first,
`n` entries of a cluster and `E` width of its embeddings.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.dense import kernel_initializer
from kbert.layers.ids import take_rows, whole_numbers


class AdaptiveEmbeddings(keras.layers.Layer):
    """Embeds token ids as (..., H), multiplied by the square root of H.

    Args:
        vocabulary_size: size of the vocabulary, V.
        embedding_size: embedding width of the first cluster, E.
        hidden_size: width of the output, H.
        cutoffs: first token ids of the clusters after the first; empty = one cluster.
        divisor: factor by which embeddings become narrower from one cluster to the next.
        dropout: layer on the output, or None.
        initializer_range: standard deviation of all initial weights.

    Example:
        >>> layer = AdaptiveEmbeddings(10, 8, 8, cutoffs=(4, 7), divisor=2)
        >>> tuple(layer(ops.array([[1, 5, 9]])).shape), [tuple(x.shape) for x in layer.tables]
        ((1, 3, 8), [(4, 8), (3, 4), (3, 2)])
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        hidden_size: int,
        *,
        cutoffs: Sequence[int] = (),
        divisor: int = 1,
        dropout: keras.layers.Layer | None = None,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.bounds = (0, *cutoffs, vocabulary_size)
        self.widths = [embedding_size // divisor**n for n in range(len(cutoffs) + 1)]
        # If all embeddings have width H, no projections are needed.
        self.projects = divisor > 1 or embedding_size != hidden_size
        self.dropout = dropout
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape | None = None) -> None:
        initializer = kernel_initializer(self.initializer_range)
        self.tables = [
            self.add_weight(
                name=f"table_{n}",
                shape=(end - begin, width),
                initializer=initializer,
                autocast=False,
            )
            for n, ((begin, end), width) in enumerate(
                zip(itertools.pairwise(self.bounds), self.widths, strict=True)
            )
        ]
        self.projections = [
            self.add_weight(
                name=f"projection_{n}",
                shape=(width, self.hidden_size),
                initializer=initializer,
                autocast=False,
            )
            for n, width in enumerate(self.widths if self.projects else ())
        ]

    def call(
        self,
        token_ids: Tensor,
        segment_ids: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Returns the embeddings (..., H) of `token_ids` (...); `segment_ids` are ignored."""
        ids = whole_numbers(token_ids, "token_ids")
        total: Any = 0
        last = len(self.tables) - 1
        for n, (begin, end) in enumerate(itertools.pairwise(self.bounds)):
            # An id outside of the vocabulary stays so: the lookup rejects it, as in a single table.
            cluster_ids = ids if n == 0 else ops.maximum(ids - begin, 0)
            cluster_ids = cluster_ids if n == last else ops.minimum(cluster_ids, end - begin - 1)
            x = ops.cast(take_rows(self.tables[n], cluster_ids), self.compute_dtype)
            if self.projects:
                x = ops.matmul(x, ops.cast(self.projections[n], x.dtype))
            inside = ops.cast((ids >= begin) & (ids < end), x.dtype)[..., None]
            total = total + x * inside
        total = total * ops.cast(self.hidden_size**0.5, total.dtype)
        return total if self.dropout is None else self.dropout(total, training=training)


class AdaptiveSoftmax(keras.layers.Layer):
    """Log-probabilities over the vocabulary, by cluster and then within each cluster.

    The first softmax is over the entries of the first cluster and the other clusters. The layer is
    tied to the embeddings: it uses their tables as kernels, and their projections except the first,
    which is a separate weight. It computes in float32 under any policy.

    Args:
        embeddings: built `AdaptiveEmbeddings`.
        initializer_range: standard deviation of the layer's initial weights.

    Example:
        >>> embeddings = AdaptiveEmbeddings(10, 8, 8, cutoffs=(4, 7), divisor=2)
        >>> embeddings.build()
        >>> softmax = AdaptiveSoftmax(embeddings)
        >>> x = ops.ones((2, 8))
        >>> tuple(softmax(x).shape), tuple(softmax.losses(x, ops.array([1, 9])).shape)
        ((2, 10), (2,))
        >>> bool(ops.all(ops.abs(ops.sum(ops.exp(softmax(x)), -1) - 1) < 1e-5))
        True
    """

    def __init__(
        self, embeddings: AdaptiveEmbeddings, *, initializer_range: float = 0.02, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        # Inside a function, so that Keras does not count and save the tables twice.
        self._embeddings = lambda: embeddings
        self.bounds = embeddings.bounds
        self.initializer_range = initializer_range
        self.build()

    def build(self, *shapes: Shape) -> None:
        embeddings = self._embeddings()
        initializer = kernel_initializer(self.initializer_range)
        width, clusters = embeddings.widths[0], len(self.bounds) - 2
        self.projection = None
        if embeddings.projects:
            self.projection = self.add_weight(
                name="projection",
                shape=(width, embeddings.hidden_size),
                initializer=initializer,
                autocast=False,
            )
        self.cluster = self.cluster_bias = None
        if clusters:
            self.cluster = self.add_weight(
                name="cluster", shape=(clusters, width), initializer=initializer, autocast=False
            )
            self.cluster_bias = self.add_weight(
                name="cluster_bias", shape=(clusters,), initializer="zeros", autocast=False
            )
        self.bias = self.add_weight(
            name="bias", shape=(self.bounds[-1],), initializer="zeros", autocast=False
        )

    def call(self, x: Tensor) -> Tensor:
        """Returns the log-probabilities of all entries.

        Args:
            x: (..., H).

        Returns:
            (..., V) float32.
        """
        head, tails = self._clusters(x)
        size = self.bounds[1]
        parts = [head[..., :size]]
        for n, tail in enumerate(tails, 1):
            parts.append(tail + head[..., size + n - 1 : size + n])
        return ops.concatenate(parts, axis=-1)

    def losses(self, x: Tensor, targets: Tensor) -> Tensor:
        """Returns minus the log-probability of each target, without joining the clusters' scores.

        Args:
            x: (..., H).
            targets: (...) integers below V.

        Returns:
            (...) float32.
        """
        head, tails = self._clusters(x)
        targets, size = ops.cast(targets, "int32"), self.bounds[1]
        total = -_picked(head, ops.clip(targets, 0, size - 1)) * _inside(targets, 0, size)
        for n, tail in enumerate(tails, 1):
            begin, end = self.bounds[n], self.bounds[n + 1]
            log_probability = _picked(tail, ops.clip(targets - begin, 0, end - begin - 1))
            total = total - (log_probability + head[..., size + n - 1]) * _inside(
                targets, begin, end
            )
        return total

    def _clusters(self, x: Tensor) -> tuple[Tensor, list]:
        """Returns the log-probabilities of x (..., H) in two parts, float32.

        The first part is a tensor (..., n + C) over the n entries of the first cluster and the C
        other clusters. The second is a list of C tensors (..., n) over the entries of each of
        these, given the cluster.
        """
        embeddings, x = self._embeddings(), ops.cast(x, "float32")
        head = self._logits(x, 0, self.projection)
        tails = []
        if self.cluster is not None:
            narrow = x if self.projection is None else ops.matmul(x, ops.transpose(self.projection))
            clusters = ops.matmul(narrow, ops.transpose(self.cluster)) + self.cluster_bias
            head = ops.concatenate([head, clusters], axis=-1)
            for n in range(1, len(self.bounds) - 1):
                projection = embeddings.projections[n] if embeddings.projects else None
                tails.append(ops.log_softmax(self._logits(x, n, projection), axis=-1))
        return ops.log_softmax(head, axis=-1), tails

    def _logits(self, x: Tensor, n: int, projection: Any) -> Tensor:
        if projection is not None:
            x = ops.matmul(x, ops.transpose(projection))
        table = self._embeddings().tables[n]
        bias = self.bias[self.bounds[n] : self.bounds[n + 1]]
        return ops.matmul(x, ops.transpose(table)) + bias


def _picked(x: Tensor, columns: Tensor) -> Tensor:
    return ops.take_along_axis(x, columns[..., None], axis=-1)[..., 0]


def _inside(x: Tensor, begin: int, end: int) -> Tensor:
    return ops.cast((x >= begin) & (x < end), "float32")
