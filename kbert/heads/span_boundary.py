"""The head that predicts the tokens of a span from the tokens around it.

Shapes: `B` batch, `T` tokens, `H` hidden width, `P` masked positions, `D` width of a position in
the span, `E` embedding width, `V` vocabulary.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Shape, Tensor
from kbert.heads.masked_lm import TokenLogits
from kbert.layers import Dense, LayerNorm
from kbert.layers.gather import gather_positions
from kbert.layers.token_embeddings import TokenOutput

# Maximum number of tokens predicted in a span, and the width of their position embeddings:
# `--max-pair-targets` and `--pair-positional-embedding-size` of facebookresearch/SpanBERT's README.
MAX_TARGETS = 15
PLACE_WIDTH = 200


class SpanBoundaryHead(TokenLogits):
    """Logits of a masked token from the tokens around its span and its position in the span.

    Two dense layers with activation and normalisation on [x_{s-1}; x_{e+1}; p_{i-s+1}], then a
    product with the transposed token table (tied) plus a bias. (SpanBERT, section 3.2,
    https://arxiv.org/abs/1907.10529; `BertPairTargetPredictionHead` of its code.)

    Args:
        config: configuration of the encoder.
        embedding_table: the token table to tie to, `encoder.token_embedding`.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> table = keras.Variable(np.ones((10, 8), "float32"))
        >>> head = SpanBoundaryHead(config, table)
        >>> sequence = np.ones((1, 6, 8), "float32")
        >>> positions, starts, ends = np.array([[[2, 3]], [[2, 2]], [[3, 3]]])
        >>> tuple(head(sequence, positions, starts, ends).shape)
        (1, 2, 10)
    """

    def __init__(
        self,
        config: EncoderConfig,
        embedding_table: keras.Variable,
        name: str = "span_boundary",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, embedding_table, name, **kwargs)

    def _make_layers(self) -> None:
        config = self.config
        self.dense_layers, self.norms = [], []
        for order, width in (("first", config.hidden_size), ("second", config.embedding_width)):
            self.dense_layers.append(
                Dense(
                    width,
                    activation=config.activation,
                    initializer_range=config.initializer_range,
                    dtype=self.dtype_policy,
                    name=order,
                )
            )
            epsilon = config.layer_norm_epsilon
            self.norms.append(LayerNorm(epsilon, dtype=self.dtype_policy, name=f"{order}_norm"))

    def build(self, *shapes: Shape) -> None:
        self.places = self.add_weight(
            name="places",
            shape=(MAX_TARGETS, PLACE_WIDTH),
            initializer=keras.initializers.TruncatedNormal(stddev=self.config.initializer_range),
        )
        super().build()
        width = 2 * self.config.hidden_size + PLACE_WIDTH
        for dense, norm in zip(self.dense_layers, self.norms, strict=True):
            dense.build((None, None, width))
            width = dense.units
            norm.build((None, None, width))

    def token_output(  # type: ignore[override]  # it also reads the tokens around the span
        self, sequence: Tensor, mask_positions: Tensor, span_starts: Tensor, span_ends: Tensor
    ) -> TokenOutput:
        """Returns what the logits are the product of; the arguments are those of `call`."""
        last = ops.shape(sequence)[1] - 1
        span_starts = ops.cast(span_starts, "int32")
        left = gather_positions(sequence, ops.maximum(span_starts - 1, 0))
        right = gather_positions(sequence, ops.minimum(ops.cast(span_ends, "int32") + 1, last))
        place = place_in_span(mask_positions, span_starts)
        place = ops.take(self.places, ops.clip(place, 0, MAX_TARGETS - 1), axis=0)
        x = ops.concatenate([left, right, ops.cast(place, left.dtype)], axis=-1)  # (B, P, 2H + D)
        for dense, norm in zip(self.dense_layers, self.norms, strict=True):
            x = norm(dense(x))
        return super().token_output(x)  # x is (B, P, E)

    def call(  # type: ignore[override]  # as `token_output`
        self, sequence: Tensor, mask_positions: Tensor, span_starts: Tensor, span_ends: Tensor
    ) -> Tensor:
        """Returns the logits of the tokens at the masked positions.

        Args:
            sequence: (B, T, H), the encoder's "sequence".
            mask_positions: (B, P) integers in [0, T).
            span_starts: (B, P), first position of each masked token's span.
            span_ends: (B, P), last position of each masked token's span.

        Returns:
            Logits (B, P, V), float32. A token after the first `MAX_TARGETS` of its span gets the
            position embedding of the last of these; the loss leaves it out.
        """
        return self.token_output(sequence, mask_positions, span_starts, span_ends).logits()


def place_in_span(mask_positions: Tensor, span_starts: Tensor) -> Tensor:
    """Returns the offset of each masked token from the start of its span, (B, P) int32.

    Example:
        >>> place = place_in_span(ops.array([[4, 6]]), ops.array([[4, 5]]))
        >>> ops.convert_to_numpy(place).tolist()
        [[0, 1]]
    """
    return ops.cast(mask_positions, "int32") - ops.cast(span_starts, "int32")
