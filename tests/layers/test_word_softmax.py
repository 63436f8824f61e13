"""The word softmax against NumPy, whole and sampled; the sample against its own probabilities."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

from kbert.layers import LogUniformSampler, WordSoftmax
from tests.harness import (
    assert_close,
    assert_gradients_close,
    compiled,
    dtype_of,
    get_values,
    layer_gradients,
    numeric_gradients,
    randomise,
    run_layer_test,
    to_numpy,
)

V, P = 30, 4
X = np.random.default_rng(0).normal(size=(2, 3, P)).astype("float32")
# The first words are always in the sample, so the first target is an accidental hit.
TARGETS = np.array([0, 1, 17, 29, 5, 0], "int32")
WEIGHTS = {"softmax/kernel": (V, P), "softmax/bias": (V,)}


def built(**settings):
    layer = WordSoftmax(V, P, name="softmax", **settings)
    randomise(layer, sigma=0.7)
    return layer


def seed(number=0):
    return keras.random.SeedGenerator(number)


def logits(weights, x):
    return x @ weights["softmax/kernel"].T + weights["softmax/bias"]


def log_sum_exp(x):
    return np.log(np.exp(x).sum(-1))


def full_losses(weights, x, targets):
    scores = logits(weights, x)
    return log_sum_exp(scores) - scores[np.arange(len(targets)), targets]


def sampled_losses(weights, x, targets, sample, expected_count):
    """Place by place: the target, and of the sample what is not the target."""
    scores = logits(weights, x) - np.log(expected_count)
    losses = []
    for row, target in zip(scores, targets, strict=True):
        candidates = [row[target], *(row[word] for word in sample if word != target)]
        losses.append(log_sum_exp(np.array(candidates)) - row[target])
    return np.array(losses)


def expected_counts(sampler, vocabulary_size=V):
    return np.exp(to_numpy(sampler.log_expected(np.arange(vocabulary_size))))


def test_what_every_layer_must_do():
    run_layer_test(WordSoftmax(V, P, name="softmax"), (X,), WEIGHTS, (2, 3, V))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_logits_in_float32(dtype):
    layer = built(dtype=dtype)
    x = ops.cast(X, layer.compute_dtype)
    expected = logits(get_values(layer), to_numpy(x))
    for found in (layer(x), compiled(layer)(x)):
        assert dtype_of(found) == "float32"
        assert_close(to_numpy(found), expected, 1e-5)


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    "negatives", [8, *(pytest.param(n, marks=pytest.mark.jax_slow) for n in (1, 29))]
)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_the_sampled_loss_is_that_of_numpy(negatives, dtype):
    layer = built(dtype=dtype)
    sampler = LogUniformSampler(V, negatives)
    sample = to_numpy(sampler.draw(seed(7))).astype(int)
    x = ops.cast(X.reshape(-1, P), layer.compute_dtype)
    losses = layer.sampled(x, TARGETS, negatives, seed(7))
    assert dtype_of(losses) == "float32"
    expected = sampled_losses(
        get_values(layer), to_numpy(x), TARGETS, sample, expected_counts(sampler)
    )
    assert_close(to_numpy(losses), expected, 1e-5)


@pytest.mark.jax_slow
def test_a_target_among_the_negatives_does_not_compete_with_itself():
    layer = built()
    layer.bias.assign(np.where(np.arange(V) == 0, 50.0, 0.0))
    assert to_numpy(LogUniformSampler(V, 8).draw(seed()))[0] == 0
    losses = to_numpy(layer.sampled(X[:, 0], np.zeros(2, "int32"), 8, seed()))
    assert_close(losses, np.zeros(2), 1e-6)  # log 2 if it did


@pytest.mark.jax_slow
def test_where_all_negatives_are_hits_loss_and_gradient_are_zero():
    layer = built()
    targets = np.repeat(to_numpy(LogUniformSampler(V, 1).draw(seed(1))), 2).astype("int32")

    def loss():
        return ops.sum(layer.sampled(X[:, 0], targets, 1, seed(1)))

    assert to_numpy(loss()) == 0
    assert not any(gradient.any() for gradient in layer_gradients(layer, loss).values())


def test_gradients():
    layer, x, sampler = built(), X.reshape(-1, P), LogUniformSampler(V, 8)
    sample = to_numpy(sampler.draw(seed(2))).astype(int)

    def reference(weights):
        return sampled_losses(weights, x, TARGETS, sample, expected_counts(sampler)).sum()

    found = layer_gradients(layer, lambda: ops.sum(layer.sampled(x, TARGETS, 8, seed(2))))
    assert_gradients_close(found, numeric_gradients(reference, get_values(layer)))


@pytest.mark.jax_slow
def test_the_sampled_sum_of_exponentials_is_right_on_average():
    layer, x, targets = built(), X.reshape(-1, P), TARGETS % 2
    assert LogUniformSampler(V, 10).certain >= 2  # so the targets are expected once: no correction
    generator = seed(3)
    sums = [np.expm1(to_numpy(layer.sampled(x, targets, 10, generator))) for _ in range(150)]
    expected = np.expm1(full_losses(get_values(layer), x, targets))
    error = np.std(sums, 0) / np.sqrt(150)
    assert (error < 0.1 * expected).all()  # so that the next line claims something
    assert (np.abs(np.mean(sums, 0) - expected) < 4 * error).all()


@pytest.mark.jax_slow
def test_where_the_logits_are_right_the_gradient_is_zero_on_average():
    """What the correction is for: sampling leaves the optimum about where it was."""
    layer = WordSoftmax(V, P, name="softmax")
    probabilities = np.random.default_rng(1).dirichlet(np.ones(V)).astype("float32")
    layer.bias.assign(np.log(probabilities))
    x = np.zeros((V, P), "float32")

    def loss(generator):  # each word is the target as often as it should be
        return ops.sum(
            layer.sampled(x, np.arange(V), 15, generator) * ops.convert_to_tensor(probabilities)
        )

    # Seeds: on JAX a differentiated function does not keep a generator's state.
    gradients = [
        layer_gradients(layer, partial(loss, seed(number)))["softmax/bias"] for number in range(80)
    ]
    assert np.abs(np.mean(gradients, 0)).sum() < 0.15  # without the correction: 0.5


@pytest.mark.jax_slow
def test_the_more_negatives_the_nearer_the_whole_softmax():
    layer, x = built(), X.reshape(-1, P)
    expected = full_losses(get_values(layer), x, TARGETS)
    distances = []
    for negatives in (2, 15, 29):
        generator = seed(5)
        losses = [to_numpy(layer.sampled(x, TARGETS, negatives, generator)) for _ in range(25)]
        distances.append(np.abs(np.mean(losses, 0) - expected).mean())
    assert distances[0] > 2 * distances[1] > 4 * distances[2]


def test_saved_and_loaded(tmp_path):
    models = []
    for number in (0, 1):
        layer = built()
        inputs = keras.Input((P,))
        models.append(keras.Model(inputs, layer(inputs)))
        randomise(layer, seed=number)
    models[0].save_weights(tmp_path / "softmax.weights.h5")
    models[1].load_weights(tmp_path / "softmax.weights.h5")
    assert get_values(models[0]).keys() == get_values(models[1]).keys()
    np.testing.assert_array_equal(to_numpy(models[0](X[0])), to_numpy(models[1](X[0])))


@pytest.mark.jax_slow
@pytest.mark.parametrize(("vocabulary_size", "draws"), [(V, 8), (1000, 120)])
def test_each_word_is_drawn_as_often_as_expected(vocabulary_size, draws):
    sampler, generator, rounds = LogUniformSampler(vocabulary_size, draws), seed(99), 300
    counts = np.zeros(vocabulary_size)
    for _ in range(rounds):
        sample = to_numpy(sampler.draw(generator)).astype(int)
        assert (np.diff(sample) >= 0).all()
        assert sample[-1] < vocabulary_size
        counts += np.bincount(sample, minlength=vocabulary_size)
    expected = expected_counts(sampler, vocabulary_size)
    assert (counts[: sampler.certain] == rounds).all()
    np.testing.assert_array_equal(expected[: sampler.certain], 1)
    drawn = slice(sampler.certain, None)
    assert (np.diff(expected[drawn]) < 0).all()  # falls with the rank
    np.testing.assert_allclose(
        expected[drawn] / expected[-1],
        np.log1p(1 / np.arange(sampler.certain + 1, vocabulary_size + 1))
        / np.log1p(1 / vocabulary_size),
        rtol=1e-4,
    )
    # Chi-square. A word lies in one part of the range or in two, and is drawn in each by itself.
    ends = np.cumsum(expected[drawn])
    second = np.clip(ends - np.floor(ends), 0, expected[drawn])
    first = expected[drawn] - second
    variance = rounds * (first * (1 - first) + second * (1 - second))
    statistic = ((counts[drawn] - rounds * expected[drawn]) ** 2 / variance).sum()
    freedom = vocabulary_size - sampler.certain
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.mark.jax_slow
@pytest.mark.parametrize(("vocabulary_size", "draws"), [(793_471, 8192), (2, 1), (8193, 8192)])
def test_expected_counts_add_up_to_the_draws(vocabulary_size, draws):
    sampler = LogUniformSampler(vocabulary_size, draws)
    expected = expected_counts(sampler, vocabulary_size)
    assert expected.min() > 0
    assert expected.max() <= 1 + 1e-6
    assert expected.sum() == pytest.approx(draws, rel=1e-5)
    sample = to_numpy(sampler.draw(seed())).astype(int)
    assert len(sample) == draws
    assert sample[0] >= 0
    assert sample[-1] < vocabulary_size


def test_samples_differ_from_call_to_call_and_are_the_seeds():
    sampler, generator = LogUniformSampler(1000, 50), seed(8)
    first, second = (to_numpy(sampler.draw(generator)) for _ in range(2))
    assert (first != second).any()
    np.testing.assert_array_equal(to_numpy(sampler.draw(seed(8))), first)


def test_the_sampled_loss_by_xla():
    layer, x, sampler = built(), X.reshape(-1, P), LogUniformSampler(V, 8)
    # TensorFlow draws other numbers from a seed by XLA.
    sample = to_numpy(compiled(lambda: sampler.draw(8))()).astype(int)
    losses = compiled(lambda x: layer.sampled(x, TARGETS, 8, 8))(x)
    expected = sampled_losses(get_values(layer), x, TARGETS, sample, expected_counts(sampler))
    assert_close(to_numpy(losses), expected, 1e-5)


@pytest.mark.parametrize("negatives", [0, V, V + 1])
def test_as_many_negatives_as_words_are_refused(negatives):
    with pytest.raises(
        ValueError, match=f"fewer than the vocabulary of 30.* Received: {negatives}"
    ):
        built().sampled(X[:, 0], np.zeros(2, "int32"), negatives, seed())
