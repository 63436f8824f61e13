"""Token, segment and position embeddings, summed.

Shapes: `B` batch, `T` tokens, `V` vocabulary, `S` segments, `P` positions, `E` embedding width,
`H` hidden width.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from kbert.core.types import DType, MaybeNone, Shape, Tensor
from kbert.layers.dense import Dense
from kbert.layers.dropout import Dropout
from kbert.layers.ids import take_rows, whole_numbers
from kbert.layers.normalization import LayerNorm
from kbert.layers.positions import check_length, number_tokens, sinusoids
from kbert.layers.slots import Editable


class Embeddings(Editable):
    """`dropout(norm(token + segment + position))`, projected to `hidden_size` if `E` differs.

    (BERT, Figure 2, https://arxiv.org/abs/1810.04805; the projection: ALBERT, section 3.1,
    https://arxiv.org/abs/1909.11942.)

    Args:
        vocabulary_size: rows of the token table.
        embedding_size: width of the tables.
        hidden_size: width of the output.
        max_positions: rows of the position table.
        num_segments: rows of the segment table; 0 = no segment table.
        dropout: dropout rate.
        layer_norm_epsilon: number added to the variance.
        initializer_range: standard deviation of the initial tables.
        positions: "learned", "sinusoidal", or "none" (the attention may encode positions itself).
        norm: kind of normalisation, see `LayerNorm`; None = no normalisation.
        use_bias: whether the projection has a bias.
        padding_id: token id that is skipped when positions are numbered, see `number_tokens`; its
            position embedding is the weight `padding`. None = every token is numbered.

    Example:
        >>> embeddings = Embeddings(vocabulary_size=9, embedding_size=4, hidden_size=8,
        ...                         max_positions=6, num_segments=2)
        >>> tuple(embeddings(ops.array([[1, 2, 3]])).shape)
        (1, 3, 8)
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        embedding_size: int,
        hidden_size: int,
        max_positions: int,
        num_segments: int,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        positions: str = "learned",
        norm: str | None = "layer",
        use_bias: bool = True,
        padding_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # half precision would round ids
        self.positions = positions
        self.padding_id = padding_id
        self.use_bias = use_bias
        self.vocabulary_size = vocabulary_size
        self.embedding_size = embedding_size
        self.max_positions = max_positions
        self.num_segments = num_segments
        self.initializer_range = initializer_range
        self.norm: keras.layers.Layer | None = None
        if norm is not None:
            self.norm = LayerNorm(
                layer_norm_epsilon, kind=norm, dtype=self.dtype_policy, name="norm"
            )
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.projection = _projection(
            embedding_size, hidden_size, initializer_range, use_bias, self.dtype_policy
        )

        self._base: Callable[[], Embeddings] | None = None

    def build(self, token_ids_shape: Shape) -> None:
        self.token = self._add_table("token", self.vocabulary_size)
        self.position: Any = None
        if self.positions == "learned":
            self.position = self._add_table("position", self.max_positions)
        elif self.positions == "sinusoidal":
            self.position = sinusoids(self.max_positions, self.embedding_size)
        if self.padding_id is not None:
            self.padding = self.add_weight(
                name="padding", shape=(self.embedding_size,), initializer="zeros", autocast=False
            )
        self.segment: keras.Variable | MaybeNone = None
        if self.num_segments:
            self.segment = self._add_table("segment", self.num_segments)
        shape = (*token_ids_shape, self.embedding_size)
        if self.norm is not None:
            self.norm.build(shape)
        if self.projection is not None:
            self.projection.build(shape)

    def _add_table(self, name: str, rows: int, width: int | None = None) -> keras.Variable:
        """Returns a new table (rows, width), randomly initialised; None = width E."""
        return self.add_weight(
            name=name,
            shape=(rows, width or self.embedding_size),
            initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_range),
            # The lookup comes before the cast: casting the whole table first costs more.
            autocast=False,
        )

    def call(
        self,
        token_ids: Tensor,
        segment_ids: Tensor | None = None,
        places: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        x = self.dropout(self.embed(token_ids, segment_ids, places), training=training)
        return x if self.projection is None else self.projection(x)  # (B, T, H)

    def embed(
        self, token_ids: Tensor, segment_ids: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """Returns the normalised sum of the table rows: the part that encoders can share.

        Args:
            token_ids: (B, T).
            segment_ids: (B, T), or None for the first segment.
            places: (B, T), positions of the tokens, below P; None = 0, 1, 2 …

        Returns:
            (B, T, E).

        Raises:
            ValueError: a sequence that is too long, or segment ids for a model without segments.
        """
        x = self._summed(token_ids, segment_ids, places)
        return ops.cast(x, self.compute_dtype) if self.norm is None else self.norm(x)

    def _summed(
        self, token_ids: Tensor, segment_ids: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """Returns the sum of token, position and segment embeddings, (B, T, E); see `embed`."""
        token_ids = whole_numbers(token_ids, "token_ids")
        x = self._token_rows(token_ids, places)  # (B, T, E)
        if places is None:
            length = check_length(ops.shape(token_ids)[1], self.max_positions)
            if self.padding_id is not None:
                places = number_tokens(token_ids, self.padding_id)
            elif self.position is not None:
                x = x + self._position_table()[:length]
        if places is not None and self.position is not None:
            x = x + self._position_rows(token_ids, places)
        if self.segment is not None:
            x = x + self._segments(segment_ids)
        elif segment_ids is not None:
            raise ValueError(
                "A model without segments does not support `segment_ids`: leave it out of the "
                f"inputs. Received: segment_ids of shape {tuple(segment_ids.shape)}"
            )
        return x

    def add_base(self, base: "Embeddings") -> None:
        """Adds the token and position tables of `base` to those of this layer, without gradient.

        The tables of this layer become differences from the base tables and start at zero. So each
        model trains its own tables, and their gradients do not compete. (He et al. 2021,
        https://arxiv.org/abs/2111.09543, section 3.3: gradient-disentangled embedding sharing.)
        Presets and everything else that `kbert.models.weights` reads contain the sums. A file of
        Keras' `save_weights` contains only the differences, so it is incomplete without the base.

        Args:
            base: built embeddings with tables of the same shapes.
        """
        # Inside a function, so that Keras does not count and save the other's weights here.
        self._base = lambda: base
        for name in self._tables_with_base():
            getattr(self, name).assign(ops.zeros_like(getattr(self, name)))

    def base_tables(self) -> dict[str, keras.Variable]:
        """Returns name of a table -> base table that is added to it; {} without `add_base`."""
        if self._base is None:
            return {}
        base = self._base()
        return {name: getattr(base, name) for name in self._tables_with_base()}

    def _tables_with_base(self) -> tuple[str, ...]:
        return ("token", "position") if self.positions == "learned" else ("token",)

    def _token_rows(self, token_ids: Tensor, places: Tensor | None) -> Tensor:
        """Returns the token embeddings (B, T, E), with those of a base table and after edits.

        Edits are changes of the table's rows from outside, such as rounding.
        """
        rows = take_rows(self.token, token_ids)
        if self._base is not None:
            rows = rows + ops.stop_gradient(take_rows(self._base().token, token_ids))
        for edit in self.edits:
            rows = edit(rows)
        return rows

    def _position_table(self) -> Tensor:
        if self.positions != "learned":
            return ops.cast(self.position, self.variable_dtype)  # the dtype of the other tables
        if self._base is None:
            return self.position
        return self.position + ops.stop_gradient(self._base().position)

    def _position_rows(self, token_ids: Tensor, places: Tensor) -> Tensor:
        rows = take_rows(self._position_table(), whole_numbers(places, "places"))
        if self.padding_id is None:
            return rows
        is_padding = ops.equal(token_ids, self.padding_id)[..., None]
        return ops.where(is_padding, ops.convert_to_tensor(self.padding), rows)

    def _segments(self, segment_ids: Tensor | None) -> Tensor:
        """Returns the segment embeddings (B, T, E); for None the first segment's, (E,)."""
        if segment_ids is None:
            return self.segment[0]  # everything belongs to the first segment
        # Product with one-hot rows: the gradient of a lookup would add B * T rows one by one.
        segment_ids = whole_numbers(segment_ids, "segment_ids")
        one_hot = ops.one_hot(segment_ids, self.num_segments, dtype=self.segment.dtype)
        return ops.matmul(one_hot, self.segment)  # (B, T, S) @ (S, E)


class SharedEmbeddings(keras.layers.Layer):
    """Another encoder's tables and normalisation, with separate dropout and projection.

    ELECTRA's generator and discriminator share these (`BertModel` with the variable scope
    "embeddings" in model/modeling.py of google-research/electra). The tables belong to the other
    encoder: they are neither counted nor saved here, and the gradients of both models update them.

    Args:
        source: built embeddings to share.
        hidden_size: width of the output.
        dropout: dropout rate.

    Raises:
        ValueError: `source` is not an `Embeddings`, or is of a subclass.

    Example:
        >>> tables = Embeddings(vocabulary_size=9, embedding_size=4, hidden_size=8,
        ...                     max_positions=6, num_segments=2)
        >>> tables.build((None, None))
        >>> shared = SharedEmbeddings(tables, hidden_size=4)
        >>> shared.build((None, None))
        >>> len(shared.weights), tuple(shared(ops.array([[1, 2, 3]])).shape)
        (0, (1, 3, 4))
    """

    def __init__(
        self, source: Embeddings, *, hidden_size: int, dropout: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        if type(source) is not Embeddings:
            raise ValueError(
                "A generator can share the tables of BERT's embeddings only. Received: "
                f"{type(source).__name__}"
            )
        # Inside a function, so that Keras does not count and save the other's weights here.
        self._source = lambda: source
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.projection = _projection(
            source.embedding_size,
            hidden_size,
            source.initializer_range,
            source.use_bias,
            self.dtype_policy,
        )

    def build(self, token_ids_shape: Shape) -> None:
        if self.projection is not None:
            self.projection.build((*token_ids_shape, self._source().embedding_size))

    @property
    def token(self) -> keras.Variable:
        """The shared token table (V, E)."""
        return self._source().token

    def call(
        self,
        token_ids: Tensor,
        segment_ids: Tensor | None = None,
        places: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        x = self._source().embed(token_ids, segment_ids, places)  # (B, T, E)
        x = self.dropout(x, training=training)
        return x if self.projection is None else self.projection(x)  # (B, T, H)


def _projection(
    embedding_size: int, hidden_size: int, initializer_range: float, use_bias: bool, dtype: DType
) -> Dense | None:
    """Returns a dense layer from embedding to hidden width; None if they are equal."""
    if embedding_size == hidden_size:
        return None
    return Dense(
        hidden_size,
        initializer_range=initializer_range,
        use_bias=use_bias,
        dtype=dtype,
        name="projection",
    )
