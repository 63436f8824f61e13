"""Losses of vectors: against NumPy, and against sentence-transformers' own."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.tasks.embedding.losses import LOSSES, Compared, row_losses

ROWS, NEGATIVES, WIDTH = 6, 2, 8
SETTINGS = {"scale": 20.0, "margin": 0.3}


def compared(seed=0, **changes):
    rng = np.random.default_rng(seed)
    values = {
        "first": rng.normal(size=(ROWS, WIDTH)).astype("float32"),
        "second": rng.normal(size=(ROWS, WIDTH)).astype("float32"),
        "negatives": rng.normal(size=(ROWS, NEGATIVES, WIDTH)).astype("float32"),
        "labels": rng.uniform(size=ROWS).astype("float32"),
        "weights": np.ones(ROWS, "float32"),
        "numbers": (
            np.arange(ROWS, dtype="int32"),
            np.arange(10, 10 + ROWS, dtype="int32"),
            np.arange(20, 20 + ROWS * NEGATIVES, dtype="int32").reshape(ROWS, NEGATIVES),
        ),
    }
    return Compared(**{**values, **changes})


def losses(x, objective, **settings):
    return ops.convert_to_numpy(row_losses(x, objective, **{**SETTINGS, **settings}))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def cross_entropy(scores, right):
    return np.log(np.exp(scores).sum()) - scores[right]


def test_ranking_is_cross_entropy_over_all_texts_of_the_batch():
    x = compared()
    candidates = unit(np.concatenate([x.second, x.negatives.reshape(-1, WIDTH)]))
    scores = 20 * unit(x.first) @ candidates.T
    wanted = [cross_entropy(row, i) for i, row in enumerate(scores)]
    np.testing.assert_allclose(losses(x, "ranking"), wanted, rtol=1e-5)
    back = [cross_entropy(row, i) for i, row in enumerate(scores[:, :ROWS].T)]
    both = (np.array(wanted) + back) / 2
    np.testing.assert_allclose(losses(x, "symmetric_ranking"), both, rtol=1e-5)


def test_a_text_that_is_right_is_no_wrong_one():
    """Rows 0 and 1 have the same second text, row 2's wrong text is row 3's first."""
    x = compared()
    firsts, seconds, wrong = (n.copy() for n in x.numbers)
    seconds[1] = seconds[0]
    wrong[2, 0] = firsts[3]
    same = compared(numbers=(firsts, seconds, wrong))
    candidates = unit(np.concatenate([x.second, x.negatives.reshape(-1, WIDTH)]))
    scores = 20 * unit(x.first) @ candidates.T
    scores[0, 1] = scores[1, 0] = scores[3, ROWS + 2 * NEGATIVES] = -np.inf
    wanted = [cross_entropy(row, i) for i, row in enumerate(scores)]
    np.testing.assert_allclose(losses(same, "ranking"), wanted, rtol=1e-5)


@pytest.mark.parametrize("objective", ["ranking", "symmetric_ranking", "cosent", "angle"])
def test_rows_without_weight_are_compared_with_none(objective):
    whole = compared()
    weights = whole.weights.copy()
    weights[[1, 4]] = 0
    kept = weights > 0
    shorter = {
        name: getattr(whole, name)[kept]
        for name in ("first", "second", "negatives", "labels", "weights")
    }
    less = Compared(**shorter, numbers=tuple(n[kept] for n in whole.numbers))
    found = losses(compared(weights=weights), objective)[kept]
    np.testing.assert_allclose(found, losses(less, objective), rtol=1e-5)


def test_a_row_may_have_fewer_wrong_texts():
    x = compared()
    missing = x.numbers[2].copy()
    missing[3, 1] = -1
    less = compared(numbers=(*x.numbers[:2], missing))
    right = (unit(x.first) * unit(x.second)).sum(-1)
    wrong = (unit(x.first)[:, None] * unit(x.negatives)).sum(-1)
    each = np.maximum(0.3 + wrong - right[:, None], 0)
    wanted = each.mean(1)
    wanted[3] = each[3, 0]
    np.testing.assert_allclose(losses(less, "triplet"), wanted, rtol=1e-5, atol=1e-6)
    candidates = unit(np.concatenate([x.second, x.negatives.reshape(-1, WIDTH)]))
    scores = 20 * unit(x.first) @ candidates.T
    scores[:, ROWS + 3 * NEGATIVES + 1] = -np.inf
    wanted = [cross_entropy(row, i) for i, row in enumerate(scores)]
    np.testing.assert_allclose(losses(less, "ranking"), wanted, rtol=1e-5)


def test_cosent_orders_the_cosines():
    x = compared()
    cosines = 20 * (unit(x.first) * unit(x.second)).sum(-1)
    pairs = [(i, j) for i in range(ROWS) for j in range(ROWS) if x.labels[i] < x.labels[j]]
    wanted = np.log(1 + sum(np.exp(cosines[i] - cosines[j]) for i, j in pairs))
    np.testing.assert_allclose(losses(x, "cosent"), [wanted] * ROWS, rtol=1e-5)


@pytest.mark.parametrize("objective", ["cosent", "angle"])
def test_losses_of_all_rows_together_heed_the_rows_weights(objective):
    x = compared()
    plain = losses(x, objective)
    same = losses(compared(weights=np.full(ROWS, 2, "float32")), objective)
    np.testing.assert_allclose(same, plain, rtol=1e-6)
    weights = np.array([0.1, 5, 0, 1, 2, 0.3], "float32")
    found = losses(compared(weights=weights), objective)
    assert np.ptp(found) == 0
    shares = weights / weights[weights > 0].mean()
    if objective == "cosent":
        scores = 20 * (unit(x.first) * unit(x.second)).sum(-1)
        pairs = [(i, j) for i in range(ROWS) for j in range(ROWS) if x.labels[i] < x.labels[j]]
        terms = [shares[i] * shares[j] * np.exp(scores[i] - scores[j]) for i, j in pairs]
        np.testing.assert_allclose(found, np.log(1 + sum(terms)), rtol=1e-5)
    else:
        assert abs(found[0] - plain[0]) > 0.01


def test_losses_of_first_entries_add_up():
    x = compared()
    found = losses(x, "ranking", widths=(2, 8))
    wanted = losses(x.narrowed(2), "ranking") + losses(x, "ranking")
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert x.narrowed(2).negatives.shape == (ROWS, NEGATIVES, 2)


def test_gradients_of_zeros_are_finite():
    """A text of no tokens that count has the vector 0."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("by a gradient tape")
    import tensorflow as tf

    x = compared()
    for objective in LOSSES:
        first = tf.Variable(np.zeros_like(x.first))
        with tf.GradientTape() as tape:
            labels = x.second if objective == "teacher" else x.labels
            now = compared(first=first, labels=labels)
            total = ops.sum(row_losses(now, objective, **SETTINGS))
        assert np.isfinite(total), objective
        assert np.isfinite(tape.gradient(total, first)).all(), objective


