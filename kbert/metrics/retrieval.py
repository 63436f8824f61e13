"""Metrics of rankings: nDCG, reciprocal rank and recall at k.

Shapes: Q queries, K ranked ids.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from kbert.core.in_memory import check_order
from kbert.core.types import Values
from kbert.metrics.checks import array

# The relevant ids of a query, or a mapping id -> grade with grades above 0 for relevant ids.
Relevant: TypeAlias = Collection[Hashable] | Mapping[Hashable, float]


def ndcg(
    relevant: Sequence[Relevant],
    ranked: Sequence[Values] | np.ndarray,
    *,
    k: int = 10,
    scores: Sequence[Values] | np.ndarray | None = None,
) -> float:
    """Returns the normalised discounted cumulative gain, averaged over queries.

    A document at rank r gains grade / log2(r + 1); the sum of the first k is divided by that of
    the best possible ranking. (Järvelin & Kekäläinen, 2002; the gain is the grade itself, as in
    scikit-learn's `ndcg_score` and trec_eval, not 2^grade - 1.)

    Args:
        relevant: relevant ids of each of Q queries, one or more: a set or a list, or a dict
            id -> grade for graded relevance. All other ids are not relevant.
        ranked: ids found for each query, the best first, such as `Hits.ids`.
        k: number of ranks that count; missing ranks of a shorter list gain nothing.
        scores: scores of the `ranked` ids of each query, which may then be in any order;
            None = `ranked` is sorted. Ties are broken in the least favourable order, so that equal
            scores for everything gain nothing.

    Raises:
        ValueError: a query without relevant ids, a duplicate id in a ranking, lists of unequal
            lengths, a grade or score that is not finite, a grade below 0, or a k below 1.

    Example:
        >>> round(ndcg([{"a": 2, "b": 1}], [["b", "x", "a"]]), 4)
        0.7602
    """
    values = []
    for grades, gains in _rows(relevant, ranked, scores, k):
        ideal = np.sort(np.fromiter(grades.values(), np.float64))[::-1][:k]
        values.append(_discounted(gains[:k]) / _discounted(ideal))
    return float(np.mean(values))


def mrr(
    relevant: Sequence[Relevant],
    ranked: Sequence[Values] | np.ndarray,
    *,
    k: int = 10,
    scores: Sequence[Values] | np.ndarray | None = None,
) -> float:
    """Returns the mean reciprocal rank: 1 / rank of the first relevant id, averaged over queries.

    A query without a relevant id among its first k counts as 0.

    Args:
        relevant: relevant ids of each of Q queries, one or more: a set or a list, or a dict
            id -> grade, in which every grade above 0 counts the same.
        ranked: ids found for each query, the best first, such as `Hits.ids`.
        k: number of ranks that count.
        scores: scores of the `ranked` ids of each query, which may then be in any order;
            None = `ranked` is sorted. Ties are broken in the least favourable order.

    Raises:
        ValueError: a query without relevant ids, a duplicate id in a ranking, lists of unequal
            lengths, a grade or score that is not finite, a grade below 0, or a k below 1.

    Example:
        >>> mrr([{"a"}, {"b", "c"}], [["x", "a"], ["c", "b"]])
        0.75
    """
    values = []
    for _, gains in _rows(relevant, ranked, scores, k):
        hits = np.flatnonzero(gains[:k])
        values.append(1 / (1 + hits[0]) if len(hits) else 0.0)
    return float(np.mean(values))


def recall(
    relevant: Sequence[Relevant],
    ranked: Sequence[Values] | np.ndarray,
    *,
    k: int = 10,
    scores: Sequence[Values] | np.ndarray | None = None,
) -> float:
    """Returns the recall at k: the share of relevant ids among the first k, averaged over queries.

    Args:
        relevant: relevant ids of each of Q queries, one or more: a set or a list, or a dict
            id -> grade, in which every grade above 0 counts the same.
        ranked: ids found for each query, the best first, such as `Hits.ids`.
        k: number of ranks that count. A query with more than k relevant ids cannot reach 1.
        scores: scores of the `ranked` ids of each query, which may then be in any order;
            None = `ranked` is sorted. Ties are broken in the least favourable order.

    Raises:
        ValueError: a query without relevant ids, a duplicate id in a ranking, lists of unequal
            lengths, a grade or score that is not finite, a grade below 0, or a k below 1.

    Example:
        >>> recall([{"a"}, {"b", "c"}], [["x", "a"], ["c", "x"]], k=2)
        0.75
    """
    values = [
        np.count_nonzero(gains[:k]) / sum(grade > 0 for grade in grades.values())
        for grades, gains in _rows(relevant, ranked, scores, k)
    ]
    return float(np.mean(values))


def _discounted(gains: np.ndarray) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())


def _rows(
    relevant: Sequence[Relevant],
    ranked: Sequence[Values] | np.ndarray,
    scores: Sequence[Values] | np.ndarray | None,
    k: int,
) -> list[tuple[dict[Hashable, float], np.ndarray]]:
    """Returns for each query a dict id -> grade, and the grades of the ranked ids, best first.

    Ids that are not relevant have grade 0. The arguments are those of `ndcg`, whose errors are
    raised here.
    """
    for name, values in (("relevant", relevant), ("ranked", ranked), ("scores", scores)):
        check_order(values, f"The value of {name}")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k must be a whole number, 1 or more. Received: k={k!r}")
    sizes = {len(x) for x in (relevant, ranked, ranked if scores is None else scores)}
    if len(sizes) > 1 or not len(ranked):
        raise ValueError(
            "Every query must have relevant ids, a ranking, and scores if there are any, and "
            f"there must be at least one query. Received: {len(relevant)}, {len(ranked)} and "
            f"{'no' if scores is None else len(scores)} scores"
        )
    # By position: the index of a pandas Series may be in another order.
    relevant, scores = list(relevant), None if scores is None else list(scores)
    rows = []
    for number, ids in enumerate(ranked):
        grades = _grades(relevant[number], number)
        ids = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if len(set(ids)) < len(ids):
            twice = next(x for index, x in enumerate(ids) if x in ids[:index])
            raise ValueError(
                f"A ranking must not have an id twice. Received: {twice!r} twice for query {number}"
            )
        gains = np.array([grades.get(x, 0.0) for x in ids], np.float64)
        if scores is not None:
            values = array(f"scores of query {number}", scores[number])
            if values.shape != gains.shape:
                raise ValueError(
                    f"Every ranked id must have a score. Received: {len(ids)} ids and scores of "
                    f"shape {values.shape} for query {number}"
                )
            gains = gains[np.lexsort((gains, -values.astype(np.float64)))]
        rows.append((grades, gains))
    return rows


def _grades(relevant: Relevant, number: int) -> dict[Hashable, float]:
    """Returns id -> grade of the documents that are relevant for a query; 1.0 if none are given.

    `number` is that of the query, for messages. Grades that are negative, not finite or all 0 raise
    ValueError.
    """
    if isinstance(relevant, str | bytes) or not isinstance(relevant, Collection):
        raise ValueError(
            "The relevant ids of a query must be a list, a set or a dict. Received: "
            f"{relevant!r:.80} for query {number}"
        )
    is_graded = isinstance(relevant, Mapping)
    ids = relevant.tolist() if isinstance(relevant, np.ndarray) else list(relevant)
    grades = {x: float(relevant[x]) if is_graded else 1.0 for x in ids}  # type: ignore[index]
    if not all(0 <= grade < np.inf for grade in grades.values()) or not any(grades.values()):
        raise ValueError(
            "Every query must have a relevant id of a grade above 0, and grades must be finite "
            f"and at least 0. Received: {relevant!r:.80} for query {number}"
        )
    return grades
