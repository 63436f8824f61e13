"""n-grams and spans against the plain loops of ALBERT's and SpanBERT's code, draw for draw."""

import functools
import operator

import numpy as np
import pytest
import tensorflow as tf

from kbert.data.masking import ngrams
from kbert.data.masking.hashing import fold
from kbert.data.masking.ngrams import choose_ngrams, choose_spans, draw_lengths, runs
from kbert.data.masking.units import find_units, offered
from tests.data.rows import random_rows, words_of


def albert_ngrams(words, offers, lengths, count):
    """`create_masked_lm_predictions`, words in the order offered, `lengths` being their n."""
    chosen = []
    for first, n in zip(offers, lengths, strict=True):
        if len(chosen) >= count:
            break
        index_set = functools.reduce(operator.iadd, words[first : first + n], [])
        while len(chosen) + len(index_set) > count and n > 1:
            n -= 1
            index_set = functools.reduce(operator.iadd, words[first : first + n], [])
        if len(chosen) + len(index_set) <= count and not set(index_set) & set(chosen):
            chosen += index_set
    return sorted(chosen)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_ngrams_are_those_of_alberts_loop(share):
    columns = 9
    in_text, begins, count = random_rows(3, 200, 40, share, columns)
    units, keys = find_units(tf.constant(in_text), begins), fold(5, tf.range(200))
    chosen = choose_ngrams(keys, units, tf.constant(count), columns).numpy()
    offers = (offered(keys, units, columns) - units.first).numpy().T
    numbers = tf.range(offers.shape[1])[:, None]
    lengths = draw_lengths(keys, numbers, ngrams.NGRAM_WEIGHTS).numpy().T
    for row in range(200):
        words = words_of(in_text[row], begins[row].numpy())
        offers_here = offers[row].tolist() if words else [0] * offers.shape[1]
        expected = albert_ngrams(words, offers_here, lengths[row], count[row])
        assert chosen[row].tolist() == expected + [0] * (columns - len(expected))


def spanbert_spans(words, offers, count):
    """`PairWithSpanMaskingScheme.mask`; an offer is the first word and the number of words."""
    chosen = set()
    for first, n in offers:
        if len(chosen) >= count:
            break
        if n == 0 or words[first][0] in chosen:
            continue
        for word in words[first : first + n]:
            for position in word:
                if len(chosen) < count:
                    chosen.add(position)
    return sorted(chosen)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_spans_are_those_of_spanberts_loop(share):
    columns = 9
    in_text, begins, count = random_rows(4, 200, 40, share, columns)
    units, keys = find_units(tf.constant(in_text), begins), fold(6, tf.range(200))
    chosen = choose_spans(keys, units, tf.constant(count), columns).numpy()
    numbers = tf.range(ngrams.span_offers(columns))[:, None]
    first, end = (part.numpy().T for part in ngrams._offered_spans(keys, units, numbers))
    for row in range(200):
        words = words_of(in_text[row], begins[row].numpy())
        offers = zip(first[row] - units.first[row].numpy(), end[row] - first[row], strict=True)
        expected = spanbert_spans(words, offers, count[row])
        assert chosen[row].tolist() == expected + [0] * (columns - len(expected))


def test_spans_begin_at_any_token_alike():
    in_text = np.ones((40_000, 12), bool)
    in_text[:, [0, 6, 11]] = False
    begins = in_text.copy()
    begins[:, [3, 4]] = False  # a word of three pieces
    units = find_units(tf.constant(in_text), tf.constant(begins))
    keys = fold(0, tf.range(40_000))
    first, end = ngrams._offered_spans(keys, units, tf.range(3)[:, None])
    real = (end > first)[2]
    counts = np.bincount(tf.boolean_mask(first[2] - units.first, real), minlength=7)
    # One draw in ten falls on the separator at 6; the long word has three tokens.
    assert np.mean(real) == pytest.approx(0.9, abs=0.01)
    expected = 4000 * np.array([1, 3, 1, 1, 1, 1, 1])
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))


