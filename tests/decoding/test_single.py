"""Greedy search, and what greedy search and sampling share: ends, lengths, scores, steps."""

import numpy as np
import pytest
from keras import ops

from kbert.decoding import Greedy, Sampling, decode
from tests.decoding.toy import Toy, texts_of


def greedy_text(toy, row, longest, stop_ids):
    text = []
    while len(text) < longest and not (text and text[-1] in stop_ids):
        text.append(int(np.argmax(toy.log_probabilities(row, text))))
    return tuple(text)


@pytest.mark.parametrize("stop_ids", [(), (4,), (0,), (1, 3)])
@pytest.mark.parametrize("longest", [1, 2, 7])
def test_greedy_takes_the_likeliest_token(stop_ids, longest):
    toy = Toy(rows=8, slots=7, seed=2)
    texts, scores = texts_of(
        decode(toy.step, *toy.start(), method=Greedy(), max_new_tokens=longest, stop_ids=stop_ids)
    )
    expected = [greedy_text(toy, row, longest, stop_ids) for row in range(8)]
    assert texts == [[text] for text in expected]
    values = [toy.log_probability(row, text) for row, text in enumerate(expected)]
    np.testing.assert_allclose(scores[:, 0], values, rtol=0, atol=1e-5)
    if stop_ids and longest == 7:
        assert len({len(text) for text in expected}) > 1  # rows that end at different steps


@pytest.mark.tensorflow  # the steps of an eager loop are counted
def test_a_loop_ends_with_its_last_row():
    toy = Toy(rows=8, slots=30, seed=4)
    texts, _ = texts_of(
        decode(toy.step, *toy.start(), method=Greedy(), max_new_tokens=30, stop_ids=[1, 3])
    )
    longest = max(len(text) for (text,) in texts)
    assert longest < 30
    assert toy.calls == longest - 1


@pytest.mark.tensorflow  # the steps of an eager loop are counted
def test_a_row_that_ended_is_left_alone():
    seen = []

    def step(token_ids, cache, t):
        seen.append(ops.convert_to_numpy(token_ids).tolist())
        return ops.one_hot((token_ids + 1) % 6, 6) * 9.0, cache

    cache = {"prompt": (), "decoded": ()}
    decoded = decode(
        step, ops.one_hot([2, 0], 6) * 9.0, cache, method=Greedy(), max_new_tokens=9, stop_ids=[3]
    )
    assert texts_of(decoded)[0] == [[(2, 3)], [(0, 1, 2, 3)]]
    assert seen == [[2, 0], [3, 1], [0, 2]]


def test_equal_logits_give_the_lowest_id():
    logits = ops.zeros((2, 4))
    decoded = decode(
        lambda token_ids, cache, t: (logits, cache),
        logits,
        {"prompt": (), "decoded": ()},
        method=Greedy(),
        max_new_tokens=3,
        stop_ids=[],
        banned_ids=[0],
    )
    assert texts_of(decoded)[0] == [[(1, 1, 1)]] * 2


@pytest.mark.parametrize("method", [Greedy(), Sampling(temperature=2.0, top_k=4)], ids=repr)
def test_scores_are_the_models_own_log_probabilities(method):
    toy = Toy(rows=6, seed=5)
    texts, scores = texts_of(
        decode(
            toy.step, *toy.start(), method=method, max_new_tokens=6, stop_ids=[2],
            seed=1 if isinstance(method, Sampling) else None,
        )
    )  # fmt: skip
    expected = [toy.log_probability(row, text) for row, (text,) in enumerate(texts)]
    np.testing.assert_allclose(scores[:, 0], expected, rtol=0, atol=1e-5)


def test_half_precision_logits_are_scored_in_float32():
    toy = Toy(rows=2)
    logits, cache = toy.start()

    def step(token_ids, cache, t):
        logits, cache = toy.step(token_ids, cache, t)
        return ops.cast(logits, "bfloat16"), cache

    decoded = decode(
        step,
        ops.cast(logits, "bfloat16"),
        cache,
        method=Greedy(),
        max_new_tokens=4,
        stop_ids=[],
    )
    texts, scores = texts_of(decoded)
    expected = [toy.log_probability(row, text) for row, (text,) in enumerate(texts)]
    np.testing.assert_allclose(scores[:, 0], expected, rtol=0, atol=0.1)


@pytest.mark.tensorflow
def test_keras_hub_finds_the_same_tokens():
    from keras_hub.samplers import GreedySampler

    toy = Toy(rows=4, slots=8, seed=4)
    logits, cache = toy.start()

    def next_token(prompt, cache, index):
        """The sampler asks for the token at `index`, and knows no logits of a prompt."""
        if int(index) == 0:
            return logits, None, cache
        found, cache = toy.step(prompt[:, index - 1], cache, index - 1)
        return found, None, cache

    theirs = GreedySampler()(next_token, ops.zeros((4, 8), "int32"), cache)
    ours = decode(toy.step, logits, cache, method=Greedy(), max_new_tokens=8, stop_ids=[])
    np.testing.assert_array_equal(theirs, ours.token_ids[:, 0])
