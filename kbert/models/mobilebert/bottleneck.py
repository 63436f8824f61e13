"""Bottleneck layers: narrow inside and wide between the layers, or vice versa.

(Sun et al. 2020, "MobileBERT", https://arxiv.org/abs/2004.02984, section 3 and its table 1;
mobilebert/modeling.py of google-research/google-research.)

Shapes: `B` batch, `T` tokens, `E` embedding width, `H` width between the layers, `W` width inside
them, `N` heads, `D` width of a head (`W / N`).
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.core.options import option
from kbert.core.types import DType, Shape, Tensor
from kbert.layers import Block, Dense, Dropout, Embeddings, FeedForward, LayerNorm, SelfAttention
from kbert.layers.gather import gather_positions
from kbert.layers.normalization import add_and_norm
from kbert.models.parts import Part

OWN, BOTTLENECK, WHOLE = "own_bottleneck", "bottleneck", "whole"


class NoNorm(keras.layers.Layer):
    """`x * gamma + beta`: a normalisation without its statistics.

    (MobileBERT, section 3.5: a mean over the width is slow if tokens are processed one by one.)

    Example:
        >>> ops.convert_to_numpy(NoNorm()(ops.array([[1.0, 3.0]]))).tolist()
        [[1.0, 3.0]]
    """

    def build(self, input_shape: Shape) -> None:
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(name="gamma", shape=shape, initializer="ones", autocast=False)
        self.beta = self.add_weight(name="beta", shape=shape, initializer="zeros", autocast=False)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        x = ops.cast(inputs, self.variable_dtype)
        return ops.cast(x * self.gamma + self.beta, self.compute_dtype)


class TrigramEmbeddings(Embeddings):
    """Embeddings of each token from its own table row and those of its two neighbours.

    The rows of the next token, the token and the previous one are concatenated and projected to H.
    Embeddings of positions and segments, whose tables are H wide, are added to that. Beyond the
    ends of a sequence the rows are zeros. Padding is a token like any other, as in the original. In
    a packed row, neighbours have consecutive positions, so no example reads the next one's first
    token.

    Args:
        **options: further arguments of `Embeddings`; E is the width of the token table only.

    Example:
        >>> embeddings = TrigramEmbeddings(vocabulary_size=9, embedding_size=4, hidden_size=8,
        ...                                max_positions=6, num_segments=2, norm=NoNorm())
        >>> tuple(embeddings(ops.array([[1, 2, 3]])).shape), tuple(embeddings.position.shape)
        ((1, 3, 8), (6, 8))
    """

    def __init__(self, *, hidden_size: int, norm: keras.layers.Layer, **options: Any) -> None:
        super().__init__(hidden_size=hidden_size, norm=None, **options)
        self.hidden_size = hidden_size
        self.norm: keras.layers.Layer = norm
        if self.projection is None:  # the table is as wide as the stream
            self.projection = Dense(
                hidden_size,
                initializer_range=self.initializer_range,
                dtype=self.dtype_policy,
                name="projection",
            )
        self.projection: Dense

    def build(self, token_ids_shape: Shape) -> None:
        self.token = self._add_table("token", self.vocabulary_size)
        self.position = self._add_table("position", self.max_positions, self.hidden_size)
        self.segment = None
        if self.num_segments:
            self.segment = self._add_table("segment", self.num_segments, self.hidden_size)
        self.projection.build((*token_ids_shape, 3 * self.embedding_size))
        self.norm.build((*token_ids_shape, self.hidden_size))

    def call(
        self,
        token_ids: Tensor,
        segment_ids: Tensor | None = None,
        places: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        return self.dropout(self.embed(token_ids, segment_ids, places), training=training)

    def _token_rows(self, token_ids: Tensor, places: Tensor | None) -> Tensor:
        """Returns the projected table rows (B, T, H) of each token and its two neighbours.

        With `places` (B, T), the positions in a packed row, only tokens at consecutive positions
        are neighbours.
        """
        rows = super()._token_rows(token_ids, places)  # (B, T, E)
        before = ops.pad(rows[:, :-1], ((0, 0), (1, 0), (0, 0)))
        after = ops.pad(rows[:, 1:], ((0, 0), (0, 1), (0, 0)))
        if places is not None:
            follows = ops.cast(ops.equal(places[:, 1:], places[:, :-1] + 1), rows.dtype)
            before = before * ops.pad(follows, ((0, 0), (1, 0)))[..., None]
            after = after * ops.pad(follows, ((0, 0), (0, 1)))[..., None]
        widened = self.projection(ops.concatenate([after, rows, before], axis=-1))  # (B, T, H)
        return ops.cast(widened, self.variable_dtype)  # dtype of the tables it is added to


class BottleneckAttention(SelfAttention):
    """Self-attention that is narrower or wider than its input.

    Args:
        num_heads: number of heads; divides `width`.
        width: width of the attention and its output, W.
        bottleneck: layer (B, T, H) -> (B, T, W) that computes the input of queries and keys; None =
            queries, keys and values have the same input.
        **options: further arguments of `SelfAttention`.

    Example:
        >>> outputs, made = BottleneckAttention(2, width=6)(ops.ones((1, 3, 4)))
        >>> tuple(outputs.shape), tuple(made["probabilities"].shape)
        ((1, 3, 6), (1, 2, 3, 3))
    """

    def __init__(
        self,
        num_heads: int,
        *,
        width: int,
        bottleneck: keras.layers.Layer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_heads, **options)
        self.width = width
        self.bottleneck = bottleneck

    def build(self, input_shape: Shape) -> None:
        self.head_size = self.width // self.num_heads
        narrow = (*input_shape[:-1], self.width)
        if self.bottleneck is None:
            self.qkv = self._add_dense(3 * self.width, input_shape, "qkv")
        else:
            self.bottleneck.build(input_shape)
            self.query_key = self._add_dense(2 * self.width, narrow, "query_key")
            self.value = self._add_dense(self.width, input_shape, "value")
        self.output_dense = self._add_dense(self.width, narrow, "output")

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.bottleneck is None:
            return super()._project(x)
        query, key = ops.split(self.query_key(self.bottleneck(x)), 2, axis=-1)
        heads = (self._split_heads(part) for part in (query, key, self.value(x)))
        return tuple(heads)


class BottleneckBlock(Block):
    """Block with another width than the residual stream, and several feed-forward parts.

    A bottleneck projects the stream to W. Attention and feed-forward parts follow, each with a
    residual of that width and a norm, without dropout. A dense layer projects the result back to H.
    Dropout, the residual of the stream and the last norm follow. (MobileBERT, figure 1.)

    Args:
        attention: attention with an output of width W; see `BottleneckAttention`.
        feed_forward: last feed-forward part, W wide.
        dropout: dropout before the residual of the stream.
        bottleneck: layer (B, T, H) -> (B, T, W).
        stacked: feed-forward parts before the last, each with its norm.
        output_dense: layer (B, T, W) -> (B, T, H).
        output_norm: norm after the stream's residual.
        whole: whether the attention reads the stream instead of the bottleneck's output.
        **options: further arguments of `Block`; `attention_norm` and `feed_forward_norm` are W
            wide.
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        feed_forward: keras.layers.Layer,
        dropout: keras.layers.Layer,
        *,
        bottleneck: keras.layers.Layer,
        stacked: list[tuple[keras.layers.Layer, keras.layers.Layer]],
        output_dense: keras.layers.Layer,
        output_norm: keras.layers.Layer,
        whole: bool,
        **options: Any,
    ) -> None:
        super().__init__(attention, feed_forward, dropout, **options)
        self.bottleneck = bottleneck
        self.stacked = [layer for layer, _ in stacked]
        self.stacked_norms = [norm for _, norm in stacked]
        self.output_dense = output_dense
        self.output_norm = output_norm
        self.whole = whole

    def build(self, input_shape: Shape) -> None:
        self.bottleneck.build(input_shape)
        narrow = (*input_shape[:-1], self.attention.width)
        self.attention.build(input_shape if self.whole else narrow)
        norms = (self.attention_norm, *self.stacked_norms, self.feed_forward_norm)
        for layer in (*norms, *self.stacked, self.feed_forward, self.output_dense):
            layer.build(narrow)
        self.output_norm.build(input_shape)

    # The state between both methods is a pair: the stream, and the narrow state.
    def _attended(
        self,
        x: Tensor,
        attend: Callable,
        training: bool = False,
        positions: Tensor | None = None,
    ) -> Any:
        """Returns stream and narrow state after attention, as a pair, and `attend`'s second result.

        Like `Block._attended`, whose first result is one tensor.
        """
        narrow = self.bottleneck(x)
        outputs, attention = attend(x if self.whole else narrow)
        if positions is not None:
            x, narrow = (gather_positions(part, positions) for part in (x, narrow))
        return (x, self.attention_norm(narrow + outputs)), attention

    # No edit adds a parallel branch to this block.
    def _forwarded(  # type: ignore[override]
        self, x: Any, training: bool = False
    ) -> Tensor:
        """Runs the feed-forward parts and returns the block's output (B, T, H).

        `x` is the pair of stream and narrow state from `_attended`.
        """
        x, narrow = x
        layers = [*self.stacked, self.feed_forward]
        norms = [*self.stacked_norms, self.feed_forward_norm]
        for layer, norm in zip(layers, norms, strict=True):
            narrow = norm(narrow + layer(narrow, training=training))
        outputs = self.output_dense(narrow)
        return add_and_norm(x, outputs, self.dropout, self.output_norm, training)


