"""Transformer-XL against its formulas in PyTorch: memory, adaptive vocabulary, gradients, sizes."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kbert
from kbert import family
from kbert.configs import TransformerXlConfig
from kbert.data import causal_dataset
from kbert.layers.adaptive import AdaptiveEmbeddings, AdaptiveSoftmax
from kbert.models import Encoder, describe
from kbert.models.weights import named_weights
from kbert.tasks.token_losses import token_losses
from tests.harness import (
    assert_close,
    assert_gradients_close,
    compiled,
    get_values,
    randomise,
    to_numpy,
)
from tests.models.references import gradients

torch = pytest.importorskip("torch")

B, T, M, LAYERS, WIDTH, HEADS, VOCABULARY = 2, 7, 5, 3, 12, 3, 20
SIZES = {
    **{"vocabulary_size": VOCABULARY, "hidden_size": WIDTH, "num_layers": LAYERS},
    **{"num_heads": HEADS, "intermediate_size": 18, "dropout": 0.0, "attention_dropout": 0.0},
}
KINDS = {
    "one cluster": {},
    "projected": {"embedding_size": 8},
    "adaptive": {"cutoffs": (6, 11), "divisor": 2},
    "clamped": {"clamp_length": 4},
    "same length": {"same_length": True},
}


def make(**changes):
    encoder = Encoder(TransformerXlConfig(**{**SIZES, **changes}))
    randomise(encoder)
    return encoder


def weights_of(encoder):
    return {
        name.removeprefix("encoder/"): torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in get_values(encoder).items()
    }


def shifted(x):
    """`_rel_shift` of mem_transformer.py: of (N, T, S) scores by distance."""
    heads, rows, columns = x.shape
    padded = torch.cat([torch.zeros(heads, rows, 1, dtype=x.dtype), x], 2)
    return padded.view(heads, columns + 1, rows)[:, 1:].reshape(heads, rows, columns)


def reference(config, w, ids, memory):
    """Of one row: the hidden states (L + 1 of them), as mem_transformer.py computes them."""
    bounds = (0, *config.cutoffs, config.vocabulary_size)
    rows = []
    for token in ids:
        n = next(n for n, (a, b) in enumerate(itertools.pairwise(bounds)) if a <= token < b)
        vector = w[f"embeddings/table_{n}"][token - bounds[n]]
        projection = w.get(f"embeddings/projection_{n}")
        rows.append(vector if projection is None else vector @ projection)
    x = torch.stack(rows) * WIDTH**0.5
    length, before, size = len(ids), memory.shape[1], WIDTH // HEADS
    distances = torch.arange(length + before - 1, -1, -1, dtype=torch.float64)
    if config.clamp_length is not None:
        distances = distances.clamp(max=config.clamp_length)
    frequencies = 1 / 10000 ** (torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    angles = distances[:, None] * frequencies
    far = torch.cat([angles.sin(), angles.cos()], -1)
    hidden = torch.triu(torch.ones(length, length + before, dtype=torch.bool), 1 + before)
    if config.same_length:
        hidden |= torch.tril(torch.ones(length, length + before, dtype=torch.bool))
    states = [x]
    for n in range(config.num_layers):
        name = f"layers_{n}/"
        tokens = torch.cat([memory[n], x])
        query, key, value = (tokens @ w[f"{name}attention/qkv/kernel"]).chunk(3, -1)
        query = query[-length:].view(-1, HEADS, size)
        key, value = (part.view(-1, HEADS, size) for part in (key, value))
        relative = (far @ w[f"{name}attention/relative/kernel"]).view(-1, HEADS, size)
        content = torch.einsum("ind,jnd->nij", query + w[f"{name}attention/content_bias"], key)
        by_distance = torch.einsum(
            "ind,jnd->nij", query + w[f"{name}attention/distance_bias"], relative
        )
        scores = (content + shifted(by_distance)) / size**0.5
        probabilities = scores.masked_fill(hidden, -1e30).softmax(-1)
        found = torch.einsum("nij,jnd->ind", probabilities, value).reshape(length, WIDTH)
        x = normed(x + found @ w[f"{name}attention/output/kernel"], w, f"{name}attention_norm")
        inner = x @ w[f"{name}feed_forward/intermediate/kernel"]
        inner = (inner + w[f"{name}feed_forward/intermediate/bias"]).relu()
        outer = inner @ w[f"{name}feed_forward/output/kernel"]
        outer = outer + w[f"{name}feed_forward/output/bias"]
        x = normed(x + outer, w, f"{name}feed_forward_norm")
        states.append(x)
    return states


def normed(x, w, name):
    gamma, beta = w[f"{name}/gamma"], w[f"{name}/beta"]
    return torch.nn.functional.layer_norm(x, (WIDTH,), gamma, beta, 1e-5)


def make_inputs():
    rng = np.random.default_rng(0)
    memory = rng.normal(size=(LAYERS, B, M, WIDTH)).astype("float32")
    return {"token_ids": rng.integers(0, VOCABULARY, (B, T)).astype("int32"), "memory": memory}


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_formulas_of_the_original(kind):
    encoder, inputs = make(**KINDS[kind]), make_inputs()
    out = encoder(inputs, return_hidden_states=True)
    weight = np.random.default_rng(1).normal(size=(B, T, WIDTH)).astype("float32")
    w, total = weights_of(encoder), 0.0
    for row in range(B):
        memory = torch.tensor(inputs["memory"][:, row], dtype=torch.float64)
        states = reference(encoder.config, w, inputs["token_ids"][row], memory)
        for found, expected in zip(out["hidden_states"], states, strict=True):
            assert_close(to_numpy(found)[row], expected.detach().numpy(), 1e-4)
        for layer, state in enumerate(states[:-1]):
            whole = np.concatenate([inputs["memory"][layer, row], state.detach().numpy()])[-M:]
            assert_close(to_numpy(out["memory"])[layer, row], whole, 1e-4)
        total = total + (states[-1] * torch.tensor(weight[row])).sum()
    total.backward()
    theirs = {f"encoder/{name}": x.grad.numpy() for name, x in w.items()}
    ours = gradients(
        lambda: ops.sum(encoder(inputs)["sequence"] * ops.array(weight)),
        named_weights(encoder, "encoder"),
    )
    assert_gradients_close(ours, {name: theirs[by_path(name)] for name in ours})


def by_path(name):
    """The name that a variable has in a layer's paths, from that which is saved."""
    return name.replace("layers/", "layers_")


