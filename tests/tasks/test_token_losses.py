"""Losses of tokens whose logits are computed in chunks, beside those of all logits."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.configs.decoder import DecoderConfig
from kbert.layers.token_embeddings import TokenOutput
from kbert.models import Decoder, Seq2Seq
from kbert.tasks import token_losses as module
from kbert.tasks.token_losses import token_losses
from tests.harness import (
    assert_close,
    assert_gradients_close,
    compiled,
    layer_gradients,
    randomise,
    to_numpy,
)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="training runs on TensorFlow and JAX"
)
TOKENS, WIDTH, ENTRIES = 7, 5, 11
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(2, TOKENS, WIDTH)).astype("float32")
TABLE = RNG.normal(size=(ENTRIES, WIDTH)).astype("float32")
BIAS = RNG.normal(size=ENTRIES).astype("float32")
LABELS = RNG.integers(0, ENTRIES, (2, TOKENS))
WEIGHTS = np.array([[1] * TOKENS, [1] * 4 + [0] * 3], "float32")


@pytest.fixture
def in_chunks(monkeypatch):
    """function, chunk size -> its result with at most that many tokens in a chunk."""
    sizes = []
    engines = {name: getattr(module, name) for name in ("_on_tensorflow", "_on_jax")}

    def run(function, size):
        monkeypatch.setattr(module, "MAX_LOGITS", size * ENTRIES)
        for name, engine in engines.items():

            def spied(chunks, *tensors, engine=engine):
                sizes.append((chunks.size, chunks.has_gradient))
                return engine(chunks, *tensors)

            monkeypatch.setattr(module, name, spied)
        found = function()
        monkeypatch.setattr(module, "MAX_LOGITS", 2**24)
        assert sizes
        assert all(cut <= size for cut, _ in sizes if isinstance(cut, int))
        return found

    return run


def losses(rows, table, bias, smoothing, training, labels=LABELS, weights=WEIGHTS):
    found = token_losses(
        TokenOutput(rows, table, bias), labels, weights, smoothing=smoothing, training=training
    )
    return ops.stack([ops.stack([ops.cast(x, "float32") for x in pair]) for pair in found])


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("size", [1, 4])
def test_sums_and_gradients_are_those_of_all_logits(in_chunks, size, smoothing, training):
    """The last chunk is padded where the size does not divide 14 tokens."""

    class Weights(keras.layers.Layer):
        def build(self):
            for name, array in {"rows": ROWS, "table": TABLE, "bias": BIAS}.items():
                setattr(self, name, self.add_weight(array.shape, name=name))
                getattr(self, name).assign(array)

    def values_and_gradients():
        layer = Weights(name="weights")
        layer.build()

        def first():  # the smoothed loss, times a factor
            tensors = (layer.rows, layer.table, layer.bias)
            return 3.0 * losses(*tensors, smoothing, training)[0, 0]

        return losses(ROWS, TABLE, BIAS, smoothing, training), layer_gradients(layer, first)

    values, slopes = in_chunks(values_and_gradients, size)
    expected, expected_slopes = values_and_gradients()
    assert_close(to_numpy(values), to_numpy(expected), 1e-5)
    assert_gradients_close(slopes, expected_slopes)


def test_without_a_bias_and_without_tokens(in_chunks):
    expected = losses(ROWS, TABLE, None, 0.0, True)
    found = in_chunks(lambda: losses(ROWS, TABLE, None, 0.0, True), 4)
    assert_close(to_numpy(found), to_numpy(expected), 1e-5)
    none = in_chunks(lambda: losses(ROWS, TABLE, None, 0.0, True, weights=0 * WEIGHTS), 4)
    np.testing.assert_array_equal(to_numpy(none), np.zeros((3, 2)))


@pytest.mark.tensorflow
def test_a_number_of_tokens_that_no_trace_knows(in_chunks):
    import tensorflow as tf

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None, WIDTH), tf.float32),
            tf.TensorSpec((None, None), tf.int64),
            tf.TensorSpec((None, None), tf.float32),
        ]
    )
    def traced(rows, labels, weights):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            found = losses(rows, TABLE, BIAS, 0.1, True, labels, weights)
            loss = found[0, 0]
        return found, tape.gradient(loss, rows)

    def run(*arrays):
        return traced(*map(tf.constant, arrays))

    found = in_chunks(lambda: run(ROWS, LABELS, WEIGHTS), 4)
    short = run(ROWS[:, :1], LABELS[:, :1], WEIGHTS[:, :1])  # the same trace
    expected = losses(ROWS, TABLE, BIAS, 0.1, True)
    assert_close(to_numpy(found[0]), to_numpy(expected), 1e-5)
    expected = losses(ROWS[:, :1], TABLE, BIAS, 0.1, True, LABELS[:, :1], WEIGHTS[:, :1])
    assert_close(to_numpy(short[0]), to_numpy(expected), 1e-5)
    assert short[1].shape == (2, 1, WIDTH)


TOKENIZER = kbert.WordPieceTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sun", "shines", "a", "fox", "sleeps"]
)
SIZES = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
SIZES |= {"dropout": 0.0, "attention_dropout": 0.0}


def causal_lm(**changes):
    config = DecoderConfig(vocabulary_size=ENTRIES, max_positions=16, **SIZES, **changes)
    return kbert.tasks.CausalLM(Decoder(config), TOKENIZER)


def translator(**changes):
    config = kbert.Seq2SeqConfig(vocabulary_size=ENTRIES, **SIZES, **changes)
    return kbert.Translator(Seq2Seq(config), TOKENIZER, label_smoothing=0.1)


BATCH = {
    "token_ids": LABELS,
    "padding_mask": WEIGHTS.astype("int32"),
    "encoder_token_ids": LABELS[:, ::-1].copy(),
    "encoder_padding_mask": np.ones((2, TOKENS), "int32"),
    "decoder_token_ids": LABELS,
    "decoder_padding_mask": WEIGHTS.astype("int32"),
    "targets": np.roll(LABELS, 1, axis=1),
    "weights": WEIGHTS,
}


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "xla"])
@pytest.mark.parametrize(
    "make",
    [
        causal_lm,
        lambda: causal_lm(output="transformed"),
        translator,
        lambda: translator(output="untied", target_vocabulary_size=None),
        lambda: translator(output="tied_scaled"),
        lambda: translator(output_bias=True),
    ],
    ids=["causal", "transformed", "tied", "untied", "scaled", "biased"],
)
def test_tasks_train_by_chunks(in_chunks, make, is_compiled):
    task = make()
    randomise(task)

    def step():
        def loss():
            losses, metrics = task.loss_terms(BATCH, True)
            sums = [x for pair in (losses | metrics).values() for x in pair]
            return losses["lm_loss"][0], ops.stack([ops.cast(x, "float32") for x in sums])

        sums = compiled(lambda: loss()[1])() if is_compiled else loss()[1]
        return sums, layer_gradients(task, lambda: loss()[0])

    sums, slopes = in_chunks(step, 4)
    expected, expected_slopes = step()
    assert_close(to_numpy(sums), to_numpy(expected), 1e-4)
    assert_gradients_close(slopes, expected_slopes)


@pytest.mark.tensorflow
def test_a_run_by_chunks_is_the_run_by_all_logits(in_chunks):
    def run():
        keras.utils.set_random_seed(3)
        task = translator()
        pairs = [("the sun shines", "a fox sleeps"), ("a fox", "the sun")]
        history = task.fit(pairs, epochs=3, max_tokens=64, verbose=0).history
        return [history[name] for name in ("loss", "nll", "accuracy")]

    assert_close(np.array(in_chunks(run, 2)), np.array(run()), 1e-4)
