"""Disentangled attention: contents and distances of tokens have separate embeddings.

(He et al. 2020, "DeBERTa", https://arxiv.org/abs/2006.03654, section 3.1; log buckets and shared
projections: He et al. 2021, "DeBERTaV3", https://arxiv.org/abs/2111.09543, and the code of version
2, microsoft/DeBERTa, DeBERTa/deberta/disentangled_attention.py.)

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `D` width of a head, `P` tokens that
attend, `R` rows of the distance table that `T` tokens need.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL
from kbert.core.options import option
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import Dropout, LayerNorm, SelfAttention
from kbert.layers.chunked_attention import Scores
from kbert.layers.dense import kernel_initializer
from kbert.layers.gather import gather_rows
from kbert.layers.positions import distance_products, relative_shift, scores_by_distance
from kbert.models.parts import Part

CONTENT_TO_POSITION, POSITION_TO_CONTENT = "content_to_position", "position_to_content"
TERMS = (CONTENT_TO_POSITION, POSITION_TO_CONTENT)


def distance_buckets(position_buckets: int, max_distance: int) -> np.ndarray:
    """Returns the bucket of each distance from 0 to `max_distance`; longer ones use the last entry.

    Up to half of `position_buckets` each distance has its own bucket. After that the buckets are
    logarithmic, and `max_distance - 1` is in the last one. They are computed here instead of in the
    graph, because a rounding error in a logarithm would move a distance to the next bucket.

    Args:
        position_buckets: number of buckets on each side, even; 0 = each distance has its own.
        max_distance: first distance beyond the buckets.

    Returns:
        (max_distance + 1,) int32.

    Example:
        >>> distance_buckets(8, 16).tolist()
        [0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 8]
    """
    exact = position_buckets // 2
    distances = np.arange(max_distance + 1, dtype=np.int32)
    if not position_buckets:
        return distances
    logarithms = np.log(np.maximum(distances, exact) / exact)
    far = np.ceil(logarithms / logarithms[-2] * (exact - 1))
    buckets = np.where(distances <= exact, distances, exact + far)
    return buckets.astype(np.int32)


class DistanceTable(keras.layers.Layer):
    """Learned embeddings of the distance buckets, and the lookup for a sequence.

    Args:
        position_buckets: number of buckets on each side, see `distance_buckets`.
        max_distance: first distance beyond the buckets.
        norm: layer that normalises the embeddings; None = no normalisation.
        initializer_range: standard deviation of the truncated normal that initialises them.

    Example:
        >>> table = DistanceTable(8, 16, norm=LayerNorm(1e-7))
        >>> {name: tuple(x.shape) for name, x in table(ops.ones((1, 3, 4))).items()}
        {'table': (6, 4), 'rows': (7,)}
    """

    def __init__(
        self,
        position_buckets: int,
        max_distance: int,
        *,
        norm: keras.layers.Layer | None,
        initializer_range: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.side = position_buckets or max_distance
        self.norm = norm
        self.initializer_range = initializer_range
        self._buckets = distance_buckets(position_buckets, max_distance)

    def build(self, input_shape: Shape) -> None:
        shape = (2 * self.side, input_shape[-1])
        self.table = self.add_weight(
            name="table", shape=shape, initializer=kernel_initializer(self.initializer_range)
        )
        if self.norm is not None:
            self.norm.build(shape)

    def call(self, x: Tensor, training: bool = False) -> Tensors:
        """Looks up the embeddings for a batch (B, T, H), of which only T matters.

        Returns:
            "table" (R, H), the rows that T tokens need; and "rows" (2 T + 1,) int32, the index in
            "table" of each distance from -T to T.
        """
        length = ops.shape(x)[1]
        side, last = self.side, len(self._buckets) - 1
        # Short sequences need only the middle of the table, up to the bucket of their longest
        # distance. With few distances to spread over, logarithmic buckets can exceed the distances.
        if isinstance(length, int):
            reach = min(side, int(self._buckets[min(length - 1, last)]) + 1)
        else:
            buckets = ops.convert_to_tensor(self._buckets)
            reach = ops.minimum(side, ops.take(buckets, ops.minimum(length - 1, last)) + 1)
        table = self.table[side - reach : side + reach]
        if self.norm is not None:
            table = self.norm(table, training=training)
        distances = ops.arange(-length, length + 1, dtype="int32")
        nearest = ops.minimum(ops.abs(distances), last)
        buckets = ops.sign(distances) * ops.take(ops.convert_to_tensor(self._buckets), nearest)
        return {"table": table, "rows": ops.clip(buckets, -reach, reach - 1) + reach}


class DisentangledAttention(SelfAttention):
    """Attention with scores of content-content, content-distance and distance-content pairs.

    Tokens have queries q and keys k, and so do distance embeddings, by the same or by separate
    projections. The score of token i for token j is the sum of q_i k_j, q_i k_(i-j) and q_(i-j)
    k_j, divided by the square root of D times the number of terms.

    The distance of two tokens is that of their positions in the row. In a packed row the tokens of
    one example are adjacent, so their distances do not change, and the bias masks other examples.

    Args:
        num_heads: number of heads; divides the input width.
        terms: terms besides content-content, from `TERMS`.
        table_dropout: dropout rate on the distance embeddings.
        shared_projections: whether distances use the tokens' projections instead of separate ones.
        **options: further arguments of `SelfAttention`.

    Example:
        >>> x = ops.ones((1, 3, 4))
        >>> shared = DistanceTable(8, 16, norm=LayerNorm(1e-7))(x)
        >>> outputs, made = DisentangledAttention(2)(x, shared=shared)
        >>> tuple(outputs.shape), tuple(made["probabilities"].shape)
        ((1, 3, 4), (1, 2, 3, 3))
    """

    def __init__(
        self,
        num_heads: int,
        *,
        terms: tuple[str, ...] = TERMS,
        table_dropout: float = 0.0,
        shared_projections: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(num_heads, **options)
        self.terms = terms
        self.shared_projections = shared_projections
        self.table_dropout = Dropout(table_dropout, dtype=self.dtype_policy, name="table_dropout")

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.distance_key = self.distance_query = None
        if not self.shared_projections:
            width = input_shape[-1]
            if CONTENT_TO_POSITION in self.terms:
                self.distance_key = self._add_dense(width, input_shape, "distance_key")
            if POSITION_TO_CONTENT in self.terms:
                self.distance_query = self._add_dense(width, input_shape, "distance_query")

    def scores(
        self,
        query: Tensor,
        key: Tensor,
        positions: Tensor | None,
        shared: Tensors | None,
        training: bool,
    ) -> Scores:
        """Returns the sum of all terms of the scores, without the bias.

        Arguments are those of `SelfAttention.scores`; `shared` is the output of `DistanceTable`.

        Raises:
            ValueError: `shared` is None.
        """
        if shared is None:
            raise ValueError("`shared` must be the output of DistanceTable. Received: None")
        table = self.table_dropout(ops.cast(shared["table"], self.compute_dtype), training=training)
        far_query: Any
        far_query, far_key = self._project_distances(table)  # (N, R, D)
        plain, length = self._scaled_scores(query, key), ops.shape(key)[2]
        tensors = list(plain.tensors)
        if CONTENT_TO_POSITION in self.terms:  # distances from T - 1 down to -T
            tensors.append(ops.take(far_key, ops.flip(shared["rows"][:-1]), axis=1))
        if POSITION_TO_CONTENT in self.terms:  # distances from 1 - T up to T
            far_query = far_query * ops.cast(self._scale, query.dtype)
            tensors += [key, ops.take(far_query, shared["rows"][1:], axis=1)]

        def products(start: Any, rows: list[Any], tensors: list[Any]) -> Tensor:
            keys, *terms = tensors
            number = ops.shape(rows[0])[2]
            sums = plain.products(start, rows, [keys])  # (B, N, C, T)
            if CONTENT_TO_POSITION in self.terms:
                sums = sums + scores_by_distance(
                    lambda x: distance_products(rows[0], x),
                    terms.pop(0),
                    number,
                    length,
                    start,
                    positions,
                )
            if not terms:
                return sums
            tokens, far_queries = terms
            if isinstance(start, int):
                by_query = _scores_of_keys(tokens, far_queries)
                if positions is not None:
                    by_query = gather_rows(by_query, positions)
                return sums + by_query
            return sums + _scores_of_keys_in_tiles(tokens, far_queries, start, number)

        # For selected tokens the second term is computed for all.
        has_chunks = positions is None or POSITION_TO_CONTENT not in self.terms
        return Scores(products, plain.rows, tensors, has_chunks)

    def _project_distances(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Returns queries and keys (N, R, D) of the distance embeddings `table` (R, H).

        Without shared projections, those that no term of the scores needs are None.
        """
        if self.shared_projections:
            # Also computes the values of distances, which are not used; R is small.
            query, key, _ = (part[0] for part in self._project(table[None]))
            return query, key
        query, key = (
            None if dense is None else self._split_heads(dense(table[None]))[0]
            for dense in (self.distance_query, self.distance_key)
        )
        return query, key

    @property
    def _scale(self) -> float:
        return super()._scale / (1 + len(self.terms)) ** 0.5


