import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from kbert.data.masking.hashing import fold
from kbert.data.masking.units import choose_words, find_units, first_pieces, offered
from tests.data.rows import random_rows, words_of


def google_words(words, offers, count):
    """`create_masked_lm_predictions` with do_whole_word_mask, words in the order offered."""
    chosen, seen = [], set()
    for offer in offers:
        if len(chosen) < count and offer not in seen and len(chosen) + len(words[offer]) <= count:
            chosen += words[offer]
        seen.add(offer)
    return sorted(chosen)


@pytest.mark.parametrize("continuation_share", [0.0, 0.3, 0.9])
def test_words_are_those_of_googles_loop(continuation_share):
    columns = 7
    in_text, begins, count = random_rows(1, 200, 40, continuation_share, columns)
    units, keys = find_units(tf.constant(in_text), begins), fold(7, tf.range(200))
    chosen = choose_words(keys, units, tf.constant(count), columns).numpy()
    offers = (offered(keys, units, columns) - units.first).numpy().T
    for row in range(200):
        words = words_of(in_text[row], begins[row].numpy())
        expected = google_words(words, offers[row].tolist() if words else [], count[row])
        assert chosen[row].tolist() == expected + [0] * (columns - len(expected))


def test_words_are_offered_alike():
    in_text = np.ones((60_000, 10), bool)
    in_text[:, [0, 9]] = False
    begins = in_text.copy()
    begins[:, 3] = False
    units = find_units(tf.constant(in_text), tf.constant(begins))
    offers = (offered(fold(0, tf.range(60_000)), units, 4) - units.first).numpy()
    for offer in (0, 1, 30):
        counts = np.bincount(offers[offer], minlength=7)
        assert np.all(np.abs(counts - 60_000 / 7) < 5 * np.sqrt(60_000 / 7))


def test_words_fill_the_count_but_for_words_that_are_too_long():
    in_text, begins, count = random_rows(2, 3000, 128, 0.25, 19)
    count = np.minimum(count, in_text.sum(axis=1) // 3).astype(np.int32)
    units = find_units(tf.constant(in_text), begins)
    chosen = choose_words(fold(0, tf.range(3000)), units, tf.constant(count), 20).numpy()
    found = (chosen > 0).sum(axis=1)
    assert np.all(found <= count)
    assert np.mean(found == count) > 0.97
    # What is short of the count has no word left that would have fitted.
    for row in np.flatnonzero(found < count):
        words = words_of(in_text[row], begins[row].numpy())
        left = [word for word in words if word[0] not in chosen[row]]
        assert min(map(len, left)) > count[row] - found[row]


@pytest.mark.parametrize("rows", [3, 0])
def test_rows_without_text(rows):
    @tf.function(input_signature=[tf.TensorSpec([None, 16], tf.bool)])
    def choose(in_text):
        count = tf.zeros(tf.shape(in_text)[:1], tf.int32)
        units = find_units(in_text, in_text)
        return choose_words(fold(0, tf.range(tf.size(count))), units, count, 4)

    assert np.array_equal(choose(tf.zeros([rows, 16], tf.bool)), np.zeros((rows, 4)))


def test_first_pieces():
    continuation = np.array([False, False, True])
    ids = tf.constant([[0, 2, 2, 1, 2, 0, 2, 1, 0]])
    in_text = tf.constant([[False, True, True, True, True, False, True, True, False]])
    expected = [False, True, False, True, False, False, True, True, False]
    assert first_pieces(ids, in_text, continuation).numpy().tolist() == [expected]


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2, 0.8]))
def test_units_are_the_words_of_each_row(seed, share):
    in_text, begins, _ = random_rows(seed, 5, 12, share, 1)
    units = find_units(tf.constant(in_text), begins)
    found = [
        (start // 12, list(range(start % 12, start % 12 + size)))
        for start, size in zip(units.start.numpy(), units.size.numpy(), strict=True)
    ]
    expected = [(row, w) for row in range(5) for w in words_of(in_text[row], begins[row].numpy())]
    assert found == expected
    assert units.count.numpy().tolist() == [sum(r == row for r, _ in expected) for row in range(5)]