@pytest.mark.slow
def test_against_sentence_transformers():
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("sentence_transformers")
    theirs = package.sentence_transformer.losses
    x = compared()

    class Given(torch.nn.Module):
        """A model whose vectors are given as its features."""

        def forward(self, features):
            return features

        def get_embedding_dimension(self):
            return WIDTH

    def value(loss, *vectors, labels=None):
        features = [{"sentence_embedding": torch.tensor(v)} for v in vectors]
        labels = None if labels is None else torch.tensor(labels)
        return float(loss(features, labels))

    pair = (x.first, x.second)
    all_texts = (*pair, x.negatives[:, 0], x.negatives[:, 1])
    model = Given()
    # The default of their scale is 20 everywhere.
    for objective, wanted in {
        "ranking": value(theirs.MultipleNegativesRankingLoss(model), *all_texts),
        "cosent": value(theirs.CoSENTLoss(model), *pair, labels=x.labels),
        "angle": value(theirs.AnglELoss(model), *pair, labels=x.labels),
        "cosine": value(theirs.CosineSimilarityLoss(model), *pair, labels=x.labels),
    }.items():
        assert losses(x, objective).mean() == pytest.approx(wanted, rel=1e-4), objective
    bare = compared(negatives=None, numbers=x.numbers[:2])
    symmetric = value(theirs.MultipleNegativesSymmetricRankingLoss(model), *pair)
    assert losses(bare, "symmetric_ranking").mean() == pytest.approx(symmetric, rel=1e-4)
    distance = theirs.TripletDistanceMetric.COSINE
    triplet = theirs.TripletLoss(model, distance_metric=distance, triplet_margin=0.3)
    one = compared(negatives=x.negatives[:, :1], numbers=(*x.numbers[:2], x.numbers[2][:, :1]))
    wanted = value(triplet, *pair, x.negatives[:, 0])
    assert losses(one, "triplet").mean() == pytest.approx(wanted, rel=1e-4)
    taught = compared(labels=x.second)
    wanted = value(theirs.MSELoss(model), x.first, labels=x.second)
    assert losses(taught, "teacher").mean() == pytest.approx(wanted, rel=1e-4)
