"""The fused functions of a training step beside the plain layers that they stand for."""

import math
import re

import keras
import numpy as np
import pytest

from kbert.layers import (
    Block,
    CrossAttention,
    CrossBlock,
    Dropout,
    FeedForward,
    LayerNorm,
    SelfAttention,
    fused,
)
from kbert.layers.activations import get_activation
from kbert.models import Encoder
from tests.harness import (
    KINDS,
    assert_close,
    assert_gradients_close,
    freeze_unread,
    layer_gradients,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)

pytestmark = pytest.mark.tensorflow
PLAIN, FUSED = 10**9, 1
# Whose layers are not those of the others; the rest have other scores, which nothing fuses.
FIRST = ("modern", "grouped", "bottleneck", "xlnet")
X = np.random.default_rng(0).normal(size=(3, 7, 16)).astype("float32")


def both(monkeypatch, function):
    """What `function()` gives by the plain layers, and by the fused ones."""
    found = []
    for width in (PLAIN, FUSED):
        monkeypatch.setattr(fused, "MIN_WIDTH", width)
        found.append(function())
    return found


def test_only_training_on_tensorflow_and_wide_layers_fuse():
    width = fused.MIN_WIDTH
    assert fused.fuses(width, training=True)
    assert not fused.fuses(width - 1, training=True)
    assert not fused.fuses(width, training=False)
    assert not fused.fuses(None, training=True)


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"activation": "gelu_tanh"}, {"num_layer_groups": 1}),
        *(
            pytest.param(changes, id=kind, marks=() if kind in FIRST else pytest.mark.slow)
            for kind, changes in KINDS.items()
        ),
    ],
)
def test_an_encoder_computes_the_same(monkeypatch, changes):
    """Outputs and gradients, without dropout, whose masks differ."""
    config = tiny_config(dropout=0.0, attention_dropout=0.0, **changes)
    encoder = Encoder(config)
    randomise(encoder)
    freeze_unread(encoder)
    inputs = tiny_inputs(config)

    def outputs():
        return to_numpy(encoder(inputs, training=True, return_hidden_states=True))

    def gradients():
        return layer_gradients(encoder, lambda: weighted_sum(encoder(inputs, training=True)))

    plain, fast = both(monkeypatch, outputs)
    assert_close(fast["sequence"], plain["sequence"], 2e-5)
    assert_close(fast["pooled"], plain["pooled"], 2e-5)
    plain, fast = both(monkeypatch, gradients)
    assert_gradients_close(fast, plain)


def weighted_sum(outputs):
    import tensorflow as tf

    flat = tf.reshape(outputs["sequence"], [-1])
    weights = tf.cos(tf.range(tf.size(flat), dtype=tf.float32))
    return tf.reduce_sum(flat * weights) + tf.reduce_sum(outputs["pooled"])


def test_a_block_with_cross_attention_computes_the_same(monkeypatch):
    parts = SelfAttention(2), FeedForward(8, activation="gelu"), Dropout(0.0)
    norms = {f"{slot}_norm": LayerNorm(1e-6) for slot in ("attention", "feed_forward")}
    block = CrossBlock(
        *parts, **norms, cross_attention=CrossAttention(2), cross_attention_norm=LayerNorm(1e-6)
    )
    block.build(X.shape)
    randomise(block)
    plain, fast = both(monkeypatch, lambda: to_numpy(block(X, X[:, :4], training=True)))
    for ours, theirs in zip(*map(keras.tree.flatten, (fast, plain)), strict=True):
        assert_close(ours, theirs, 1e-5)