class _Bottleneck(Dense):
    """Dense layer of width `units`, followed by `norm`."""

    def __init__(self, units: int, *, norm: keras.layers.Layer, **options: Any) -> None:
        super().__init__(units, **options)
        self.norm = norm

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.norm.build((*input_shape[:-1], self.units))

    def call(  # type: ignore[override]  # its outputs are normed together
        self, inputs: Tensor, training: bool = False
    ) -> Tensor:
        return self.norm(super().call(inputs, training=training), training=training)


class BottleneckPart(Part):
    """Blocks and embeddings of MobileBERT and of its teacher, IB-BERT.

    The teacher is wide inside its layers (1,024) and as narrow as the student between them (512).
    So hidden states and attention of both can be compared layer by layer.

    {options}

    Example:
        >>> import kbert
        >>> kbert.family("google/mobilebert-uncased").part
        {'name': 'bottleneck'}
        >>> kbert.family("ib-bert-large-uncased").part["width"]
        1024
    """

    kind = "bottleneck"
    takes_causal_mask = False
    width: int = option(
        128, help="Width inside the layers; a multiple of `num_heads`.", at_least=1, at_most=1 << 16
    )
    num_feed_forwards: int = option(
        4, help="Consecutive feed-forward parts in each layer.", at_least=1, at_most=64
    )
    attention_input: str = option(
        OWN,
        help="Inputs of the attention. 'own_bottleneck': values from the whole hidden state, "
        "queries and keys from a separate bottleneck; 'bottleneck': all three from the "
        "layer's bottleneck; 'whole': all three from the hidden state.",
        choices=(OWN, BOTTLENECK, WHOLE),
    )
    no_norm: bool = option(
        True, help="Whether scales and shifts replace LayerNorm, except in the head."
    )

    def check_config(self, config: EncoderConfig) -> None:
        plain = {
            **{"positions": "learned", "feed_forward": "dense", "norm": "layer"},
            **{"block": "post_norm", "embedding_norm": True, "use_bias": True, "padding_id": None},
            "num_key_value_heads": None,
        }
        values = {name: getattr(config, name) for name in plain}
        if values != plain:
            raise ValueError(
                "part='bottleneck' requires "
                f"{', '.join(f'{name}={value!r}' for name, value in plain.items())}. Received: "
                f"{', '.join(f'{name}={value!r}' for name, value in values.items())}"
            )
        if self.width % config.num_heads:
            raise ValueError(
                f"`width` must be a multiple of `num_heads`. Received: width={self.width}, "
                f"num_heads={config.num_heads}"
            )
        if config.embedding_width > config.hidden_size:
            raise ValueError(
                "`embedding_size` must not exceed `hidden_size`: the output layer of the "
                "masked-LM head is the token table and further columns. Received: "
                f"embedding_size={config.embedding_size}, hidden_size={config.hidden_size}"
            )

    def head_size(self, config: EncoderConfig) -> int:
        return self.width // config.num_heads

    def output_columns(self, config: EncoderConfig) -> int:
        return config.hidden_size - config.embedding_width

    def count_parameters(self, config: EncoderConfig) -> int:
        hidden, width, table = config.hidden_size, self.width, config.embedding_width
        embeddings = config.vocabulary_size * table + (3 * table + 1) * hidden + 2 * hidden
        embeddings += (config.max_positions + config.num_segments) * hidden
        bottleneck = hidden * width + 3 * width
        block = bottleneck + (width * width + 3 * width)  # with the attention's output
        of_values = width if self.attention_input == BOTTLENECK else hidden
        of_keys = hidden if self.attention_input == WHOLE else width
        block += (2 * of_keys + of_values) * width + 3 * width
        block += bottleneck if self.attention_input == OWN else 0
        forward = 2 * width * config.intermediate_size + config.intermediate_size + 3 * width
        block += self.num_feed_forwards * forward
        block += width * hidden + 3 * hidden
        usual = config.count_embeddings() + config.count_blocks()
        return embeddings + config.num_blocks * block - usual

    def kernels(self, config: EncoderConfig, layer: int) -> list[tuple[int, int]]:
        hidden, width, inside = config.hidden_size, self.width, config.intermediate_size
        of_values = width if self.attention_input == BOTTLENECK else hidden
        of_keys = hidden if self.attention_input == WHOLE else width
        own_kernels = [(hidden, width)] if self.attention_input == OWN else []
        attention = [(of_keys, 2 * width), (of_values, width), (width, width), *own_kernels]
        forward = [(width, inside), (inside, width)] * self.num_feed_forwards
        return [(hidden, width), *attention, *forward, (width, hidden)]

    def make_embeddings(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer:
        return TrigramEmbeddings(
            vocabulary_size=config.vocabulary_size,
            embedding_size=config.embedding_width,
            hidden_size=config.hidden_size,
            max_positions=config.max_positions,
            num_segments=config.num_segments,
            dropout=config.dropout,
            initializer_range=config.initializer_range,
            norm=self._norm(config, "norm", kwargs.get("dtype")),
            **kwargs,
        )

    def make_block(self, config: EncoderConfig, *, layer: int, **kwargs: Any) -> keras.layers.Layer:
        dtype = kwargs.get("dtype")
        common: dict[str, Any] = {"initializer_range": config.initializer_range, "dtype": dtype}

        def bottleneck() -> keras.layers.Layer:
            norm = self._norm(config, "norm", dtype)
            return _Bottleneck(self.width, norm=norm, name="bottleneck", **common)

        def feed_forward(name: str) -> keras.layers.Layer:
            width, activation = config.intermediate_size, config.activation
            return FeedForward(width, activation=activation, name=name, **common)

        attention = BottleneckAttention(
            config.num_heads,
            width=self.width,
            bottleneck=bottleneck() if self.attention_input == OWN else None,
            dropout=config.attention_dropout,
            max_length=config.max_positions,
            name="attention",
            **common,
        )
        return BottleneckBlock(
            attention,
            feed_forward("feed_forward"),
            Dropout(config.dropout, dtype=dtype, name="dropout"),
            bottleneck=bottleneck(),
            stacked=[
                (feed_forward(f"stacked_{i}"), self._norm(config, f"stacked_{i}_norm", dtype))
                for i in range(self.num_feed_forwards - 1)
            ],
            output_dense=Dense(config.hidden_size, name="output", **common),
            whole=self.attention_input != BOTTLENECK,
            **{
                name: self._norm(config, name, dtype)
                for name in ("attention_norm", "feed_forward_norm", "output_norm")
            },
            **kwargs,
        )

    def _norm(self, config: EncoderConfig, name: str, dtype: DType) -> keras.layers.Layer:
        if self.no_norm:
            return NoNorm(name=name, dtype=dtype)
        return LayerNorm(config.layer_norm_epsilon, name=name, dtype=dtype)
