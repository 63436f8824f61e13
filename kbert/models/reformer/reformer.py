"""The Reformer, an encoder with two residual streams for long sequences (Kitaev et al. 2020).

Shapes: `B` batch, `T` tokens, `P` positions, `V` vocabulary, `H` width of both streams.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.reformer import LSH, ReformerConfig
from kbert.core.types import Shape, Tensor
from kbert.layers import Block, Dense, Dropout, Embeddings, LayerNorm, gather_positions
from kbert.layers.activations import get_activation
from kbert.models.blocks import Reads, embeddings_of
from kbert.models.encoder import INPUTS, Encoder, Layers
from kbert.models.pooling import make_pooler
from kbert.models.reformer.attention import LocalAttention, LSHAttention
from kbert.models.reformer.reversible import is_reversible, run_reversible


@keras.saving.register_keras_serializable(package="kbert")
class Reformer(Encoder):
    """`Encoder` for a `ReformerConfig`.

    "sequence" is both residual streams, concatenated and normalised. "hidden_states" are the
    concatenated streams before each layer, and "sequence" at the end. Sequences are padded
    internally to whole chunks. In training the layers are reversible: activations of only one layer
    are kept at a time, unless hidden states or attention are requested. The directions of buckets
    are new in each training step unless the config has a `hash_seed`. In inference they are always
    the same, so outputs are reproducible. "attention" is assembled from chunks and rounds; there
    are no "internals".

    Args:
        config: a `ReformerConfig`.
        **options: further arguments of `Encoder`.

    Example:
        >>> import numpy as np
        >>> config = ReformerConfig(vocabulary_size=10, hidden_size=8, num_layers=2, num_heads=2,
        ...                         intermediate_size=16, head_size=4, max_positions=64,
        ...                         local_chunk_length=4, lsh_chunk_length=4)
        >>> out = Reformer(config)({"token_ids": np.ones((1, 14), "int32")})
        >>> tuple(out["sequence"].shape)
        (1, 14, 8)
    """

    config_class = ReformerConfig
    config: ReformerConfig
    # The config decides whether all tokens are causal.
    INPUTS = tuple(name for name in INPUTS if name not in ("causal_mask", "attention_order"))

    def _make_embeddings(self) -> keras.layers.Layer:
        config, policy = self.config, {"dtype": self.dtype_policy}
        return embeddings_of(
            config,
            made=AxialEmbeddings,
            axial_shape=config.axial_shape,
            axial_sizes=config.axial_sizes,
            embedding_size=config.stream_size,
            hidden_size=config.stream_size,
            num_segments=0,
            norm=None,
            name="embeddings",
            **policy,
        )

    def _make_layers(self) -> None:
        config, policy = self.config, {"dtype": self.dtype_policy}
        self.embeddings = self._make_embeddings()
        self.blocks = [self._make_block(layer) for layer in range(config.num_layers)]
        self.shared = None
        self.norm = LayerNorm(config.layer_norm_epsilon, name="norm", **policy)
        self.dropout = Dropout(config.dropout, name="dropout", **policy)
        self.pooler = make_pooler(config, name="pooler", **policy)

    def _make_block(self, group: int) -> keras.layers.Layer:
        name = f"layers_{group}"
        return ReformerBlock(self.config, group, name=name, dtype=self.dtype_policy)

    def build(self, input_shape: Shape | None = None) -> None:
        config = self.config
        self.embeddings.build((None, None))
        for block in self.blocks:
            block.build((None, None, config.stream_size))
        for layer in (self.norm, self.pooler):
            if layer is not None:
                layer.build((None, config.hidden_size))

    def _run_layers(
        self, inputs: dict[str, Any], training: bool, reads: Reads, positions: Tensor | None
    ) -> Layers:
        """Runs both residual streams; arguments and result like `Encoder._run_layers`.

        `reads` names the outputs to return; `positions` (B, P) are the tokens to keep in the last
        hidden state. In training, if nothing is to be returned and the backend has reversible
        layers, all hidden states but the last are None. Raises ValueError for what a Reformer does
        not support.
        """
        if reads.internals:
            raise ValueError(
                "A Reformer does not support `internals`: it has no scores, queries and keys for "
                "all pairs of tokens, only `attention`. Received: return_internals=True"
            )
        token_ids = inputs["token_ids"]
        length = ops.shape(token_ids)[1]
        if inputs.get("example_ids") is not None:
            raise ValueError(
                "A Reformer does not support `example_ids`: its chunks span the whole sequence, "
                f"whatever examples it contains. Received: {', '.join(inputs)}"
            )
        x = self.embeddings(
            token_ids, inputs.get("segment_ids"), inputs.get("position_ids"), training=training
        )
        # In float32 for every policy: the backward pass subtracts what the forward pass added.
        x, context = self._whole_chunks(ops.cast(x, self.variable_dtype), inputs)
        first = second = x
        states: list[Any] = []
        attention: list[Any] = [None] * len(self.blocks)
        # Reversible layers do not keep hidden states.
        if training and is_reversible() and not any(reads):
            first, second = run_reversible(self.blocks, first, second, context)
            states = [None] * len(self.blocks)
        else:
            for layer, block in enumerate(self.blocks):
                states.append(self._joined(first, second)[:, :length])
                first, second, weights = block(
                    first,
                    second,
                    training=training,
                    return_attention=reads.attention,
                    **context,
                )
                if weights is not None:
                    weights = weights[..., :length, :length]
                attention[layer] = weights
        norm: Any = self.norm  # optional in other encoders
        x = norm(self._joined(first, second), training=training)
        x = self.dropout(x, training=training)[:, :length]
        last = x if positions is None else gather_positions(x, positions)
        return Layers([*states, last], attention)

    def _joined(self, first: Tensor, second: Tensor) -> Tensor:
        return ops.cast(ops.concatenate([first, second], axis=-1), self.compute_dtype)

    def _whole_chunks(self, x: Tensor, inputs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Pads x (B, T, H / 2) to whole chunks of all attentions.

        Returns it with a dict of "padding_mask" (B, padded T), empty if nothing is padding.
        """
        mask = inputs.get("padding_mask")
        mask = None if mask is None else ops.cast(mask, "int32")
        batch, length, width = ops.shape(x)
        lengths = self.config.chunk_lengths
        if isinstance(length, int) and length <= lengths[0]:
            missing: Any = 0
        else:
            missing = -length % self.config.chunk_multiple
        if not isinstance(missing, int) or missing:
            if mask is None:
                mask = ops.ones((batch, length), dtype="int32")
            mask = ops.concatenate([mask, ops.zeros((batch, missing), "int32")], axis=1)
            # Not zeros: normalisation would amplify rounding errors there.
            x = ops.concatenate([x, ops.broadcast_to(x[:, :1], (batch, missing, width))], axis=1)
        return x, {} if mask is None else {"padding_mask": mask}


