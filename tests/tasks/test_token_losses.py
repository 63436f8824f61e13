"""Losses of tokens whose logits are computed in chunks, beside those of all logits."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.configs.decoder import DecoderConfig
from kbert.layers import token_embeddings
from kbert.layers.token_embeddings import TokenOutput
from kbert.models import Decoder, DecoderEncoder, Seq2Seq
from kbert.tasks import token_losses as module
from kbert.tasks.fine_tuning.base import language_model_loss
from kbert.tasks.pretraining.replaced_tokens import generator_config
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
    logits = []
    engines = {name: getattr(module, name) for name in ("_on_tensorflow", "_on_jax")}

    def run(function, size):
        with monkeypatch.context() as patch:
            patch.setattr(token_embeddings, "MAX_LOGITS", size * ENTRIES)
            patch.setattr(token_embeddings, "MIN_TOKENS", 1)
            for name, engine in engines.items():

                def spied(chunks, rows, table, *tensors, engine=engine):
                    logits.append(chunks.size * table.shape[0])
                    return engine(chunks, rows, table, *tensors)

                patch.setattr(module, name, spied)
            found = function()
        assert logits
        assert all(x <= size * ENTRIES for x in logits if isinstance(x, int))
        return found

    run.logits = logits
    return run


def losses(rows, table, bias, smoothing, training, labels=LABELS, weights=WEIGHTS):
    found = token_losses(
        TokenOutput(rows, table, bias), labels, weights, training=training, smoothing=smoothing
    )
    pairs = found.smoothed, found.plain(), found.accuracy()
    return ops.stack([ops.stack([ops.cast(x, "float32") for x in pair]) for pair in pairs])


class Weights(keras.layers.Layer):
    def build(self):
        for name, array in {"rows": ROWS, "table": TABLE, "bias": BIAS}.items():
            setattr(self, name, self.add_weight(array.shape, name=name))
            getattr(self, name).assign(array)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("size", [1, 4])
def test_sums_and_gradients_are_those_of_all_logits(in_chunks, size, smoothing, training):
    """The last chunk is padded where the size does not divide 14 tokens."""

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


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_values_of_each_token_and_tokens_drawn_from_its_softmax(in_chunks, training):
    """They keep their shape and have no gradient, in chunks as without."""
    uniform = RNG.uniform(size=LABELS.shape).astype("float32")

    def run():
        layer = Weights(name="weights")
        layer.build()

        def found():
            output = TokenOutput(layer.rows, layer.table, layer.bias)
            return token_losses(output, LABELS, WEIGHTS, training=training, uniform=uniform)

        def sum_of_values():
            values = found()
            return values.smoothed[0] + ops.sum(values.losses) + ops.sum(values.hits)

        return found(), layer_gradients(layer, lambda: sum_of_values())

    (values, slopes), (expected, expected_slopes) = in_chunks(run, 4), run()
    for name in ("losses", "hits", "drawn"):
        assert getattr(values, name).shape == LABELS.shape
        assert_close(to_numpy(getattr(values, name)), to_numpy(getattr(expected, name)), 1e-5)
    logits = np.asarray(ROWS @ TABLE.T + BIAS, "float64")
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    drawn = (shares.cumsum(-1) <= uniform[..., None]).sum(-1)
    np.testing.assert_array_equal(to_numpy(values.drawn), drawn)
    picked = np.take_along_axis(shares, LABELS[..., None], -1)[..., 0]
    assert_close(to_numpy(values.losses), -np.log(picked), 1e-5)
    assert_gradients_close(slopes, expected_slopes)
    only_the_loss = values_of_loss_alone()
    assert_gradients_close(slopes, only_the_loss)


def values_of_loss_alone():
    layer = Weights(name="weights")
    layer.build()
    tensors = (layer.rows, layer.table, layer.bias)
    return layer_gradients(layer, lambda: losses(*tensors, 0.0, True)[0, 0])


def test_without_a_bias_and_without_tokens(in_chunks):
    expected = losses(ROWS, TABLE, None, 0.0, True)
    found = in_chunks(lambda: losses(ROWS, TABLE, None, 0.0, True), 4)
    assert_close(to_numpy(found), to_numpy(expected), 1e-5)
    none = in_chunks(lambda: losses(ROWS, TABLE, None, 0.0, True, weights=0 * WEIGHTS), 4)
    np.testing.assert_array_equal(to_numpy(none), np.zeros((3, 2)))


def test_hidden_states_and_tables_in_bfloat16_are_multiplied_in_float32(in_chunks):
    """As by `TokenOutput.logits`: the products of rounded numbers, whose sums are not rounded."""
    rows, table, bias = (ops.cast(x, "bfloat16") for x in (ROWS, TABLE, BIAS))
    expected = losses(rows, table, bias, 0.1, True)
    rounded = losses(*(ops.cast(x, "float32") for x in (rows, table, bias)), 0.1, True)
    found = in_chunks(lambda: losses(rows, table, bias, 0.1, True), 4)
    assert_close(to_numpy(found), to_numpy(expected), 1e-5)
    assert_close(to_numpy(found), to_numpy(rounded), 1e-5)


@pytest.mark.parametrize("by_xla", [False, True], ids=["graph", "xla"])
@pytest.mark.tensorflow
def test_a_number_of_tokens_that_no_trace_knows(in_chunks, by_xla):
    """One trace for less than a chunk, for one chunk, for several and a part, for no tokens."""
    import tensorflow as tf

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, WIDTH), tf.float32),
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((None,), tf.float32),
            tf.TensorSpec((ENTRIES, WIDTH), tf.float32),
            tf.TensorSpec((ENTRIES,), tf.float32),
        ],
        jit_compile=by_xla,
    )
    def traced(rows, labels, weights, table, bias):
        with tf.GradientTape() as tape:
            tape.watch([rows, table, bias])
            output = TokenOutput(rows, table, bias)
            found = token_losses(output, labels, weights, training=True, smoothing=0.1)
            loss = found.smoothed[0] / found.smoothed[1]
        pairs = found.smoothed, found.plain(), found.accuracy()
        return pairs, found.losses, tape.gradient(loss, [rows, table, bias])

    def run(number):
        arrays = (x.reshape(-1, *x.shape[2:])[:number] for x in (ROWS, LABELS, WEIGHTS))
        return traced(*map(tf.constant, (*arrays, TABLE, BIAS)))

    def expected(number):
        rows, table, bias = map(tf.constant, (ROWS.reshape(-1, WIDTH)[:number], TABLE, BIAS))
        labels, weights = LABELS.ravel()[:number], WEIGHTS.ravel()[:number]
        with tf.GradientTape() as tape:
            tape.watch([rows, table, bias])
            logits = tf.matmul(rows, table, transpose_b=True) + bias
            shares = tf.one_hot(labels, ENTRIES) * 0.9 + 0.1 / ENTRIES
            loss = tf.reduce_sum(
                tf.nn.softmax_cross_entropy_with_logits(shares, logits) * weights
            ) / tf.reduce_sum(weights)
        return loss, tape.gradient(loss, [rows, table, bias])

    in_chunks(lambda: run(14), 4)  # the trace; chunks of at most 4 tokens
    for number in (1, 3, 4, 9, 14):
        pairs, each, slopes = run(number)
        assert each.shape == (number,)
        loss, expected_slopes = expected(number)
        assert_close(to_numpy(pairs[0][0] / pairs[0][1]), to_numpy(loss), 1e-5)
        names = ("rows", "table", "bias")
        assert_gradients_close(
            dict(zip(names, to_numpy(slopes), strict=True)),
            dict(zip(names, to_numpy(expected_slopes), strict=True)),
        )
    pairs, each, _ = run(0)
    assert each.shape == (0,)
    np.testing.assert_array_equal(to_numpy(pairs), np.zeros((3, 2)))


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


def text_to_text():
    config = kbert.Seq2SeqConfig(vocabulary_size=ENTRIES, **SIZES)
    return kbert.TextToText(Seq2Seq(config), TOKENIZER, max_target_length=6)


def encoder(policy=None, **changes):
    config = kbert.EncoderConfig(vocabulary_size=ENTRIES, max_positions=16, **SIZES, **changes)
    return kbert.Encoder(config, dtype=policy)


def pretraining(**settings):
    return kbert.tasks.Pretraining(encoder(), TOKENIZER, **settings)


def unilm():
    return kbert.tasks.UniLM(encoder(num_segments=6, pooler_activation=None), TOKENIZER)


def hybrid(**settings):
    model = encoder(num_segments=0, positions="rotary", pooler_activation=None)
    return kbert.tasks.MaskedAndCausal(model, TOKENIZER, **settings)


def permutation_lm(**settings):
    sizes = {"vocabulary_size": ENTRIES, "pooler_activation": None, **SIZES}
    config = kbert.configs.XlnetConfig(**sizes)
    return kbert.tasks.PermutationLM(kbert.Encoder(config), TOKENIZER, **settings)


def replaced_tokens():
    model = encoder(pooler_activation=None)
    generator = generator_config(model.config, 1.0)
    return kbert.tasks.ReplacedTokenDetection(model, TOKENIZER, generator=generator)


def memory_lm(**changes):
    config = kbert.configs.TransformerXlConfig(vocabulary_size=ENTRIES, **SIZES, **changes)
    return kbert.tasks.MemoryLM(kbert.Encoder(config), TOKENIZER, memory_length=4, batch_size=2)


def awd_lstm():
    config = kbert.configs.AwdLstmConfig(
        **{"vocabulary_size": ENTRIES, "hidden_size": 6, "intermediate_size": 10},
        **dict.fromkeys(
            ("dropout", "embedding_dropout", "input_dropout", "output_dropout", "weight_dropout"),
            0.0,
        ),
    )
    return kbert.tasks.MemoryLM(kbert.Encoder(config), TOKENIZER, memory_length=4, batch_size=2)


def elmo():
    config = kbert.ElmoConfig(
        **{"character_size": 4, "filters": ((1, 8),), "num_highway": 1, "max_characters": 6},
        **{"lstm_size": 8, "projection_size": 4, "dropout": 0.0, "vocabulary_size": ENTRIES},
    )
    return kbert.tasks.BidirectionalLM(kbert.Elmo(config), batch_size=2)


def denoiser():
    return kbert.tasks.TextDenoiser(encoder(pooler_activation=None), TOKENIZER, decoder_layers=1)


def skip_thought():
    return kbert.tasks.SkipThought(encoder(pooler_activation=None), TOKENIZER, decoder_layers=1)


POSITIONS = np.array([[1, 3, 6], [2, 3, 0]], "int32")
CHARACTERS = RNG.integers(1, 200, (2, TOKENS, 6)).astype("int32")
MASK = WEIGHTS.astype("int32")
INPUTS = {"token_ids": LABELS, "padding_mask": MASK}
MASKED = {
    **INPUTS,
    "mask_positions": POSITIONS,
    "mask_ids": np.take_along_axis(LABELS, POSITIONS, 1),
    "mask_weights": np.array([[1, 1, 1], [1, 1, 0]], "float32"),
}
PAIRS = {
    **MASKED,
    "segment_ids": np.roll(MASK, 2, axis=1),
    "next_sentence_labels": np.array([0, 1]),
    "span_starts": np.maximum(POSITIONS - 1, 0),
    "span_ends": POSITIONS,
}
CONTINUED = {
    **{"token_ids": LABELS, "padding_mask": np.ones_like(MASK)},
    **{"targets": np.roll(LABELS, 1, axis=1), "weights": WEIGHTS},
    "begins": np.ones(2, "int32"),
}
WORDS = {
    "begins": np.ones(2, "int32"),
    **{"character_ids": CHARACTERS, "reverse_character_ids": CHARACTERS[:, ::-1].copy()},
    **{"targets": LABELS, "reverse_targets": LABELS[:, ::-1].copy()},
    **{"weights": WEIGHTS, "reverse_weights": np.ones_like(WEIGHTS)},
}
TEXTS = {
    **INPUTS,
    "label_weights": np.array([1.0, 0.5], "float32"),
    **{"target_ids": np.roll(LABELS, 1, axis=1), "target_mask": MASK},
    **{"next_ids": LABELS[:, ::-1].copy(), "next_mask": MASK},
    **{"previous_ids": np.roll(LABELS, 2, axis=1), "previous_mask": MASK},
}
BATCH = {
    **INPUTS,
    "encoder_token_ids": LABELS[:, ::-1].copy(),
    "encoder_padding_mask": np.ones((2, TOKENS), "int32"),
    "decoder_token_ids": LABELS,
    "decoder_padding_mask": MASK,
    "targets": np.roll(LABELS, 1, axis=1),
    "weights": WEIGHTS,
}
TASKS = {
    "causal": (causal_lm, BATCH),
    "transformed": (lambda: causal_lm(output="transformed"), BATCH),
    "tied": (translator, BATCH),
    "untied": (lambda: translator(output="untied", target_vocabulary_size=None), BATCH),
    "scaled": (lambda: translator(output="tied_scaled"), BATCH),
    "biased": (lambda: translator(output_bias=True), BATCH),
    "masked": (pretraining, PAIRS),
    "spans": (lambda: pretraining(span_boundary=True), PAIRS),
    "hybrid": (hybrid, {**MASKED, "causal_mask": np.stack([MASK[0] * 0, MASK[0]])}),
    "kinds": (
        unilm,
        {
            **MASKED,
            "segment_ids": np.array([[0, 0, 0, 0, 1, 1, 1], [4, 4, 5, 5, 5, 5, 5]]),
            "attention_order": np.array([[0] * TOKENS, [0, 0, 1, 2, 3, 4, 5]]),
        },
    ),
    "permuted": (permutation_lm, {**PAIRS, "order_ids": np.argsort(LABELS, axis=1)}),
    "replaced": (replaced_tokens, {**PAIRS, "position": np.array([[0, 0, 1]] * 2)}),
    "memory": (memory_lm, CONTINUED),
    "adaptive": (lambda: memory_lm(cutoffs=(3, 7), divisor=2), CONTINUED),
    "lstm": (awd_lstm, CONTINUED),
    "elmo": (elmo, WORDS),
    "denoiser": (denoiser, TEXTS),
    "neighbours": (skip_thought, TEXTS),
}


ON_JAX = ("tied", "spans", "replaced", "adaptive", "elmo")
ONE_KEY = ("denoiser", "neighbours")


@pytest.mark.parametrize(
    "is_compiled",
    [pytest.param(False, marks=pytest.mark.jax_slow), True],
    ids=["eager", "xla"],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in ON_JAX else pytest.mark.jax_slow) for x in TASKS],
)
def test_tasks_train_by_chunks(in_chunks, name, is_compiled):
    make, batch = TASKS[name]
    task = make()
    randomise(task)
    for weight in task.trainable_variables:
        # A softmax over one key, the text's embedding, does not depend on the query.
        weight.trainable = "cross_attention/query" not in weight.path or name not in ONE_KEY

    def step():
        def loss():
            losses, metrics = task.loss_terms(batch, True)
            sums = [x for pair in (losses | metrics).values() for x in pair]
            total = sum(numerator / ops.sum(count) for numerator, count in losses.values())
            return total, ops.stack([ops.cast(x, "float32") for x in sums])

        def sums():
            with keras.StatelessScope():  # memories are written
                return loss()[1]

        sums = compiled(sums)() if is_compiled else sums()
        return sums, layer_gradients(task, lambda: loss()[0])

    sums, slopes = in_chunks(step, 2)
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


@pytest.mark.tensorflow
@pytest.mark.parametrize("how", ["xla", "micro_batches", "mirrored", "mixed_bfloat16"])
def test_updates_by_chunks_are_those_by_all_logits(in_chunks, mirrored, how):
    import tensorflow as tf

    rows = {name: np.concatenate([x, x[::-1]]) for name, x in PAIRS.items()}
    strategy = mirrored if how == "mirrored" else tf.distribute.get_strategy()
    policy = how if how == "mixed_bfloat16" else None
    settings = {"micro_batches": 2} if how == "micro_batches" else {"jit_compile": how == "xla"}

    def run():
        keras.utils.set_random_seed(3)
        with strategy.scope():
            task = kbert.tasks.Pretraining(encoder(policy), TOKENIZER, span_boundary=True)
            randomise(task)
            task.compile(kbert.training.AdamW(1e-2), **settings)
        data = tf.data.Dataset.from_tensors(rows).repeat(3)
        history = task.fit(data, epochs=1, verbose=0).history
        weights = np.concatenate([to_numpy(x).ravel() for x in task.trainable_variables])
        return np.array([history[name][0] for name in sorted(history)]), weights

    values, weights = in_chunks(run, 2)
    count = len(in_chunks.logits)
    expected, expected_weights = run()
    assert len(in_chunks.logits) == count  # all logits this time
    # bfloat16 rounds a hidden state's gradient of either to 8 bits, sometimes to another neighbour.
    atol = 2e-2 if policy else 1e-4
    assert_close(values, expected, atol)
    assert_close(weights, expected_weights, atol)


@pytest.mark.tensorflow
def test_evaluations_by_chunks_are_those_by_all_logits(in_chunks):
    """Perplexities of texts, and the losses of labelled tables."""
    texts = ["the sun shines", "a fox", "the fox sleeps a sun"]
    pairs = {"text": texts, "target": texts[::-1]}
    neighbours = {"previous": texts, "text": texts[::-1], "next": texts}

    def run():
        keras.utils.set_random_seed(3)
        tasks = causal_lm(), text_to_text(), denoiser(), skip_thought()
        for task in tasks:
            randomise(task)
        causal, to_text, restored, skipped = tasks
        scores = causal.score(texts, verbose=0)
        continued = causal._likelihood.of_continuations([np.array([5])], [np.array([6, 7])], 8)
        evaluations = [
            to_text.evaluate(pairs, verbose=0),
            restored.evaluate(texts, verbose=0),
            skipped.evaluate(neighbours, verbose=0),
        ]
        losses = [found["loss"] for found in evaluations]
        return np.concatenate([scores["log_likelihood"], scores["perplexity"], continued, losses])

    assert_close(in_chunks(run, 2), run(), 1e-4)


@pytest.mark.tensorflow
def test_the_auxiliary_loss_of_a_graph_is_that_of_an_eager_step(in_chunks):
    """A graph does not know how many tokens are not padding."""
    import tensorflow as tf

    config = DecoderConfig(vocabulary_size=ENTRIES, max_positions=16, **SIZES)
    model = DecoderEncoder.extend(Decoder(config))
    randomise(model)
    sequence = RNG.normal(size=(2, TOKENS, 8)).astype("float32")
    rows = np.array([1.0, 0.5], "float32")

    def loss():
        pair = language_model_loss(model, {**INPUTS, "sequence": sequence}, rows, training=True)
        return pair[0] / pair[1]

    def gradients():
        table = model.decoder.token_embedding.value
        with tf.GradientTape() as tape:
            tape.watch(table)
            value = loss()
        return value, tf.convert_to_tensor(tape.gradient(value, table))

    value, slopes = in_chunks(tf.function(gradients), 4)
    expected, expected_slopes = gradients()
    assert_close(to_numpy(value), to_numpy(expected), 1e-5)
    assert_gradients_close({"": to_numpy(slopes)}, {"": to_numpy(expected_slopes)})
