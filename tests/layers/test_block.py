import numpy as np
from keras import ops

from kbert.layers import (
    Block,
    Dropout,
    FeedForward,
    LayerNorm,
    SelfAttention,
)
from tests.harness import assert_close, randomise, to_numpy

X = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(2, 5, 8)), "float32")


def test_block_is_two_residuals_with_norms_in_the_slots():
    def parts():
        return SelfAttention(2), FeedForward(12, activation="relu"), Dropout(0.0)

    post = Block(*parts(), attention_norm=LayerNorm(1e-12), feed_forward_norm=LayerNorm(1e-12))
    post.build((None, None, 8))
    randomise(post)
    outputs, _ = post(X)
    attended, _ = post.attention(X)
    x = post.attention_norm(X + attended)
    expected = post.feed_forward_norm(x + post.feed_forward(x))
    assert_close(to_numpy(outputs), to_numpy(expected), 1e-6)

    pre = Block(
        *parts(), attention_input_norm=LayerNorm(1e-5), feed_forward_input_norm=LayerNorm(1e-5)
    )
    pre.build((None, None, 8))
    randomise(pre)
    outputs, _ = pre(X)
    x = X + pre.attention(pre.attention_input_norm(X))[0]
    expected = x + pre.feed_forward(pre.feed_forward_input_norm(x))
    assert_close(to_numpy(outputs), to_numpy(expected), 1e-6)
