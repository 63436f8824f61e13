"""Hard negatives against the definition, applied to the whole ranking of each query."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from kbert.search import Index, mine_negatives

RNG = np.random.default_rng(0)


def definition(scores, names, forbidden, worst, **options):
    """Rows of the negatives of one query, from the scores of all documents."""
    highest = min(
        options["max_score"] if options["max_score"] is not None else np.inf,
        worst - (options["margin"] or 0) if options["margin"] is not None else np.inf,
        worst - options["relative_margin"] * abs(worst)
        if options["relative_margin"] is not None
        else np.inf,
    )
    lowest = -np.inf if options["min_score"] is None else options["min_score"]
    ranked, seen = [], set(forbidden)
    for row in np.argsort(-scores, kind="stable"):
        if names[row] not in seen:
            ranked.append(row)
            seen.add(names[row])
    good = [row for row in ranked[options["skip_top"] :] if lowest <= scores[row] <= highest]
    return good[: options["count"]]


@settings(max_examples=80, deadline=None)
@given(
    documents=st.integers(1, 60),
    queries=st.integers(0, 5),
    count=st.integers(1, 5),
    skip_top=st.integers(0, 4),
    margin=st.sampled_from([None, 0, 1, 3]),
    relative_margin=st.sampled_from([None, 0.0, 0.5]),
    min_score=st.sampled_from([None, -2, 0, 2]),
    max_score=st.sampled_from([None, -1, 1, 3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equal_to_the_definition(documents, queries, seed, **options):
    """Small integers, whose products are exact; texts of which many are equal."""
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, (documents, 3))
    wanted = rng.integers(-2, 3, (queries, 3))
    names = [f"text {x}" for x in rng.integers(0, 20, documents)]
    own = [f"text {x}" for x in rng.integers(0, 30, queries)]
    positives = [rng.integers(0, documents, rng.integers(1, 4)).tolist() for _ in own]
    index = Index(vectors, metric="dot")
    found = mine_negatives(wanted, positives, index, query_texts=own, texts=names, **options)
    assert len(found.ids) == len(found.scores) == queries
    for number, query in enumerate(wanted):
        scores = vectors @ query
        forbidden = {own[number], *(names[row] for row in positives[number])}
        worst = scores[positives[number]].min()
        rows = definition(scores, names, forbidden, worst, **options)
        assert found.ids[number].tolist() == rows
        np.testing.assert_array_equal(found.scores[number], scores[rows])


def test_neither_the_query_nor_a_positive_nor_a_copy_of_them():
    texts = ["rain", "rain again", "wind"]
    index = Index([[1, 0], [0.9, 0.1], [0, 1]], texts)
    query = [[1, 0]]
    assert mine_negatives(query, [["rain again"]], index).ids[0].tolist() == ["rain"]
    found = mine_negatives(query, [["rain again"]], index, query_texts=["rain"], count=5)
    assert found.ids[0].tolist() == ["wind"]
    numbered = Index([[1, 0], [0.9, 0.1], [1, 0], [0, 1]])
    copies = ["rain", "rain again", "rain", "wind"]
    found = mine_negatives(query, [[0]], numbered, texts=copies, count=5)
    assert found.ids[0].tolist() == [1, 3]
    assert mine_negatives(query, [[0]], numbered, count=5).ids[0].tolist() == [2, 1, 3]


def test_the_whole_index_is_searched_where_the_closest_are_ruled_out():
    """The only allowed document lies behind thousands that are too close."""
    vectors = np.concatenate([np.tile([1.0, 0.1], (3000, 1)), [[0.0, 1.0]]])
    found = mine_negatives([[1.0, 0.0]], [[0]], Index(vectors), relative_margin=0.05)
    assert found.ids[0].tolist() == [3000]
    found = mine_negatives([[1.0, 0.0]], [[0]], Index(vectors), margin=0.1, min_score=0.5)
    assert found.ids[0].tolist() == []


def test_more_queries_than_a_block(monkeypatch):
    monkeypatch.setattr("kbert.search.negatives.QUERIES", 3)
    vectors = RNG.normal(size=(40, 5))
    positives = [[i, (i + 1) % 40][: 1 + i % 2] for i in range(10)]
    found = mine_negatives(vectors[:10], positives, Index(vectors), count=2, margin=0.3)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for number, (ids, scores) in enumerate(zip(*found, strict=True)):
        cosines = unit @ unit[number]
        allowed = np.flatnonzero(cosines <= cosines[positives[number]].min() - 0.3)
        assert ids.tolist() == allowed[np.argsort(-cosines[allowed])][:2].tolist()
        np.testing.assert_allclose(scores, cosines[ids], atol=1e-6)


@pytest.mark.slow
def test_as_sentence_transformers_mines():
    """One positive a query, as its `mine_hard_negatives` has it."""
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("datasets")
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    texts = [f"document {i}" for i in range(60)]
    queries = [f"query {i}" for i in range(12)]
    vectors = {x: RNG.normal(size=6).astype("float32") for x in [*texts, *queries]}

    class Table(SentenceTransformer):
        """Vectors of a table in the place of a model's."""

        def encode(self, sentences, **options):
            return np.array([vectors[x] for x in sentences])

        encode_query = encode_document = encode

    pairs = Dataset.from_dict({"query": queries, "answer": texts[:12]})
    index = Index([vectors[x] for x in texts], texts)
    for own, theirs in [
        ({}, {}),
        ({"skip_top": 2}, {"range_min": 2}),
        ({"margin": 0.2}, {"absolute_margin": 0.2}),
        ({"max_score": 0.5, "min_score": 0.0}, {"max_score": 0.5, "min_score": 0.0}),
    ]:
        mined = mine_hard_negatives(
            pairs,
            Table(modules=[torch.nn.Identity()]),
            corpus=texts,
            num_negatives=3,
            range_max=59,
            output_format="triplet",
            verbose=False,
            **theirs,
        )
        wanted = {}
        for row in mined:
            wanted.setdefault(row["query"], []).append(row["negative"])
        found = mine_negatives(
            [vectors[x] for x in queries], [[x] for x in texts[:12]], index, count=3, **own
        )
        kept = {x: ids.tolist() for x, ids in zip(queries, found.ids, strict=True) if len(ids)}
        assert wanted
        assert {x: kept[x] for x in wanted} == wanted


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"count": 0}, "`count` must be a whole number of at least 1. Received: 0"),
        ({"skip_top": -1}, "`skip_top` must be a whole number of at least 0. Received: -1"),
        ({"margin": -0.1}, "`margin` must be a number of at least 0. Received: -0.1"),
        ({"margin": "x"}, "`margin` must be a number of at least 0. Received: 'x'"),
        ({"texts": {0: "a", 1: "b"}}, "`texts` must be a list, in the order.*Received: dict"),
        ({"texts": "ab"}, "`texts` must be a list, in the order.*Received: str"),
        ({"relative_margin": float("nan")}, "`relative_margin` must be a number of at least 0"),
        ({"positives": [[0], [1]]}, "Received: 1 queries, 2 lists of positives, 1 texts"),
        ({"positives": [[]]}, r"at least one id of its positives. Received: \[\] for query 0"),
        ({"positives": [0]}, "a list of at least one id of its positives.*Received: 0 for query 0"),
        (
            {"positives": ["0"]},
            "a list of at least one id of its positives.*Received: '0' for query 0",
        ),
        ({"positives": [[2]]}, r"ids of this index must be from 0 to 1. Received: \[2\]"),
        ({"texts": ["a"]}, "Received: 1 texts for 2 documents"),
        ({"query_texts": ["a"]}, "Received: ids that are integers, and no `texts`"),
        ({"queries": [[1.0]]}, "as wide as the index, 2. Received: width 1"),
    ],
)
def test_what_is_refused(changes, match):
    arguments = {"queries": [[1.0, 0.0]], "positives": [[0]], "index": Index(np.eye(2)), **changes}
    with pytest.raises(ValueError, match=match):
        mine_negatives(**arguments)
