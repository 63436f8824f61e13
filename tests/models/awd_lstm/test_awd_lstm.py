"""AWD-LSTM against its formulas in NumPy: cell, masks, penalties, pooling, sizes; ULMFiT."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kbert
from kbert import family
from kbert.configs import AwdLstmConfig
from kbert.core.contexts import auxiliary_losses
from kbert.data import causal_dataset
from kbert.layers.adaptive import AdaptiveSoftmax
from kbert.models import AwdLstm, Encoder, describe
from kbert.models.awd_lstm.layers import LockedDropout, WeightDroppedLSTM, WordDropoutEmbeddings
from kbert.models.weights import get_arrays
from kbert.tasks.token_losses import token_losses
from kbert.training import AdamW
from tests.harness import assert_close, assert_gradients_close, compiled, randomise, to_numpy

torch = pytest.importorskip("torch")

B, T, WIDTH, INSIDE, VOCABULARY = 3, 7, 6, 10, 20
SIZES = {"vocabulary_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INSIDE}
STILL = dict.fromkeys(
    ("dropout", "embedding_dropout", "input_dropout", "output_dropout", "weight_dropout"), 0.0
)
LENGTHS = (7, 4, 1)
trains = pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch has no step")


def make(**changes):
    encoder = Encoder(AwdLstmConfig(**{**SIZES, **changes}))
    randomise(encoder)
    return encoder


def make_inputs(seed=0):
    rng = np.random.default_rng(seed)
    memory = rng.normal(size=(1, B, 1, AwdLstmConfig(**SIZES).state_size)).astype("float32")
    ids = rng.integers(0, VOCABULARY, (B, T)).astype("int32")
    mask = (np.arange(T) < np.array(LENGTHS)[:, None]).astype("int32")
    return {"token_ids": ids, "padding_mask": mask, "memory": memory}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def cell(x, c, h, kernel, recurrent, bias):
    """Merity et al. 2017, equations 1 to 6."""
    i, j, f, o = np.split(x @ kernel + h @ recurrent + bias, 4, axis=-1)
    c = sigmoid(i) * np.tanh(j) + sigmoid(f) * c
    return c, sigmoid(o) * np.tanh(c)


def reference(encoder, inputs, kept=lambda layer, recurrent: recurrent):
    """Outputs of all layers (B, T, U) and the last state, in float64; zeros at padding."""
    weights = {k: v.astype("float64") for k, v in get_arrays(encoder, "encoder").items()}
    x = weights["encoder/embeddings/table_0"][inputs["token_ids"]]
    memory = inputs["memory"][0, :, 0].astype("float64")
    layers, states = [x], []
    for layer, (_, units) in enumerate(encoder.config.layer_sizes):
        name = f"encoder/layers/{layer}"
        recurrent = kept(layer, weights[f"{name}/recurrent_kernel"])
        (c, h), memory = np.split(memory[:, : 2 * units], 2, -1), memory[:, 2 * units :]
        outputs = []
        for t in range(T):
            real = inputs["padding_mask"][:, t, None] > 0
            new_c, new_h = cell(
                x[:, t], c, h, weights[f"{name}/kernel"], recurrent, weights[f"{name}/bias"]
            )
            c, h = np.where(real, new_c, c), np.where(real, new_h, h)
            outputs.append(np.where(real, h, 0))
        x = np.stack(outputs, 1)
        layers.append(x)
        states += [c, h]
    return layers, np.concatenate(states, -1)


def test_it_is_the_formulas_of_the_paper():
    encoder, inputs = make(), make_inputs()
    out = encoder(inputs, return_hidden_states=True)
    layers, state = reference(encoder, inputs)
    for found, expected in zip(out["hidden_states"], layers, strict=True):
        assert_close(to_numpy(found), expected, 1e-5)
    assert_close(to_numpy(out["memory"])[0, :, 0], state, 1e-5)
    rows = [layers[-1][row, :length] for row, length in enumerate(LENGTHS)]
    pooled = [np.concatenate([x[-1], x.max(0), x.mean(0)]) for x in rows]  # ULMFiT, section 3.3
    assert_close(to_numpy(out["pooled"]), np.array(pooled), 1e-5)
    some = encoder(inputs, output_positions=np.array([[1], [0], [0]]))
    assert_close(to_numpy(some["sequence"])[0, 0], layers[-1][0, 1], 1e-5)
    assert_close(to_numpy(some["pooled"]), np.array(pooled), 1e-5)


@pytest.mark.tensorflow
def test_the_gradients_are_those_of_pytorch_s_lstm():
    layer = WeightDroppedLSTM(5)
    x = np.random.default_rng(0).normal(size=(B, T, 4)).astype("float32")
    layer.build((B, T, 4))
    randomise(layer)
    lstm = torch.nn.LSTM(4, 5, batch_first=True).double()
    order = np.concatenate([np.arange(5) + 5 * n for n in (0, 2, 1, 3)])  # theirs: i, f, g, o
    arrays = {w.name: to_numpy(w.value)[..., order].T for w in layer.weights}
    with torch.no_grad():
        for theirs, name in (
            ("weight_ih_l0", "kernel"),
            ("weight_hh_l0", "recurrent_kernel"),
            ("bias_ih_l0", "bias"),
        ):
            getattr(lstm, theirs).copy_(torch.tensor(arrays[name].copy()))
        lstm.bias_hh_l0.zero_()
    given = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    expected = lstm(given)[0]
    (expected**2).sum().backward()
    weights = [w.value for w in layer.weights]
    variable = tf.Variable(x)
    with tf.GradientTape() as tape:
        found = layer(variable, np.zeros((B, 10), "float32"))[0]
        loss = tf.reduce_sum(found**2)
    assert_close(to_numpy(found), expected.detach().numpy(), 1e-5)
    gradients = tape.gradient(loss, [variable, *weights])
    theirs = [given.grad.numpy()] + [
        x.grad.numpy().T[..., order] for x in (lstm.weight_ih_l0, lstm.weight_hh_l0)
    ]
    theirs.append(lstm.bias_ih_l0.grad.numpy()[order])
    names = ("x", "kernel", "recurrent_kernel", "bias")
    assert_gradients_close(
        {name: to_numpy(g) for name, g in zip(names, gradients, strict=True)},
        dict(zip(names, theirs, strict=True)),
    )


def test_dropped_weights_are_the_same_at_every_step():
    """DropConnect: with the mask that was drawn, the outputs are those of the formulas."""
    layer = WeightDroppedLSTM(INSIDE, weight_dropout=0.5)
    x = np.random.default_rng(1).normal(size=(2, T, 4)).astype("float32")
    layer.build((2, T, 4))
    randomise(layer)
    drawn = []
    drop = layer.weight_dropout.call
    layer.weight_dropout.call = lambda x, training: drawn.append(drop(x, training)) or drawn[-1]
    found, _ = layer(x, np.zeros((2, 2 * INSIDE), "float32"), training=True)
    (recurrent,) = (to_numpy(x) for x in drawn)
    kernel, whole, bias = (to_numpy(w.value) for w in layer.weights)
    kept = recurrent != 0
    assert 0.3 < kept.mean() < 0.7
    assert_close(recurrent[kept], 2 * whole[kept], 1e-5)
    c = h = np.zeros((2, INSIDE))
    for t in range(T):
        c, h = cell(x[:, t], c, h, kernel, recurrent, bias)
        assert_close(to_numpy(found)[:, t], h, 1e-5)
    again, _ = layer(x, np.zeros((2, 2 * INSIDE), "float32"), training=True)
    assert np.abs(to_numpy(again) - to_numpy(found)).max() > 1e-3


def test_whole_words_and_whole_columns_are_dropped():
    embeddings = WordDropoutEmbeddings(VOCABULARY, WIDTH, 0.5)
    ids = np.tile(np.arange(VOCABULARY), (2, 3))
    x = to_numpy(embeddings(ids, training=True)).reshape(6, VOCABULARY, WIDTH)
    kept = x[0].any(-1)
    table = to_numpy(embeddings.tables[0].value)
    assert 0.1 < kept.mean() < 0.9
    assert_close(x, np.broadcast_to(2 * table * kept[:, None], x.shape), 1e-6)
    softmax = AdaptiveSoftmax(embeddings)  # reads all words
    logits = np.ones((1, WIDTH)) @ table.T
    expected = logits - np.log(np.exp(logits).sum())
    assert_close(to_numpy(softmax(np.ones((1, WIDTH), "float32"))), expected, 1e-5)
    x = to_numpy(LockedDropout(0.5)(ops.ones((9, T, 40)), training=True))
    assert set(np.unique(x)) == {0.0, 2.0}
    assert (x == x[:, :1]).all()
    assert not (x == x[:1]).all()


def test_the_two_penalties():
    """Merity et al. 2017, section 4.6, as means over tokens and columns."""
    encoder, inputs = make(**STILL), make_inputs()
    with auxiliary_losses() as added:
        encoder(inputs)
    outputs = reference(encoder, inputs)[0][-1]
    rows = [outputs[row, :length] for row, length in enumerate(LENGTHS)]
    large = sum((x**2).mean(-1).sum() for x in rows)
    changes = sum(((x[1:] - x[:-1]) ** 2).mean(-1).sum() for x in rows)
    found = {name: [float(to_numpy(x)) for x in pair] for name, pair in added.items()}
    assert found["activation_penalty"] == pytest.approx([2 * large, 12.0], rel=1e-5)
    assert found["temporal_penalty"] == pytest.approx([changes, 9.0], rel=1e-5)
    with auxiliary_losses() as added:
        make(activation_penalty=0.0, temporal_penalty=0.0)(inputs)
    assert added == {}


def test_two_rows_are_one_long_one():
    encoder, inputs = make(), make_inputs()
    del inputs["padding_mask"]
    whole = encoder(inputs)
    first = encoder({"token_ids": inputs["token_ids"][:, :3], "memory": inputs["memory"]})
    second = encoder({"token_ids": inputs["token_ids"][:, 3:], "memory": first["memory"]})
    assert_close(to_numpy(second["sequence"]), to_numpy(whole["sequence"])[:, 3:], 1e-5)
    assert_close(to_numpy(second["memory"]), to_numpy(whole["memory"]), 1e-5)


def test_compiled_and_in_bfloat16():
    encoder, inputs = make(), make_inputs()
    expected = to_numpy(encoder(inputs)["pooled"])
    assert_close(to_numpy(compiled(lambda: encoder(inputs)["pooled"])()), expected, 1e-5)
    half = Encoder(encoder.config, dtype="mixed_bfloat16")
    half.set_weights(encoder.get_weights())
    assert np.abs(to_numpy(half(inputs)["pooled"]).astype("float32") - expected).mean() < 0.02
    spec = encoder.compute_output_spec(inputs, return_hidden_states=True)
    out = encoder(inputs, return_hidden_states=True)
    assert [x.shape for x in keras.tree.flatten(spec)] == [
        tuple(x.shape) for x in keras.tree.flatten(out)
    ]


def test_saved_and_counted(tmp_path):
    encoder, inputs = make(), make_inputs()
    expected = to_numpy(encoder(inputs)["pooled"])
    encoder.save_to_preset(tmp_path / "preset")
    encoder.save(tmp_path / "encoder.keras")
    for again in (
        Encoder.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "encoder.keras"),
    ):
        assert type(again) is AwdLstm
        assert again.config == encoder.config
        np.testing.assert_array_equal(to_numpy(again(inputs)["pooled"]), expected)
    assert describe(encoder.config).parameters == encoder.count_params()


def test_the_size_of_ulmfit_s_model():
    """fastai's AWD_LSTM(60000, 400, 1152, 3), by hand: PyTorch has two biases for each gate."""
    layers = [
        4 * 1152 * (400 + 1152) + 2 * 4 * 1152,
        4 * 1152 * (1152 + 1152) + 2 * 4 * 1152,
        4 * 400 * (1152 + 400) + 2 * 4 * 400,
    ]
    theirs = 60_000 * 400 + sum(layers)
    assert theirs == 44_273_280
    second_biases = 4 * (1152 + 1152 + 400)
    assert describe("awd-lstm").parameters == theirs - second_biases
    assert family("awd-lstm").state_size == 2 * (1152 + 1152 + 400)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_dropout": 1.0}, r"`weight_dropout` must be .*less than 1. Received: 1.0"),
        ({"temporal_penalty": -1.0}, r"`temporal_penalty` must be .*0 or more. Received: -1.0"),
        ({"pooler_activation": "tanh"}, r"`pooler_activation` must be one of identity. Received"),
        ({"num_heads": 2}, r"AwdLstmConfig does not support `num_heads`. Received: 2"),
        ({"pooling": "mean"}, r"does not support `pooling`. Received: 'mean'"),
    ],
    ids=["rate", "penalty", "pooler", "heads", "pooling"],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        AwdLstmConfig(**{**SIZES, **changes})


