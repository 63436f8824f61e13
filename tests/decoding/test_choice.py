"""Sampling: the distribution that is drawn from, against its references, and the draws."""

import numpy as np
import pytest
from keras import ops

from kbert.decoding import Sampling, decode
from kbert.decoding.choice import likeliest
from tests.decoding.toy import Toy, texts_of

SIZE = 40
METHODS = (
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(top_k=1),
    Sampling(top_k=5),
    Sampling(top_k=SIZE),
    Sampling(top_p=0.3),
    Sampling(top_p=0.9),
    Sampling(top_p=1.0),
    Sampling(top_p=1e-6),
    Sampling(temperature=1.7, top_k=12, top_p=0.8),
)


def random_logits(rows=6):
    return np.random.default_rng(0).normal(0, 2, (rows, SIZE)).astype("float32")


def uniform(token_ids, cache, t):
    """A step of a model that knows nothing."""
    return ops.zeros((token_ids.shape[0], SIZE)), cache


def distribution(logits, method):
    """(R, V): the probability with which each token is drawn."""
    scores, token_ids = (ops.convert_to_numpy(x) for x in likeliest(logits, method))
    weights = np.exp(scores.astype("float64") - scores.max(-1, keepdims=True))
    found = np.zeros(logits.shape)
    np.put_along_axis(found, np.broadcast_to(token_ids, weights.shape), weights, axis=1)
    return found / found.sum(-1, keepdims=True)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_the_distribution_is_that_of_transformers(method):
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = random_logits()
    scores = TemperatureLogitsWarper(float(method.temperature))(None, torch.tensor(logits))
    if method.top_k is not None:
        scores = TopKLogitsWarper(method.top_k)(None, scores)
    if method.top_p is not None:
        scores = TopPLogitsWarper(method.top_p)(None, scores)
    expected = torch.softmax(scores.double(), -1).numpy()
    found = distribution(ops.convert_to_tensor(logits), method)
    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.tensorflow
def test_the_distribution_is_that_of_keras_hub(monkeypatch):
    """Its sampler gives what it draws from to `random.categorical`.

    Its `top_k` is left out: it takes `top_p` of what the `k` had before they were normalised.
    """
    import keras_hub

    seen = {}

    def categorical(logits, count, **_):
        seen["logits"] = ops.convert_to_numpy(logits)
        return ops.zeros((logits.shape[0], count), "int32")

    method = Sampling(temperature=1.7, top_p=0.8)
    sampler = keras_hub.samplers.TopPSampler(p=0.8, temperature=1.7)
    monkeypatch.setattr("keras.random.categorical", categorical)
    logits = ops.convert_to_tensor(random_logits())
    sampler.get_next_token(sampler.compute_probabilities(logits))
    weights = np.exp(seen["logits"].astype("float64"))
    scores = ops.convert_to_numpy(likeliest(logits, method)[0]).astype("float64")
    ours = np.exp(scores)
    np.testing.assert_allclose(
        ours / ours.sum(-1, keepdims=True), weights / weights.sum(-1, keepdims=True), atol=1e-6
    )


def test_more_than_the_vocabulary_is_all_of_it():
    logits = ops.convert_to_tensor(random_logits())
    np.testing.assert_array_equal(
        distribution(logits, Sampling(top_k=10**6)), distribution(logits, Sampling())
    )


@pytest.mark.parametrize(
    "method",
    [Sampling(), Sampling(temperature=0.7), Sampling(top_k=6), Sampling(1.5, 30, 0.8)],
    ids=repr,
)
def test_draws_follow_the_distribution(method):
    """Chi-square over 20,000 rows of one step, tokens of fewer than five draws together."""
    from scipy import stats

    rows = 20_000
    logits = np.broadcast_to(random_logits(1), (rows, SIZE))
    cache = {"prompt": (), "decoded": ()}
    settings = {"method": method, "max_new_tokens": 1, "stop_ids": []}
    drawn = decode(uniform, ops.convert_to_tensor(logits), cache, seed=11, **settings).token_ids
    counts = np.bincount(ops.convert_to_numpy(drawn).ravel(), minlength=SIZE)
    expected = rows * distribution(ops.convert_to_tensor(logits[:1]), method)[0]
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    rest = [(counts[~common].sum(), expected[~common].sum())] if expected[~common].sum() > 1 else []
    pairs = np.array([*zip(counts[common], expected[common], strict=True), *rest])
    statistic = ((pairs[:, 0] - pairs[:, 1]) ** 2 / pairs[:, 1]).sum()
    assert stats.chi2.sf(statistic, len(pairs) - 1) > 0.01


def test_later_draws_follow_it_too():
    """Of two tokens in a row: the second given the first, by the cache."""
    from scipy import stats

    toy = Toy(rows=1, size=4, slots=2, seed=8)
    logits, cache = toy.start([0] * 20_000)
    settings = {"method": Sampling(), "max_new_tokens": 2, "stop_ids": []}
    drawn = decode(toy.step, logits, cache, seed=3, **settings).token_ids
    pairs = ops.convert_to_numpy(drawn)[:, 0]
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)
    texts = [(i, j) for i in range(4) for j in range(4)]
    expected = 20_000 * np.exp([toy.log_probability(0, text) for text in texts])
    assert expected.min() > 5
    assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), 15) > 0.01


def test_seeds_and_rows_tell_texts_apart():
    toy = Toy(rows=1, slots=6)
    logits, cache = toy.start([0] * 8)
    settings = {"method": Sampling(), "max_new_tokens": 6, "stop_ids": []}

    def draw(seed, **numbers):
        return texts_of(decode(toy.step, logits, cache, seed=seed, **settings, **numbers))[0]

    first = draw(0)
    assert len({text for (text,) in first}) > 4
    assert first == draw(0) == draw(np.int64(0)) == draw(ops.zeros((), "int32")) != draw(1)
    assert draw(0, row_numbers=np.arange(8)) == first
    assert draw(0, row_numbers=[5] * 8) == [first[5]] * 8
