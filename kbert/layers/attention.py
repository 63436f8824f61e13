"""Multi-head self-attention.

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `D` width of a head (`H / N`).
"""

import math

import keras
from keras import ops

from kbert.layers.dense import Dense
from kbert.layers.dropout import Dropout

# Far below any score: exp(-3e4) is 0 in float32. Finite in float16 too, to which Keras may cast the
# bias between layers, so that a row of nothing but padding stays free of NaN.
PENALTY = 3e4


def attention_bias(padding_mask):
    """What is added to attention scores so that padding gets no attention.

    Args:
        padding_mask: (B, T), 1 for a token and 0 for padding; any dtype.

    Returns:
        (B, 1, 1, T) float32: 0 for a token, -30,000 for padding.

    Example:
        >>> ops.convert_to_numpy(attention_bias(ops.array([[1, 0]])))[0, 0, 0].tolist()
        [0.0, -30000.0]
    """
    keep = ops.cast(padding_mask, "float32")[:, None, None, :]
    return (keep - 1.0) * PENALTY


class SelfAttention(keras.layers.Layer):
    """Every token looks at every token (Vaswani et al. 2017, section 3.2).

    Query, key and value come from one product. Scores are normalised in float32 whatever the
    compute dtype.

    Args:
        num_heads: heads; divides the width of the input.
        dropout: rate on the probabilities.
        initializer_range: sigma the kernels start from.

    Example:
        >>> outputs, probabilities = SelfAttention(2)(ops.ones((1, 3, 4)))
        >>> tuple(outputs.shape), tuple(probabilities.shape)
        ((1, 3, 4), (1, 2, 3, 3))
    """

    def __init__(
        self,
        num_heads: int,
        *,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.initializer_range = initializer_range
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, input_shape):
        hidden_size = input_shape[-1]
        self.head_size = hidden_size // self.num_heads
        common = {"initializer_range": self.initializer_range, "dtype": self.dtype_policy}
        self.qkv = Dense(3 * hidden_size, name="qkv", **common)
        self.output_dense = Dense(hidden_size, name="output", **common)
        self.qkv.build(input_shape)
        self.output_dense.build(input_shape)

    def call(self, x, bias=None, training=False):
        """Attends.

        Args:
            x: (B, T, H).
            bias: added to the scores; broadcasts to (B, N, T, T). See `attention_bias`.
            training: whether dropout acts.

        Returns:
            outputs (B, T, H) and the probabilities (B, N, T, T), before dropout.
        """
        query, key, value = (self._split_heads(t) for t in ops.split(self.qkv(x), 3, axis=-1))
        query = query * ops.cast(1.0 / math.sqrt(self.head_size), query.dtype)
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # (B, N, T, T)
        scores = ops.cast(scores, "float32")
        if bias is not None:
            scores = scores + ops.cast(bias, "float32")
        probabilities = ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)
        kept = self.dropout(probabilities, training=training)
        return self.output_dense(self._merge_heads(ops.matmul(kept, value))), probabilities

    def _split_heads(self, x):
        batch, length, _ = ops.shape(x)
        x = ops.reshape(x, (batch, length, self.num_heads, self.head_size))
        return ops.transpose(x, (0, 2, 1, 3))  # (B, N, T, D)

    def _merge_heads(self, x):
        batch, _, length, _ = ops.shape(x)
        x = ops.transpose(x, (0, 2, 1, 3))  # (B, T, N, D)
        return ops.reshape(x, (batch, length, self.num_heads * self.head_size))
