import numpy as np
from keras import ops

from kbert.layers import (
    Block,
    CrossAttention,
    CrossBlock,
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


def test_a_cross_block_is_three_residuals():
    def norms():
        return [LayerNorm(1e-6) for _ in range(3)]

    memory = ops.convert_to_tensor(np.random.default_rng(1).normal(size=(2, 3, 8)), "float32")
    for slots in ("{}_norm", "{}_input_norm"):
        names = [slots.format(x) for x in ("attention", "cross_attention", "feed_forward")]
        block = CrossBlock(
            SelfAttention(2),
            FeedForward(12, activation="relu"),
            Dropout(0.0),
            cross_attention=CrossAttention(2),
            **dict(zip(names, norms(), strict=True)),
        )
        block.build((None, None, 8))
        randomise(block)
        first, second, third = (getattr(block, name) for name in names)

        def cross(x, block=block):
            return block.cross_attention(x, block.cross_attention.keys_values(memory))[0]

        outputs, _, cross_made = block(X, memory)
        if slots == "{}_norm":
            x = first(X + block.attention(X)[0])
            x = second(x + cross(x))
            expected = third(x + block.feed_forward(x))
        else:
            x = X + block.attention(first(X))[0]
            x = x + cross(second(x))
            expected = x + block.feed_forward(third(x))
        assert_close(to_numpy(outputs), to_numpy(expected), 1e-6)
        assert tuple(cross_made["probabilities"].shape) == (2, 2, 5, 3)
