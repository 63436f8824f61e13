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
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.dense import kernel_initializer
from kbert.layers.ids import take_rows, whole_numbers
from kbert.layers.token_embeddings import TokenOutput


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
        >>> tuple(softmax(x).shape)
        (2, 10)
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
        head, *tails = (ops.log_softmax(y.logits(), axis=-1) for y in self._softmaxes(x))
        size = self.bounds[1]
        parts = [head[..., :size]]
        for n, tail in enumerate(tails, 1):
            parts.append(tail + head[..., size + n - 1 : size + n])
        return ops.concatenate(parts, axis=-1)

    def token_outputs(
        self, x: Tensor, targets: Tensor
    ) -> Iterator[tuple[TokenOutput, Tensor, Tensor]]:
        """Yields the softmaxes whose cross entropies add up to minus the targets' log-probability.

        Args:
            x: (..., H).
            targets: (...) integers below V.

        Yields:
            For each softmax what its logits are the product of; its labels (...); and (...) 1 where
            it counts, else 0. The first counts everywhere, that of a cluster for its entries.
        """
        targets, size = ops.cast(targets, "int32"), self.bounds[1]
        head, *tails = self._softmaxes(x)
        labels, clusters = targets, itertools.pairwise(self.bounds[1:])
        inside = []
        for n, (begin, end) in enumerate(clusters):
            labels = ops.where(targets >= begin, size + n, labels)
            is_inside = ops.cast((targets >= begin) & (targets < end), "float32")
            inside.append((ops.clip(targets - begin, 0, end - begin - 1), is_inside))
        yield head, labels, ops.ones_like(targets, "float32")
        for tail, answer in zip(tails, inside, strict=True):
            yield tail, *answer

    def _softmaxes(self, x: Tensor) -> list[TokenOutput]:
        """Returns what the logits of each softmax are the product of, for x (..., H).

        The first is over the n entries of the first cluster and the C other clusters. The others
        are over the entries of each of these, given the cluster.
        """
        embeddings, x = self._embeddings(), ops.cast(x, "float32")
        outputs = []
        for n, table in enumerate(embeddings.tables):
            projection = embeddings.projections[n] if embeddings.projects and n else self.projection
            rows = x if projection is None else ops.matmul(x, ops.transpose(projection))
            bias = self.bias[self.bounds[n] : self.bounds[n + 1]]
            if n == 0 and self.cluster is not None:
                table = ops.concatenate([table, self.cluster])
                bias = ops.concatenate([bias, self.cluster_bias])
            outputs.append(TokenOutput(rows, table, bias))
        return outputs
