"""An index against brute force in NumPy: values, order, ties, blocks, files, graphs."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from kbert.export import export_saved_model
from kbert.search import Index, exact
from kbert.signatures import Signature

RNG = np.random.default_rng(0)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of two groups of vectors and of three queries."""
    monkeypatch.setattr(exact, "ROWS", 2 * exact.GROUP)
    monkeypatch.setattr(exact, "QUERIES", 3)
    exact._compiled.cache_clear()  # graphs hold the size of a block
    yield
    exact._compiled.cache_clear()


def brute_force(queries, vectors, k, metric="cosine"):
    """Rows and scores in float64, the lower row first on a tie."""
    queries, vectors = np.asarray(queries, np.float64), np.asarray(vectors, np.float64)
    if metric == "cosine":
        queries, vectors = (
            x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
            for x in (queries, vectors)
        )
    scores = queries @ vectors.T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(scores, rows, 1)


@pytest.mark.usefixtures("small_blocks")
@settings(max_examples=60, deadline=None)
@given(
    number=st.integers(1, 700),
    width=st.integers(1, 9),
    queries=st.integers(0, 7),
    k=st.integers(1, 800),
    metric=st.sampled_from(["cosine", "dot"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equal_to_brute_force_with_many_ties(number, width, queries, k, metric, seed):
    """Small integers: their products are exact in float32, and most of them are ties."""
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, (number, width))
    wanted = rng.integers(-2, 3, (queries, width))
    hits = Index(vectors, metric=metric).search(wanted, k)
    rows, scores = brute_force(wanted, vectors, k, metric)
    np.testing.assert_allclose(hits.scores, scores, atol=1e-6)
    if metric == "dot":
        np.testing.assert_array_equal(hits.ids, rows)
    else:  # those of vectors of other lengths may differ in their last digit
        own = Index(vectors).scores(wanted, hits.ids) if queries else hits.scores
        np.testing.assert_allclose(own, hits.scores, atol=1e-6)
        assert all(len(set(row)) == len(row) for row in hits.ids.tolist())


@pytest.mark.parametrize("k", [2, 7, 40, 77, 78, 100])
def test_ties_between_groups_of_one_block(k):
    """5,000 vectors are 79 groups: from k = 79 on they are not looked at by groups."""
    rng = np.random.default_rng(k)
    vectors, queries = rng.integers(-9, 10, (5000, 2)), rng.integers(-9, 10, (20, 2))
    vectors[rng.random(5000) < 0.99] = 0  # so that groups differ, and zeros are among the best
    hits = Index(vectors, metric="dot").search(queries, k)
    rows, scores = brute_force(queries, vectors, k, "dot")
    np.testing.assert_array_equal(hits.ids, rows)
    np.testing.assert_array_equal(hits.scores, scores)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("k", [1, 2, 10, 129, 1000])
def test_equal_to_brute_force_on_real_numbers(k):
    vectors, queries = RNG.normal(size=(1000, 33)), RNG.normal(size=(8, 33))
    hits = Index(vectors).search(queries, k)
    _, scores = brute_force(queries, vectors, k)
    np.testing.assert_allclose(hits.scores, scores, atol=1e-6)
    # Neighbours as close as float32 can tell may change places: the scores of what was found, in
    # float64, are the best.
    for query, ids, best in zip(queries, hits.ids, scores, strict=True):
        _, (own,) = brute_force([query], vectors[ids], k)
        np.testing.assert_allclose(own, best, atol=1e-6)
    assert all(len(set(ids)) == len(ids) for ids in hits.ids.tolist())


@pytest.mark.parametrize("queries", [1, 2, 33])
def test_equal_vectors_come_in_the_order_of_adding(queries):
    """Wherever they lie in a block, and whatever else is in it."""
    vectors = RNG.normal(size=(70_000, 17)).astype("float32")
    places = np.sort(RNG.choice(len(vectors), 300, replace=False))
    vectors[places] = 10 * np.ones(17)
    wanted = np.ones((queries, 17)) + RNG.normal(size=(queries, 17)) / 100
    hits = Index(vectors, metric="dot").search(wanted, 300)
    np.testing.assert_array_equal(hits.ids, np.broadcast_to(places, (queries, 300)))


def test_a_vector_of_zeros_has_the_cosine_0():
    hits = Index([[0, 0], [-1, 0]]).search([[2, 0], [0, 0]])
    assert hits.ids.tolist() == [[0, 1], [0, 1]]
    assert hits.scores.tolist() == [[0, -1], [0, 0]]


def test_what_is_added_is_found_and_ids_are_kept():
    index = Index(np.eye(3, dtype="float16"), ["a", "b", "c"])
    index.add([[0, 0, -1.0]], np.array(["d"]))
    assert len(index) == 4
    index.search([[1, 0, 0]])
    index.add([[1, 1, 0], [0, 1, 1]], ["e", "f"])
    assert index.ids.tolist() == list("abcdef")
    assert index.search([[0, 0, -1]], 1).ids.tolist() == [["d"]]
    hits = index.search([[1, 0.9, 0]], 2)
    assert hits.ids.tolist() == [["e", "a"]]
    assert hits.ids.dtype == object
    assert index.rows_of(["f", "a"]).tolist() == [5, 0]
    assert index.vectors.shape == (6, 3)
    numbers = Index([[1, 0], [0, 1]], [2**40, -7])
    assert numbers.search([[0, 1]], 2).ids.tolist() == [[-7, 2**40]]
    assert numbers.search([[0, 1]], 2).ids.dtype == np.int64


def test_what_is_given_can_be_written_into_afterwards():
    vectors = np.eye(2, dtype="float32")
    index = Index(vectors, metric="dot")
    vectors[:] = 7
    assert index.vectors.tolist() == [[1, 0], [0, 1]]


def test_scores_of_chosen_vectors():
    vectors, queries = RNG.normal(size=(90, 5)), RNG.normal(size=(4, 5))
    index = Index(vectors)
    rows, scores = index.search_rows(queries, 90)
    np.testing.assert_allclose(index.scores(queries, rows), scores, atol=1e-6)
    with pytest.raises(ValueError, match=r"from 0 to 89. Received: 4 queries and rows of shape"):
        index.scores(queries, rows + 1)


def peak_of(run) -> float:
    """MB that the process had at most while it ran, above what it has before."""
    status, page = Path("/proc/self/status"), os.sysconf("SC_PAGE_SIZE")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = int(Path("/proc/self/statm").read_text().split()[1]) * page
    run()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
    return (peak - before) / 1e6


def test_memory_is_that_of_one_block():
    """Products of all queries with all vectors would be 800 MB."""
    index = Index(RNG.normal(size=(40_000, 4)).astype("float32"))
    queries = RNG.normal(size=(5_000, 4)).astype("float32")
    index.search(queries[:1], 3)
    assert peak_of(lambda: np.ones(40_000_000)) > 300  # it can be seen
    assert peak_of(lambda: index.search(queries, 3)) < 250


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("ids", [None, ["ä", "b\n", "c"], [5, 3, 2**60]])
def test_saved_and_loaded(tmp_path, metric, ids):
    vectors = RNG.normal(size=(3, 6))
    index = Index(vectors, ids, metric=metric)
    index.save(tmp_path / "a" / "b")
    loaded = Index.load(tmp_path / "a" / "b")
    assert loaded.metric == metric
    np.testing.assert_array_equal(loaded.vectors, index.vectors)  # to the last bit
    for one, other in zip(index.search(vectors), loaded.search(vectors), strict=True):
        np.testing.assert_array_equal(one, other)
    assert sorted(x.name for x in (tmp_path / "a" / "b").iterdir()) == [
        "index.json",
        "vectors.safetensors",
    ]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format_version": 2}, "must have the version 1.*Received: version 2"),
        ({"more": 1}, "the keys .*more"),
        ({"metric": "l2"}, "is damaged: `metric` must be one of cosine, dot. Received: 'l2'"),
        ({"count": 3}, r"float32 \(3, 2\), as in index.json. Received: float32 \(2, 2\)"),
        ({"ids": ["a"]}, "is damaged: Each vector must have one id.*1 ids for 2 vectors"),
        ({"ids": True}, "is damaged: `ids` must be a list, or null. Received: True"),
        ({"ids": {"a": 1, "b": 2}}, "is damaged: `ids` must be a list, or null."),
        ({"ids": ["a", "a"]}, "is damaged: Ids must be unique. Received: 'a' twice"),
    ],
)
def test_damaged_folders(tmp_path, changes, match):
    Index(np.eye(2), ["a", "b"]).save(tmp_path)
    content = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps(content | changes))
    with pytest.raises(ValueError, match=match):
        Index.load(tmp_path)