@pytest.mark.jax_slow
@pytest.mark.parametrize("same_length", [False, True])
def test_without_a_memory_no_token_knows_of_those_behind_it(same_length):
    encoder = make(same_length=same_length)
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (1, T))
    other = ids.copy()
    other[:, -1] = (ids[:, -1] + 1) % VOCABULARY
    found, changed = (to_numpy(encoder(x)["sequence"]) for x in (ids, other))
    np.testing.assert_array_equal(found[:, :-1], changed[:, :-1])
    assert np.abs(found[:, -1] - changed[:, -1]).max() > 1e-2
    (attention, *_) = encoder(ids, return_attention=True)["attention"]
    np.testing.assert_array_equal(to_numpy(attention)[0, 0] > 0, np.tri(T) > 0)


@pytest.mark.jax_slow
def test_two_rows_are_one_long_one():
    """Nothing of what is behind a token reaches it, and all of what its row's memory holds does."""
    encoder = make(**KINDS["adaptive"])
    rng = np.random.default_rng(3)
    ids = rng.integers(0, VOCABULARY, (B, 2 * T)).astype("int32")
    start = np.zeros((LAYERS, B, T, WIDTH), "float32")
    first = encoder({"token_ids": ids[:, :T], "memory": start})
    second = encoder({"token_ids": ids[:, T:], "memory": first["memory"]})
    whole = encoder({"token_ids": ids, "memory": start})
    assert_close(to_numpy(first["sequence"]), to_numpy(whole["sequence"])[:, :T], 1e-5)
    # With a memory of T tokens the second row does not see the zeros before the first.
    changed = encoder({"token_ids": ids[:, T:], "memory": start})
    assert np.abs(to_numpy(changed["sequence"] - second["sequence"])).max() > 1e-3


@pytest.mark.jax_slow
def test_compiled_and_in_bfloat16():
    encoder, inputs = make(**KINDS["adaptive"], num_layers=1), make_inputs()
    inputs["memory"] = inputs["memory"][:1]
    expected = to_numpy(encoder(inputs)["sequence"])
    assert_close(to_numpy(compiled(lambda: encoder(inputs)["sequence"])()), expected, 1e-4)
    half = Encoder(encoder.config, dtype="mixed_bfloat16")
    half.set_weights(encoder.get_weights())
    assert np.abs(to_numpy(half(inputs)["sequence"]).astype("float32") - expected).mean() < 0.06


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(x, marks=() if x in ("adaptive", "same length") else pytest.mark.slow)
        for x in KINDS
    ],
)
def test_saved_and_counted(tmp_path, kind):
    encoder = make(**KINDS[kind])
    assert encoder.count_params() == describe(encoder.config).parameters
    encoder.save_to_preset(tmp_path)
    again = Encoder.from_preset(tmp_path)
    assert again.config == encoder.config
    inputs = make_inputs()
    np.testing.assert_array_equal(
        to_numpy(again(inputs)["sequence"]), to_numpy(encoder(inputs)["sequence"])
    )


