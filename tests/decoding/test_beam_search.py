"""Beam search against every text there is, against greedy search and against transformers'."""

import itertools

import numpy as np
import pytest
from keras import ops

from kbert.decoding import Beam, Greedy, decode
from tests.decoding.toy import Toy, texts_of

PENALTIES = (0.0, 0.6, 1.0, 2.0)
STOPS = ((), (3,), (0, 2))
# Each penalty and each number of stop tokens once; `slow` all pairs.
PENALTIES_AND_STOPS = [
    pytest.param(*pair, marks=[] if n in (0, 4, 8, 10) else pytest.mark.slow)
    for n, pair in enumerate(itertools.product(PENALTIES, STOPS))
]


def search(toy, rows=None, longest=4, stop_ids=(3,), **beam):
    return texts_of(
        decode(
            toy.step,
            *toy.start(rows),
            method=Beam(**beam),
            max_new_tokens=longest,
            stop_ids=stop_ids,
        )
    )


@pytest.mark.parametrize(("length_penalty", "stop_ids"), PENALTIES_AND_STOPS)
def test_a_wide_beam_finds_the_best_of_all_texts(length_penalty, stop_ids):
    toy = Toy(rows=3, size=4, slots=4, seed=1)
    everything = [toy.texts(row, 4, stop_ids, length_penalty) for row in range(3)]
    number = len(everything[0])  # the beam is wider than the vocabulary, and than what lives
    texts, scores = search(
        toy, stop_ids=stop_ids, width=number, length_penalty=length_penalty, num_results=number
    )
    for row in range(3):
        expected, ordered = zip(*everything[row], strict=True)
        np.testing.assert_allclose(scores[row], expected, rtol=0, atol=1e-5)
        assert sorted(texts[row]) == sorted(ordered)
        assert texts[row][:5] == list(ordered[:5])


@pytest.mark.parametrize(
    "length_penalty", [0.0, 2.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.6, 1.0))]
)
def test_the_best_few_end_the_search_early_and_stay_the_best(length_penalty):
    """What the bound leaves out could not have come among the results."""
    toy = Toy(rows=6, size=4, slots=5, seed=6, spread=2.5)
    best = [toy.texts(row, 5, (3,), length_penalty)[:2] for row in range(6)]
    width = 4**5
    texts, scores = search(
        toy, longest=5, width=width, length_penalty=length_penalty, num_results=2
    )
    assert texts == [[text for _, text in row] for row in best]
    np.testing.assert_allclose(
        scores, [[score for score, _ in row] for row in best], rtol=0, atol=1e-5
    )


@pytest.mark.tensorflow  # the steps of an eager loop are counted
def test_the_bound_ends_the_search():
    """After "stop" with probability 0.9, nothing that begins with 0.1 can win; it takes no step."""
    table = np.log([[0.05, 0.05, 0.9]]).astype("float32")
    calls = []

    def step(token_ids, cache, t):
        calls.append(int(t))
        return ops.log(ops.ones((token_ids.shape[0], 3)) / 3.0), cache

    def calls_of(logits, **beam):
        calls.clear()
        decode(
            step,
            ops.convert_to_tensor(logits),
            {"prompt": (), "decoded": ()},
            method=Beam(**beam),
            max_new_tokens=20,
            stop_ids=[2],
        )
        return len(calls)

    assert calls_of(table, width=3, length_penalty=0.0) == 0
    assert calls_of(table, width=3, length_penalty=1.0) == 0  # log 0.05 / (25 / 6) < log 0.9
    # A penalty under which a long text could still win; a second result; a row with no end yet.
    assert calls_of(table, width=3, length_penalty=4.0) > 0
    assert calls_of(table, width=3, length_penalty=0.0, num_results=2) > 0
    row = np.log([[0.49, 0.49, 0.02]]).astype("float32")
    assert calls_of(np.concatenate([table, row]), width=3, length_penalty=0.0) > 0


@pytest.mark.parametrize(("length_penalty", "stop_ids"), PENALTIES_AND_STOPS)
def test_a_beam_of_one_is_greedy_search(length_penalty, stop_ids):
    toy = Toy(rows=20, slots=8, seed=9)
    texts, scores = search(
        toy, longest=8, stop_ids=stop_ids, width=1, length_penalty=length_penalty
    )
    greedy, sums = texts_of(
        decode(toy.step, *toy.start(), method=Greedy(), max_new_tokens=8, stop_ids=stop_ids)
    )
    assert texts == greedy
    lengths = np.array([len(text) for (text,) in texts])[:, None]
    np.testing.assert_allclose(scores * ((5 + lengths) / 6) ** length_penalty, sums, atol=1e-5)


@pytest.mark.parametrize("width", [2, 3, 5])
def test_early_ends_do_not_end_the_search(width):
    """Of a sure model every step has an end among the best, but none of them is any good."""
    sure = np.log([0.9, 0.04, 0.03, 0.03]).astype("float32")
    end = np.log([0.04, 0.03, 0.03, 0.9]).astype("float32")

    def step(token_ids, cache, t):
        logits = ops.where(t < 6, sure, end)
        return logits + ops.zeros((token_ids.shape[0], 1)), cache

    decoded = decode(
        step,
        ops.convert_to_tensor(sure[None]),
        {"prompt": (), "decoded": ()},
        method=Beam(width=width),
        max_new_tokens=20,
        stop_ids=[3],
    )
    texts, _ = texts_of(decoded)
    assert texts == [[(0,) * 7 + (3,)]]