def _scores_of_keys(key: Tensor, far_queries: Tensor) -> Tensor:
    """Returns the scores (B, N, T, T) of all queries, by the distance to each key.

    `key` is (B, N, T, D); `far_queries` (N, 2 T, D) are for the distances from 1 - T up to T.
    """
    by_key = relative_shift(distance_products(key, far_queries))  # a row for each key
    return ops.transpose(by_key, (0, 1, 3, 2))


def _scores_of_keys_in_tiles(
    key: Tensor, far_queries: Tensor, start: Tensor, number: Tensor
) -> Tensor:
    """Returns the scores (B, N, C, T) of the C queries from `start` on, see `_scores_of_keys`.

    C is `number`. The keys are cut into M tiles of C keys: a tile and the queries have 2 C
    distances, which begin C higher with each tile before.
    """
    batch, heads, length, width = ops.shape(key)
    tiles = -(-length // number)
    missing = tiles * number - length
    far_queries = ops.pad(far_queries, ((0, 0), (missing, number), (0, 0)))
    begin, size = [0, ops.cast(start, "int32"), 0], (heads, (tiles + 1) * number, width)
    blocks = ops.reshape(ops.slice(far_queries, begin, size), (heads, tiles + 1, number, width))
    windows = ops.flip(ops.concatenate([blocks[:, :-1], blocks[:, 1:]], axis=2), axis=1)
    windows = ops.reshape(windows, (heads * tiles, 2 * number, width))
    key = ops.pad(key, ((0, 0), (0, 0), (0, missing), (0, 0)))
    key = ops.reshape(key, (batch, heads, tiles, number, width))
    key = ops.reshape(ops.transpose(key, (1, 2, 0, 3, 4)), (heads * tiles, batch * number, width))
    by_key = ops.matmul(key, ops.transpose(windows, (0, 2, 1)))
    by_key = ops.reshape(by_key, (heads * tiles, batch, number, 2 * number))
    by_key = ops.reshape(relative_shift(by_key), (heads, tiles, batch, number, number))
    by_query = ops.transpose(by_key, (2, 0, 4, 1, 3))
    return ops.reshape(by_query, (batch, heads, number, tiles * number))[..., :length]


class Disentangled(Part):
    """DeBERTa's attention, and the distance table that all layers share.

    {options}

    Example:
        >>> import kbert
        >>> kbert.family("microsoft/deberta-v3-base").part
        {'name': 'disentangled', 'position_buckets': 256, 'max_distance': 512}
    """

    kind = "disentangled"
    position_buckets: int = option(
        256,
        help="Distance embeddings on each side; even. Half of them are for one distance each. 0: "
        "one for every distance.",
        at_least=0,
        at_most=1 << 14,
    )
    max_distance: int = option(
        512, help="The first distance beyond the buckets.", at_least=3, at_most=1 << 20
    )
    terms: tuple[str, ...] = option(
        TERMS, help="Terms of the attention scores that depend on the distance.", choices=TERMS
    )

    shared_projections: bool = option(
        True, help="Whether distances share the projections of the tokens."
    )
    table_norm: bool = option(True, help="Whether the distance embeddings are normalised.")

    def check(self) -> None:
        if self.position_buckets % 2 or self.max_distance < self.position_buckets // 2 + 2:
            raise ValueError(
                "`position_buckets` must be even, and `max_distance` at least position_buckets / "
                f"2 + 2. Received: position_buckets={self.position_buckets}, "
                f"max_distance={self.max_distance}"
            )
        if not self.terms or len(set(self.terms)) < len(self.terms):
            raise ValueError(
                f"`terms` must name {' or '.join(TERMS)}, or both. Received: {self.terms}"
            )

    def check_config(self, config: EncoderConfig) -> None:
        self.check_ungrouped(config)
        if config.positions_in_attention or set(config.attention_pattern) != {GLOBAL}:
            raise ValueError(
                "Disentangled attention requires global attention, and `positions` that are "
                "'none' or added to the embeddings (its scores already include distances). "
                f"Received: positions={config.positions!r}, "
                f"attention_pattern={config.attention_pattern}"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        width = config.hidden_size
        rows = 2 * (self.position_buckets or self.max_distance)
        count = rows * width + self.table_norm * config.count_norm(width)
        if not self.shared_projections:
            projections = len(self.terms) * config.count_dense(width, width, "attention")
            count += config.num_blocks * projections
        return count

    def make_shared(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer:
        norm = None
        if self.table_norm:
            norm = LayerNorm(
                config.layer_norm_epsilon, kind=config.norm, dtype=kwargs.get("dtype"), name="norm"
            )
        return DistanceTable(
            self.position_buckets,
            self.max_distance,
            norm=norm,
            initializer_range=config.initializer_range,
            **kwargs,
        )

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return DisentangledAttention(
            config.num_heads,
            terms=self.terms,
            table_dropout=config.dropout,
            shared_projections=self.shared_projections,
            dropout=config.attention_dropout,
            max_length=config.max_positions,
            initializer_range=config.initializer_range,
            use_bias=config.has_bias("attention"),
            **kwargs,
        )
