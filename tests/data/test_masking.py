import numpy as np
import pytest
import tensorflow as tf

from kbert.data.hashing import fold
from kbert.data.masking import (
    apply_masks,
    choose_tokens,
    choose_words,
    first_pieces,
    max_predictions,
    prediction_counts,
)


def choose(length, length_a, count, columns=20, rows=20_000, seed=0):
    """Positions chosen in `rows` rows of one shape: [CLS] A [SEP] B [SEP]."""
    in_text = tf.constant([n not in (0, length_a + 1, length - 1) for n in range(length)])
    in_text, count = tf.tile(in_text[None], [rows, 1]), tf.fill([rows], count)
    return choose_tokens(fold(seed, tf.range(rows)), in_text, count, columns).numpy()


@pytest.mark.parametrize(
    ("length", "share", "expected"),
    [(128, 0.15, 20), (512, 0.15, 80), (64, 0.15, 11), (256, 0.15, 40), (128, 0.25, 33)],
)
def test_max_predictions(length, share, expected):
    assert max_predictions(length, share) == expected


def test_prediction_counts_round_as_python_does():
    counts = prediction_counts(512)
    for length in range(513):
        assert counts[length] == min(80, max(1, int(round(length * 0.15))))
    # 0.15 * 30 is exactly 4.5 and rounds to even; in float32 it is a little more.
    assert counts[30] == 4


@pytest.mark.parametrize(
    ("length", "length_a", "count"), [(5, 1, 1), (5, 1, 2), (23, 10, 20), (23, 1, 3), (128, 70, 19)]
)
def test_tokens_are_distinct_ascending_and_never_special(length, length_a, count):
    chosen = choose(length, length_a, count, rows=3000)
    used, unused = chosen[:, :count], chosen[:, count:]
    assert np.all(unused == 0)
    assert np.all(np.diff(used, axis=1) > 0)
    assert used.min() >= 1 and used.max() <= length - 2
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


def test_a_row_is_drawn_by_its_key_alone():
    keys, column = fold(0, tf.range(50)), tf.range(64)[None]
    in_text = (column > 0) & (column < tf.constant([10, 60] * 25)[:, None]) & (column != 4)
    count = tf.constant([2, 9] * 25)
    together = choose_tokens(keys, in_text, count, 20).numpy()
    alone = [
        choose_tokens(keys[n : n + 1], in_text[n : n + 1], count[n : n + 1], 20) for n in range(50)
    ]
    assert np.array_equal(together, np.concatenate(alone))


def test_rows_without_text_choose_nothing():
    nothing = tf.zeros([3, 16], tf.bool)
    chosen = choose_tokens(fold(0, tf.range(3)), nothing, tf.zeros([3], tf.int32), 4)
    assert np.array_equal(chosen, np.zeros((3, 4)))


def google_words(words, lots, count):
    """`create_masked_lm_predictions` with do_whole_word_mask, words in the order of their lots."""
    chosen = []
    for _, word in sorted(zip(lots, words, strict=True)):
        if len(chosen) >= count:
            break
        if len(chosen) + len(word) > count:
            continue
        chosen += word
    return sorted(chosen)


@pytest.mark.parametrize("continuation_share", [0.0, 0.3, 0.9])
def test_words_are_those_of_googles_loop(continuation_share):
    rng = np.random.default_rng(1)
    rows, width, columns = 200, 40, 7
    lengths = rng.integers(3, width + 1, rows)
    in_text = np.arange(width)[None] < lengths[:, None] - 1
    in_text[:, 0] = False
    in_text[np.arange(rows), rng.integers(1, lengths - 1)] = False  # the [SEP] behind A
    continuation = np.array([False] * 50 + [True] * 50)
    ids = np.where(rng.random((rows, width)) < continuation_share, 60, 10)
    starts = first_pieces(tf.constant(ids), tf.constant(in_text), continuation)
    counts = np.minimum(rng.integers(0, columns + 1, rows), in_text.sum(axis=1)).astype(np.int32)
    keys = fold(7, tf.range(rows))
    chosen = choose_words(keys, starts, tf.constant(in_text), tf.constant(counts), columns).numpy()

    lots = fold(fold(keys, 0)[:, None], tf.range(width)).numpy() >> 32
    for row in range(rows):
        words = []
        for position in np.flatnonzero(in_text[row]):
            goes_on = continuation[ids[row, position]] and in_text[row, position - 1]
            words[-1].append(position) if goes_on else words.append([position])
        expected = google_words(words, lots[row, : len(words)].tolist(), counts[row])
        assert chosen[row].tolist() == expected + [0] * (columns - len(expected))


def test_words_in_empty_rows():
    nothing = tf.zeros([3, 16], tf.bool)
    chosen = choose_words(fold(0, tf.range(3)), nothing, nothing, tf.zeros([3], tf.int32), 4)
    assert np.array_equal(chosen, np.zeros((3, 4)))


def test_first_pieces():
    continuation = np.array([False, False, True])
    ids = tf.constant([[0, 2, 2, 1, 2, 0, 2, 1, 0]])
    in_text = tf.constant([[False, True, True, True, True, False, True, True, False]])
    expected = [False, True, False, True, False, False, True, True, False]
    assert first_pieces(ids, in_text, continuation).numpy().tolist() == [expected]


def test_masks_are_applied_at_the_positions_only():
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 1000, (300, 32)).astype(np.int32)
    positions = np.sort(rng.permuted(np.tile(np.arange(1, 32), (300, 1)), axis=1)[:, :6])
    positions[:, 4:] = 0
    out = apply_masks(
        fold(0, tf.range(300)),
        tf.constant(ids),
        tf.constant(positions, tf.int32),
        vocabulary_size=1000,
        mask_id=4,
    )
    out = {name: value.numpy() for name, value in out.items()}
    weights = np.tile([1, 1, 1, 1, 0, 0], (300, 1))
    assert np.array_equal(out["mask_weights"], weights)
    assert out["mask_weights"].dtype == np.float32
    assert np.array_equal(out["mask_positions"], positions)
    targets = np.take_along_axis(ids, positions, axis=1) * weights
    assert np.array_equal(out["mask_ids"], targets)
    restored = out["token_ids"].copy()
    for row in range(300):
        restored[row, positions[row, :4]] = targets[row, :4]
    assert np.array_equal(restored, ids)
    assert np.mean(out["token_ids"] == 4) == pytest.approx(0.8 * 4 / 32, rel=0.1)