def test_the_published_size():
    """The shapes of mem_transformer.py, without those of its softmax that are its own."""
    tables = 20_000 * 1024 + 20_000 * 256 + 160_000 * 64 + 67_735 * 16
    projections = 1024 * (1024 + 256 + 64 + 16)
    attention = (3 + 1 + 1) * 1024**2 + 2 * 1024
    feed_forward = 2 * 1024 * 4096 + 4096 + 1024
    layers = 18 * (attention + feed_forward + 4 * 1024)
    assert describe("transfo-xl-wt103").parameters == tables + projections + layers
    # With the biases and clusters of the softmax 285.2 million; the paper's table 1 says 257.
    assert family("transfo-xl-wt103").cutoffs == (20_000, 40_000, 200_000)


def make_softmax(cutoffs=(6, 11), divisor=2, width=8):
    embeddings = AdaptiveEmbeddings(VOCABULARY, width, 8, cutoffs=cutoffs, divisor=divisor)
    embeddings.build()
    softmax = AdaptiveSoftmax(embeddings)
    for layer in (embeddings, softmax):
        randomise(layer)
    return embeddings, softmax


@pytest.mark.jax_slow
def test_the_softmax_is_pytorch_s():
    embeddings, softmax = make_softmax()
    softmax.projection.assign(np.eye(8))
    softmax.bias.assign(np.zeros(VOCABULARY))
    softmax.cluster_bias.assign(np.zeros(2))
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, VOCABULARY, [6, 11], div_value=2.0)
    values = {name: torch.tensor(to_numpy(x)) for name, x in
              (("head", embeddings.tables[0]), ("cluster", softmax.cluster))}  # fmt: skip
    with torch.no_grad():
        theirs.head.weight.copy_(torch.cat([values["head"], values["cluster"]]))
        for n, tail in enumerate(theirs.tail, 1):
            tail[0].weight.copy_(torch.tensor(to_numpy(embeddings.projections[n])))
            tail[1].weight.copy_(torch.tensor(to_numpy(embeddings.tables[n])))
    x = np.random.default_rng(0).normal(size=(9, 8)).astype("float32")
    targets = np.array([0, 5, 6, 10, 11, 19, 3, 7, 15])
    expected = theirs.log_prob(torch.tensor(x)).detach().numpy()
    assert_close(to_numpy(softmax(x)), expected, 1e-5)
    losses = losses_of(softmax, x, targets)
    assert_close(losses, -expected[np.arange(9), targets], 1e-5)


def losses_of(softmax, x, targets):
    """The cross entropy of each target: that of the first softmax and that of its cluster's."""
    return sum(
        to_numpy(token_losses(output, labels, counts, training=False).losses * counts)
        for output, labels, counts in softmax.token_outputs(x, targets)
    )


@pytest.mark.parametrize(
    ("cutoffs", "divisor", "width"),
    [
        ((), 1, 8),
        ((), 1, 4),
        *(pytest.param(*x, 8, marks=pytest.mark.jax_slow) for x in (((6, 11), 1), ((3,), 4))),
    ],
)
def test_probabilities_sum_to_one_and_losses_are_theirs(cutoffs, divisor, width):
    _, softmax = make_softmax(cutoffs, divisor, width)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    found = to_numpy(softmax(x))
    assert found.shape == (2, 5, VOCABULARY)
    np.testing.assert_allclose(np.exp(found).sum(-1), 1.0, rtol=1e-5)
    for target in range(VOCABULARY):
        losses = losses_of(softmax, x, np.full((2, 5), target))
        assert_close(losses, -found[..., target], 1e-5)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt", 120)


def write_corpus(path, count):
    """A word of the document comes again after three others: who sees two tokens cannot know it."""
    words = (f"w{n}" for n in np.random.default_rng(0).integers(0, 12, count))
    documents = (" ".join(["a", word, "b", "c"] * (10 + n % 3)) for n, word in enumerate(words))
    path.write_text("\n\n".join(documents))
    return path


