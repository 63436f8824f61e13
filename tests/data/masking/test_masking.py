import math

import numpy as np
import pytest
import tensorflow as tf

from kbert.data.masking.hashing import fold
from kbert.data.masking.masking import (
    apply_masks,
    independent_counts,
    num_predictions,
    prediction_counts,
    span_counts,
)
from kbert.data.masking.schemes import MASKING_SCHEMES, independent_columns, max_predictions


@pytest.mark.parametrize(
    ("length", "share", "expected"),
    [(128, 0.15, 20), (512, 0.15, 80), (64, 0.15, 11), (256, 0.15, 40), (128, 0.25, 33)],
)
def test_max_predictions(length, share, expected):
    assert max_predictions(length, share) == expected


def test_prediction_counts_round_as_python_does():
    for share in (0.05, 0.15, 0.3 - 0.15 * 7 / 90, 0.25, 0.3):
        counts = prediction_counts(tf.range(513), share).numpy()
        assert counts.tolist() == [max(1, round(length * share)) for length in range(513)]
    # 0.15 * 30 is exactly 4.5 and rounds to even; in float32 it is a little more.
    assert prediction_counts([30]).numpy().tolist() == [4]


def test_each_row_may_have_a_share_of_its_own():
    shares = tf.constant([0.3, 0.2, 0.15], tf.float64)
    lengths = tf.fill([3], 126)
    for name, scheme in MASKING_SCHEMES.items():
        found = num_predictions(scheme, lengths, lengths, shares, scheme.columns(128, 0.3))
        alone = [
            int(num_predictions(scheme, lengths[:1], lengths[:1], x, scheme.columns(128, x))[0])
            for x in (0.3, 0.2, 0.15)
        ]
        assert found.numpy().tolist() == alone, name


@pytest.mark.parametrize("length", [8, 64, 128, 256, 512, 1000])
@pytest.mark.parametrize("share", [0.01, 0.15, 0.25, 1.0])
def test_no_scheme_counts_more_than_it_has_columns(length, share):
    for scheme in MASKING_SCHEMES.values():
        columns = scheme.columns(length, share)
        lengths = tf.constant([length])
        count = num_predictions(scheme, lengths, lengths - 2, share, columns)
        assert 0 < count <= columns


def test_counts_of_spans_are_rounded_up():
    assert span_counts([0, 1, 6, 7, 510]).numpy().tolist() == [0, 1, 1, 2, 77]


def test_counts_of_independent_draws_are_electras():
    assert [independent_columns(length, 0.15) for length in (128, 512)] == [19, 79]
    counts = independent_counts(tf.range(513)).numpy()
    shares = np.arange(513, dtype=np.float32) * np.float32(0.15)
    assert counts.tolist() == np.maximum(1, np.round(shares)).astype(int).tolist()


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


def masked(groups=None, replacement=(0.8, 0.1), rows=4000):
    ids = np.random.default_rng(0).integers(5, 1_000_000, (rows, 32)).astype(np.int32)
    positions = np.tile(np.array([3, 4, 5, 9, 10, 0], np.int32), (rows, 1))
    out = apply_masks(
        fold(0, tf.range(rows)),
        tf.constant(ids),
        tf.constant(positions),
        vocabulary_size=1_000_000,
        mask_id=4,
        replacement=replacement,
        groups=None if groups is None else tf.constant(groups * rows, tf.int32),
    )
    seen = np.take_along_axis(out["token_ids"].numpy(), positions, 1)[:, :5]
    kept = seen == ids[:, positions[0, :5]]
    return np.where(seen == 4, 0, np.where(kept, 2, 1)), seen  # masked, random, kept


@pytest.mark.parametrize("replacement", [(0.8, 0.1), (0.5, 0.3), (1.0, 0.0), (0.0, 0.0)])
def test_shares_of_replacements(replacement):
    kinds, _ = masked(replacement=replacement)
    for kind, share in enumerate([*replacement, 1 - sum(replacement)]):
        bound = 4.5 * math.sqrt(share * (1 - share) / kinds.size) + 1e-9
        assert abs(np.mean(kinds == kind) - share) <= bound


def test_a_group_is_replaced_alike_and_another_one_on_its_own():
    kinds, seen = masked(groups=[[3, 3, 3, 9, 9, 0]])
    assert np.all(kinds[:, :3] == kinds[:, :1])
    assert np.all(kinds[:, 3] == kinds[:, 4])
    assert np.mean(kinds[:, 0] == kinds[:, 3]) == pytest.approx(0.66, abs=0.05)
    random = seen[kinds[:, 0] == 1]
    assert np.mean(random[:, 0] == random[:, 1]) < 0.01  # other tokens, though


def test_a_position_drawn_twice_is_masked_if_either_draw_says_so():
    ids = tf.fill([20_000, 4], 7)
    out = apply_masks(
        fold(0, tf.range(20_000)),
        ids,
        tf.tile([[2, 2, 1]], [20_000, 1]),
        vocabulary_size=10,
        mask_id=4,
        replacement=(0.85, 0.0),
    )
    share = np.mean(out["token_ids"].numpy() == 4, axis=0)
    assert share == pytest.approx([0, 0.85, 1 - 0.15**2, 0], abs=0.01)
    assert np.all(out["mask_weights"] == 1)
    assert np.all(out["mask_ids"] == 7)
