"""Attention by content, distance and segment, for tokens and for a second stream of queries.

(Yang et al. 2019, "XLNet", https://arxiv.org/abs/1906.08237, sections 2.3 to 2.5; distances: Dai et
al. 2019, "Transformer-XL", https://arxiv.org/abs/1901.02860, section 3.3; modeling.py of
zihangdai/xlnet.)

Shapes: `B` batch, `T` tokens, `M` tokens of a memory, `S` = M + T, `H` hidden width, `N` heads, `D`
width of a head, `P` tokens that attend.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import Block, Dropout, FeedForward, SelfAttention
from kbert.layers.bias import PENALTY, bias_rows
from kbert.layers.chunked_attention import ScoreBias, Scores
from kbert.layers.dense import kernel_initializer
from kbert.layers.gather import gather_positions
from kbert.layers.normalization import add_and_norm
from kbert.layers.positions import distance_products, scores_by_distance


def distance_vectors(
    length: Tensor, memory_length: Tensor, hidden_size: int, clamp_length: int | None = None
) -> Tensor:
    """Returns sinusoids of the distances from M + T - 1 down to -T: sines, then cosines.

    Args:
        length: number of tokens, T.
        memory_length: number of tokens of the memory, M.
        hidden_size: width of the result, H.
        clamp_length: largest distance; longer ones are clipped to it. None = no clipping.

    Returns:
        (S + T, H) float32.

    Example:
        >>> ops.convert_to_numpy(distance_vectors(1, 1, 2))[:, 0].round(1).tolist()
        [0.800000011920929, 0.0, -0.800000011920929]
    """
    distances = length + memory_length - 1 - ops.arange(2 * length + memory_length, dtype="int32")
    if clamp_length is not None:
        distances = ops.clip(distances, -clamp_length, clamp_length)
    frequencies = (10000.0 ** -(np.arange(0, hidden_size, 2) / hidden_size)).astype("float32")
    angles = ops.cast(distances, "float32")[:, None] * ops.convert_to_tensor(frequencies)
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)


class RelativeAttention(SelfAttention):
    """Attention with scores q k by content, plus q r by distance, plus q s by segment.

    Each term adds its own learned bias to the query instead of the query's position. A second
    stream of queries, which are not keys, can attend to the same tokens. Each of them has a
    position, and `query_bias` masks the tokens it must not see.

    Args:
        num_heads: number of heads; divides the input width.
        dropout: dropout rate on the probabilities.
        initializer_range: standard deviation of the initial kernels and biases, see `Dense`.
        has_segments: whether scores include the term of segments.
        **options: `max_length` and `head_size` of `SelfAttention`.

    Example:
        >>> distances = {"distances": distance_vectors(3, 0, 4)}
        >>> outputs, made = RelativeAttention(2)(ops.ones((1, 3, 4)), shared=distances)
        >>> tuple(outputs.shape), tuple(made["probabilities"].shape)
        ((1, 3, 4), (1, 2, 3, 3))
    """

    def __init__(self, num_heads: int, *, has_segments: bool = True, **options: Any) -> None:
        super().__init__(num_heads, use_bias=False, **options)
        self.has_segments = has_segments

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.relative = self._add_dense(input_shape[-1], input_shape, "relative")
        for name in ("content_bias", "distance_bias"):
            setattr(self, name, self._add_heads(name))
        if self.has_segments:
            self.segment_bias = self._add_heads("segment_bias")
            self.segments = self._add_heads("segments", 2)  # same segment, other segment

    def _add_heads(self, name: str, *leading: int) -> keras.Variable:
        shape = (*leading, self.num_heads, self.head_size)
        return self.add_weight(
            name=name, shape=shape, initializer=kernel_initializer(self.initializer_range)
        )

    # No `position_ids`: distances are those in the row, also in a packed one.
    def call(  # type: ignore[override]
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool = False,
        positions: Tensor | None = None,
        shared: Tensors | None = None,
        memory: Tensor | None = None,
        queries: Tensor | None = None,
        query_bias: Tensor | None = None,
        query_positions: Tensor | None = None,
    ) -> Any:
        """Attends from x, and from `queries` if there are any, to the memory and x.

        Args:
            x: (B, T, H).
            bias: tensor added to the scores; broadcasts to (B, N, T, S).
            training: whether dropout is active.
            positions: (B, P), positions of the tokens that attend; None = every token.
            shared: "distances" (S + T, H), see `distance_vectors`; with segments also
                "is_other_segment" (B, T, S), 1 if token and key are in different segments.
            memory: (B, M, H), tokens before x that are also attended to.
            queries: (B, P, H), the second stream.
            query_bias: (B, 1, P, S), added to the scores of the second stream. The output of a
                query that attends to nothing is zeros.
            query_positions: (B, P), positions of the queries.

        Returns:
            The outputs (B, T, H) and the dict of `SelfAttention`, with "scores" relative to those
            of the same segment. With queries, the outputs are a pair of both streams' outputs.

        Raises:
            ValueError: `shared` is None.
        """
        query, key, value = self._project_behind(x, memory)
        outputs, internals = self._attended(x, query, key, value, bias, training, positions, shared)
        if queries is None:
            return outputs, internals
        scores = self.scores(self._queries(queries), key, query_positions, shared, training)
        heads, _ = self._weighed(scores, value, ScoreBias(query_bias), training)
        query_outputs = self.output_dense(self._merge_heads(heads))
        if query_bias is not None:
            sees = ops.any(query_bias > -PENALTY / 2, axis=-1)[:, 0, :, None]  # (B, P, 1)
            query_outputs = ops.where(sees, query_outputs, ops.zeros_like(query_outputs))
        return (outputs, query_outputs), internals

    def scores(
        self,
        query: Tensor,
        key: Tensor,
        positions: Tensor | None,
        shared: Tensors | None,
        training: bool,
    ) -> Scores:
        """Returns the scores by content, distance and segment, without the bias.

        Arguments are those of `SelfAttention.scores`; `shared` is described at `call`.

        Raises:
            ValueError: `shared` is None.
        """
        if shared is None:
            raise ValueError("`shared` must contain the distances. Received: None")
        vectors = ops.cast(shared["distances"], self.compute_dtype)
        far_key = self._split_heads(self.relative(vectors[None]))[0]  # (N, S + T, D)
        length = ops.shape(far_key)[1] - ops.shape(key)[2]  # T
        scale = ops.cast(self._scale, query.dtype)
        by_content = (query + self.content_bias[:, None]) * scale
        by_distance = (query + self.distance_bias[:, None]) * scale
        rows = [by_content, by_distance]
        is_other = shared.get("is_other_segment")
        if is_other is not None:
            if positions is not None:
                is_other = gather_positions(is_other, positions)
            is_other = is_other[:, None]  # (B, 1, P, S)
            # The same-segment term is equal for all keys of a query, so the softmax cancels it.
            step = (self.segments[1] - self.segments[0])[:, None]
            by_segment = (query + self.segment_bias[:, None]) * scale * step
            rows.append(ops.sum(by_segment, axis=-1, keepdims=True))  # (B, N, P, 1)

        def products(start: Any, rows: list[Any], tensors: list[Any]) -> Tensor:
            by_content, by_distance, *by_segment = rows
            keys, far_key = tensors
            number = ops.shape(by_content)[2]
            sums = ops.matmul(by_content, keys) + scores_by_distance(
                lambda x: distance_products(by_distance, x),
                far_key,
                number,
                length,
                start,
                positions,
            )
            for part in by_segment:
                others = is_other
                if not isinstance(start, int):
                    last = ops.shape(is_other)[2] - 1
                    others = bias_rows(is_other, ops.minimum(start + ops.arange(number), last))
                sums = sums + part * ops.cast(others, part.dtype)
            return sums

        return Scores(products, rows, [ops.transpose(key, (0, 1, 3, 2)), far_key])

    def _project_behind(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries (B, N, T, D) of x, and keys and values (B, N, S, D) of memory and x."""
        if memory is None:
            return self._project(x)
        tokens = ops.concatenate([ops.cast(memory, x.dtype), x], axis=1)
        key, value = ops.split(self.qkv(tokens, columns=slice(x.shape[-1], None)), 2, axis=-1)
        return self._queries(x), self._split_heads(key), self._split_heads(value)

    def _queries(self, x: Tensor) -> Tensor:
        return self._split_heads(self.qkv(x, columns=slice(x.shape[-1])))


