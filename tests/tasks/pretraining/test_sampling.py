import keras
import numpy as np
import pytest
from keras import ops

from kbert.tasks.pretraining.sampling import row_keys, uniform_numbers
from kbert.tasks.token_losses import draw_tokens

RNG = np.random.default_rng(0)


def keys(rows, start=0):
    """Keys of rows that differ in one token each, all at one position of the data."""
    tokens = np.zeros((rows, 8), "int32")
    tokens[:, 3] = np.arange(start, start + rows)
    return row_keys(tokens, np.tile(np.array([[1, 2, 3]], "int32"), (rows, 1)), seed=5)


def draw(logits, row_keys, positions):
    return ops.convert_to_numpy(draw_tokens(logits, uniform_numbers(row_keys, positions)))


def test_draws_follow_the_softmax():
    rows, size = 20_000, 7
    logits = RNG.normal(size=(1, 1, size)).astype("float32")
    found = draw(np.repeat(logits, rows, 0), keys(rows), np.ones((rows, 1), "int32"))
    expected = np.exp(logits[0, 0]) / np.exp(logits[0, 0]).sum()
    counts = np.bincount(found[:, 0], minlength=size)
    # Chi squared of 6 degrees of freedom: above 22.5 once in a thousand.
    assert (np.square(counts - rows * expected) / (rows * expected)).sum() < 22.5


def test_places_of_a_row_are_drawn_apart():
    rows = 4_000
    found = draw(np.zeros((rows, 2, 2), "float32"), keys(rows), np.tile([[4, 5]], (rows, 1)))
    assert np.corrcoef(found.T)[0, 1] == pytest.approx(0, abs=0.06)
    assert found.mean() == pytest.approx(0.5, abs=0.03)


def test_what_cannot_be_is_never_drawn():
    logits = np.full((500, 1, 5), -np.inf, "float32")
    logits[:, :, [1, 3]] = 0
    assert set(draw(logits, keys(500), np.ones((500, 1), "int32")).ravel()) == {1, 3}


def test_a_draw_depends_on_its_row_alone():
    """So it is the same on any number of devices and in any division of the batch."""
    logits = RNG.normal(size=(6, 4, 50)).astype("float32")
    positions = RNG.integers(1, 20, (6, 4)).astype("int32")
    whole = draw(logits, keys(6), positions)
    parts = [draw(logits[i : i + 2], keys(2, start=i), positions[i : i + 2]) for i in (0, 2, 4)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_a_position_listed_twice_gets_one_token():
    logits = np.repeat(RNG.normal(size=(30, 1, 50)).astype("float32"), 2, axis=1)
    found = draw(logits, keys(30), np.full((30, 2), 9, "int32"))
    np.testing.assert_array_equal(found[:, 0], found[:, 1])


@pytest.mark.parametrize("change", ["position", "seed", "tokens"])
def test_what_makes_a_key(change):
    tokens, position, seed = np.array([[5, 6, 7]]), np.array([[0, 1, 2]], "int32"), 3
    before = ops.convert_to_numpy(row_keys(tokens, position, seed))
    if change == "position":
        position = position + np.array([[0, 0, 1]], "int32")
    tokens = tokens[:, ::-1] if change == "tokens" else tokens
    after = ops.convert_to_numpy(row_keys(tokens, position, seed + (change == "seed")))
    assert before.tolist() != after.tolist()


def test_keys_are_the_same_on_every_backend():
    tokens, position = np.array([[5, 6, 7]]), np.array([[0, 1, 2]], "int32")
    assert int(row_keys(tokens, position, 3)[0]) == 979018433, keras.backend.backend()
