"""Skip-gram, CBOW and fastText: examples, negatives and gradients by their definitions."""

import itertools

import numpy as np
import pytest

from kbert.word_vectors import Cbow, FastText, SkipGram
from kbert.word_vectors.corpus import read_corpus
from kbert.word_vectors.fasttext import ngram_rows
from kbert.word_vectors.negative_sampling import pairs
from tests.word_vectors.corpora import topics

SMALL = {"width": 3, "window": 2, "min_count": 1, "subsample": 1, "negatives": 2}
METHODS = {
    "skip_gram": SkipGram(**SMALL),
    "cbow": Cbow(**SMALL),
    "fasttext": FastText(**SMALL, shortest_ngram=2, longest_ngram=3, buckets=40),
}


def learner_of(kind, count=30, **changes):
    return METHODS[kind].replace(**changes).learner(read_corpus(topics(count), 1, True))


def numbered(learner, examples):
    """Examples as lists of words, and their targets."""
    words = np.array(learner.corpus.words)
    inputs = np.split(examples.inputs, examples.starts[1:-1])
    return [
        ([*words[ids]], words[target]) for ids, target in zip(inputs, examples.targets, strict=True)
    ]


def test_pairs_by_brute_force():
    rng = np.random.default_rng(0)
    sentences = np.repeat(np.arange(30), rng.integers(0, 8, 30))
    widths = rng.integers(1, 4, len(sentences))
    found = list(zip(*(x.tolist() for x in pairs(sentences, widths, 3)), strict=True))
    wanted = {
        (i, j)
        for i in range(len(sentences))
        for j in range(len(sentences))
        if i != j and sentences[i] == sentences[j] and abs(i - j) <= widths[i]
    }
    assert len(found) == len(wanted)
    assert {*found} == wanted


@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_examples_have_the_words_of_a_window(kind):
    learner = learner_of(kind, window=1)  # so each window has the width 1
    lines = [text.split() for text in topics(30)]
    if kind == "cbow":
        wanted = [
            ([*line[max(i - 1, 0) : i], *line[i + 1 : i + 2]], word)
            for line in lines
            for i, word in enumerate(line)
        ]
    else:
        wanted = [([a], b) for x in lines for a, b in itertools.pairwise(x)]
        wanted += [([b], a) for ([a], b) in wanted]
    found = [
        (sorted(inputs), target) for inputs, target in numbered(learner, learner.examples(0, 0))
    ]
    assert sorted(found) == sorted((sorted(inputs), target) for inputs, target in wanted)


def test_a_token_alone_is_no_example():
    learner = Cbow(**SMALL).learner(read_corpus(["a", "a b", "b"], 1, True))
    assert sorted(numbered(learner, learner.examples(0, 0))) == [(["a"], "b"), (["b"], "a")]