@pytest.fixture(scope="module")
def tokenizer():
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return kbert.WordPieceTokenizer([*specials, *(f"w{n}" for n in range(12)), "a", "b", "c"])


def batches(corpus, tokenizer, **settings):
    values = {"sequence_length": 6, "batch_size": 4, "runs": True, **settings}
    return causal_dataset(corpus, tokenizer, cache_dir=corpus.parent / "cache", **values)


def make_task(tokenizer, memory_length=6, batch_size=4, **changes):
    keras.utils.set_random_seed(1)
    config = TransformerXlConfig(**{**SIZES, "cutoffs": (9, 14), "divisor": 2, **changes})
    sizes = {"memory_length": memory_length, "batch_size": batch_size}
    return kbert.tasks.MemoryLM(Encoder(config), tokenizer, **sizes)


@pytest.mark.tensorflow
def test_rows_of_text_go_on_in_the_next_batch(corpus, tokenizer):
    read = list(batches(corpus, tokenizer, epochs=1).as_numpy_iterator())
    two = list(batches(corpus, tokenizer, epochs=2).as_numpy_iterator())
    first = [tuple(batch["position"][0]) for batch in two if batch["begins"].all()]
    assert first == [(0, 0, 4), (1, 0, 4)]  # of each window
    assert sum(batch["begins"].any() for batch in two) == len(first)
    runs = []
    for row in range(4):
        ids = np.concatenate([b["targets"][row][b["weights"][row] > 0] for b in read])
        inputs = np.concatenate([b["token_ids"][row][b["weights"][row] > 0] for b in read])
        np.testing.assert_array_equal(inputs[1:], ids[:-1])
        runs.append(ids)
    alone = causal_dataset(
        corpus, tokenizer, sequence_length=6, batch_size=4, epochs=1,
        cache_dir=corpus.parent / "cache",
    )  # fmt: skip
    tokens = [b["targets"][b["weights"] > 0] for b in alone.as_numpy_iterator()]
    assert sorted(np.concatenate(runs)) == sorted(np.concatenate(tokens))
    start = read[2]["position"][0]
    again = next(iter(batches(corpus, tokenizer, start=start).as_numpy_iterator()))
    np.testing.assert_array_equal(again["token_ids"], read[3]["token_ids"])


@pytest.mark.tensorflow
@pytest.mark.parametrize("cutoffs", [(), (6, 11)])
def test_ids_beyond_the_vocabulary_are_errors(cutoffs):
    encoder = make(cutoffs=cutoffs)
    with pytest.raises(ValueError, match=rf"whole numbers from 0 to {VOCABULARY - 1}\. Received: "):
        encoder(np.array([[3, VOCABULARY]], "int32"))


@pytest.mark.jax_slow
def test_vectors_and_projections_are_not_rounded_in_half_precision():
    found = {}
    for dtype in ("float32", "mixed_bfloat16"):
        keras.utils.set_random_seed(1)
        layer = AdaptiveEmbeddings(9, 8, 8, cutoffs=(3,), divisor=2, dtype=dtype)
        layer.build()
        randomise(layer)
        softmax = AdaptiveSoftmax(layer, dtype=dtype)
        randomise(softmax)
        x = np.arange(-8, 8, dtype="float32").reshape(2, 8) / 8  # exact in bfloat16
        found[dtype] = to_numpy(softmax(x))
    assert_close(found["mixed_bfloat16"], found["float32"], 1e-6)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.graphs
def test_it_learns_what_only_a_memory_can_tell(tokenizer, tmp_path):
    corpus = write_corpus(tmp_path / "text.txt", 2400)  # in windows of many batches
    shape, losses = {"sequence_length": 2, "batch_size": 32}, {}
    for length in (6, 1):
        task = make_task(tokenizer, memory_length=length, batch_size=32, num_layers=1)
        task.compile(kbert.training.AdamW(1e-2, bias_correction=True))
        task.fit(batches(corpus, tokenizer, **shape), steps_per_epoch=2500, verbose=0)
        data = batches(corpus, tokenizer, epochs=1, seed=5, **shape).take(200)
        losses[length] = task.evaluate(data, verbose=0, return_dict=True)["lm_loss"]
        if length == 6:
            remembering = task
    # One token in four is one of twelve words: log(12) / 4 = 0.62 where it cannot be known.
    assert losses[6] < 0.4
    assert losses[1] > 0.6
    task, text = remembering, " ".join(["a", "w3", "b", "c"] * 8)
    (score,) = task.predict([text])
    assert score["tokens"] == 32
    assert score["perplexity"] < 1.6
    task.save_to_preset(tmp_path / "preset")
    again = kbert.tasks.Task.from_preset(tmp_path / "preset")
    assert type(again) is kbert.tasks.MemoryLM
    assert again.predict([text, "w1 w2"]) == task.predict([text, "w1 w2"])
    assert again.settings == {"memory_length": 6, "batch_size": 32}


