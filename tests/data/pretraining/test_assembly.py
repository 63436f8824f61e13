import numpy as np
import pytest
import tensorflow as tf

from kbert.data.pretraining.assembly import (
    assemble,
    carry_state,
    host_share,
    number_examples,
    place_rows,
    row_columns,
    whole_batches,
)

SPECIALS = {"cls_id": 1, "sep_id": 2, "pad_id": 0}


def random_window(rng, window, rows, tokens=50):
    """Tokens that say in which window they lie, and rows of spans of them."""
    plan = np.zeros((rows, 5), np.int32)
    plan[:, [1, 3]] = rng.integers(1, 6, (rows, 2))
    plan[:, [0, 2]] = rng.integers(0, tokens - 6, (rows, 2))
    ids = tf.constant(1000 * (window + 1) + np.arange(tokens), tf.uint16)
    return ids, place_rows(number_examples(tf.constant(plan)), 0, window), False


def run(windows, batch_size, keep_rest=False, skip=0):
    """All rows as (A's and B's tokens, place, position of the batch)."""
    state, found = carry_state(tf.uint16, skip), []
    for window in windows:
        state, out = whole_batches(state, window, batch_size=batch_size, keep_rest=keep_rest)
        tokens, rows, positions = (value.numpy() for value in out)
        assert len(rows) == len(positions)
        assert len(rows) % batch_size == 0
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            a, la, b, lb = row[:4]
            text = tokens[a : a + la].tolist(), tokens[b : b + lb].tolist()
            found.append((text, row[6:], position))
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 8, 50])
def test_rows_keep_their_tokens_whatever_the_batch(batch_size):
    rng = np.random.default_rng(0)
    windows = [random_window(rng, n, rows) for n, rows in enumerate([7, 0, 1, 12, 2, 40, 3])]
    expected = run(windows, 1)
    found = run(windows, batch_size)
    assert len(found) == len(expected) // batch_size * batch_size
    for row, one in zip(found, expected, strict=False):
        assert row[:2] == one[:2]


def test_positions_name_the_row_after_the_batch():
    rng = np.random.default_rng(0)
    windows = [random_window(rng, n, rows) for n, rows in enumerate([3, 4, 1, 9])]
    positions = [row[2] for row in run(windows, 4)][::4]
    # The batches begin at rows (0, 0), (1, 1), (3, 0), (3, 4); 17 rows make four.
    assert positions == [[0, 0, 4], [0, 1, 5], [0, 3, 4], [0, 3, 8]]


def test_skipping_may_spill_over_windows():
    rng = np.random.default_rng(0)
    windows = [random_window(rng, n, rows) for n, rows in enumerate([3, 4, 1, 9])]
    everything = run(windows, 1)
    for skip in range(18):
        assert run(windows, 1, skip=skip) == everything[skip:]


def test_the_rest_is_filled_with_empty_rows_or_left_out():
    rng = np.random.default_rng(0)
    end = tf.zeros([0], tf.uint16), tf.zeros([0, row_columns(1)], tf.int32), True
    windows = [random_window(rng, 0, 10), end]
    assert len(run(windows, 4)) == 8
    kept = run(windows, 4, keep_rest=True)
    assert [row[0] for row in kept[10:]] == [([], [])] * 2
    assert len({tuple(row[2]) for row in kept[8:]}) == 1
    assert len(run([random_window(rng, 0, 8), end], 4, keep_rest=True)) == 8
    assert run([end], 4, keep_rest=True) == []


def test_hosts_shares_make_up_the_batch():
    rows = tf.reshape(tf.range(48), [24, 2])
    shares = [
        host_share(rows, batch_size=12, num_hosts=3, host_index=host).numpy() for host in range(3)
    ]
    batches = [np.concatenate([share[n : n + 4] for share in shares]) for n in (0, 4)]
    assert np.array_equal(np.concatenate(batches), rows)


def test_pair_layout():
    tokens = tf.range(10, 30, dtype=tf.int32)
    rows = tf.constant([[0, 3, 10, 2, 0, 0, 0, 0, 0], [5, 1, 6, 1, 1, 0, 0, 0, 0], [0] * 9])
    out = assemble(tokens, rows, sequence_length=9, **SPECIALS)
    out = {name: value.numpy().astype(int).tolist() for name, value in out.items()}
    assert out["token_ids"] == [
        [1, 10, 11, 12, 2, 20, 21, 2, 0],
        [1, 15, 2, 16, 2, 0, 0, 0, 0],
        [0] * 9,
    ]
    assert out["segment_ids"] == [
        [0, 0, 0, 0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 0, 0, 0, 0],
        [0] * 9,
    ]
    assert out["padding_mask"] == [[1] * 8 + [0], [1] * 5 + [0] * 4, [0] * 9]
    assert out["in_text"] == [
        [0, 1, 1, 1, 0, 1, 1, 0, 0],
        [0, 1, 0, 1, 0, 0, 0, 0, 0],
        [0] * 9,
    ]
    assert out["length"] == [8, 5, 0]


def test_single_segment_layout():
    tokens = tf.range(10, 30, dtype=tf.int32)
    rows = tf.constant([[2, 3, 0, 0, 0, 0, 0, 0, 0], [0, 6, 0, 0, 0, 0, 0, 0, 0]])
    out = assemble(tokens, rows, sequence_length=8, **SPECIALS)
    assert out["token_ids"].numpy().tolist() == [
        [1, 12, 13, 14, 2, 0, 0, 0],
        [1, 10, 11, 12, 13, 14, 15, 2],
    ]
    assert not np.any(out["segment_ids"])
    assert out["length"].numpy().tolist() == [5, 8]
