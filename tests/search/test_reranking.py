"""The second stage: order, ties, scorers of every kind."""

import numpy as np
import pytest

import kbert
from kbert.search import Hits, Index, Reranker, rerank

TEXTS = ["no rain", "wind", "a lot of rain", "rain"]
HITS = Hits(np.array([[0, 1, 3], [2, 1, 0]]), np.array([[3, 2, 1], [3, 2, 1]], "float32"))
QUERIES = ["rain", "wind"]


@pytest.fixture(scope="module")
def encoder():
    config = kbert.EncoderConfig(
        vocabulary_size=11, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16
    )
    return kbert.Encoder(config)


@pytest.fixture(scope="module")
def tokenizer():
    words = ["rain", "wind", "no", "a", "lot", "of"]
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])


def pairs_of(hits):
    return [(q, TEXTS[x]) for q, row in zip(QUERIES, hits.ids, strict=True) for x in row]


def test_the_order_is_the_scorers_and_of_equal_ones_that_of_the_hits():
    numbers = iter([1.0, 5.0, 1.0, 0.0, 0.0, 2.0])
    found = rerank(QUERIES, HITS, lambda pairs: [next(numbers) for _ in pairs], TEXTS)
    assert found.ids.tolist() == [[1, 0, 3], [0, 2, 1]]
    assert found.scores.tolist() == [[5, 1, 1], [2, 0, 0]]
    assert found.scores.dtype == np.float32


def test_the_scorer_reads_query_and_text():
    seen = []

    def scorer(pairs):
        seen.extend(pairs)
        return np.zeros(len(pairs))

    rerank(QUERIES, HITS, scorer, dict(enumerate(TEXTS)), k=2)
    assert seen == pairs_of(HITS)


def test_a_regressor(encoder, tokenizer):
    task = kbert.tasks.TextRegressor(encoder, tokenizer)
    found = rerank(QUERIES, HITS, task, TEXTS, k=2)
    scores = task.predict(pairs_of(HITS)).reshape(2, 3)
    np.testing.assert_allclose(found.scores, -np.sort(-scores, 1)[:, :2], atol=1e-6)
    best = np.take_along_axis(HITS.ids, np.argsort(-scores, 1), 1)[:, :2]
    np.testing.assert_array_equal(found.ids, best)


def test_a_classifier(encoder, tokenizer):
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["other", "answer"])
    answers = [x["probabilities"] for x in task.predict(pairs_of(HITS))]
    for label in ("other", "answer", None):
        found = rerank(QUERIES, HITS, task, TEXTS, label=label)
        scores = np.reshape([x[label or "answer"] for x in answers], (2, 3))
        np.testing.assert_allclose(found.scores, -np.sort(-scores, 1), atol=1e-6)
    with pytest.raises(ValueError, match="Received: 'x' of other, answer"):
        rerank(QUERIES, HITS, task, TEXTS, label="x")
    three = kbert.tasks.TextClassifier(encoder, tokenizer, ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"are two classes\. Received: None of a, b, c"):
        rerank(QUERIES, HITS, three, TEXTS)


def test_two_stages():
    """The first stage finds by length, the second reads; what the first leaves out is not read."""
    embed = lambda texts: np.array([[len(text)] for text in texts], "float32")  # noqa: E731
    index = Index(embed(TEXTS), TEXTS, metric="dot")
    read = []

    def scorer(pairs):
        read.extend(text for _, text in pairs)
        return [text.startswith(query) for query, text in pairs]

    search = Reranker(embed, index, scorer)
    hits = search.search(["no"], k=2, candidates=2)
    assert read == ["a lot of rain", "no rain"]
    assert hits.ids.tolist() == [["no rain", "a lot of rain"]]
    assert search.search("wind", k=1).ids.tolist() == [["wind"]]
    assert search.search(["wind"], k=4).ids.tolist() == [
        ["wind", "a lot of rain", "no rain", "rain"]
    ]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: rerank(["a"], HITS, s, TEXTS), "Received: 1 queries and 2 rows of hits"),
        (lambda s: rerank(QUERIES, HITS, s, TEXTS, k=0), "k must be a whole number, 1 or more"),
        (
            lambda s: rerank(QUERIES, HITS, s),
            "requires `texts`. Received: the id 0, without",
        ),
        (lambda s: rerank(QUERIES, HITS, s, TEXTS[:2]), "the text of every candidate. Received: 3"),
        (lambda s: rerank(QUERIES, HITS, s, {0: "a"}), "the text of every candidate. Received: 1"),
        (
            lambda s: rerank(QUERIES, HITS, s, TEXTS, label="x"),
            "`label` is supported by classifiers only",
        ),
        (
            lambda s: rerank(QUERIES, HITS, lambda pairs: [1.0], TEXTS),
            r"for each of the 6 pairs. Received: shape \(1,\)",
        ),
        (
            lambda s: rerank(QUERIES, HITS, lambda pairs: [np.nan] * 6, TEXTS),
            "with NaN or infinity",
        ),
        (lambda s: Reranker(len, Index([[1]]), s).search([]), "at least one query. Received: none"),
        (
            lambda s: Reranker(len, Index([[1]]), s).search(["a"], 9, candidates=8),
            "Received: k=9, candidates=8",
        ),
    ],
)
def test_what_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call(lambda pairs: [0.0] * len(pairs))
