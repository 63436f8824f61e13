"""Neighbours, analogies, vectors of texts; and what skip-gram learns."""

import numpy as np
import pytest

from kbert.word_vectors import WordVectors, split_words, train_skip_gram

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


def texts(count=400, seed=0):
    """Two kinds of sentences that share no word but `the`."""
    rng = np.random.default_rng(seed)
    kinds = (["fox", "dog", "cat", "wolf"], ["pen", "ink", "page", "book"])
    return [" ".join(["the", *rng.permutation(kinds[i % 2])[:3]]) for i in range(count)]


def test_words_of_the_same_sentences_come_together():
    vectors = train_skip_gram(
        texts(), width=10, epochs=10, batch_size=128, subsample=None, seed=1, verbose=0
    )
    assert vectors.words[0] == "the"
    for kind in (["fox", "dog", "cat", "wolf"], ["pen", "ink", "page", "book"]):
        for word in kind:
            near = [other for other, _ in vectors.nearest(word, 4) if other != "the"]
            assert {*near[:3]} == {*kind} - {word}


def test_a_seed_decides():
    one, same, other = (
        train_skip_gram(texts(60), width=4, epochs=2, batch_size=64, seed=seed, verbose=0)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.matrix, same.matrix)
    assert (one.matrix != other.matrix).any()


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (texts(9), {"width": 0}, r"`width` must be a whole number, 1 or more. Received: 0"),
        (texts(9), {"epochs": True}, r"`epochs` must be a whole number"),
        (texts(9), {"subsample": 2}, r"`subsample` must be above 0.*subsample=2"),
        (texts(9), {"learning_rate": 0}, r"`learning_rate` above 0.*learning_rate=0"),
        (texts(9), {"min_count": 99}, r"occur 99 times.*Received: 0 of 9 words, 36 tokens"),
        ("one text", {}, r"`texts` must be several texts. Received: one string"),
        (
            [["the", "cat"]],
            {},
            r"A text must be a string, not yet split. Received: \['the', 'cat'\]",
        ),
        ([], {}, r"At least two words.*Received: 0 of 0 words, 0 tokens"),
    ],
)
def test_what_cannot_be_learnt(given, options, message):
    with pytest.raises(ValueError, match=message):
        train_skip_gram(given, **options)
