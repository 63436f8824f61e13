"""Constraints against every text there is, and the same wherever the loop runs.

`test_generation_config.py` compares them with transformers.
"""

import re

import numpy as np
import pytest
from keras import ops

from kbert.decoding import Beam, Constraints, Greedy, Sampling, decode
from tests.decoding.toy import Toy, in_a_function, texts_of
from tests.harness import compiled

STOP, SIZE = 3, 4
ALL = Constraints(
    no_repeat_ngram_size=2,
    min_new_tokens=2,
    repetition_penalty=1.3,
    forced_first_id=1,
    forced_last_id=STOP,
    banned_ids=(1,),
    renormalise=True,
)


def settings(method, constraints, **changes):
    seed = {"seed": 7} if isinstance(method, Sampling) else {}
    return {
        "method": method,
        "max_new_tokens": 6,
        "stop_ids": [STOP],
        "constraints": constraints,
        **seed,
        **changes,
    }


def has_repeated_ngram(tokens, n):
    ngrams = list(zip(*(tokens[i:] for i in range(n)), strict=False))
    return len(set(ngrams)) < len(ngrams)


@pytest.mark.parametrize(
    ("constraints", "obeys"),
    [
        (Constraints(no_repeat_ngram_size=1), lambda row, _: not has_repeated_ngram(row, 1)),
        (Constraints(no_repeat_ngram_size=2), lambda row, _: not has_repeated_ngram(row, 2)),
        (Constraints(no_repeat_ngram_size=3), lambda row, _: not has_repeated_ngram(row, 3)),
        (Constraints(no_repeat_ngram_size=9), lambda row, _: True),
        (Constraints(min_new_tokens=3), lambda _, text: STOP not in text[:3]),
        (Constraints(min_new_tokens=5), lambda _, text: STOP not in text),
        (Constraints(banned_ids=(0, 2)), lambda _, text: not {0, 2} & set(text)),
    ],
    ids=["unigrams", "bigrams", "trigrams", "9-grams", "least 3", "least 5", "banned"],
)
def test_a_wide_beam_finds_all_texts_that_obey(constraints, obeys):
    """Best first, with their own scores. One row has a prefix of 2 tokens, the other of 1."""
    longest, prefixes = 5, [[2, 0], [-1, 0]]
    toy = Toy(rows=2, size=SIZE, slots=longest, seed=2)
    width = 3**longest + 3**4  # live beams at most, and texts
    beam = Beam(width, 1.0, width, "length")
    texts, scores = texts_of(
        decode(
            toy.step,
            *toy.start(),
            prefix=prefixes,
            **settings(beam, constraints, max_new_tokens=longest),
        )
    )
    for row, prefix in enumerate(prefixes):
        expected = sorted(
            (
                (toy.log_probability(row, text) / len(text), text)
                for _, text in toy.texts(row, longest, (STOP,), 0.0)
                if obeys([x for x in prefix if x >= 0] + list(text), text)
            ),
            reverse=True,
        )[:width]
        found = [text for text in texts[row] if text]
        assert sorted(found) == sorted(text for _, text in expected)
        assert found[:5] == [text for _, text in expected[:5]]
        np.testing.assert_allclose(
            scores[row][: len(found)], [score for score, _ in expected], rtol=0, atol=1e-5
        )


def chosen_by(toy, row, constraints, longest, prefix):
    """Greedy search in plain Python: the text, and the log-probability of each token."""
    text, values = [], []
    for t in range(longest):
        logits = toy.context[row].astype("float64")
        for distance, token in enumerate(reversed(text)):
            logits = logits + toy.table[distance, token]
        plain = logits - np.log(np.exp(logits).sum())
        scores = logits.copy()
        row_tokens = [*prefix, *text]
        for token in set(row_tokens):
            factor = constraints.repetition_penalty
            scores[token] *= factor if scores[token] < 0 else 1 / factor
        for token in range(toy.size):
            is_banned = token in constraints.banned_ids
            is_early = token == STOP and t < constraints.min_new_tokens
            size = constraints.no_repeat_ngram_size
            if is_banned or is_early or (size and has_repeated_ngram([*row_tokens, token], size)):
                scores[token] = -np.inf
        forced = {0: constraints.forced_first_id, longest - 1: constraints.forced_last_id}.get(t)
        if forced is not None:
            scores = np.where(np.arange(toy.size) == forced, 0.0, -np.inf)
        text.append(int(np.argmax(scores)))
        if constraints.renormalise:
            values.append(scores[text[-1]] - np.log(np.exp(scores).sum()))
        else:
            values.append(0.0 if forced is not None else plain[text[-1]])
        if text[-1] == STOP:
            break
    return tuple(text), sum(values)


@pytest.mark.parametrize(
    "constraints",
    [
        ALL,
        Constraints(repetition_penalty=3.0),
        Constraints(forced_first_id=2, forced_last_id=0),
        Constraints(no_repeat_ngram_size=2, banned_ids=(2,)),
    ],
    ids=["all", "penalty", "forced", "bigrams"],
)
def test_greedy_search_by_hand(constraints):
    toy = Toy(rows=12, size=6, slots=6, seed=4)
    prefixes = np.random.default_rng(0).integers(0, 6, (12, 2))
    texts, scores = texts_of(
        decode(toy.step, *toy.start(), prefix=prefixes, **settings(Greedy(), constraints))
    )
    expected = [chosen_by(toy, row, constraints, 6, prefixes[row]) for row in range(12)]
    assert texts == [[text] for text, _ in expected]
    np.testing.assert_allclose(scores[:, 0], [score for _, score in expected], rtol=0, atol=1e-5)
    plain, _ = texts_of(decode(toy.step, *toy.start(), **settings(Greedy(), Constraints())))
    assert texts != plain