class XlnetBlock(Block):
    """Post-norm block with `RelativeAttention` that can also run the second stream.

    Args:
        num_heads: number of heads of the `RelativeAttention`.
        intermediate_size: width inside the feed-forward part.
        activation: activation of the feed-forward part.
        dropout: dropout rate on the outputs of both parts, and inside the feed-forward part.
        attention_dropout: dropout rate on the probabilities.
        initializer_range: standard deviation of the initial kernels and biases.
        layer_norms: function `(name=) -> layer` that makes the norms.
        has_segments: whether scores include the term of segments.
        max_length: most tokens of a sequence, see `SelfAttention`; None = any number.

    Example:
        >>> from kbert.layers import LayerNorm
        >>> block = XlnetBlock(2, 8, activation="gelu", layer_norms=lambda **x: LayerNorm(1, **x))
        >>> shared = {"distances": distance_vectors(3, 0, 4)}
        >>> x, made = block(ops.ones((1, 3, 4)), shared=shared)
        >>> tuple(x.shape)
        (1, 3, 4)
    """

    def __init__(
        self,
        num_heads: int,
        intermediate_size: int,
        *,
        activation: str,
        layer_norms: Any,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        initializer_range: float = 0.02,
        has_segments: bool = True,
        max_length: int | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        common = {"initializer_range": initializer_range, "dtype": dtype}
        super().__init__(
            RelativeAttention(
                num_heads,
                has_segments=has_segments,
                max_length=max_length,
                dropout=attention_dropout,
                name="attention",
                **common,
            ),
            FeedForward(
                intermediate_size,
                activation=activation,
                dropout=dropout,
                name="feed_forward",
                **common,
            ),
            Dropout(dropout, dtype=dtype, name="dropout"),
            attention_norm=layer_norms(name="attention_norm"),
            feed_forward_norm=layer_norms(name="feed_forward_norm"),
            dtype=dtype,
            **kwargs,
        )

    def call(  # type: ignore[override]
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool = False,
        positions: Tensor | None = None,
        queries: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Like `Block.call`, with a second stream `queries` (B, P, H) or None.

        With queries the first result is a pair of both streams' outputs. `options` are further
        arguments of `RelativeAttention.call`.
        """
        outputs, attention = self.attention(
            x,
            bias,
            training=training,
            positions=positions,
            queries=queries,
            **options,
        )
        if queries is not None:
            streams = zip((x, queries), outputs, strict=True)
            return tuple(self._finished(*stream, training) for stream in streams), attention
        if positions is not None:
            x = gather_positions(x, positions)
        return self._finished(x, outputs, training), attention

    def _finished(self, x: Tensor, outputs: Tensor, training: bool) -> Tensor:
        x = add_and_norm(x, outputs, self.dropout, self.attention_norm, training)
        return self._forwarded(x, training)