@pytest.mark.parametrize(
    ("weights", "mean"),
    [(ngrams.NGRAM_WEIGHTS, 18 / 11), (ngrams.SPAN_WEIGHTS, 3.797), (ngrams.TOKEN_WEIGHTS, 1.3)],
)
def test_lengths_follow_their_weights(weights, mean):
    lengths = draw_lengths(fold(0, 0), tf.range(300_000), weights).numpy()
    counts = np.bincount(lengths, minlength=len(weights) + 1)
    assert counts[0] == 0
    assert len(counts) == len(weights) + 1
    shares = np.array(weights) / sum(weights)
    assert np.all(np.abs(counts[1:] - 300_000 * shares) < 5 * np.sqrt(300_000 * shares))
    assert lengths.mean() == pytest.approx(mean, rel=0.01)


def test_chosen_ngrams_are_mostly_as_drawn():
    """In a row that has budget for all, single n-grams show the weights of ALBERT's code."""
    in_text = tf.constant([[False] + [True] * 500 + [False]] * 4000)
    units, keys = find_units(in_text, in_text), fold(2, tf.range(4000))
    chosen = choose_ngrams(keys, units, tf.fill([4000], 3), 3).numpy()
    alone = np.array([np.all(np.diff(row) == 1) for row in chosen])
    # The first draw is a 3-gram (2 of 11), or neighbours make one by rare chance.
    assert alone.mean() == pytest.approx(2 / 11, abs=5 * np.sqrt(2 / 11 * 9 / 11 / 4000) + 0.01)


def test_rows_reach_their_count():
    in_text, begins, _ = random_rows(8, 2000, 512, 0.2, 1)
    count = np.ceil(0.15 * in_text.sum(axis=1)).astype(np.int32)
    units = find_units(tf.constant(in_text), begins)
    for choose in (choose_spans, choose_ngrams):
        chosen = choose(fold(0, tf.range(2000)), units, tf.constant(count), 80).numpy()
        found = (chosen > 0).sum(axis=1)
        assert np.all(found <= count), choose
        assert np.mean(found == count) > 0.99, choose


@pytest.mark.parametrize("choose", [choose_ngrams, choose_spans])
def test_a_row_is_drawn_by_its_key_alone(choose):
    in_text, begins, count = random_rows(9, 60, 40, 0.3, 6)
    keys = fold(0, tf.range(60))

    def chosen(*row):
        keys, in_text, begins, count = row
        return choose(keys, find_units(in_text, begins), count, 9)

    rows = keys, tf.constant(in_text), begins, tf.constant(count)
    one = tf.function(chosen, autograph=False)  # traced once: all rows are alike in shape
    alone = [one(*(x[n : n + 1] for x in rows)) for n in range(60)]
    assert np.array_equal(chosen(*rows), np.concatenate(alone))


@pytest.mark.parametrize("choose", [choose_ngrams, choose_spans])
def test_rows_without_text(choose):
    nothing = tf.zeros([3, 16], tf.bool)
    units = find_units(nothing, nothing)
    chosen = choose(fold(0, tf.range(3)), units, tf.zeros([3], tf.int32), 4)
    assert np.array_equal(chosen, np.zeros((3, 4)))


def test_runs_of_neighbours():
    rng = np.random.default_rng(0)
    positions = np.zeros((300, 20), np.int32)
    for row in positions:
        count = rng.integers(0, 21)
        row[:count] = np.sort(rng.choice(np.arange(1, 30), count, replace=False))
    first, last = (part.numpy() for part in runs(tf.constant(positions)))
    for row, begin, end in zip(positions, first, last, strict=True):
        chosen = set(row[row > 0].tolist())
        for position, a, b in zip(row, begin, end, strict=True):
            if position == 0:
                assert a == b == 0
                continue
            assert a <= position <= b
            assert chosen.issuperset(range(a, b + 1))
            assert a - 1 not in chosen
            assert b + 1 not in chosen