def test_inputs_that_do_not_fit_are_refused():
    encoder, inputs = make(), make_inputs()
    with pytest.raises(ValueError, match=r"\(1, batch, 1, 52\), the .*shape \(1, 3, 1, 51\)"):
        encoder({**inputs, "memory": inputs["memory"][..., 1:]})
    with pytest.raises(ValueError, match=r"inputs `token_ids` and optionally .*segment_ids"):
        encoder({**inputs, "segment_ids": inputs["padding_mask"]})


TEXTS = ["the quick brown fox jumps", "the lazy dog sleeps", "a fox sleeps"]


@pytest.fixture(scope="module")
def tokenizer():
    words = dict.fromkeys(" ".join(TEXTS).split())
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])


def language_model(tokenizer, **changes):
    config = AwdLstmConfig(**{**SIZES, "vocabulary_size": tokenizer.vocabulary_size, **changes})
    return kbert.tasks.MemoryLM(Encoder(config), tokenizer, memory_length=4, batch_size=2)


@pytest.fixture(scope="module")
def shards(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("awd_lstm")
    (folder / "texts.txt").write_text("\n\n".join(40 * TEXTS))
    kbert.data.prepare_corpus(str(folder / "texts.txt"), folder / "shards", tokenizer)
    return folder / "shards"


@trains
def test_a_batch_begins_with_the_state_of_the_one_before(tokenizer):
    """The losses of two batches are those of one twice as long; the second state is its last."""
    task = language_model(tokenizer, **STILL, activation_penalty=0.0, temporal_penalty=0.0)
    randomise(task.encoder)
    task.compile(keras.optimizers.SGD(0.0))
    ids = np.random.default_rng(0).integers(5, 10, (2, 9)).astype("int32")
    batches = [
        {
            "token_ids": ids[:, n : n + 4],
            "targets": ids[:, n + 1 : n + 5],
            "weights": np.ones((2, 4), "float32"),
            "begins": np.full(2, int(not n), "int32"),
        }
        for n in (0, 4)
    ]
    losses = [float(task.train_on_batch(x, return_dict=True)["lm_loss"]) for x in batches]
    out = task.encoder({"token_ids": ids[:, :8], "memory": np.zeros((1, 2, 1, 52), "float32")})
    ((output, *_),) = task.softmax.token_outputs(out["sequence"], ids[:, 1:])
    whole = to_numpy(token_losses(output, ids[:, 1:], np.ones((2, 8)), training=False).losses)
    assert losses == pytest.approx([whole[:, :4].mean(), whole[:, 4:].mean()], rel=1e-5)
    assert_close(to_numpy(task.state.value)[0], to_numpy(out["memory"])[0, :, 0], 1e-5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_ulmfit_from_the_language_model_to_the_classifier(tokenizer, shards, tmp_path):
    """Learns the texts, continues from its preset, and is unfrozen as a classifier."""
    task = language_model(tokenizer, hidden_size=16, intermediate_size=24, **STILL)
    settings = {"sequence_length": 8, "decay": "slanted_triangular", "decay_join": "after"}
    settings |= {"bias_correction": True, "beta_1": 0.7, "beta_2": 0.99, "verbose": 0}
    task.fit(shards, steps=150, learning_rate=1e-2, **settings)
    scores = task.predict(TEXTS)
    assert all(score["perplexity"] < 3 for score in scores)
    task.save_to_preset(tmp_path / "general")

    tuned = kbert.tasks.MemoryLM.from_preset(tmp_path / "general")
    assert tuned.predict(TEXTS)[0] == pytest.approx(scores[0], rel=1e-5)
    tuned.fit(shards, steps=20, learning_rate=1e-3, **settings)
    tuned.save_to_preset(tmp_path / "tuned")

    classifier = kbert.TextClassifier.from_preset(
        tmp_path / "tuned", labels=["cat", "fox"], new_head=True
    )
    for name, array in get_arrays(tuned.encoder, "encoder").items():
        np.testing.assert_array_equal(get_arrays(classifier.encoder, "encoder")[name], array)
    labels = ["fox", "cat", "fox"]
    classifier.fit(
        *(8 * TEXTS, 8 * labels),
        epochs=20,
        batch_size=8,
        learning_rate=5e-2,
        decay="slanted_triangular",
        layer_decay=1 / 2.6,
        unfreeze_every=1,
        verbose=0,
    )
    assert [x["label"] for x in classifier.predict(TEXTS)] == labels
    exported = classifier.export(tmp_path / "exported")
    answers = tf.saved_model.load(exported).signatures["classify"](text=tf.constant(TEXTS))
    assert answers["label"].numpy().tolist() == [label.encode() for label in labels]


@trains
@pytest.mark.jax_slow
def test_it_trains_on_a_dataset_and_the_penalties_are_logged(tokenizer, shards):
    task = language_model(tokenizer)
    task.compile(AdamW(1e-2, beta_1=0.7), recompute=True)
    batches = causal_dataset(shards, tokenizer, batch_size=2, sequence_length=8, runs=True)
    history = task.fit(batches.take(3), verbose=0).history
    assert {"lm_loss", "activation_penalty", "temporal_penalty", "perplexity"} <= set(history)


@trains
def test_a_memory_lm_refuses_an_encoder_without_a_memory(tokenizer):
    with pytest.raises(TypeError, match=r"or an AWD-LSTM, made of an AwdLstmConfig. Received: Enc"):
        kbert.tasks.MemoryLM(
            Encoder(family("bert-tiny").replace(vocabulary_size=40)),
            tokenizer,
            memory_length=4,
            batch_size=2,
        )
