"""One Transformer block.

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads.
"""

import keras


class Block(keras.layers.Layer):
    """Attention and feed-forward, each with a residual around it.

    The parts are handed in. Four slots for normalisation make post-norm (BERT), pre-norm (GPT-2)
    and sandwich norm the same two lines; a slot left out does nothing. Any layer with the same
    call as the part it replaces will do, so an adapter or another attention needs no flag here.

    Args:
        attention: layer, `(x, bias, training) -> (outputs, probabilities)`.
        feed_forward: layer, `x -> outputs`.
        dropout: layer on the output of each, `(x, training) -> x`.
        attention_input_norm: before the attention.
        attention_norm: after its residual.
        feed_forward_input_norm: before the feed-forward part.
        feed_forward_norm: after its residual.

    Example:
        >>> import numpy as np
        >>> from kbert.layers import Dropout, FeedForward, LayerNorm, SelfAttention
        >>> block = Block(SelfAttention(2), FeedForward(8, activation="gelu"), Dropout(0.1),
        ...               attention_norm=LayerNorm(1e-12), feed_forward_norm=LayerNorm(1e-12))
        >>> x, probabilities = block(np.ones((1, 3, 4), "float32"))
        >>> tuple(x.shape)
        (1, 3, 4)
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        feed_forward: keras.layers.Layer,
        dropout: keras.layers.Layer,
        *,
        attention_input_norm: keras.layers.Layer | None = None,
        attention_norm: keras.layers.Layer | None = None,
        feed_forward_input_norm: keras.layers.Layer | None = None,
        feed_forward_norm: keras.layers.Layer | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.attention = attention
        self.feed_forward = feed_forward
        self.dropout = dropout
        self.attention_input_norm = attention_input_norm or keras.layers.Identity()
        self.attention_norm = attention_norm or keras.layers.Identity()
        self.feed_forward_input_norm = feed_forward_input_norm or keras.layers.Identity()
        self.feed_forward_norm = feed_forward_norm or keras.layers.Identity()

    def build(self, input_shape):
        self.attention_input_norm.build(input_shape)
        self.attention.build(input_shape)
        self.attention_norm.build(input_shape)
        self.feed_forward_input_norm.build(input_shape)
        self.feed_forward.build(input_shape)
        self.feed_forward_norm.build(input_shape)

    def call(self, x, bias=None, training=False):
        """(B, T, H), scores' bias -> (B, T, H), probabilities (B, N, T, T)."""
        attended, probabilities = self.attention(
            self.attention_input_norm(x), bias, training=training
        )
        x = self.attention_norm(x + self.dropout(attended, training=training))
        forwarded = self.feed_forward(self.feed_forward_input_norm(x), training=training)
        x = self.feed_forward_norm(x + self.dropout(forwarded, training=training))
        return x, probabilities
