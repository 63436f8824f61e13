"""Windows against a plain loop over the rules of run_squad.py."""

import functools
import operator

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from kbert.data.tables.windows import cut_windows


def loop(length, budget, stride):
    """[(start, size)], and for each window whether a piece has its most context there."""
    windows, start = [], 0
    while True:
        size = min(length - start, budget)
        windows.append((start, size))
        if start + size == length:
            break
        start += min(size, stride)
    most = []
    for number, (start, size) in enumerate(windows):
        flags = []
        for position in range(start, start + size):
            best, best_number = None, None
            for other, (begin, extent) in enumerate(windows):
                left, right = position - begin, begin + extent - 1 - position
                if left < 0 or right < 0:
                    continue
                score = min(left, right) + 0.01 * extent
                if best is None or score > best:
                    best, best_number = score, other
            flags.append(best_number == number)
        most.append(flags)
    return windows, most


def check(lengths, budget, stride):
    windows = cut_windows(tf.constant(lengths), tf.constant(budget), stride)
    expected, flags, questions = [], [], []
    for question, (length, space) in enumerate(zip(lengths, budget, strict=True)):
        found, most = loop(length, space, stride)
        expected += found
        flags += most
        questions += [question] * len(found)
    assert list(zip(windows.starts.numpy(), windows.sizes.numpy(), strict=True)) == expected
    assert windows.text.numpy().tolist() == questions
    assert windows.most_context().to_list() == flags
    wanted = [list(range(start, start + size)) for start, size in expected]
    assert windows.positions().to_list() == wanted


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=3),
    st.integers(1, 24),
)
def test_equals_the_loop(questions, stride):
    lengths, budget = zip(*questions, strict=True)
    check(lengths, budget, stride)


@pytest.mark.parametrize("length", [317, 318, 500, 900])
def test_at_the_usual_sizes(length):
    check([length, length], [317, 370], 128)


def test_every_piece_has_most_context_in_one_window():
    windows = cut_windows(tf.constant([1000]), tf.constant([50]), 7)
    inside = tf.ragged.boolean_mask(windows.positions(), windows.most_context())
    assert sorted(inside.flat_values.numpy()) == list(range(1000))


def test_no_questions():
    windows = cut_windows(tf.constant([], tf.int32), tf.constant([], tf.int32), 3)
    assert windows.positions().to_list() == windows.most_context().to_list() == []


def test_the_same_inside_a_graph():
    def starts(length):
        windows = cut_windows(length[None], tf.constant([6]), 3)
        return windows.starts, windows.most_context().flat_values

    lengths = np.array([0, 5, 10, 23], np.int32)
    for length, (begin, most) in zip(
        lengths, tf.data.Dataset.from_tensor_slices(lengths).map(starts), strict=True
    ):
        wanted, flags = loop(length, 6, 3)
        assert begin.numpy().tolist() == [start for start, _ in wanted]
        assert most.numpy().tolist() == functools.reduce(operator.iadd, flags, [])
