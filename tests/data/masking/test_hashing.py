import numpy as np
import pytest
import tensorflow as tf

from kbert.data.masking.hashing import below, chance, fold, fold_arrays, heads

WORD = 2**64


def fold_in_python(key: int, number: int) -> int:
    bits = (key + (number + 1) * 0x9E3779B97F4A7C15) % WORD
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % WORD
    return bits ^ (bits >> 31)


def test_fold_is_splitmix64():
    # First outputs of SplitMix64 from state 0, as in the reference program of S. Vigna.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert fold(0, tf.range(4)).numpy().tolist() == expected


def test_fold_of_large_keys_and_numbers():
    for key, number in [(2**63 - 1, 0), (1, 2**40), (12345, 7)]:
        assert int(fold(key, tf.constant(number, tf.int64))) == fold_in_python(key, number)


def test_fold_is_the_same_in_a_graph():
    numbers = tf.range(1000)
    graph = tf.function(lambda n: fold(fold(3, n), 1))
    assert np.array_equal(graph(numbers), fold(fold(3, numbers), 1))


def test_fold_of_arrays_has_the_same_bits():
    numbers = np.array([0, 1, 2**31, 2**40, 2**63 - 1])
    for seed in (0, 7, 2**40):
        bits = fold(fold(seed, 3), numbers).numpy()
        assert fold_arrays(fold_arrays(seed, 3), numbers).tolist() == bits.tolist()


def test_fold_order_of_numbers_matters():
    assert int(fold(fold(0, 1), 2)) != int(fold(fold(0, 2), 1))


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 509, 30_522])
def test_below_stays_below_and_is_uniform(limit):
    draws = below(fold(1, tf.range(200_000)), limit).numpy()
    assert draws.min() >= 0
    assert draws.max() == limit - 1
    cells = min(limit, 10)
    counts = np.bincount(draws * cells // limit, minlength=cells)
    sizes = np.bincount(np.arange(limit) * cells // limit)
    expected = 200_000 * sizes / limit
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))


def test_below_of_the_largest_bits_and_of_no_limit():
    top = tf.constant(WORD - 1, tf.uint64)
    assert int(below(top, 2**31 - 1)) == 2**31 - 2
    assert int(below(top, 0)) == 0


def test_chance_at_its_ends():
    bits = tf.constant([0, WORD - 1], tf.uint64)
    assert chance(bits, 0.0).numpy().tolist() == [False, False]
    assert chance(bits, 1.0).numpy().tolist() == [True, True]


def test_chance_has_the_share_asked_for():
    assert np.mean(chance(fold(5, tf.range(1_000_000)), 0.1)) == pytest.approx(0.1, abs=0.0012)


@pytest.mark.parametrize("coins", [0, 1, 63, 64, 65, 128, 255, 256])
def test_heads_are_the_bits_of_the_draws(coins):
    counts = heads(fold(9, tf.range(2000)), tf.fill([2000], coins)).numpy()
    words = [[fold_in_python(fold_in_python(9, n), w) for w in range(4)] for n in range(2000)]
    bits = ["".join(f"{word:064b}"[::-1] for word in row) for row in words]
    assert counts.tolist() == [row[:coins].count("1") for row in bits]


def test_heads_of_many_coins_stay_in_range():
    counts = heads(fold(9, tf.range(100)), tf.fill([100], 1001)).numpy()
    assert np.all((counts >= 372) & (counts <= 372 + 256))