@pytest.mark.tensorflow
@pytest.mark.jax_slow
def test_scores_are_those_of_whole_texts(tokenizer):
    """Read in parts with a memory of all before: the chain rule."""
    task = make_task(tokenizer)
    randomise(task.encoder)
    randomise(task.softmax)
    text = "w1 w2 w3 w4"
    ids = [tokenizer.sep_id, *tokenizer.encode(text).numpy()]
    memory = np.zeros((LAYERS, 1, 6, WIDTH), "float32")
    sequence = task({"token_ids": np.array([ids[:-1]]), "memory": memory})["sequence"]
    logs = to_numpy(task.softmax(sequence))[0]
    expected = sum(logs[n, token] for n, token in enumerate(ids[1:]))
    found, nothing = task.predict([text, ""])
    assert found["log_likelihood"] == pytest.approx(expected, rel=1e-5)
    assert nothing == {"log_likelihood": 0.0, "tokens": 0, "perplexity": 1.0}


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.graphs
def test_an_export_gives_what_predict_gives(tokenizer, tmp_path):

    task = make_task(tokenizer)
    randomise(task.encoder)
    path = task.export(tmp_path)
    texts = ["w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w1 w1 w1", "", "w3"]
    score = tf.saved_model.load(path).signatures["serving_default"]
    found, expected = score(text=tf.constant(texts)), task.predict(texts)
    assert found["tokens"].numpy().tolist() == [answer["tokens"] for answer in expected]
    wanted = [answer["log_likelihood"] for answer in expected]
    np.testing.assert_allclose(found["log_likelihood"], wanted, rtol=1e-5)
    assert score(text=tf.constant([], tf.string))["tokens"].shape == (0,)


@pytest.mark.tensorflow
@pytest.mark.jax_slow
def test_words_need_no_tokens_for_rows():
    tokenizer = kbert.WordTokenizer(["</S>", "<S>", "<UNK>", "the", "sun", "."])
    task = make_task(tokenizer, vocabulary_size=6, cutoffs=(3,))
    (score,) = task.predict(["the red sun ."])
    assert score["tokens"] == 4


@pytest.mark.tensorflow
@pytest.mark.jax_slow
def test_what_cannot_be(corpus, tokenizer):
    with pytest.raises(ValueError, match=r"`cutoffs` must be in ascending order.*\(5, 5\)"):
        make(cutoffs=(5, 5))
    with pytest.raises(ValueError, match=r"less than the vocabulary size.*vocabulary_size=20"):
        make(cutoffs=(20,))
    with pytest.raises(ValueError, match=r"must have at least one column.*12 columns"):
        make(cutoffs=(5, 9), divisor=5)
    with pytest.raises(ValueError, match=r"`cutoffs` must be a tuple of entries.*: 5"):
        make(cutoffs=5)
    with pytest.raises(ValueError, match="does not support `attention`"):
        make(attention="bidirectional")
    encoder = make(cutoffs=(5,))
    with pytest.raises(ValueError, match="requires a vocabulary of one cluster"):
        _ = encoder.token_embedding
    with pytest.raises(TypeError, match="XLNet, made of an XlnetConfig"):
        kbert.tasks.PermutationLM(encoder, tokenizer)
    bert = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=VOCABULARY))
    with pytest.raises(TypeError, match="made of a TransformerXlConfig"):
        kbert.tasks.MemoryLM(bert, tokenizer, memory_length=2, batch_size=2)
    with pytest.raises(ValueError, match="`memory_length` must be an integer of at least 1"):
        kbert.tasks.MemoryLM(encoder, tokenizer, memory_length=0, batch_size=2)
    with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1"):
        kbert.tasks.MemoryLM(encoder, tokenizer, memory_length=2, batch_size=1.5)
    task = make_task(tokenizer)
    task.compile("sgd")
    with pytest.raises(ValueError, match=r"runs=True. Received: position"):
        task.fit(batches(corpus, tokenizer, runs=False), steps_per_epoch=1, verbose=0)
