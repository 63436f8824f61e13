"""Cosines, neighbours, and one word in several contexts."""

import numpy as np
import pytest

from kbert.extraction import features, nearest, similarity, word_in_context
from tests.harness import assert_close

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(50, 8)).astype("float32")


def cosines(a, b):
    return np.array([[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in b] for x in a])


def test_similarities_are_cosines():
    assert_close(similarity(VECTORS), cosines(VECTORS, VECTORS), 1e-5)
    assert_close(similarity(VECTORS[:3], VECTORS[4:]), cosines(VECTORS[:3], VECTORS[4:]), 1e-5)
    assert similarity([[0.0, 0.0]], [[1.0, 1.0]]).tolist() == [[0.0]]


@pytest.mark.parametrize(("rows", "block"), [(7, 3), (1000, 1000)])
def test_neighbours_equal_a_full_sort(rows, block, monkeypatch):
    monkeypatch.setattr("kbert.search.exact.ROWS", rows)
    monkeypatch.setattr("kbert.search.exact.QUERIES", block)
    queries = RNG.normal(size=(4, 8))
    expected = cosines(queries, VECTORS)
    numbers, found = nearest(VECTORS, queries, k=5)
    np.testing.assert_array_equal(numbers, np.argsort(-expected, 1)[:, :5])
    assert_close(found, -np.sort(-expected, 1)[:, :5], 1e-5)


@pytest.mark.parametrize(("rows", "block"), [(7, 9), (9, 7), (1000, 1000)])
def test_a_vector_is_not_its_own_neighbour(rows, block, monkeypatch):
    monkeypatch.setattr("kbert.search.exact.ROWS", rows)
    monkeypatch.setattr("kbert.search.exact.QUERIES", block)
    expected = cosines(VECTORS, VECTORS) - 9 * np.eye(50)
    numbers, _ = nearest(VECTORS, k=3)
    np.testing.assert_array_equal(numbers, np.argsort(-expected, 1)[:, :3])


def test_fewer_vectors_than_neighbours():
    assert nearest(VECTORS[:3], k=5)[0].shape == (3, 2)
    assert nearest(VECTORS[:3], VECTORS[:1], k=5)[0].shape == (1, 3)
    assert nearest([[1.0], [1.0], [1.0]], [[1.0]], k=2)[0].tolist() == [[0, 1]]


def test_neighbours_that_cannot_be():
    with pytest.raises(ValueError, match="Received: k=0"):
        nearest(VECTORS, k=0)
    with pytest.raises(ValueError, match="queries of width 3, vectors of width 8"):
        nearest(VECTORS, np.ones((1, 3)))


def test_each_place_of_a_word_has_the_mean_of_its_pieces(encoder, tokenizer):
    texts = ["Foxes and foxes.", "the foxes, jumping over the river and the lazy dog"]
    found = word_in_context(encoder, tokenizer, texts, "foxes", layers="sum_all")
    assert found.texts.tolist() == [0, 0, 1]
    places = zip(found.texts, found.starts, found.ends, strict=True)
    assert [texts[n][a:b] for n, a, b in places] == ["Foxes", "foxes", "foxes"]
    assert found.contexts == [
        "[Foxes] and foxes.",
        "Foxes and [foxes].",
        "the [foxes], jumping over the river …",
    ]
    rows = features(encoder, tokenizer, texts, layers="sum_all", pooling=None)
    # [CLS] fox ##e ##s and fox ##e ##s . [SEP]
    expected = [rows[0][1:4].mean(0), rows[0][5:8].mean(0), rows[1][2:5].mean(0)]
    assert_close(found.vectors, expected, 1e-4)


def test_a_text_without_the_word(encoder, tokenizer):
    with pytest.raises(ValueError, match="Received: 'foxes', number 1"):
        word_in_context(encoder, tokenizer, ["fox", "foxes"], "fox")
    with pytest.raises(ValueError, match="must have the word ''"):
        word_in_context(encoder, tokenizer, ["fox"], "")


@pytest.mark.parametrize("texts", [[], [("the fox", "a fox")]])
def test_a_word_of_no_text_or_of_pairs(encoder, tokenizer, texts):
    with pytest.raises(ValueError, match=r"single texts, at least one. Received: "):
        word_in_context(encoder, tokenizer, texts, "fox")


def test_a_word_in_bytes_and_in_a_table(encoder, tokenizer):
    for texts in ([b"the fox"], {"text": ["the fox"]}, "the fox"):
        assert word_in_context(encoder, tokenizer, texts, "fox").contexts == ["the [fox]"]


def test_a_word_that_was_cut_off(encoder, tokenizer):
    texts = ["the red pen " * 30 + "fox"]
    with pytest.raises(ValueError, match=r"pass `doc_stride`. Received: character 360"):
        word_in_context(encoder, tokenizer, texts, "fox")
    assert len(word_in_context(encoder, tokenizer, texts, "fox", doc_stride=20).vectors) == 1
