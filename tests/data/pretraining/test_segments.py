"""Single segments and whole sentences: no text is lost, none is used twice."""

import bisect

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from kbert.data.masking.hashing import fold
from kbert.data.pretraining.segments import (
    join_documents,
    plan_runs,
    plan_segments,
    plan_sentences,
)

# As in a pipeline: where a plan takes hundreds of steps, much faster.
traced_segments = tf.function(plan_segments, autograph=False)
traced_sentences = tf.function(plan_sentences, autograph=False)


def test_segments_are_the_whole_text_once():
    rng = np.random.default_rng(3)
    sentences = rng.integers(1, 60, 3000)
    documents = [700, 1, 1299, 1000]
    plan = traced_segments(
        tf.constant(sentences, tf.int32), tf.constant(documents), fold(2, 0), max_tokens=62
    ).numpy()
    assert np.all(plan[:, 2:] == 0)
    starts, lengths = plan[np.argsort(plan[:, 0]), :2].T
    assert starts[0] == 0
    assert starts[-1] + lengths[-1] == sentences.sum()
    assert np.array_equal(starts[1:], starts[:-1] + lengths[:-1])
    bounds = np.cumsum([0, *sentences])
    ends = {int(bounds[n]) for n in np.cumsum(documents)}
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        assert not any(start < end < start + length for end in ends)
    full = np.mean(lengths == 62)
    assert 0.75 < full < 0.95


def test_segments_end_at_sentences_of_stretches_only_by_chance():
    bounds = list(range(0, 100_001, 10))
    plan = traced_segments(
        tf.fill([10_000], 10), tf.constant([10_000]), fold(2, 0), max_tokens=7, short_share=0.0
    ).numpy()
    starts = sorted(plan[:, 0].tolist())
    at_sentence = [start for start in starts if start == bounds[bisect.bisect_left(bounds, start)]]
    assert len(starts) == pytest.approx(100_000 / 7, rel=0.01)
    assert len(at_sentence) == pytest.approx(len(starts) / 10, rel=0.1)


def whole_sentences(documents, max_tokens, cross):
    """RoBERTa's packing, document by document: rows of tokens that are their own positions.

    Between documents of one row stands -1.
    """
    tokens, rows, row = iter(range(sum(map(sum, documents)))), [], []
    for document in documents:
        gap = [-1] if row and cross else []
        if row and not cross:
            rows.append(row)
            row = []
        for length in document:
            sentence = [next(tokens) for _ in range(length)]
            while sentence:
                part, sentence = sentence[:max_tokens], sentence[max_tokens:]
                if row and len(row) + len(gap) + len(part) > max_tokens:
                    rows.append(row)
                    row, gap = [], []
                row, gap = row + gap + part, []
    return [*rows, row]


def planned_sentences(documents, max_tokens, cross, plan=traced_sentences, **settings):
    sentences = tf.constant(np.concatenate(documents), tf.int32)
    counts = tf.constant([len(document) for document in documents])
    tokens = tf.range(tf.reduce_sum(sentences))
    if cross:
        tokens = join_documents(tokens, sentences, counts, -1)
    plan = plan(
        sentences, counts, fold(3, 0), max_tokens=max_tokens, cross=cross, **settings
    ).numpy()
    assert not plan[:, 2:].any()
    tokens = tokens.numpy()
    return [tokens[start : start + length].tolist() for start, length in plan[:, :2]]


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(
    documents=st.lists(
        st.lists(st.integers(1, 30), min_size=1, max_size=9), min_size=1, max_size=9
    ),
    max_tokens=st.integers(5, 40),
    cross=st.booleans(),
)
def test_sentences_are_packed_as_in_a_plain_loop(documents, max_tokens, cross):
    found = planned_sentences(documents, max_tokens, cross, plan_sentences)
    assert sorted(found) == sorted(whole_sentences(documents, max_tokens, cross))


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("short_share", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_sentences_are_the_whole_text_once(cross, short_share):
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 60, rng.integers(1, 200)).tolist() for _ in range(40)]
    documents[7] = [900, 3]
    found = planned_sentences(documents, 62, cross, short_share=short_share)
    text = [token for row in sorted(found) for token in row if token >= 0]
    assert text == list(range(sum(map(sum, documents))))
    assert max(map(len, found)) <= 62
    assert all(row[0] >= 0 and row[-1] >= 0 for row in found)


def test_crossing_documents_fills_rows():
    rng = np.random.default_rng(2)
    documents = [rng.geometric(1 / 18, rng.integers(1, 30)).tolist() for _ in range(600)]
    fill = {
        cross: np.mean([len(row) for row in planned_sentences(documents, 510, cross)]) / 510
        for cross in (False, True)
    }
    assert fill[True] > 0.95
    assert fill[False] < 0.6


@pytest.mark.parametrize("token_dtype", ["uint16", "int32"])
def test_joined_documents_keep_the_type_of_their_tokens(token_dtype):
    tokens = tf.cast([60_000, 8, 9], token_dtype)
    out = join_documents(tokens, tf.constant([1, 2]), tf.constant([1, 1]), 3)
    assert out.dtype == token_dtype
    assert out.numpy().tolist() == [60_000, 3, 8, 9]
    out = join_documents(tokens, tf.constant([1, 2]), tf.constant([2]), 3)
    assert out.numpy().tolist() == [60_000, 8, 9]


@hypothesis.given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(2, 12),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_runs_go_on_in_the_row_below_and_are_the_whole_text_once(documents, rows, max_tokens):
    sentences = tf.constant([length for document in documents for length in document])
    counts = tf.constant([len(document) for document in documents])
    plan = plan_runs(sentences, counts, fold(5, 1), max_tokens=max_tokens, rows=rows).numpy()
    assert len(plan) % rows == 0
    start, first, second, rest, label = plan.reshape(-1, rows, 5).transpose(2, 0, 1)
    length = first + rest
    assert not label.any()
    assert np.array_equal(first == 0, length == 0)
    assert np.array_equal(second[rest > 0], (start + first)[rest > 0])
    text = []
    for row in range(rows):
        filled = length[:, row] > 0
        assert not filled[np.argmin(filled) :].any() or filled.all()
        assert np.all(length[filled, row][:-1] == max_tokens)
        assert np.array_equal(
            start[filled, row][1:], (start[filled, row] + length[filled, row])[:-1]
        )
        for at, size in zip(start[filled, row], length[filled, row], strict=True):
            text += range(at, at + size)
    total = sum(map(sum, documents)) + len(documents) - 1
    assert text == list(range(total))


def test_runs_are_cut_in_two_anywhere():
    plan = plan_runs(tf.constant([50_000]), tf.constant([1]), fold(5, 1), max_tokens=5, rows=4)
    counts = np.bincount(plan.numpy()[:, 1], minlength=6)
    assert not counts[[0, 5]].any()
    expected = counts.sum() / 4
    assert ((counts[1:5] - expected) ** 2 / expected).sum() < 17.7  # 0.0005 of 3 degrees


def test_rows_of_a_long_text_are_never_short():
    with pytest.raises(ValueError, match=r"must be 0 for .*Received: 0.1"):
        plan_runs(
            tf.constant([9]), tf.constant([1]), fold(0, 0), max_tokens=5, rows=2, short_share=0.1
        )
