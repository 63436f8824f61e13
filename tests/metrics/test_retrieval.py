"""nDCG, reciprocal rank and recall: scikit-learn's numbers, definitions by hand, ties."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import ndcg_score

from kbert.metrics import mrr, ndcg, recall

METRICS = (ndcg, mrr, recall)
RNG = np.random.default_rng(0)


def rankings(queries=30, documents=25):
    """Grades 0..3 (Q, N), scores without ties, rankings of ids, id -> grade."""
    grades = RNG.integers(0, 4, (queries, documents))
    grades[:, 0] = 1
    scores = RNG.permuted(np.tile(np.arange(documents), (queries, 1)), axis=1) / 7
    ranked = np.argsort(-scores, 1)
    return grades, scores, ranked, [dict(enumerate(row.tolist())) for row in grades]


@pytest.mark.parametrize("k", [1, 3, 10, 100])
def test_ndcg_is_scikit_learns(k):
    grades, scores, ranked, relevant = rankings()
    wanted = ndcg_score(grades, scores, k=k)
    assert ndcg(relevant, ranked, k=k) == pytest.approx(wanted)
    shuffled = RNG.permuted(np.tile(np.arange(25), (30, 1)), axis=1)
    by_score = np.take_along_axis(scores, shuffled, 1)
    assert ndcg(relevant, shuffled, k=k, scores=by_score) == pytest.approx(wanted)


@pytest.mark.parametrize("k", [1, 3, 10, 100])
def test_by_their_definitions(k):
    grades, _, ranked, relevant = rankings()
    first, found = [], []
    for row, order in zip(grades, ranked, strict=True):
        is_relevant = row[order] > 0
        ranks = [rank for rank in range(1, k + 1) if rank <= 25 and is_relevant[rank - 1]]
        first.append(1 / ranks[0] if ranks else 0)
        found.append(len(ranks) / (row > 0).sum())
    assert mrr(relevant, ranked, k=k) == pytest.approx(np.mean(first))
    assert recall(relevant, ranked, k=k) == pytest.approx(np.mean(found))
    sets = [{x for x, grade in row.items() if grade} for row in relevant]
    assert mrr(sets, ranked, k=k) == mrr(relevant, ranked, k=k)
    assert recall(sets, ranked, k=k) == recall(relevant, ranked, k=k)


def test_numbers_by_hand():
    relevant, ranked = [{"a": 3, "b": 1}], [["x", "b", "y", "a"]]
    ideal = 3 + 1 / np.log2(3)
    assert ndcg(relevant, ranked) == pytest.approx((1 / np.log2(3) + 3 / np.log2(5)) / ideal)
    assert ndcg(relevant, ranked, k=2) == pytest.approx(1 / np.log2(3) / ideal)
    assert ndcg(relevant, ranked, k=1) == mrr(relevant, ranked, k=1) == 0
    assert (mrr(relevant, ranked), recall(relevant, ranked, k=2)) == (0.5, 0.5)
    assert ndcg([["a"]], [["a", "b"]]) == mrr([["a"]], [["a"]]) == recall([["a"]], [["a"]]) == 1
    assert recall([{"a"}], [[]]) == 0  # nothing was found


def test_ids_of_every_kind():
    """NumPy's integers and strings are those of Python."""
    assert mrr([{7}], np.array([[3, 7]])) == 0.5
    assert mrr([np.array([7])], [np.array([3, 7])]) == 0.5
    assert mrr([{"b"}], np.array([["a", "b"]])) == 0.5
    assert mrr([{"b"}], np.array([["a", "b"]], object)) == 0.5


@pytest.mark.parametrize("metric", METRICS)
def test_rows_of_a_frame_are_matched_by_position(metric):
    """A frame that was sorted or filtered has an index in another order, or with gaps."""
    frame = pd.DataFrame(
        {
            "relevant": [{"a"}, {"b"}, {"c"}],
            "ranked": [["a", "x"], ["b", "x"], ["x", "y"]],
            "scores": [[2, 1], [1, 2], [2, 1]],
            "order": [1, 2, 0],
        }
    ).sort_values("order")
    for part in (frame, frame[1:]):
        lists = list(part.relevant), list(part.ranked)
        assert metric(part.relevant, part.ranked, k=1) == metric(*lists, k=1) > 0
        expected = metric(*lists, k=1, scores=list(part.scores))
        assert metric(part.relevant, part.ranked, k=1, scores=part.scores) == expected < 1


@pytest.mark.parametrize("metric", METRICS)
def test_equal_scores_gain_nothing(metric):
    """The right answers come first in the list, as they often do in data."""
    relevant, ranked = [{0, 1}], [[0, 1, 2, 3, 4]]
    assert metric(relevant, ranked, k=3) == 1
    assert metric(relevant, ranked, k=3, scores=[[1, 1, 1, 1, 1]]) == metric(
        relevant, [[2, 3, 4, 0, 1]], k=3
    )
    assert metric(relevant, ranked, k=2, scores=[[2, 1, 1, 0, 0]]) == metric(
        relevant, [[0, 2, 1, 3, 4]], k=2
    )
    grades = [{0: 3, 1: 1}]
    assert metric(grades, ranked, k=5, scores=np.ones((1, 5))) == metric(grades, [[2, 3, 4, 1, 0]])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        (([set()], [[1]]), {}, r"a relevant id.*Received: set\(\) for query 0"),
        (([{1: 0}], [[1]]), {}, r"a relevant id.*Received: \{1: 0\} for query 0"),
        (([{1: -1, 2: 1}], [[1]]), {}, "finite and at least 0"),
        (([{1: float("nan")}], [[1]]), {}, "finite and at least 0"),
        ((["ab"], [["a"]]), {}, "a list, a set or a dict.*Received: 'ab' for query 0"),
        (([1], [["a"]]), {}, "a list, a set or a dict.*Received: 1 for query 0"),
        (([{1}, {1}], [[1]]), {}, "Received: 2, 1 and no scores"),
        (([], []), {}, "at least one query"),
        (([{1}], [[1]]), {"scores": [[1], [2]]}, "Received: 1, 1 and 2 scores"),
        (
            ([{1}], [[1, 2]]),
            {"scores": [[1]]},
            r"Every ranked id must have a score.*\(1,\) for query 0",
        ),
        (([{1}], [[1]]), {"scores": [[np.nan]]}, "scores of query 0 must be finite"),
        (([{1}], [[1, 2, 1]]), {}, "an id twice. Received: 1 twice for query 0"),
        (([{1}], [[1]]), {"k": 0}, "k must be a whole number, 1 or more. Received: k=0"),
        (({frozenset({1})}, [[1]]), {}, "value of relevant must have an order"),
        (([{1}], {(1,)}), {}, "value of ranked must have an order"),
    ],
)
def test_what_is_refused(metric, arguments, options, match):
    with pytest.raises(ValueError, match=match):
        metric(*arguments, **options)
