"""GloVe: counts by brute force, and the gradient of its loss."""

import numpy as np
import pytest

from kbert.word_vectors import Glove
from kbert.word_vectors.corpus import read_corpus
from kbert.word_vectors.glove import cooccurrences
from tests.word_vectors.corpora import topics


def brute_force(corpus, window):
    matrix = np.zeros((len(corpus.words),) * 2)
    for i in range(len(corpus.ids)):
        for j in range(max(i - window, 0), i):
            if corpus.sentences[i] == corpus.sentences[j]:
                one, other = corpus.ids[i], corpus.ids[j]
                matrix[one, other] += 1 / (i - j)
                matrix[other, one] += 1 / (i - j)
    return matrix


@pytest.mark.parametrize("block", [7, 1 << 20], ids=["blocks", "whole"])
def test_counts_by_brute_force(monkeypatch, block):
    monkeypatch.setattr("kbert.word_vectors.glove._BLOCK", block)
    corpus = read_corpus([*topics(40), "the the dog the the", "dog"], 1, True)
    rows, columns, counts = cooccurrences(corpus, 3)
    found = np.zeros((len(corpus.words),) * 2)
    found[rows, columns] = counts
    np.testing.assert_allclose(found, brute_force(corpus, 3))
    assert (counts > 0).all()
    assert len(rows) == np.count_nonzero(found)


def test_a_step_is_adagrad_on_the_loss():
    """Equation 8, of which half is minimised, with the weights of equation 9."""
    corpus = read_corpus(topics(40), 1, True)
    learner = Glove(width=3, window=3, x_max=8, alpha=0.5).learner(corpus)
    matrix = brute_force(corpus, 3)
    assert matrix.min() < 8 < matrix.max()
    rng = np.random.default_rng(1)
    tables = [rng.normal(0, 1, (len(corpus.words), 4)) for _ in range(2)]
    ones = np.ones_like(tables[0])
    learner.restore(
        {"words/values": tables[0], "words/squares": ones, "contexts/values": tables[1]}
        | {"contexts/squares": ones}
    )
    cells = learner.examples(0, 0)
    assert sorted(cells) == [*range(np.count_nonzero(matrix))]
    rows, columns, _ = cooccurrences(corpus, 3)
    chosen = cells[5:15]

    def loss(words, contexts):
        total = 0.0
        for i, j in zip(rows[chosen], columns[chosen], strict=True):
            weight = min(1.0, (matrix[i, j] / 8) ** 0.5)
            score = words[i, :3] @ contexts[j, :3] + words[i, 3] + contexts[j, 3]
            total += 0.5 * weight * (score - np.log(matrix[i, j])) ** 2
        return total

    learner.step(cells, slice(5, 15), rng, 0.9)
    found = learner.arrays()
    for number, name in enumerate(("words", "contexts")):
        slope = np.zeros_like(tables[0])
        for place in np.ndindex(*slope.shape):
            sides = []
            for by in (1e-5, -1e-5):
                moved = [x.copy() for x in tables]
                moved[number][place] += by
                sides.append(loss(*moved))
            slope[place] = (sides[0] - sides[1]) / 2e-5
        squares = 1 + slope**2
        np.testing.assert_allclose(found[f"{name}/squares"], squares, rtol=1e-4, atol=1e-5)
        wanted = tables[number] - 0.05 * slope / np.sqrt(squares)
        np.testing.assert_allclose(found[f"{name}/values"], wanted, atol=1e-5)
    sums = found["words/values"][:, :3] + found["contexts/values"][:, :3]
    np.testing.assert_allclose(learner.word_vectors().matrix, sums)


def test_what_has_no_pairs():
    with pytest.raises(ValueError, match=r"must occur together. Received: sentences of one word"):
        Glove().learner(read_corpus(["a", "b"] * 5, 1, True))
