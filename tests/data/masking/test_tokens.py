import numpy as np
import pytest
import tensorflow as tf

from kbert.data.masking.hashing import fold
from kbert.data.masking.tokens import choose_independent, choose_tokens, sample_sorted
from kbert.data.masking.units import find_units


def choose(length, length_a, count, columns=20, rows=20_000, choice=choose_tokens):
    """Positions chosen in `rows` rows of one shape: [CLS] A [SEP] B [SEP]."""
    in_text = tf.constant([n not in (0, length_a + 1, length - 1) for n in range(length)])
    units, count = find_units(tf.tile(in_text[None], [rows, 1])), tf.fill([rows], count)
    return choice(fold(0, tf.range(rows)), units, count, columns).numpy()


@pytest.mark.parametrize(
    ("length", "length_a", "count"), [(5, 1, 1), (5, 1, 2), (23, 10, 20), (23, 1, 3), (128, 70, 19)]
)
def test_tokens_are_distinct_ascending_and_never_special(length, length_a, count):
    chosen = choose(length, length_a, count, rows=3000)
    used, unused = chosen[:, :count], chosen[:, count:]
    assert np.all(unused == 0)
    assert np.all(np.diff(used, axis=1) > 0)
    assert used.min() >= 1
    assert used.max() <= length - 2
    assert not np.any(used == length_a + 1)


def test_every_set_of_tokens_is_equally_likely():
    chosen = choose(length=9, length_a=2, count=3, rows=100_000)[:, :3]
    sets, counts = np.unique(chosen, axis=0, return_counts=True)
    assert len(sets) == 20  # 3 of 6
    assert np.all(np.abs(counts - 5000) < 5 * np.sqrt(5000))


def test_neighbours_are_chosen_independently():
    chosen = choose(length=63, length_a=30, count=9, rows=60_000)[:, :9]
    slots = chosen - 1 - (chosen > 31)
    is_chosen = np.zeros((60_000, 60), bool)
    np.put_along_axis(is_chosen, slots, True, axis=1)
    both = np.mean(is_chosen[:, 1:] & is_chosen[:, :-1])
    assert both == pytest.approx(9 * 8 / (60 * 59), rel=0.02)


@pytest.mark.parametrize("choice", [choose_tokens, choose_independent])
def test_a_row_is_drawn_by_its_key_alone(choice):
    keys, column = fold(0, tf.range(50)), tf.range(64)[None]
    in_text = (column > 0) & (column < tf.constant([10, 60] * 25)[:, None]) & (column != 4)
    count = tf.constant([2, 9] * 25)

    def chosen(keys, in_text, count):
        return choice(keys, find_units(in_text), count, 20)

    together = chosen(keys, in_text, count).numpy()
    one = tf.function(chosen, autograph=False)  # traced once: all rows are alike in shape
    alone = [one(*(x[n : n + 1] for x in (keys, in_text, count))) for n in range(50)]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("choice", [choose_tokens, choose_independent])
def test_rows_without_text_choose_nothing(choice):
    units = find_units(tf.zeros([3, 16], tf.bool))
    chosen = choice(fold(0, tf.range(3)), units, tf.zeros([3], tf.int32), 4)
    assert np.array_equal(chosen, np.zeros((3, 4)))


def test_independent_draws_know_nothing_of_each_other():
    chosen = choose(9, length_a=2, count=2, rows=90_000, choice=choose_independent)
    assert not chosen[:, 2:].any()
    pairs, counts = np.unique(chosen[:, :2], axis=0, return_counts=True)
    assert len(pairs) == 36
    assert set(pairs.ravel()) == {1, 2, 4, 5, 6, 7}
    assert np.all(np.abs(counts - 2500) < 5 * np.sqrt(2500))


def test_a_sample_of_no_rows_and_of_no_columns():
    empty = tf.zeros([0], tf.int32)
    sampled, used = sample_sorted(fold(0, empty), empty, empty, columns=3)
    assert (sampled.shape, used.shape) == ((0, 3), (0, 3))
    sampled, used = sample_sorted(fold(0, tf.range(2)), *[tf.zeros([2], tf.int32)] * 2, columns=0)
    assert (sampled.shape, used.shape) == ((2, 0), (2, 0))
