"""Neighbours, analogies, vectors of texts."""

import numpy as np
import pytest

from kbert.word_vectors import WordVectors, split_words

FAMILY = WordVectors(
    ["man", "woman", "king", "queen", "pen"],
    [[1, 0, 0, 0.1], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]],
)


def test_neighbours_are_by_cosine():
    matrix = FAMILY.matrix
    norms = np.maximum(np.linalg.norm(matrix, axis=1), 1e-12)
    cosines = matrix @ matrix[2] / norms / norms[2]
    found = FAMILY.nearest("king", 3)
    assert [word for word, _ in found] == ["queen", "man", "woman"]
    np.testing.assert_allclose([score for _, score in found], cosines[[3, 0, 1]], atol=1e-6)


def test_analogies_leave_the_question_s_words_out():
    assert [word for word, _ in FAMILY.analogy("man", "king", "woman", 2)] == ["queen", "pen"]


def test_vectors_and_what_has_none():
    np.testing.assert_array_equal(FAMILY.vectors(["king", "man"]), FAMILY.matrix[[2, 0]])
    assert ("king" in FAMILY, "fox" in FAMILY, len(FAMILY), FAMILY.width) == (True, False, 5, 4)
    with pytest.raises(KeyError, match=r"must have a vector. Received: 'fox', 'ox'"):
        FAMILY.vectors(["king", "fox", "ox"])
    with pytest.raises(ValueError, match=r"`k` must be at least 1. Received: k=0"):
        FAMILY.nearest("king", 0)


def test_a_text_is_the_mean_of_its_words():
    found = FAMILY.text_vectors(["King, king: fox", "nothing", ""])
    np.testing.assert_allclose(found, [FAMILY.matrix[2], np.zeros(4), np.zeros(4)])
    assert not FAMILY.text_vectors(["King"], lowercase=False).any()


@pytest.mark.parametrize(
    ("words", "vectors", "message"),
    [
        (["a", "a"], np.ones((2, 2)), r"Received: 2 words, 1 of them different"),
        (["a"], np.ones((2, 2)), r"vectors of shape \(2, 2\)"),
        (["a"], np.ones(1), r"\(words, width\), and not empty. Received: shape \(1,\)"),
        (["a"], [[np.nan]], r"finite numbers"),
        ([], np.ones((0, 2)), r"not empty. Received: shape \(0, 2\)"),
    ],
)
def test_what_is_no_table(words, vectors, message):
    with pytest.raises(ValueError, match=message):
        WordVectors(words, vectors)


def test_words_of_a_text():
    assert split_words("L’été, 2 o'clock") == ["l’été", ",", "2", "o'clock"]
    assert split_words("Über".encode() + b"\xff", lowercase=False) == ["Über"]
