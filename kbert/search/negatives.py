"""Hard negatives: documents that an index finds for a query but that do not answer it.

Shapes: Q queries, D width, N documents of the index.
"""

import numbers
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kbert.search.exact import QUERIES
from kbert.search.index import Index


class Negatives(NamedTuple):
    """Hard negatives of queries, the hardest first.

    Attributes:
        ids: Q arrays of ids of the index, each with `count` ids or fewer.
        scores: Q arrays of the scores of these ids.
    """

    ids: list[np.ndarray]
    scores: list[np.ndarray]


def mine_negatives(
    queries: Any,
    positives: Sequence[Collection],
    index: Index,
    *,
    count: int = 1,
    query_texts: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    skip_top: int = 0,
    margin: float | None = None,
    relative_margin: float | None = None,
    min_score: float | None = None,
    max_score: float | None = None,
) -> Negatives:
    """Finds the documents closest to each query that are not among its positives.

    The whole index is searched, exactly: if the closest documents are ruled out, the search goes
    further until it has `count` negatives or reaches the end. Duplicates give one negative, and a
    document with the text of the query or of one of its positives gives none. An unmarked right
    answer can still become a negative; `skip_top` and the margins reduce that. (Their effect:
    NV-Retriever, https://arxiv.org/abs/2407.15831, section 4.)

    Args:
        queries: query vectors (Q, D).
        positives: one list for each query: the ids of its right answers in the index, one or more.
        index: index of all documents.
        count: negatives per query.
        query_texts: texts of the Q queries; needed if the index may contain the queries too, as it
            does for pairs of equals.
        texts: texts of the index's N documents in the order of adding; equal texts are duplicates.
            None = the ids are compared, which all differ (they may be the texts themselves).
        skip_top: number of closest documents (without positives) to skip as possible right answers.
        margin: least difference between the lowest score of the query's positives and the score of
            a negative.
        relative_margin: the same as a share: 0.05 allows scores up to 95 % of the lowest
            positive's. If that score is negative, the limit lies below it by that share of its
            absolute value.
        min_score: lowest score of a negative.
        max_score: highest score of a negative.

    Raises:
        ValueError: a query has no positives, the index does not have an id, the lists differ in
            length, or a setting is out of range.

    Example:
        >>> index = Index([[1, 0], [0.95, 0.3], [0.6, 0.8], [0, 1]], ["a", "an", "b", "c"])
        >>> found = mine_negatives([[1, 0]], [["a"]], index, count=2, relative_margin=0.1)
        >>> found.ids[0].tolist(), found.scores[0].round(2).tolist()
        (['b', 'c'], [0.6000000238418579, 0.0])
    """
    queries = np.asarray(queries)
    positives = list(positives)
    _check(queries, positives, index, query_texts, texts, count, skip_top)
    for name, value in (("margin", margin), ("relative_margin", relative_margin)):
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= value < np.inf):
            raise ValueError(f"`{name}` must be a number of at least 0. Received: {value!r}")
    names: Sequence[Hashable] = index.ids.tolist() if texts is None else list(texts)
    rows_of = [index.rows_of(list(ids)) for ids in positives]
    forbidden = [{names[row] for row in rows} for rows in rows_of]
    if query_texts is not None:
        for names_of_query, text in zip(forbidden, query_texts, strict=True):
            names_of_query.add(text)

    highest = np.full(len(queries), np.inf if max_score is None else max_score)
    if margin is not None or relative_margin is not None:
        worst = _worst_scores(queries, rows_of, index)
        highest = np.minimum(highest, worst - (margin or 0.0))
        highest = np.minimum(highest, worst - (relative_margin or 0.0) * np.abs(worst))
    lowest = -np.inf if min_score is None else min_score
    rows, scores = [], []
    for start in range(0, len(queries), QUERIES):
        part = slice(start, start + QUERIES)
        k = skip_top + count + max(map(len, forbidden[part]))
        waiting = dict(enumerate(forbidden[part], start))
        hits_by_query: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        while waiting:
            ranked = index.search_rows(queries[list(waiting)], k)
            for query, *hits in zip(list(waiting), *ranked, strict=True):
                positions = _first_of_each(hits[0], names, waiting[query])[skip_top:]
                its_scores = hits[1][positions]
                good = (its_scores <= highest[query]) & (its_scores >= lowest)
                positions = positions[good][:count]
                is_exhausted = len(hits[0]) == len(index) or hits[1][-1] < lowest
                if len(positions) == count or is_exhausted:
                    hits_by_query[query] = hits[0][positions], hits[1][positions]
                    del waiting[query]
            k *= 4
        for query in sorted(hits_by_query):
            rows.append(hits_by_query[query][0])
            scores.append(hits_by_query[query][1])
    ids = index.ids
    return Negatives([ids[x] for x in rows], scores)


