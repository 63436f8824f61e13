"""Metrics of rankings: nDCG, reciprocal rank and recall among the first k.

Shapes: Q queries, K ranked.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from kbert.core.in_memory import check_order
from kbert.core.types import Values
from kbert.metrics.checks import array

# Of a query: its relevant ids, or id -> grade, above 0 for what is relevant.
Relevant: TypeAlias = Collection[Hashable] | Mapping[Hashable, float]


def ndcg(
    relevant: Sequence[Relevant],
    ranked: Sequence[Values] | np.ndarray,
    *,
    k: int = 10,
    scores: Sequence[Values] | np.ndarray | None = None,
) -> float:
    """Normalised discounted cumulative gain, the mean over queries.

    A document at rank r gains grade / log2(r + 1); the sum of the first k is divided by that of
    the best possible ranking. (Järvelin & Kekäläinen, 2002; the gain is the grade itself, as in
    scikit-learn's `ndcg_score` and trec_eval, not 2^grade - 1.)

    Args:
        relevant: of each of Q queries the ids of what is relevant, one or more: a set or a list, or
            a dict id -> grade, for degrees. All other ids are not relevant.
        ranked: of each query the ids that were found, the best first, such as `Hits.ids`.
        k: so many are read; ranks that a shorter list does not have gain nothing.
        scores: of each query the scores of `ranked`, which may then stand in any order; None = in
            their order. Equal scores count as the least favourable order: who scores everything
            alike gains nothing by it.

    Raises:
        ValueError: a query without anything relevant, an id twice in a ranking, lists of other
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
    """Mean reciprocal rank: of each query 1 / rank of the first that is relevant.

    0 for a query with nothing relevant among its first k.

    Args:
        relevant: as in `ndcg`; grades above 0 are all alike.
        ranked: as in `ndcg`.
        k: so many are read.
        scores: as in `ndcg`.

    Raises:
        ValueError: as `ndcg`.

    Example:
        >>> mrr([{"a"}, {"b", "c"}], [["x", "a"], ["c", "b"]])
        0.75
    """
    values = []
    for _, gains in _rows(relevant, ranked, scores, k):
        places = np.flatnonzero(gains[:k])
        values.append(1 / (1 + places[0]) if len(places) else 0.0)
    return float(np.mean(values))


def recall(
    relevant: Sequence[Relevant],
    ranked: Sequence[Values] | np.ndarray,
    *,
    k: int = 10,
    scores: Sequence[Values] | np.ndarray | None = None,
) -> float:
    """Of what is relevant the share that is among the first k, the mean over queries.

    Args:
        relevant: as in `ndcg`; grades above 0 are all alike.
        ranked: as in `ndcg`.
        k: so many are read. A query with more than k relevant documents cannot reach 1.
        scores: as in `ndcg`.

    Raises:
        ValueError: as `ndcg`.

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
    """Of each query id -> grade, and the grades in the order of the ranking."""
    check_order(relevant, "What is given for relevant")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k must be a whole number, 1 or more. Received: k={k!r}")
    sizes = {len(x) for x in (relevant, ranked, ranked if scores is None else scores)}
    if len(sizes) > 1 or not len(ranked):
        raise ValueError(
            "Each query, one or more, has what is relevant, a ranking, and scores where there are "
            f"some. Received: {len(relevant)}, {len(ranked)} and "
            f"{'no' if scores is None else len(scores)} scores"
        )
    rows = []
    for number, ids in enumerate(ranked):
        grades = _grades(relevant[number], number)
        ids = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if len(set(ids)) < len(ids):
            twice = next(x for place, x in enumerate(ids) if x in ids[:place])
            raise ValueError(
                f"A ranking has each id once. Received: {twice!r} twice for query {number}"
            )
        gains = np.array([grades.get(x, 0.0) for x in ids], np.float64)
        if scores is not None:
            values = array(f"scores of query {number}", scores[number])
            if values.shape != gains.shape:
                raise ValueError(
                    f"Each ranked id has a score. Received: {len(ids)} ids and scores of shape "
                    f"{values.shape} for query {number}"
                )
            gains = gains[np.lexsort((gains, -values.astype(np.float64)))]
        rows.append((grades, gains))
    return rows


def _grades(relevant: Relevant, number: int) -> dict[Hashable, float]:
    if isinstance(relevant, str | bytes) or not isinstance(relevant, Collection):
        raise ValueError(
            "What is relevant is a list, a set or a dict of ids for each query. "
            f"Received: {relevant!r:.80} for query {number}"
        )
    is_graded = isinstance(relevant, Mapping)
    ids = relevant.tolist() if isinstance(relevant, np.ndarray) else list(relevant)
    grades = {x: float(relevant[x]) if is_graded else 1.0 for x in ids}  # type: ignore[index]
    if not all(0 <= grade < np.inf for grade in grades.values()) or not any(grades.values()):
        raise ValueError(
            "Each query has something relevant, and grades are finite numbers from 0. "
            f"Received: {relevant!r:.80} for query {number}"
        )
    return grades