def test_blocks_have_the_examples_of_an_epoch(monkeypatch):
    monkeypatch.setattr("kbert.word_vectors.negative_sampling._BLOCK", 50)
    learner = learner_of("skip_gram", count=30)  # of 120 tokens
    assert learner.num_blocks == 3
    orders = [learner.examples(epoch, block) for epoch, block in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert all(60 < len(x) < 200 for x in orders)
    np.testing.assert_array_equal(orders[0].inputs, orders[3].inputs)
    assert orders[0].inputs[:40].tolist() != orders[2].inputs[:40].tolist()


def test_tokens_are_left_out_with_their_probability():
    learner = learner_of("skip_gram", count=4000, subsample=0.01, window=1)
    kept = np.zeros(len(learner.corpus.words))
    is_kept = np.random.default_rng([0, 0, 0]).random(len(learner.corpus.ids))
    is_kept = is_kept < learner._kept[learner.corpus.ids]
    np.add.at(kept, learner.corpus.ids[is_kept], 1)
    counts, p = learner.corpus.counts, learner._kept
    assert (np.abs(kept - counts * p) < 5 * np.sqrt(counts * p * (1 - p))).all()
    # `the` is a quarter of all tokens: of 4,000 about 960 are kept.
    assert learner.corpus.words[0] == "the"
    assert kept[0] == pytest.approx(4000 * (np.sqrt(0.04) + 0.04), abs=150)


def test_negatives_are_drawn_by_the_power_of_their_counts():
    corpus = read_corpus(["a " * 81, "b " * 16, "c"], 1, True)
    found = SkipGram(**SMALL).learner(corpus).draw(np.random.default_rng(0), (40_000, 2))
    shares = np.bincount(found.ravel()) / found.size
    np.testing.assert_allclose(shares, np.array([27, 8, 1]) / 36, atol=0.006)


def loss(inputs, contexts, groups, targets, negatives):
    """Equation 4 of Mikolov et al. for each example, with the mean of its rows; negated."""
    total = 0.0
    for rows, target, others in zip(groups, targets, negatives, strict=True):
        vector = inputs[rows].mean(0)
        total += np.log1p(np.exp(-vector @ contexts[target]))
        total += sum(np.log1p(np.exp(vector @ contexts[o])) for o in others if o != target)
    return total


def slopes(function, array):
    """The gradient by finite differences."""
    found = np.zeros_like(array)
    for place in np.ndindex(*array.shape):
        moved = [array.copy(), array.copy()]
        for x, by in zip(moved, (1e-5, -1e-5), strict=True):
            x[place] += by
        found[place] = (function(moved[0]) - function(moved[1])) / 2e-5
    return found


@pytest.mark.parametrize("kind", METHODS)
def test_a_step_is_adagrad_on_the_loss(kind):
    learner = learner_of(kind, count=6)
    rng = np.random.default_rng(1)
    before = {
        name: rng.normal(0, 1.0 if name.endswith("values") else 0, x.shape)
        + name.endswith("squares")
        for name, x in learner.arrays().items()
    }
    learner.restore({name: x.astype("float32") for name, x in before.items()})
    examples = learner.examples(0, 0)
    part = slice(2, 10)
    learner.step(examples, part, np.random.default_rng(5), 0.5)
    negatives = learner.draw(np.random.default_rng(5), (8, 2))
    words = np.split(examples.inputs, examples.starts[1:-1])[part]
    names = learner.corpus.words
    if kind == "fasttext":
        buckets = sorted({row for word in names for row in ngram_rows(word, 40, 2, 3)})
        rows_of = [
            [word, *(len(names) + buckets.index(x) for x in ngram_rows(names[word], 40, 2, 3))]
            for word in range(len(names))
        ]
        groups = [rows_of[word[0]] for word in words]
    else:
        groups = words
    targets = examples.targets[part]
    inputs, contexts = before["inputs/values"], before["contexts/values"]
    of_contexts = slopes(lambda x: loss(inputs, x, groups, targets, negatives), contexts)
    # As in word2vec.c: each row of a mean gets the gradient of the mean, as of a sum.
    of_inputs = np.zeros_like(inputs)
    for number, rows in enumerate(groups):
        alone = ([rows], targets[[number]], negatives[[number]])
        of_inputs += len(rows) * slopes(lambda x, a=alone: loss(x, contexts, *a), inputs)
    found = learner.arrays()
    for name, slope in (("inputs", of_inputs), ("contexts", of_contexts)):
        squares = 1 + slope**2
        np.testing.assert_allclose(found[f"{name}/squares"], squares, rtol=1e-4, atol=1e-5)
        wanted = before[f"{name}/values"] - 0.1 * 0.5 * slope / np.sqrt(squares)
        np.testing.assert_allclose(found[f"{name}/values"], wanted, atol=1e-5)


def test_a_word_of_fasttext_is_the_mean_of_its_rows():
    learner = learner_of("fasttext")
    vectors = learner.word_vectors()
    values = learner.arrays()["inputs/values"]
    for number, word in enumerate(vectors.words):
        rows = vectors.subwords.rows(word)
        assert rows
        wanted = (values[number] + vectors.subwords.table[rows].sum(0)) / (1 + len(rows))
        np.testing.assert_allclose(vectors.vectors([word])[0], wanted, atol=1e-6)
    used = {row for word in vectors.words for row in vectors.subwords.rows(word)}
    unused = [row for row in range(40) if row not in used]
    assert not vectors.subwords.table[unused].any()
    assert len(values) == len(vectors.words) + len(used)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (SkipGram, {"width": 0}, r"`width` must be a whole number of at least 1. Received: 0"),
        (Cbow, {"epochs": True}, r"`epochs` must be a whole number"),
        (SkipGram, {"subsample": 2}, r"`subsample` must be a number above 0 and at most 1 or None"),
        (SkipGram, {"learning_rate": 0}, r"`learning_rate` must be a number above 0"),
        (FastText, {"shortest_ngram": 7}, r"at most `longest_ngram`. Received: shortest_ngram=7, "),
        (FastText, {"buckets": 2**31}, r"`buckets` must be a whole number from 1"),
    ],
    ids=["width", "epochs", "subsample", "learning_rate", "ngrams", "buckets"],
)
def test_settings_out_of_range(method, settings, message):
    with pytest.raises(ValueError, match=message):
        method(**settings)