def test_vectors_of_another_index_are_refused(tmp_path):
    for name, vectors in (("one", np.eye(2)), ("other", np.eye(2)[::-1])):
        Index(vectors, ["a", "b"]).save(tmp_path / name)
    path = tmp_path / "one" / "vectors.safetensors"
    path.write_bytes((tmp_path / "other" / "vectors.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"written with index.json. Received: another checksum"):
        Index.load(tmp_path / "one")
    content = json.loads((tmp_path / "other" / "index.json").read_text())
    del content["checksum"]  # as the first version wrote
    (tmp_path / "other" / "index.json").write_text(json.dumps(content))
    assert Index.load(tmp_path / "other").search([[1, 0]], 1).ids.tolist() == [["b"]]


@pytest.mark.parametrize("size", [3e38, 3e19, 1e-30, 1e-37])
def test_cosines_of_the_largest_and_smallest_numbers(size):
    index = Index(np.array([[size, 0], [size, size], [0, 0]], np.float32))
    for found in (
        index.search([[1.0, 0.0]], 3),
        index.search([[size, 0.0]], 3),
        index.search_graph(tf.constant([[size, 0.0]]), 3),
    ):
        ids, scores = (found["ids"], found["scores"]) if isinstance(found, dict) else found
        assert np.asarray(ids).tolist() == [[0, 1, 2]]
        np.testing.assert_allclose(scores, [[1, 0.5**0.5, 0]], atol=1e-6)


def test_files_that_are_missing_or_cut(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        Index.load(tmp_path)
    Index(np.eye(2)).save(tmp_path)
    path = tmp_path / "vectors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="damaged, truncated"):
        Index.load(tmp_path)


@pytest.mark.tensorflow
@pytest.mark.parametrize("ids", [None, ["eins", "zwei", "drei"], [10, 20, 2**40]])
def test_in_a_saved_model(tmp_path, ids):
    """Vectors in, ids out; the vectors are in its variables, not in its graph."""
    vectors = np.repeat(np.eye(3), 2000, axis=1)
    index = Index(vectors, ids)
    spec = tf.TensorSpec([None, 6000], tf.float32, "vectors")
    entry = Signature(lambda vectors: index.search_graph(vectors, k=2), [spec])
    path = export_saved_model(tmp_path, {"search": entry})
    index.add(-vectors, None if ids is None else [x * 3 for x in ids])  # not in it
    found = tf.saved_model.load(path).signatures["search"](
        vectors=tf.constant(vectors[::-1] + 0.1 * vectors, tf.float32)
    )
    names = np.array([b"eins", b"zwei", b"drei"]) if ids and ids[0] == "eins" else ids
    names = np.arange(3) if names is None else np.array(names)
    np.testing.assert_array_equal(found["ids"], names[[[2, 0], [1, 0], [0, 2]]])
    assert found["scores"].shape == (3, 2)
    assert (tmp_path / "1" / "saved_model.pb").stat().st_size < 60_000


def test_a_graph_gives_what_search_gives():
    vectors, queries = RNG.normal(size=(200, 7)), RNG.normal(size=(5, 7)).astype("float32")
    index = Index(vectors)
    hits = index.search(queries, 9)
    for run in (index.search_graph, tf.function(index.search_graph)):
        found = run(tf.constant(queries), k=9)
        np.testing.assert_array_equal(found["ids"], hits.ids)
        np.testing.assert_allclose(found["scores"], hits.scores, atol=1e-6)
    assert tf.function(index.search_graph)(tf.constant(queries), k=500)["ids"].shape == (5, 200)


def test_the_precision_of_others_is_left_alone():
    config = tf.config.experimental
    assert config.tensor_float_32_execution_enabled()
    with exact.full_float32():
        assert not config.tensor_float_32_execution_enabled()
    Index([[1.0]]).search([[1.0]])
    assert config.tensor_float_32_execution_enabled()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Index([1.0, 2.0]), r"\(number of vectors, width\). Received: float64 of shape"),
        (lambda: Index([["a"]]), "An index requires vectors"),
        (lambda: Index(np.zeros((0, 3))), r"at least one vector. Received: shape \(0, 3\)"),
        (lambda: Index([[1.0], [np.nan]]), "must be finite, also in float32.*in row 1"),
        (lambda: Index([[1e300]]), "must be finite, also in float32"),
        (lambda: Index([[1]], metric="l2"), "`metric` must be one of cosine, dot. Received: 'l2'"),
        (lambda: Index([[1]], backend="x"), "`backend` must be one of tensorflow, faiss"),
        (lambda: Index([[1], [2]], ["a"]), "one id.*Received: 1 ids for 2 vectors"),
        (lambda: Index([[1], [2]], ["a", 1]), "of the types int, str"),
        (lambda: Index([[1], [2]], [1.0, 2.0]), "of the types float"),
        (lambda: Index([[1], [2]], ["a", "a"]), "Ids must be unique. Received: 'a' twice"),
        (lambda: Index([[1], [2]], {"a", "b"}), "must have an order"),
        (lambda: Index([[1]], [2**63]), "must fit int64"),
        (lambda: Index([[1]]).add([[1]], ["a"]), "Either all vectors of an index must have ids"),
        (lambda: Index([[1]], ["a"]).add([[1]]), "Either all vectors of an index must have ids"),
        (lambda: Index([[1]], ["a"]).add([[1]], ["a"]), "Received: 'a' twice"),
        (lambda: Index([[1]], ["a"]).add([[1]], [1]), "all integers. Received: 'a' and 1"),
        (lambda: Index([[1]]).add([[1, 2]]), "as wide as the index, 1. Received: width 2"),
        (lambda: Index([[1]]).search([[1, 2]]), "The queries must be as wide as the index, 1"),
        (lambda: Index([[1]]).search([[np.inf]]), "The queries must be finite"),
        (lambda: Index([[1]]).search([[1]], 0), "k must be a whole number, 1 or more"),
        (lambda: Index([[1]]).search([[1]], True), "Received: k=True"),
        (
            lambda: Index([[1e30]], metric="dot").search([[1e30]]),
            "must be within the range of float32",
        ),
        (lambda: Index([[1]]).rows_of([1]), "ids of this index must be from 0 to 0"),
        (lambda: Index([[1]], ["a"]).rows_of(["b"]), "must be in the index. Received: 'b'"),
    ],
)
def test_what_is_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_refused_addition_changes_nothing():
    index = Index([[1, 0]], ["a"])
    with pytest.raises(ValueError, match="twice"):
        index.add([[0, 1], [1, 1]], ["b", "a"])
    assert (len(index), index.ids.tolist(), index.vectors.shape) == (1, ["a"], (1, 2))
    index.add([[0, 1]], ["b"])
    assert index.search([[0, 1]], 1).ids.tolist() == [["b"]]


