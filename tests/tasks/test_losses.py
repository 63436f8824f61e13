import keras
import numpy as np
import pytest
from keras import ops

from kbert.tasks.losses import accuracy, cross_entropy
from kbert.tasks.token_losses import token_losses

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 4, 7)).astype("float32")
LABELS = RNG.integers(0, 7, (3, 4)).astype("int32")
WEIGHTS = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], "float32")


def test_cross_entropy_is_the_weighted_sum():
    x = LOGITS.astype("float64")
    log_probabilities = x - np.log(np.exp(x).sum(-1, keepdims=True))
    each = -np.take_along_axis(log_probabilities, LABELS[..., None], -1)[..., 0]
    loss, count = cross_entropy(LOGITS, LABELS, WEIGHTS)
    assert float(loss) == pytest.approx((each * WEIGHTS).sum(), rel=1e-6)
    assert float(count) == 3


def test_accuracy_counts_hits():
    hits, count = accuracy(LOGITS, LOGITS.argmax(-1), WEIGHTS)
    assert (float(hits), float(count)) == (3, 3)
    hits, _ = accuracy(LOGITS, (LOGITS.argmax(-1) + 1) % 7, WEIGHTS)
    assert float(hits) == 0


def test_pairs_add_up_over_any_split():
    for function in (cross_entropy, accuracy):
        whole = function(LOGITS, LABELS, WEIGHTS)
        parts = [
            function(LOGITS[i : i + 1], LABELS[i : i + 1], WEIGHTS[i : i + 1]) for i in (0, 1, 2)
        ]
        for k in (0, 1):
            assert float(whole[k]) == pytest.approx(sum(float(p[k]) for p in parts), rel=1e-6)


def test_large_logits_stay_finite():
    logits = np.array([[1e30, -1e30], [1e5, 0.0]], "float32")
    loss, _ = cross_entropy(logits[1:], [1], [1.0])
    assert float(loss) == pytest.approx(1e5)
    assert np.isfinite(float(cross_entropy(logits[:1], [0], [1.0])[0]))


def test_low_precision_logits_are_summed_in_float32():
    # 4096 losses of log 2 each: in bfloat16 the sum would stick at a power of two.
    logits = ops.zeros((4096, 2), dtype="bfloat16")
    loss, count = cross_entropy(logits, np.zeros(4096, "int32"), ops.ones(4096, dtype="bfloat16"))
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss) == pytest.approx(4096 * np.log(2), rel=1e-5)
    assert float(count) == 4096


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_smoothed_cross_entropy_is_that_of_smoothed_labels(smoothing):
    x = LOGITS.astype("float64") * 5
    log_probabilities = x - np.log(np.exp(x).sum(-1, keepdims=True))
    one_hot = np.eye(7)[LABELS]
    labels = (1 - smoothing) * one_hot + smoothing / 7
    found = token_losses(x.astype("float32"), LABELS, WEIGHTS, training=True, smoothing=smoothing)
    pairs = found.smoothed, found.plain()
    for (loss, count), share in zip(pairs, (labels, one_hot), strict=True):
        want = -(share * log_probabilities).sum(-1)
        assert float(loss) == pytest.approx((want * WEIGHTS).sum(), rel=1e-5)
        assert float(count) == 3
