"""Attention whose scores exist for one chunk of queries at a time, beside plain attention."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from kbert.configs.decoder import DecoderConfig
from kbert.core.contexts import recomputation
from kbert.layers import CrossAttention, SelfAttention, chunk_attention_from, chunked_attention
from kbert.layers.bias import attention_bias, causal_bias, example_bias
from kbert.layers.chunked_attention import (
    ScoreBias,
    Scores,
    Threshold,
    attention_in_chunks,
    is_in_chunks,
)
from kbert.models import Decoder, Encoder
from tests.harness import (
    KINDS,
    assert_close,
    assert_gradients_close,
    compiled,
    freeze_unread,
    layer_gradients,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="training runs on TensorFlow and JAX"
)
LENGTH = 11
X = np.random.default_rng(0).normal(size=(2, LENGTH, 12)).astype("float32")
REAL = np.array([[1] * LENGTH, [1] * 6 + [0] * 5])
EXAMPLES = np.array([[1] * 5 + [2] * 6, [1] * 8 + [0] * 3])
BIASES = {
    "none": lambda: None,
    "padding": lambda: attention_bias(ops.array(REAL)),
    "causal": lambda: causal_bias(LENGTH),
    "packed": lambda: example_bias(ops.array(EXAMPLES)),
}


@pytest.fixture
def both(monkeypatch):
    """function -> what it gives by whole scores, and by chunks of at most 4 queries."""

    mapped = []

    def attend_and_count(*arguments, **options):
        mapped.append(options)
        return attention_in_chunks(*arguments, **options)

    def run(function, is_chunked=True):
        found = []
        for least in (None, 3):
            assert not mapped
            chunk_attention_from(least)
            found.append(function())
        assert bool(mapped) is is_chunked
        mapped.clear()
        return found

    monkeypatch.setattr(chunked_attention, "CHUNK_SIZE", 4)
    monkeypatch.setattr(chunked_attention, "attention_in_chunks", attend_and_count)
    yield run
    chunk_attention_from(1024)


def weighted_sum(x):
    x = ops.reshape(ops.cast(x, "float32"), (-1,))
    return ops.sum(x * ops.cos(ops.arange(math.prod(x.shape), dtype="float32")))


def both_sums(outputs):
    return weighted_sum(outputs["sequence"]) + ops.sum(ops.cast(outputs["pooled"], "float32"))


def randomised(layer, *shapes):
    layer.build(*shapes)
    randomise(layer)
    return layer


@pytest.mark.parametrize(
    "bias", [pytest.param(x, marks=() if x == "packed" else pytest.mark.jax_slow) for x in BIASES]
)
def test_outputs_and_gradients_are_those_of_whole_scores(both, bias):
    layer, bias = randomised(SelfAttention(3), X.shape), BIASES[bias]()

    def run():
        outputs = to_numpy(layer(X, bias, training=True)[0])
        return outputs, layer_gradients(
            layer, lambda: weighted_sum(layer(X, bias, training=True)[0])
        )

    (outputs, gradients), (chunked, of_chunks) = both(run)
    assert_close(chunked, outputs, 1e-5)
    assert_gradients_close(of_chunks, gradients)


def test_in_float16_sums_of_large_values_stay_finite(both):
    layer = randomised(SelfAttention(3, dtype="mixed_float16"), X.shape)
    bias = to_numpy(layer.qkv.bias).copy()
    bias[24:] = 8000.0  # of the values: eleven are above the largest number of float16
    layer.qkv.bias.assign(bias)
    layer.output_dense.kernel.assign(np.eye(12) / 8000)
    whole, chunked = both(lambda: to_numpy(layer(X, training=True)[0]))
    assert np.isfinite(whole).all()
    assert_close(chunked, whole, 2e-3)


def test_the_internals_are_still_those_of_all_tokens(both):
    layer = randomised(SelfAttention(3), X.shape)
    plain, chunked = both(lambda: to_numpy(layer(X, BIASES["packed"](), training=True)[1]))
    for name, value in plain.items():
        assert_close(chunked[name], value, 1e-6, name)


def test_attention_to_another_sequence(both):
    layer = randomised(CrossAttention(3), X.shape)
    bias = attention_bias(ops.array(REAL[:, :7]))
    memory = X[:, :7] + 1

    def run():
        return layer_gradients(
            layer,
            lambda: weighted_sum(layer(X, layer.keys_values(memory), bias, training=True)[0]),
        )

    plain, chunked = both(run)
    assert_gradients_close(chunked, plain)


def plain_scores(query, key):
    """0.5 times the products, as `Scores`."""
    return Scores(
        lambda start, rows, tensors: ops.matmul(rows[0], tensors[0]),
        [0.5 * query],
        [ops.transpose(key, (0, 1, 3, 2))],
    )


def attended(query, key, value, rate, seed):
    scores = plain_scores(query, key)
    return attention_in_chunks(scores, value, ScoreBias(), rate=rate, seed=seed)


def probabilities(rate, seed, length=LENGTH):
    """The weights after dropout (1, 2, T, T): values of one-hot vectors read them."""
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(1, 2, length, length)).astype("float32") for _ in range(2))
    value = np.tile(np.eye(length, dtype="float32"), (1, 2, 1, 1))
    if seed is not None and not ON_TENSORFLOW:
        seed = ops.cast(seed, "uint32")
    return to_numpy(attended(*map(ops.convert_to_tensor, (query, key, value)), rate, seed))


def test_dropout_is_that_of_the_probabilities(monkeypatch):
    monkeypatch.setattr(chunked_attention, "CHUNK_SIZE", 16)
    whole = probabilities(0.0, None, 64)
    np.testing.assert_allclose(whole.sum(-1), 1, rtol=1e-5)
    dropped = probabilities(0.25, ops.array([3, 4]), 64)
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], whole[kept] / 0.75, rtol=1e-5)
    assert abs(kept.mean() - 0.75) < 4 * math.sqrt(0.75 * 0.25 / kept.size)
    chunks = kept.reshape(2, 4, 16, 64)
    for one in range(4):  # no chunk has the mask of another one, nor of another seed
        for other in range(one):
            assert 0.5 < (chunks[:, one] == chunks[:, other]).mean() < 0.75
    other = probabilities(0.25, ops.array([3, 5]), 64) != 0
    assert 0.5 < (other == kept).mean() < 0.75
    np.testing.assert_array_equal(probabilities(0.25, ops.array([3, 4]), 64), dropped)


@pytest.mark.tensorflow
def test_the_gradient_drops_what_the_outputs_dropped(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(chunked_attention, "CHUNK_SIZE", 4)
    rng = np.random.default_rng(1)
    query, key, value = (
        tf.constant(rng.normal(size=(1, 2, LENGTH, 5)), tf.float32) for _ in range(3)
    )
    seed, weights = tf.constant([7, 8]), tf.constant(rng.normal(size=query.shape), tf.float32)
    eye = tf.tile(tf.eye(LENGTH)[None, None], (1, 2, 1, 1))
    mask = tf.cast(attended(query, key, eye, 0.3, seed) != 0, "float32")

    def plain(query, key, value):
        scores = tf.matmul(query * 0.5, key, transpose_b=True)
        return tf.matmul(tf.nn.softmax(scores) * mask / 0.7, value)

    found = []
    for function in (plain, lambda *x: attended(*x, 0.3, seed)):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            total = tf.reduce_sum(function(query, key, value) * weights)
        found.append([total, *tape.gradient(total, [query, key, value])])
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert_close(to_numpy(ours), to_numpy(theirs), 1e-5)


KINDS_HERE = {"": {}, **KINDS}
WHOLE = ("windows in the last layer",)  # blocks are short


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", [
    pytest.param(x, marks=() if x in ("", "modern") else pytest.mark.slow) for x in KINDS_HERE
])  # fmt: skip
def test_an_encoder_computes_the_same(both, kind):
    """Also the kinds whose scores are more than products of queries and keys."""
    config = tiny_config(**KINDS_HERE[kind])
    encoder, inputs = Encoder(config), tiny_inputs(config)
    freeze_unread(encoder)
    randomise(encoder)

    def run():
        return layer_gradients(encoder, lambda: both_sums(encoder(inputs, training=True)))

    plain, chunked = both(run, is_chunked=kind not in WHOLE)
    assert_gradients_close(chunked, plain)


@pytest.mark.jax_slow
@pytest.mark.parametrize("case", ["recomputed", "some positions", "bfloat16", "compiled"])
def test_an_encoder_computes_the_same_when(both, case):
    config = tiny_config()
    encoder = Encoder(config, dtype="mixed_bfloat16" if case == "bfloat16" else "float32")
    randomise(encoder)
    inputs = tiny_inputs(config)
    options = {"training": True}
    if case == "some positions":
        options["output_positions"] = np.tile(np.arange(5), (3, 1))

    def outputs():
        with recomputation(case == "recomputed"):
            return encoder(inputs, **options)

    if case == "compiled":
        plain, chunked = both(lambda: to_numpy(compiled(lambda: outputs()["sequence"])()))
        assert_close(chunked, plain, 1e-5)
        return
    plain, chunked = both(lambda: layer_gradients(encoder, lambda: both_sums(outputs())))
    if case != "bfloat16":
        assert_gradients_close(chunked, plain)
        return
    for name, gradient in plain.items():
        scale = np.abs(gradient).max()
        assert np.abs(chunked[name] - gradient).mean() < 0.02 * scale + 1e-6, name


@pytest.mark.jax_slow
def test_a_decoder_computes_the_same(both):
    decoder = Decoder(
        DecoderConfig(
            vocabulary_size=40, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=32,
            max_positions=24, dropout=0.0, attention_dropout=0.0,
        )
    )  # fmt: skip
    randomise(decoder)
    ids = np.random.default_rng(0).integers(0, 40, (3, 12))

    def run():
        return layer_gradients(
            decoder, lambda: weighted_sum(decoder({"token_ids": ids}, training=True)["sequence"])
        )

    plain, chunked = both(run)
    assert_gradients_close(chunked, plain)


@pytest.mark.tensorflow
def test_in_a_graph_the_whole_scores_are_not_computed(monkeypatch):
    """Only their shape would give them away: T times T."""
    import tensorflow as tf

    monkeypatch.setattr(chunked_attention, "CHUNK_SIZE", 4)
    monkeypatch.setattr(Threshold, "tokens", 3)
    layer = randomised(SelfAttention(3), X.shape)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(layer(x, training=True)[0])
        return tape.gradient(total, x)

    names = []
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    graph = convert_variables_to_constants_v2(step.get_concrete_function(tf.constant(X))).graph
    for operation in graph.get_operations():
        names += [
            operation.name
            for x in operation.outputs
            if x.shape.rank and tuple(x.shape)[-2:] == (LENGTH, LENGTH)
        ]
    assert names == []


def test_a_trained_bias_has_its_gradient(both):
    layer = randomised(SelfAttention(3), X.shape)
    rng = np.random.default_rng(2)
    shapes = ((1, 1, 1, LENGTH), (1, 3, LENGTH, LENGTH), (2, 1, LENGTH, LENGTH))
    biases = [keras.Variable(rng.normal(size=shape).astype("float32")) for shape in shapes]

    class Trained(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.biases, self.attention = biases, layer
            self.built = True

        def call(self, x):
            return sum(self.attention(x, bias.value, training=True)[0] for bias in self.biases)

    trained = Trained()
    plain, chunked = both(lambda: layer_gradients(trained, lambda: weighted_sum(trained(X))))
    assert_gradients_close(chunked, plain)


def test_only_training_of_long_sequences_is_in_chunks(both):
    layer = SelfAttention(2)
    both(lambda: layer(X, training=True))
    both(lambda: layer(X, training=False), is_chunked=False)
    both(lambda: layer(X[:, :2], training=True), is_chunked=False)
    chunk_attention_from(8)
    assert is_in_chunks(8)
    assert not is_in_chunks(7)
    assert is_in_chunks(None) is None
    assert is_in_chunks(None, 8) is None
    assert is_in_chunks(None, 7) is False
    chunk_attention_from(None)
    assert not is_in_chunks(8)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, "8", True])
def test_no_other_number_of_tokens(tokens):
    with pytest.raises(ValueError, match=r"whole number of at least 1, or None .*Received: "):
        chunk_attention_from(tokens)
    assert Threshold.tokens == 1024


def steps_of_any_length(layer, lengths, **options):
    """The gradients of one graph for several lengths, and the graph."""
    import tensorflow as tf

    weights = [weight.value for weight in layer.trainable_weights]

    @tf.function(input_signature=[tf.TensorSpec((None, None, 12), tf.float32)], **options)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            y = tf.reshape(layer(x, attention_bias(x[..., 0] > -1), training=True)[0], [-1])
            total = tf.reduce_sum(y * tf.cos(tf.range(tf.cast(tf.size(y), tf.float32))))
        return tape.gradient(total, [x, *weights])

    return [to_numpy(step(X[:, :length])) for length in lengths], step


@pytest.mark.tensorflow
@pytest.mark.parametrize("compiled", [False, True], ids=["", "xla"])
@pytest.mark.parametrize("heads", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_graph_for_any_length_chooses_when_it_runs(both, compiled, heads):
    layer = randomised(SelfAttention(heads), X.shape)

    def run():
        return steps_of_any_length(layer, (1, 2, 3, 4, 5, LENGTH), jit_compile=compiled)[0]

    plain, chunked = both(run)
    for ours, theirs in zip(chunked, plain, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            assert_close(x, y, 1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", [
    pytest.param(x, marks=() if x == "disentangled" else pytest.mark.slow)
    for x in KINDS_HERE
    if x not in WHOLE
])  # fmt: skip
def test_an_encoder_in_a_graph_for_any_length(both, kind):
    import tensorflow as tf

    config = tiny_config(**KINDS_HERE[kind])
    encoder, inputs = Encoder(config), tiny_inputs(config)
    freeze_unread(encoder)
    randomise(encoder)
    inputs = {name: tf.constant(value, tf.int32) for name, value in inputs.items()}
    specs = {name: tf.TensorSpec((3, None), tf.int32) for name in inputs}
    weights = [weight.value for weight in encoder.trainable_weights]

    def run():
        @tf.function(input_signature=[specs])
        def step(inputs):
            with tf.GradientTape() as tape:
                outputs = encoder(inputs, training=True)
                y = tf.cast(tf.reshape(outputs["sequence"], [-1]), tf.float32)
                total = tf.reduce_sum(y * tf.cos(tf.range(tf.cast(tf.size(y), tf.float32))))
                total += tf.reduce_sum(outputs["pooled"])
            return [tf.convert_to_tensor(x) for x in tape.gradient(
                total, weights, unconnected_gradients="zero")]  # fmt: skip

        return {str(i): to_numpy(x) for i, x in enumerate(step(inputs))}

    plain, chunked = both(run)
    assert_gradients_close(chunked, plain)


@pytest.mark.tensorflow
def test_dropout_in_a_graph_for_any_length(both):
    """One mask for the forward and the backward pass in either branch, another one each step."""
    layer = randomised(SelfAttention(3, dropout=0.5), X.shape)

    def run():
        (first, again), _ = steps_of_any_length(layer, (LENGTH, LENGTH))
        assert np.abs(first[0] - again[0]).max() > 1e-3
        return first

    for gradients in both(run):
        assert all(np.isfinite(x).all() for x in gradients)


@pytest.mark.tensorflow
def test_a_graph_for_any_length_has_no_choice_below_the_threshold(both):
    def operations(max_length):
        layer = randomised(SelfAttention(3, max_length=max_length), X.shape)
        _, step = steps_of_any_length(layer, (LENGTH,))
        return {x.type for x in step.get_concrete_function().graph.get_operations()}

    chunk_attention_from(13)
    assert not {"Case", "StatelessCase"} & operations(12)
    assert {"Case", "StatelessCase"} & operations(13)