def _worst_scores(queries: np.ndarray, rows_of: Sequence[np.ndarray], index: Index) -> np.ndarray:
    """Returns the lowest score of each query's positives, (Q,).

    Args:
        queries: query vectors (Q, D).
        rows_of: rows of each query's positives in the index, one or more.
        index: index of all documents.
    """
    worst = []
    most = max(map(len, rows_of), default=0)
    for start in range(0, len(queries), QUERIES):
        part = slice(start, start + QUERIES)
        # Queries with fewer positives are padded with their first.
        rows = [np.pad(x, (0, most - len(x)), constant_values=x[0]) for x in rows_of[part]]
        worst.append(index.scores(queries[part], np.array(rows)).min(1))
    return np.concatenate([np.zeros(0), *worst])


def _first_of_each(
    rows: np.ndarray, names: Sequence[Hashable], forbidden: Collection[Hashable]
) -> np.ndarray:
    """Returns the positions of allowed documents in a ranking, each name once.

    Args:
        rows: rows of the documents in the index, the best first.
        names: name (text or id) of each row; equal names are duplicates.
        forbidden: names that are left out.
    """
    seen_names, positions = set(forbidden), []
    for position, row in enumerate(rows.tolist()):
        if names[row] not in seen_names:
            seen_names.add(names[row])
            positions.append(position)
    return np.array(positions, np.int64)


def _check(
    queries: np.ndarray,
    positives: Sequence[Any],
    index: Index,
    query_texts: Sequence[str] | None,
    texts: Sequence[str] | None,
    count: int,
    skip_top: int,
) -> None:
    """Raises ValueError for invalid arguments of `mine_negatives`, other than margins."""
    for name, number, least in (("count", count, 1), ("skip_top", skip_top, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(
                f"`{name}` must be a whole number of at least {least}. Received: {number!r}"
            )
    lengths = (len(queries), len(positives), len(queries if query_texts is None else query_texts))
    if len(set(lengths)) > 1:
        raise ValueError(
            "Every query must have a list of positives, and a text if `query_texts` are given. "
            f"Received: {lengths[0]} queries, {lengths[1]} lists of positives, {lengths[2]} texts"
        )
    if isinstance(texts, str | bytes | Mapping):
        raise ValueError(
            "`texts` must be a list, in the order of the index's documents. Received: "
            f"{type(texts).__name__}: {texts!r:.80}"
        )
    if texts is not None and len(texts) != len(index):
        raise ValueError(
            f"`texts` must have a text for each document of the index. Received: {len(texts)} "
            f"texts for {len(index)} documents"
        )
    if query_texts is not None and texts is None and index.ids.dtype != object:
        raise ValueError(
            "`query_texts` requires `texts`, or an index whose ids are texts. Received: ids that "
            "are integers, and no `texts`"
        )
    for number, ids in enumerate(positives):
        if isinstance(ids, str | bytes) or not isinstance(ids, Collection) or not len(ids):
            raise ValueError(
                "Every query must have a list of at least one id of its positives. Received: "
                f"{ids!r:.80} for query {number}"
            )
