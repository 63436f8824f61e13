"""Vocabulary, windows, and which tokens are left out."""

import numpy as np
import pytest

from kbert.word_vectors.corpus import keep_probabilities, neighbours, read_corpus


def test_words_are_numbered_by_their_counts():
    corpus = read_corpus(["b a c", "", "B b a d"], min_count=2, lowercase=True)
    assert (corpus.words, corpus.counts.tolist()) == (["b", "a"], [3, 2])
    assert corpus.ids.tolist() == [0, 1, 0, 0, 1]
    assert corpus.sentences.tolist() == [0, 0, 2, 2, 2]
    assert read_corpus(["b a", "b a B"], 1, lowercase=False).words == ["a", "b", "B"]


def test_the_fingerprint_is_of_words_and_sentences():
    one, same, words, ends = (
        read_corpus(texts, 1, True).fingerprint()
        for texts in (["a b", "a c"], ["a b", "a c"], ["a b", "a d"], ["a b a c"])
    )
    assert one == same
    assert len({one, words, ends}) == 3


def test_neighbours_by_brute_force():
    sentences = np.repeat(np.arange(40), np.random.default_rng(0).integers(0, 6, 40))
    found = {(left, left + d) for d, lefts in neighbours(sentences, 3) for left in lefts.tolist()}
    count = len(sentences)
    assert found == {
        (i, j)
        for i in range(count)
        for j in range(i + 1, min(i + 4, count))
        if sentences[i] == sentences[j]
    }


def test_frequent_words_are_left_out():
    """word2vec.c keeps a token if a random number is below (sqrt(n / (t N)) + 1) t N / n."""
    counts = np.array([8000, 1900, 99, 1])
    found = keep_probabilities(counts, 1e-2)
    wanted = [min((np.sqrt(n / 100) + 1) * 100 / n, 1) for n in counts]
    np.testing.assert_allclose(found, wanted)
    np.testing.assert_array_equal(keep_probabilities(counts, 1), np.ones(4))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a b"] * 3, r"occur 99 times.*Received: 0 of 2 words, 6 tokens"),
        ("one text", r"`texts` must be several texts. Received: one string"),
        ([["the", "cat"]], r"A text must be a string, not yet split. Received: \['the', 'cat'\]"),
        ([], r"At least two words.*Received: 0 of 0 words, 0 tokens"),
    ],
    ids=["rare", "string", "lists", "empty"],
)
def test_what_is_no_corpus(texts, message):
    with pytest.raises(ValueError, match=message):
        read_corpus(texts, 99, True)
