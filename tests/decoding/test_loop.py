"""`decode` as a whole: what it refuses, and that a loop is the same loop wherever it runs."""

import re

import numpy as np
import pytest
from keras import ops

from kbert.decoding import Beam, Greedy, Sampling, decode
from tests.decoding.toy import Toy, in_a_function, texts_of
from tests.harness import compiled

METHODS = (
    Greedy(),
    Sampling(temperature=1.3),
    Sampling(temperature=0.8, top_k=4, top_p=0.9),
    Beam(width=3, num_results=3),
    Beam(width=9, length_penalty=1.0, num_results=2),
)
ONE_OF_A_KIND = [
    pytest.param(x, marks=pytest.mark.slow) if n in (1, 4) else x for n, x in enumerate(METHODS)
]


def settings(method, **changes):
    """The arguments of a call; only sampling has a seed."""
    seed = {"seed": 7} if isinstance(method, Sampling) else {}
    return {"method": method, "max_new_tokens": 6, "stop_ids": [4], **seed, **changes}


@pytest.mark.parametrize(
    "method",
    [METHODS[3], *(pytest.param(x, marks=pytest.mark.slow) for x in METHODS[:3])],
    ids=repr,
)
def test_eager_graph_and_xla_agree(method):
    toy = Toy(rows=4)

    def whole(context):
        cache = {"prompt": {"context": context}, "decoded": toy.start()[1]["decoded"]}
        return decode(toy.step, context, cache, **settings(method))

    context = ops.convert_to_tensor(toy.context)
    texts, scores = texts_of(whole(context))
    for way in (in_a_function, compiled):
        other_texts, other_scores = texts_of(way(whole)(context))
        assert other_texts == texts
        np.testing.assert_allclose(other_scores, scores, rtol=0, atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("method", ONE_OF_A_KIND, ids=repr)
def test_the_number_of_rows_may_be_unknown(method):
    import tensorflow as tf

    toy = Toy(rows=4)
    logits, cache = toy.start()
    signature = tf.nest.map_structure(
        lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype), (logits, cache)
    )
    whole = tf.function(
        lambda logits, cache: decode(toy.step, logits, cache, **settings(method)),
        input_signature=signature,
    )
    assert (
        texts_of(whole(logits, cache))[0]
        == texts_of(decode(toy.step, logits, cache, **settings(method)))[0]
    )


@pytest.mark.parametrize("method", ONE_OF_A_KIND, ids=repr)
def test_a_row_does_not_depend_on_its_batch(method):
    toy = Toy(rows=5, seed=3)
    texts, scores = texts_of(
        decode(toy.step, *toy.start(), **settings(method, row_numbers=[10, 11, 12, 13, 14]))
    )
    for rows in ([0], [4], [3, 1]):
        numbers = [10 + row for row in rows]
        some, some_scores = texts_of(
            decode(toy.step, *toy.start(rows), **settings(method, row_numbers=numbers))
        )
        assert some == [texts[row] for row in rows]
        np.testing.assert_allclose(some_scores, scores[rows], rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_no_text_has_a_banned_token(method):
    toy = Toy(rows=6, seed=1)
    plain, _ = texts_of(decode(toy.step, *toy.start(), **settings(method)))
    assert any(2 in text or 1 in text for row in plain for text in row)
    texts, scores = texts_of(
        decode(toy.step, *toy.start(), **settings(method, banned_ids=[2, 1, 2]))
    )
    assert not any(2 in text or 1 in text for row in texts for text in row)
    # What is banned keeps its share of the probability.
    power = method.length_penalty if isinstance(method, Beam) else 0.0
    for row, (found, values) in enumerate(zip(texts, scores, strict=True)):
        for text, score in zip(found, values, strict=True):
            expected = toy.log_probability(row, text) / ((5 + len(text)) / 6) ** power
            assert score == pytest.approx(expected, abs=1e-5)


@pytest.mark.tensorflow  # the steps of an eager loop are counted
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_one_token_needs_no_step(method):
    toy = Toy(rows=2)
    texts, _ = texts_of(decode(toy.step, *toy.start(), **settings(method, max_new_tokens=1)))
    assert {len(text) for row in texts for text in row} == {1}
    assert toy.calls == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_new_tokens": 0}, "`max_new_tokens` must be an integer of at least 1. Received: 0"),
        ({"max_new_tokens": 2.5}, "`max_new_tokens` must be an integer"),
        ({"stop_ids": [1, 5]}, "`stop_ids` must be integers from 0 to 4, the vocabulary's ids. "),
        ({"stop_ids": [-1]}, "Received: [-1]"),
        ({"stop_ids": [0.5]}, "Received: [0.5]"),
        ({"banned_ids": [9]}, "`banned_ids` must be integers from 0 to 4"),
        ({"banned_ids": range(5)}, "`banned_ids` must leave at least one token. Received: all 5"),
        ({"method": "greedy"}, "`method` must be a Greedy, Sampling or Beam of kbert.decoding. "),
        ({"method": Sampling()}, "Sampling requires a `seed`, an integer. Received: None"),
        ({"method": Sampling(), "seed": -1}, "`seed` must be an integer from 0 to 4294967295. "),
        ({"method": Sampling(), "seed": np.zeros(2, "int32")}, "`seed` must be one integer."),
        ({"method": Sampling(), "seed": np.zeros((), "float32")}, "`seed` must be one integer."),
        ({"logits": np.zeros((2, 3, 5), "float32")}, "`logits` must have the shape (rows, "),
        ({"cache": {"prompt": ()}}, '`cache` must be a dict of "prompt" and "decoded". Received: '),
        ({"cache": None}, "Received: None"),
    ],
)
def test_bad_arguments_raise(changes, message):
    toy = Toy(rows=2)
    logits, cache = toy.start()
    arguments = {"logits": logits, "cache": cache, **settings(Greedy()), **changes}
    with pytest.raises(ValueError, match=re.escape(message)):
        decode(toy.step, **arguments)
