"""Two-stage search: vectors find candidates, a cross-encoder that reads pairs reranks them.

Shapes: Q queries, D width, C candidates, K results per query.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kbert.inference import as_texts
from kbert.search.index import Hits, Index


def rerank(
    queries: Sequence[str | bytes],
    hits: Hits,
    scorer: Any,
    texts: Mapping[Any, str] | Sequence[str] | None = None,
    *,
    k: int | None = None,
    label: str | None = None,
) -> Hits:
    """Reorders hits by a cross-encoder's scores.

    (Nogueira & Cho, https://arxiv.org/abs/1901.04085.)

    Args:
        queries: Q texts.
        hits: C candidates for each query.
        scorer: a `kbert.tasks.TextRegressor`, a `kbert.tasks.TextClassifier`, another object with
            such a `predict`, or a function; it scores a list of pairs (query, text).
        texts: texts of the candidates by id: a dict, or a list if the ids are numbers from 0; None
            = the ids are the texts.
        k: number of candidates to keep for each query; None = all.
        label: class of a classifier whose probability is the score; None = the second of two.

    Returns:
        Ids and scores (Q, K), the highest first; equal scores keep the order of `hits`.

    Raises:
        ValueError: the number of queries is not that of the rows of hits, a candidate has no text,
            the classifier does not have the label, or the scores are not one finite number a pair.

    Example:
        >>> index = Index([[1, 0], [1, 1]], ["rain", "heavy rain"])
        >>> hits = index.search([[1, 0]])
        >>> by_length = lambda pairs: [len(text) for _, text in pairs]
        >>> rerank(["rain?"], hits, by_length, k=1).ids.tolist()
        [['heavy rain']]
    """
    queries = as_texts(queries, "queries")
    if len(queries) != len(hits.ids):
        raise ValueError(
            f"`hits` must have a row for each query. Received: {len(queries)} queries and "
            f"{len(hits.ids)} rows of hits"
        )
    if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1):
        raise ValueError(f"k must be a whole number, 1 or more. Received: k={k!r}")
    pairs = [
        (query, _text(texts, name))
        for query, names in zip(queries, hits.ids.tolist(), strict=True)
        for name in names
    ]
    answers = getattr(scorer, "predict", scorer)(pairs) if pairs else []
    scores = _scores(answers, label, len(pairs)).reshape(hits.ids.shape)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Hits(*(np.take_along_axis(x, order, 1) for x in (hits.ids, scores)))


class Reranker:
    """Two-stage search for texts.

    Args:
        embed: function from a list of Q texts to embeddings (Q, D), such as a task's `predict`.
        index: index of embeddings that the same function made.
        scorer: cross-encoder: a task with `predict`, or a function of a list of pairs (query,
            text); see `rerank`.
        texts: texts of the documents by id: a dict, or a list if the ids are numbers from 0; None
            = the ids are the texts.
        label: class of a classifier whose probability is the score; None = the second of two.

    Example:
        >>> embed = lambda texts: [[len(text), 1.0] for text in texts]
        >>> documents = ["rain", "heavy rain", "no wind at all"]
        >>> search = Reranker(embed, Index(embed(documents), documents),
        ...                   lambda pairs: [text.count(query) for query, text in pairs])
        >>> search.search(["wind"], k=1, candidates=3).ids.tolist()
        [['no wind at all']]
    """

    def __init__(
        self,
        embed: Callable[[list], Any],
        index: Index,
        scorer: Any,
        texts: Mapping[Any, str] | Sequence[str] | None = None,
        *,
        label: str | None = None,
    ) -> None:
        self.embed = embed
        self.index = index
        self.scorer = scorer
        self.texts = texts
        self.label = label

    def search(self, queries: Sequence[str | bytes], k: int = 10, *, candidates: int = 100) -> Hits:
        """Finds the documents the scorer ranks highest among those with the closest embeddings.

        Args:
            queries: Q texts, one or more.
            k: results per query; all documents if there are fewer.
            candidates: documents per query that the first stage passes to the scorer, at least `k`.

        Returns:
            Ids and the scorer's scores (Q, K), the highest first.

        Raises:
            ValueError: there are fewer candidates than `k`, there are no queries, or `rerank`
                raises it (a candidate without a text, an unknown label, invalid scores).
        """
        queries = as_texts(queries, "queries")
        if not queries:
            raise ValueError("A search requires at least one query. Received: none")
        if candidates < k:
            raise ValueError(
                f"`candidates` must be at least k. Received: k={k}, candidates={candidates}"
            )
        hits = self.index.search(self.embed(queries), candidates)
        return rerank(queries, hits, self.scorer, self.texts, k=k, label=self.label)


def _text(texts: Mapping[Any, str] | Sequence[str] | None, name: Any) -> str | bytes:
    """Returns the text of the candidate with id `name`.

    Without `texts` the id is the text. Raises ValueError if the candidate has no text.
    """
    if texts is None:
        text = name
    else:
        try:
            text = texts[name]
        except (KeyError, IndexError):
            raise ValueError(
                f"`texts` must have the text of every candidate. Received: {name!r}"
            ) from None
    if not isinstance(text, str | bytes):
        raise ValueError(
            "Every candidate must have a text: an index whose ids are not texts requires `texts`. "
            "Received: "
            + (f"the id {name!r}, without `texts`" if texts is None else f"{text!r} for {name!r}")
        )
    return text


def _scores(answers: Any, label: str | None, count: int) -> np.ndarray:
    """Returns scores (count,) float32 from numbers or from a classifier's predictions.

    Args:
        answers: results of a scorer: a number, or a dict with `probabilities`, for each pair.
        label: class whose probability is the score; None = the second of two.
        count: number of pairs.

    Raises:
        ValueError: the classifier does not have the label, or the scores are not `count` finite
            numbers.
    """
    answers = list(answers)
    if answers and isinstance(answers[0], Mapping):
        classes = list(answers[0]["probabilities"])
        if label is None and len(classes) == 2:
            label = classes[1]
        if label not in classes:
            raise ValueError(
                "`label` must be one of the classifier's classes; it is optional if there are two "
                f"classes. Received: {label!r} of {', '.join(classes)}"
            )
        answers = [answer["probabilities"][label] for answer in answers]
    elif label is not None:
        raise ValueError(
            f"`label` is supported by classifiers only. Received: {label!r} for a scorer of numbers"
        )
    scores = np.asarray(answers, np.float32)
    if scores.shape != (count,) or not np.isfinite(scores).all():
        raise ValueError(
            f"A scorer must return one finite number for each of the {count} pairs. Received: "
            f"shape {scores.shape}{'' if np.isfinite(scores).all() else ' with NaN or infinity'}"
        )
    return scores
