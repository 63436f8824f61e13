"""Every loss against NumPy in float64, and what must not change it: padding, masks, splits."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.distillation import losses
from tests.distillation import reference
from tests.harness import assert_close

B, N, T, D, H, C = 3, 4, 6, 4, 16, 5
RNG = np.random.default_rng(0)
REAL = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]], "float32")
WEIGHTS = REAL * np.array([[0.5], [2.0], [1.0]], "float32")
TOKENS = [RNG.normal(0, 2, (2, B, T, C)).astype("float32")]  # logits or vectors of tokens
SCORES = [RNG.normal(0, 2, (2, B, N, T, T)).astype("float32")]

# name -> the loss, its reference, student and teacher, weights
CASES = {
    "soft targets": (losses.soft_targets, reference.soft_targets, *TOKENS, WEIGHTS),
    "soft targets, T = 2": (
        lambda *x: losses.soft_targets(*x, temperature=2.0),
        lambda *x: reference.soft_targets(*x, temperature=2.0),
        *(*TOKENS, WEIGHTS),
    ),
    "soft labels": (
        lambda *x: losses.soft_labels(*x, temperature=3.0),
        lambda *x: reference.soft_labels(*x, temperature=3.0),
        *(TOKENS[0][..., 0], WEIGHTS),
    ),
    "mean squares": (losses.mean_squares, reference.mean_squares, *TOKENS, WEIGHTS),
    "cosine": (losses.cosine_distance, reference.cosine_distance, *TOKENS, WEIGHTS),
    "scores": (losses.score_squares, reference.score_squares, *SCORES, REAL),
    "relation": (losses.relation_divergence, reference.relation_divergence, *SCORES, REAL),
    "agreement": (losses.agreement, reference.agreement, *TOKENS, WEIGHTS),
}


def numbers(pair):
    assert all(keras.backend.standardize_dtype(x.dtype) == "float32" for x in pair)
    return np.array([float(x) for x in pair])


@pytest.fixture(params=CASES)
def case(request):
    loss, expected, values, weights = CASES[request.param]
    return loss, expected, values, weights


def test_the_value_is_numpys(case):
    loss, expected, values, weights = case
    found, wanted = numbers(loss(*values, weights)), expected(*values, weights)
    assert wanted[0] > 0.1
    np.testing.assert_allclose(found, wanted, rtol=2e-5)


def test_equal_students_are_no_distance_away(case):
    loss, _, (values, _), weights = case
    total, count = numbers(loss(values, values, weights))
    if loss is losses.agreement:
        assert total == count
    else:
        assert abs(total) <= 1e-6 * count


def test_garbage_where_nothing_counts_changes_nothing(case):
    loss, _, (student, teacher), weights = case
    wanted = numbers(loss(student, teacher, weights))
    garbage = RNG.normal(0, 1e3, student.shape).astype("float32")
    if student.ndim == 4:  # scores
        counts = (REAL[:, None, :, None] * REAL[:, None, None, :]) > 0
    else:
        counts = (weights > 0).reshape(*weights.shape, *[1] * (student.ndim - weights.ndim))
    found = loss(
        np.where(counts, student, garbage), np.where(counts, teacher, 2 * garbage), weights
    )
    np.testing.assert_allclose(numbers(found), wanted, rtol=1e-6)


def test_a_wider_batch_has_the_same_value(case):
    loss, _, values, weights = case
    axes = (2, 3) if values.ndim == 5 else (1,)
    wide = [np.pad(x, [(0, 3 if i in axes else 0) for i in range(x.ndim)], constant_values=7.0)
            for x in values]  # fmt: skip
    found = loss(*wide, np.pad(weights, [(0, 0), (0, 3)]))
    np.testing.assert_allclose(numbers(found), numbers(loss(*values, weights)), rtol=1e-6)


def test_parts_of_a_batch_add_up(case):
    loss, _, (student, teacher), weights = case
    parts = [slice(0, 1), slice(1, 3)]
    found = sum(numbers(loss(student[p], teacher[p], weights[p])) for p in parts)
    np.testing.assert_allclose(found, numbers(loss(student, teacher, weights)), rtol=1e-5)


def test_nothing_that_counts_is_zero_of_zero(case):
    loss, _, values, weights = case
    assert numbers(loss(*values, np.zeros_like(weights))).tolist() == [0.0, 0.0]


def test_bfloat16_is_computed_in_float32(case):
    """Only the inputs are rounded: as the reference of the rounded inputs."""
    loss, expected, values, weights = case
    rounded = [ops.cast(x, "bfloat16") for x in values]
    exact = [np.asarray(ops.convert_to_numpy(ops.cast(x, "float32"))) for x in rounded]
    np.testing.assert_allclose(
        numbers(loss(*rounded, weights)), expected(*exact, weights), rtol=2e-5
    )


def test_soft_targets_are_the_divergence_of_others():
    scipy = pytest.importorskip("scipy.special")
    student, teacher = (x / 2.0 for x in TOKENS[0].astype("float64"))
    p, q = scipy.softmax(teacher, -1), scipy.softmax(student, -1)
    wanted = 4 * (scipy.rel_entr(p, q).sum(-1) * WEIGHTS).sum()
    found = losses.soft_targets(*TOKENS[0], WEIGHTS, temperature=2.0)
    assert float(found[0]) == pytest.approx(wanted, rel=1e-5)


def test_large_logits_stay_finite():
    student, teacher = np.array([[1e4, 0.0]]), np.array([[0.0, 1e4]])
    total, _ = numbers(losses.soft_targets(student, teacher, [1.0]))
    assert total == pytest.approx(1e4)
    absent = np.array([[1.0, 2.0, -1e9]])  # how a choice that is not there is marked
    total, _ = numbers(
        losses.soft_targets(absent + np.array([[1.0, 0.0, 0.0]]), absent, [1.0], 2.0)
    )
    wanted = losses.soft_targets(absent[:, :2] + np.array([[1.0, 0.0]]), absent[:, :2], [1.0], 2.0)
    assert total == pytest.approx(float(wanted[0]), rel=1e-5)


def test_a_high_temperature_is_half_of_the_squares():
    """Of logits of mean 0 (Hinton et al. 2015, equation 4): T² · KL -> mean square / 2."""
    student, teacher = (x - x.mean(-1, keepdims=True) for x in TOKENS[0])
    found, _ = numbers(losses.soft_targets(student, teacher, WEIGHTS, temperature=1e3))
    squares, _ = reference.mean_squares(student, teacher, WEIGHTS)
    assert found == pytest.approx(squares / 2, rel=0.02)


@pytest.mark.parametrize("heads", [None, N, 1, 2, 8, 16])
def test_relation_in_any_number_of_heads(heads):
    vectors = RNG.normal(0, 1, (B, N, T, D)).astype("float32")
    found = ops.convert_to_numpy(losses.relation(vectors, heads))
    merged = vectors.transpose(0, 2, 1, 3).reshape(B, T, N * D).astype("float64")
    count = heads or N
    cut = merged.reshape(B, T, count, N * D // count).transpose(0, 2, 1, 3)
    wanted = cut @ cut.transpose(0, 1, 3, 2) / np.sqrt(N * D / count)
    assert_close(found, wanted, 1e-5)
    rounded = ops.cast(vectors, "bfloat16")
    exact = losses.relation(ops.cast(rounded, "float32"), heads)
    np.testing.assert_array_equal(losses.relation(rounded, heads), exact)