@pytest.mark.parametrize("width", [2, 4, 7])
def test_every_result_is_a_text_with_its_own_score(width):
    """A cache that did not follow its beam would give another text's logits."""
    toy = Toy(rows=5, size=6, slots=9, seed=width)
    texts, scores = search(toy, longest=9, stop_ids=(5,), width=width, num_results=width)
    for row in range(5):
        assert len(set(texts[row])) == width
        expected = [
            toy.log_probability(row, text) / ((5 + len(text)) / 6) ** 0.6 for text in texts[row]
        ]
        np.testing.assert_allclose(scores[row], expected, rtol=0, atol=1e-5)
        assert (np.diff(scores[row]) <= 0).all()
        for text in texts[row]:
            assert text[-1] == 5 or len(text) == 9
            assert 5 not in text[:-1]


def test_a_wider_beam_finds_better_texts():
    toy = Toy(rows=30, size=8, slots=8, seed=0)
    means = [
        search(toy, longest=8, stop_ids=(7,), width=width)[1].mean() for width in (1, 2, 4, 16)
    ]
    assert means == sorted(means)
    assert means[-1] > means[0] + 0.01


def test_fewer_texts_than_results():
    toy = Toy(rows=2, size=3, slots=2)
    texts, scores = search(toy, longest=1, stop_ids=(), width=5, num_results=5)
    for row in range(2):
        assert sorted(texts[row][:3]) == [(0,), (1,), (2,)]
        assert texts[row][3:] == [(), ()]
        assert (scores[row][3:] == -np.inf).all()
        assert np.isfinite(scores[row][:3]).all()


def test_all_tokens_may_be_stop_tokens():
    toy = Toy(rows=2, size=3, slots=5)
    texts, _ = search(toy, longest=5, stop_ids=(0, 1, 2), width=3, num_results=3)
    assert [sorted(row) for row in texts] == [[(0,), (1,), (2,)]] * 2


def test_live_beams_count_at_the_end():
    """Two results: the one that ended, and the best that was cut at the limit."""
    logits = ops.convert_to_tensor(np.log([[0.5, 0.2, 0.3]]).astype("float32"))
    texts, scores = texts_of(
        decode(
            lambda token_ids, cache, t: (ops.repeat(logits, 2, axis=0), cache),
            logits,
            {"prompt": (), "decoded": ()},
            method=Beam(width=2, length_penalty=0.0, num_results=2),
            max_new_tokens=2,
            stop_ids=[2],
        )
    )
    assert texts == [[(2,), (0, 0)]]
    np.testing.assert_allclose(scores, np.log([[0.3, 0.25]]), rtol=1e-6)


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_with_the_last_token_live_beams_compete_with_a_full_pool(early_stopping):
    """The second text that ends, 0.5 * 0.35, fills the pool; the live one has 0.5 * 0.6."""
    probabilities = np.array([[0.5, 0.1, 0.4], [0.6, 0.05, 0.35]], "float32")
    first, second = (ops.convert_to_tensor(np.log(row[None])) for row in probabilities)
    beam = Beam(2, 0.0, 2, "length", early_stopping)
    texts, scores = texts_of(
        decode(
            lambda token_ids, cache, t: (ops.repeat(second, 2, axis=0), cache),
            first,
            {"prompt": (), "decoded": ()},
            method=beam,
            max_new_tokens=2,
            stop_ids=[2],
        )
    )
    assert texts == [[(2,), (0, 0)]]
    np.testing.assert_allclose(scores, np.log([[0.4, 0.3]]), rtol=1e-6)


def test_equal_scores_have_an_order():
    """Of equal ones the lower token first, and the earlier beam; the same in every row."""
    logits = ops.zeros((3, 4))
    texts, _ = texts_of(
        decode(
            lambda token_ids, cache, t: (ops.zeros((9, 4)), cache),
            logits,
            {"prompt": (), "decoded": ()},
            method=Beam(width=3, num_results=3),
            max_new_tokens=2,
            stop_ids=[],
        )
    )
    assert texts == [[(0, 0), (0, 1), (0, 2)]] * 3


@pytest.mark.tensorflow  # a step in PyTorch, called by an eager loop
def test_transformers_finds_the_same_texts():
    """Without a length penalty, where the two formulas meet, and so do the ends of the searches."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.6)).eval()
    prompt, width, longest, stop = torch.randint(1, 30, (8, 3)), 5, 12, 7

    def logits_of(ids):
        with torch.no_grad():
            return ops.convert_to_tensor(model(torch.tensor(ids)).logits[:, -1].numpy())

    def step(token_ids, cache, t):
        slots = ops.where(np.arange(longest) == t, token_ids[:, None], cache["decoded"])
        seen = ops.convert_to_numpy(slots)[:, : int(t) + 1]
        ids = np.concatenate([ops.convert_to_numpy(cache["prompt"]), seen], axis=1)
        return logits_of(ids), {"prompt": cache["prompt"], "decoded": slots}

    cache = {
        "prompt": ops.convert_to_tensor(prompt.numpy()),
        "decoded": ops.zeros((8, longest), "int32"),
    }
    texts, scores = texts_of(
        decode(
            step,
            logits_of(prompt.numpy()),
            cache,
            method=Beam(width=width, length_penalty=0.0, num_results=width),
            max_new_tokens=longest,
            stop_ids=[stop],
        )
    )
    theirs = model.generate(
        prompt,
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=longest,
        length_penalty=0.0,
        early_stopping=False,
        eos_token_id=stop,
        pad_token_id=0,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    assert len({len(text) for row in texts for text in row}) > 3
    ids = theirs.sequences[:, 3:].numpy().reshape(8, width, -1)
    for row in range(8):
        for ours, other in zip(texts[row], ids[row], strict=True):
            assert ours == tuple(other[: len(ours)])
    np.testing.assert_allclose(
        scores, theirs.sequences_scores.numpy().reshape(8, width), rtol=0, atol=1e-4
    )
