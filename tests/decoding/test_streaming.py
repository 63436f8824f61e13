"""Tokens one by one: those of `decode`."""

import numpy as np
import pytest
from keras import ops

from kbert.decoding import Beam, Greedy, Sampling, decode, stream
from tests.decoding.toy import Toy, in_a_function

SETTINGS = {"max_new_tokens": 7, "stop_ids": [1, 3], "banned_ids": [2]}


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("method", [Greedy(), Sampling(1.5, 4, 0.9)], ids=repr)
def test_a_stream_has_the_tokens_of_decode(method, rows):
    toy = Toy(rows=rows, slots=7, seed=2)
    seed = 9 if isinstance(method, Sampling) else None
    whole = decode(toy.step, *toy.start(), method=method, seed=seed, **SETTINGS)
    found = list(stream(toy.step, *toy.start(), method=method, seed=seed, **SETTINGS))
    assert all(ids.shape == (rows,) and ids.dtype == np.int32 for ids in found)
    longest = int(ops.max(whole.lengths))
    assert len(found) == longest
    np.testing.assert_array_equal(
        np.stack(found, axis=1), ops.convert_to_numpy(whole.token_ids)[:, 0, :longest]
    )


def test_a_compiled_step_is_traced_once():
    toy = Toy(rows=2, slots=7)
    step = in_a_function(toy.step)
    for _ in range(2):
        assert len(list(stream(step, *toy.start(), method=Greedy(), max_new_tokens=5, stop_ids=[])))
    assert toy.calls == 1


def test_nothing_is_computed_before_it_is_asked_for():
    toy = Toy(rows=1)
    tokens = stream(toy.step, *toy.start(), method=Greedy(), max_new_tokens=6, stop_ids=[])
    next(tokens)
    assert toy.calls == 0
    next(tokens)
    assert toy.calls == 1


def test_bad_arguments_raise_at_the_call():
    toy = Toy()
    with pytest.raises(ValueError, match="A Beam cannot be streamed"):
        stream(toy.step, *toy.start(), method=Beam(), **SETTINGS)
    with pytest.raises(ValueError, match="Sampling requires a `seed`"):
        stream(toy.step, *toy.start(), method=Sampling(), **SETTINGS)
    with pytest.raises(ValueError, match="`method` must be a Greedy, Sampling or Beam"):
        stream(toy.step, *toy.start(), method=None, **SETTINGS)