class ReformerBlock(Block):
    """Layer with two streams: attention on one is added to the other, and feed-forward vice versa.

    Args:
        config: config of the model.
        layer: index of the layer.
        **kwargs: `name` and `dtype` of the block.
    """

    def __init__(self, config: ReformerConfig, layer: int, **kwargs: Any) -> None:
        policy: dict[str, Any] = {"dtype": kwargs.get("dtype")}
        kind = config.layer_attention(layer)
        options: dict[str, Any] = {
            "head_size": config.head_size,
            "chunk_length": config.chunk_length(kind),
            "chunks_before": getattr(config, f"{kind}_chunks_before"),
            "chunks_after": getattr(config, f"{kind}_chunks_after"),
            "causal": config.attention == "causal",
            "dropout": config.lsh_dropout if kind == LSH else config.attention_dropout,
            "initializer_range": config.initializer_range,
            "name": "attention",
            **policy,
        }
        attention: LocalAttention
        if kind == LSH:
            attention = LSHAttention(
                config.num_heads,
                bucket_factors=config.bucket_factors,
                num_hashes=config.num_hashes,
                hash_seed=config.hash_seed,
                **options,
            )
        else:
            attention = LocalAttention(config.num_heads, **options)
        slots = ("attention_input_norm", "feed_forward_input_norm")
        super().__init__(
            attention,
            _ChunkedFeedForward(config, name="feed_forward", **policy),
            Dropout(config.dropout, name="dropout", **policy),
            **{x: LayerNorm(config.layer_norm_epsilon, name=x, **policy) for x in slots},
            autocast=False,  # the streams stay float32; the parts cast their inputs
            **kwargs,
        )

    def call(  # type: ignore[override]
        self,
        first: Tensor,
        second: Tensor,
        padding_mask: Tensor | None = None,
        training: bool = False,
        return_attention: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Adds attention of `second` to `first`, then the feed-forward part of `first` to `second`.

        Returns both streams, (B, T, H / 2) each, and the probabilities (B, N, T, T), or None if
        they are not requested.
        """
        y, *_, probabilities = self._attend(
            second,
            padding_mask=padding_mask,
            training=training,
            return_attention=return_attention,
        )
        first = first + ops.cast(y, first.dtype)
        y = self.feed(first, training=training)
        return first, second + ops.cast(y, second.dtype), probabilities

    def attend(
        self, x: Tensor, training: bool = False, buckets: Tensor | None = None, **context: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Returns what is added to the first stream, (B, T, H / 2), and the buckets or None.

        Args:
            x: (B, T, H / 2), the second stream.
            training: whether dropout is active.
            buckets: buckets of an earlier call, so that this call attends to the same tokens;
                None = computed by hashing.
            **context: further arguments of the attention: `padding_mask`.
        """
        if buckets is not None:
            context["buckets"] = buckets
        y, *new_buckets, _ = self._attend(x, training=training, **context)
        return y, new_buckets[0] if new_buckets else None

    def feed(self, x: Tensor, training: bool = False) -> Tensor:
        """Returns what is added to the second stream; `x` (B, T, H / 2) is the first stream."""
        x = self.feed_forward_input_norm(x, training=training)
        return self.dropout(self.feed_forward(x, training=training), training=training)

    def _attend(self, x: Tensor, training: bool, **options: Any) -> tuple:
        x = self.attention_input_norm(x, training=training)
        y, *rest = self.attention(x, training=training, **options)
        return self.dropout(y, training=training), *rest


class _ChunkedFeedForward(keras.layers.Layer):
    """Two dense layers with dropout and an activation between, run on chunks of tokens in turn.

    A chunk has `feed_forward_chunk` tokens, so less memory is needed at once. None = no chunks.
    """

    def __init__(self, config: ReformerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.chunk = config.feed_forward_chunk
        self.activation = get_activation(config.activation)
        common = {"initializer_range": config.initializer_range, "dtype": self.dtype_policy}
        self.intermediate = Dense(config.intermediate_size, name="intermediate", **common)
        self.dropout = Dropout(config.dropout, dtype=self.dtype_policy, name="dropout")
        self.output_dense = Dense(config.stream_size, name="output", **common)

    def build(self, input_shape: Shape) -> None:
        self.intermediate.build(input_shape)
        self.output_dense.build((*input_shape[:-1], self.intermediate.units))

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        length = ops.shape(x)[1]
        if self.chunk is None or not isinstance(length, int) or length <= self.chunk:
            return self._forwarded(x, training)
        starts = range(0, length, self.chunk)
        parts = [self._forwarded(x[:, i : i + self.chunk], training) for i in starts]
        return ops.concatenate(parts, axis=1)

    def _forwarded(self, x: Tensor, training: bool) -> Tensor:
        x = self.dropout(self.intermediate(x, training=training), training=training)
        return self.output_dense(self.activation(x, training))


class AxialEmbeddings(Embeddings):
    """Token embeddings and axial position embeddings, each with separate dropout.

    (Ho et al. 2019, https://arxiv.org/abs/1912.12180; trax/layers/research/position_encodings.py of
    google/trax.) A position is a row and a column. Dropout drops whole columns.

    Args:
        axial_shape: number of rows and columns; None = a table of all positions.
        axial_sizes: embedding widths of rows and columns, which are concatenated.
        **options: further arguments of `Embeddings`.

    Example:
        >>> embeddings = AxialEmbeddings(axial_shape=(2, 3), axial_sizes=(1, 3), vocabulary_size=9,
        ...                              embedding_size=4, hidden_size=4, max_positions=6,
        ...                              num_segments=0, norm=None)
        >>> tuple(embeddings(ops.array([[1, 2, 3]])).shape), embeddings.count_params()
        ((1, 3, 4), 47)
    """

    def __init__(
        self,
        *,
        axial_shape: tuple[int, ...] | None,
        axial_sizes: tuple[int, ...] | None,
        **options: Any,
    ) -> None:
        super().__init__(**{**options, "positions": "none"})  # a kind that `Embeddings` lacks
        self.axial_shape = axial_shape
        self.axial_sizes = axial_sizes

    def build(self, token_ids_shape: Shape) -> None:
        super().build(token_ids_shape)
        if self.axial_shape is None or self.axial_sizes is None:
            self.table = self._add_table("position", self.max_positions)
            return
        self.rows, self.columns = (
            self.add_weight(
                name=name,
                shape=shape,
                initializer=keras.initializers.RandomNormal(stddev=1.0),
                autocast=False,
            )
            for name, *shape in zip(
                ("rows", "columns"), self.axial_shape, self.axial_sizes, strict=True
            )
        )

    def call(
        self,
        token_ids: Tensor,
        segment_ids: Tensor | None = None,
        places: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        x = self.dropout(self.embed(token_ids, segment_ids), training=training)
        batch, length = ops.shape(token_ids)
        if places is None:
            places = ops.arange(length, dtype="int32")[None]
        places = ops.cast(places, "int32")
        if self.axial_shape is None:
            vectors = ops.take(self.table, places, axis=0)
            if training and self.dropout.rate:  # another mask for each sequence
                vectors = ops.broadcast_to(vectors, ops.shape(x))
            return x + self.dropout(ops.cast(vectors, x.dtype), training=training)
        number = self.axial_shape[1]
        row, column = places // number, places % number
        vectors = [ops.take(self.rows, row, axis=0), ops.take(self.columns, column, axis=0)]
        position_vectors = ops.cast(ops.concatenate(vectors, axis=-1), x.dtype)
        if training and self.dropout.rate:
            column_mask = self.dropout(ops.ones((batch, number), x.dtype), training=training)
            column = ops.broadcast_to(column, (batch, length))
            position_vectors = (
                position_vectors * ops.take_along_axis(column_mask, column, axis=1)[..., None]
            )
        return x + position_vectors