@pytest.mark.parametrize(
    "method",
    [
        Beam(3, 2.0, 2, "length", early_stopping=True),
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in (Greedy(), Sampling(top_k=4), Beam(3, 1.0, 2, "length", early_stopping=False))
        ),
    ],
    ids=repr,
)
def test_eager_graph_and_xla_agree(method):
    toy = Toy(rows=4)
    decoded = toy.start()[1]["decoded"]

    def whole(context, prefix):
        cache = {"prompt": {"context": context}, "decoded": decoded}
        return decode(toy.step, context, cache, prefix=prefix, **settings(method, ALL))

    inputs = ops.convert_to_tensor(toy.context), ops.convert_to_tensor([[0, 2]] * 3 + [[-1, 4]])
    texts, scores = texts_of(whole(*inputs))
    for way in (in_a_function, compiled):
        other_texts, other_scores = texts_of(way(whole)(*inputs))
        assert other_texts == texts
        np.testing.assert_allclose(other_scores, scores, rtol=0, atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("method", [Greedy(), Beam(3, normalisation="length")], ids=repr)
def test_the_number_of_rows_may_be_unknown(method):
    import tensorflow as tf

    toy = Toy(rows=4)
    logits, cache = toy.start()
    inputs = (logits, cache, tf.constant([[0, 2]] * 4))
    signature = tf.nest.map_structure(
        lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype), inputs
    )

    def whole(logits, cache, prefix):
        return decode(toy.step, logits, cache, prefix=prefix, **settings(method, ALL))

    graph = tf.function(whole, input_signature=signature)
    assert texts_of(graph(*inputs))[0] == texts_of(whole(*inputs))[0]


@pytest.mark.tensorflow
def test_unused_constraints_add_nothing_to_the_graph():
    import tensorflow as tf

    toy = Toy(rows=2)

    def operations(constraints):
        graph = tf.function(
            lambda: decode(toy.step, *toy.start(), **settings(Beam(2), constraints))
        ).get_concrete_function()
        return [
            node.op
            for function in graph.graph.as_graph_def().library.function
            for node in function.node_def
        ]

    without = operations(Constraints())
    assert "TensorScatterUpdate" not in without
    with_one = operations(Constraints(no_repeat_ngram_size=2))
    assert "TensorScatterUpdate" in with_one
    assert len(without) < len(with_one)


@pytest.mark.parametrize("method", [Greedy(), Sampling(top_k=2, top_p=0.5)], ids=repr)
def test_the_lowest_id_where_no_token_is_left(method):
    toy = Toy(rows=3, size=4, slots=6)
    constraints = Constraints(no_repeat_ngram_size=1)
    texts, _ = texts_of(
        decode(toy.step, *toy.start(), **settings(method, constraints, stop_ids=()))
    )
    for (text,) in texts:
        assert set(text[:4]) == {0, 1, 2, 3}
        assert len(set(text[4:])) == 1


def test_a_beam_ends_where_no_token_is_left():
    toy = Toy(rows=3, size=4, slots=6)
    constraints = Constraints(no_repeat_ngram_size=1, renormalise=True)
    for early_stopping in (True, False, "never"):
        beam = Beam(2, early_stopping=early_stopping)
        texts, scores = texts_of(
            decode(toy.step, *toy.start(), **settings(beam, constraints, stop_ids=()))
        )
        assert texts == [[()]] * 3
        assert (scores == -np.inf).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"no_repeat_ngram_size": 0}, "`no_repeat_ngram_size` must be an integer of at least 1. "),
        ({"min_new_tokens": -1}, "`min_new_tokens` must be an integer of at least 0. Received: -1"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must be a number that is positive. "),
        ({"forced_first_id": -2}, "`forced_first_id` must be an integer of at least 0. Received: "),
        ({"forced_last_id": 1.5}, "`forced_last_id` must be an integer of at least 0. Received: 1"),
        ({"banned_ids": [2, "a"]}, "`banned_ids` must be an integer of at least 0. Received: 'a'"),
        ({"renormalise": None}, "`renormalise` must be True or False. Received: None"),
    ],
)
def test_what_is_out_of_range_raises(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Constraints(**fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constraints": {"min_new_tokens": 3}}, "`constraints` must be a Constraints of kbert."),
        (
            {"constraints": Constraints(forced_first_id=5)},
            "`forced_first_id` must be integers from",
        ),
        ({"constraints": Constraints(forced_last_id=9)}, "`forced_last_id` must be integers from"),
        ({"constraints": Constraints(banned_ids=(5,))}, "`banned_ids` must be integers from 0 to"),
        (
            {"constraints": Constraints(banned_ids=(1, 2, 3)), "banned_ids": [0, 4]},
            "`banned_ids` must leave at least one token.",
        ),
        (
            {"constraints": Constraints(min_new_tokens=7)},
            "`min_new_tokens` must not exceed `max_new_tokens`. Received: min_new_tokens=7, "
            "max_new_tokens=6",
        ),
        ({"prefix": [1, 2]}, "`prefix` must be integers of the shape (rows, tokens). Received: "),
        ({"prefix": np.zeros((2, 1), "float32")}, "`prefix` must be integers"),
    ],
)
def test_what_does_not_fit_the_model_raises(changes, message):
    toy = Toy(rows=2)
    arguments = {**settings(Greedy(), Constraints()), **changes}
    with pytest.raises(ValueError, match=re.escape(message)):
        decode(toy.step, *toy.start(), **arguments)


def test_constraints_are_values():
    assert Constraints(banned_ids=[2, 3]) == Constraints(banned_ids=(2, 3))
    assert hash(ALL) == hash(Constraints(**vars(ALL)))
    assert Constraints().is_empty
    assert not ALL.is_empty