def test_faiss_finds_the_same(tmp_path):
    pytest.importorskip("faiss")
    vectors, queries = RNG.normal(size=(500, 9)), RNG.normal(size=(20, 9))
    names = [f"{i}" for i in range(500)]
    own, other = (Index(vectors, names, backend=x) for x in ("tensorflow", "faiss"))
    for index in (own, other):
        index.add(2 * vectors[:3], ["x", "y", "z"])
    for k in (1, 10, 600):
        a, b = own.search(queries, k), other.search(queries, k)
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-6)
        assert (a.ids == b.ids).mean() > 0.99
    np.testing.assert_allclose(own.vectors, other.vectors, atol=1e-7)
    rows = own.rows_of(["z", "5"])[None]
    np.testing.assert_allclose(own.scores(queries[:1], rows), other.scores(queries[:1], rows))
    other.save(tmp_path)
    assert Index.load(tmp_path).search(queries, 3).ids.shape == (20, 3)
    assert Index.load(tmp_path, backend="faiss").search(queries, 3).ids.shape == (20, 3)
    ties = Index(np.ones((5, 2)), backend="faiss").search([[1, 1]], 5)
    assert ties.ids.tolist() == [[0, 1, 2, 3, 4]]
    with pytest.raises(ValueError, match='requires an index with backend="tensorflow"'):
        other.search_graph(tf.zeros([1, 9]))


def test_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"^backend=.faiss. needs the extra: .*kbert\[faiss\]'"):
        Index([[1]], backend="faiss")