def test_bfloat16_rounds_where_the_plain_layers_do(monkeypatch):
    config = tiny_config(dropout=0.0, attention_dropout=0.0)
    encoder = Encoder(config, dtype="mixed_bfloat16")
    randomise(encoder)
    exact = Encoder(config)
    exact.set_weights(encoder.get_weights())
    inputs = tiny_inputs(config)
    want = to_numpy(exact(inputs))["sequence"]

    def error():
        found = to_numpy(encoder(inputs, training=True)["sequence"]).astype("float32")
        return np.abs(found - want).max()

    plain, fast = both(monkeypatch, error)
    assert fast < 1.25 * plain < 0.25


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu_and_its_slope(monkeypatch, name):
    import tensorflow as tf

    x = tf.constant(np.linspace(-9, 9, 1001), tf.float32)[None]

    def function():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = get_activation(name)(x, True)
        return to_numpy([y, tape.gradient(y, x)])

    plain, fast = both(monkeypatch, function)
    for ours, theirs in zip(fast, plain, strict=True):
        assert_close(ours, theirs, 1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_bias_of_attention_has_its_gradient(monkeypatch, rows):
    """No bias is trained today; one that will be must not be left out in silence."""
    import tensorflow as tf

    rng = np.random.default_rng(1)
    scores = tf.constant(rng.normal(size=(3, 2, 4, 5)), tf.float32)
    bias = tf.constant(rng.normal(size=(rows, 2, 1, 5)), tf.float32)
    weights = tf.constant(rng.normal(size=(3, 2, 4, 5)), tf.float32)

    def gradients(function):
        with tf.GradientTape() as tape:
            tape.watch((scores, bias))
            total = tf.reduce_sum(function(scores, bias) * weights)
        return to_numpy(tape.gradient(total, (scores, bias)))

    plain = gradients(lambda s, b: tf.nn.softmax(s + b))
    fast = gradients(lambda s, b: fused.attention_probabilities(s, b, rate=0.0, seed=None))
    for ours, theirs in zip(fast, plain, strict=True):
        assert_close(ours, theirs, 1e-6)


def masks(rate, seeds, shape=(400, 333)):
    import tensorflow as tf

    return [
        fused.dropout(tf.ones(shape), rate, tf.constant(seed, tf.int32)).numpy() == 0
        for seed in seeds
    ]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_of_steps_and_layers_are_independent(rate):
    """Keras' seed is a random word and a counter: neighbours must not resemble each other."""
    seeds = [(7, 0), (7, 1), (7, 2), (8, 0), (7 + 0x1E3779B1, 0), (-5, 1), (0, 0), (0, 1)]
    found = masks(rate, seeds)
    size = found[0].size
    for i, one in enumerate(found):
        assert abs(one.mean() - rate) < 5 * math.sqrt(rate * (1 - rate) / size)
        for other in found[:i]:
            # Not shifted against each other either: the hash counts entries from 0 on.
            for shift in (0, 1, 2, 333, -1):
                together = (one.ravel() & np.roll(other.ravel(), shift)).mean()
                assert abs(together - rate**2) < 5 * math.sqrt(rate**2 / size)


@pytest.mark.slow
def test_two_replicas_compute_what_one_device_does(monkeypatch, mirrored):
    """Losses and weights after three updates, and with micro-batches; without dropout."""
    import tensorflow as tf

    from kbert.training import AdamW, TrainStep
    from tests.training import toy_task

    monkeypatch.setattr(fused, "MIN_WIDTH", FUSED)

    class First(TrainStep, keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder(tiny_config(dropout=0.0, attention_dropout=0.0))
            self.built = True

        def loss_terms(self, batch, training):
            weights = batch["mask_weights"]
            ids = batch["token_ids"]
            zeros = tf.zeros_like(ids)
            inputs = {"token_ids": ids, "segment_ids": zeros, "padding_mask": zeros + 1}
            outputs = self.encoder(inputs, training=training)
            error = (outputs["sequence"][..., 0] - 1.0) ** 2 * weights
            return {"error": (tf.reduce_sum(error), tf.reduce_sum(weights))}, {}

    def trained(strategy, micro_batches=1):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            task = First()
            task.compile(AdamW(0.05), clip_norm=0.5, micro_batches=micro_batches)
        history = task.fit(toy_task.dataset(3), epochs=1, verbose=0).history
        return [*history["loss"], *history["gradient_norm"]], task.get_weights()

    one, weights = trained(tf.distribute.get_strategy())
    for found, theirs in (trained(mirrored), trained(mirrored, micro_batches=2)):
        assert found == pytest.approx(one, rel=1e-5)
        for a, b in zip(theirs, weights, strict=True):
            assert_close(a, b, 1e-5)


def test_replicas_drop_other_entries(monkeypatch, mirrored):
    import tensorflow as tf

    monkeypatch.setattr(fused, "MIN_WIDTH", FUSED)
    with mirrored.scope():
        layer = Dropout(0.5)
    step = tf.function(lambda: mirrored.run(lambda: layer(tf.ones((40, 50)), training=True)))
    one, other = (x.numpy() == 0 for x in mirrored.experimental_local_results(step()))
    assert abs(one.mean() - 0.5) < 0.06
    assert abs((one & other).mean() - 0.25) < 0.06


def test_runs_of_dropped_entries_are_as_long_as_chance_has_them():
    (dropped,) = masks(0.5, [(123, 45)], (1 << 20,))
    edges = np.flatnonzero(np.diff(dropped.astype("int8"))) + 1
    lengths = np.bincount(np.diff(edges), minlength=12)[1:9]
    expected = (len(edges) - 1) * 0.5 ** np.arange(1, 9)
    assert ((lengths - expected) ** 2 / expected).sum() < 26  # chi-square, 8 degrees: p = 0.001


def test_gradients_pass_where_entries_were_kept(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(fused, "MIN_WIDTH", FUSED)
    seed = tf.constant([3, 4])
    outputs, x = tf.ones((5, 32)), tf.random.stateless_normal((5, 32), (1, 2))
    gamma, beta = tf.ones(32), tf.zeros(32)

    def total(outputs):
        keep = tf.cast(fused.dropout(tf.ones_like(outputs), 0.5, seed) > 0, tf.float32)
        summed = x + outputs * keep * 2.0
        mean, variance = tf.nn.moments(summed, -1, keepdims=True)
        return (summed - mean) * tf.math.rsqrt(variance + 1e-6)

    def ours(outputs):
        return fused.dropout_add_norm(outputs, x, gamma, beta, rate=0.5, epsilon=1e-6, seed=seed)

    found = []
    for function in (total, ours):
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = tf.reduce_sum(function(outputs) ** 3)
        found.append(tape.gradient(loss, outputs).numpy())
    assert_close(found[1], found[0], 1e-4)
    assert (found[0] == 0).any()


def test_blocks_of_other_parts_stay_plain(monkeypatch):
    """A norm or dropout of someone else's is called, not replaced."""
    monkeypatch.setattr(fused, "MIN_WIDTH", FUSED)

    class Loud(LayerNorm):
        def call(self, inputs, training=False):
            return super().call(inputs) + 100.0

    block = Block(
        SelfAttention(2),
        FeedForward(8, activation="gelu"),
        keras.layers.Dropout(0.0),
        feed_forward_norm=Loud(1e-6),
    )
    outputs, _ = block(X, training=True)
    assert to_numpy(outputs).mean() > 90


def test_a_mask_is_computed_and_not_stored_for_every_entry():
    """XLA would keep such a constant for each shape, and read it in each step."""
    import tensorflow as tf

    x, seed = tf.zeros((6, 8, 40)), tf.constant([1, 2])
    program = fused._dropout(0.1).experimental_get_compiler_ir(x, seed)(stage="optimized_hlo")
    shapes = re.findall(r"\[([\d,]*)\]\S* constant\(", program)
    sizes = [math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes]
    assert "shift-right-logical" in program
    assert max(sizes) == 48
