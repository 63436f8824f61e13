"""Rows through layers: each once, in batches of like length, whatever the batches are."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from kbert import inference


def sums(**options):
    """A runner that gives the sum of a row's ids, and how many they are."""

    def function(features):
        return {"sum": features["ids"] @ np.ones((8, 1), "float32"), "count": features["count"]}

    def assemble(columns):
        ids = tf.cast(columns["ids"].to_tensor(shape=[None, 8]), tf.float32)
        return {"ids": ids, "count": columns["ids"].row_lengths()}

    return inference.Runner(function, assemble=assemble, **options)


RUNNER = sums()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(1, 99), max_size=8), min_size=1, max_size=40),
    st.integers(1, 9),
    st.data(),
)
def test_every_row_is_run_once_and_gets_its_own(texts, batch_size, data):
    lengths = np.array([len(text) for text in texts])
    rows = inference.token_rows(lengths, ids=inference.as_ragged([np.array(t, int) for t in texts]))
    numbers = data.draw(st.none() | st.lists(st.integers(0, len(texts) - 1), unique=True))
    most = data.draw(st.none() | st.integers(1, 30))
    chosen = None if numbers is None else np.array(numbers, int)
    seen = []
    for index, found in RUNNER.each(rows, batch_size, numbers=chosen, cost=lengths, most=most):
        assert 1 <= len(index) <= batch_size
        if most is not None and len(index) > 1:
            assert len(index) * max(lengths[index]) <= most
        assert found["sum"][:, 0].tolist() == [sum(texts[i]) for i in index]
        assert found["count"].tolist() == lengths[index].tolist()
        seen += index.tolist()
    assert sorted(seen) == sorted(range(len(texts)) if numbers is None else numbers)
    assert lengths[seen].tolist() == sorted(lengths[seen].tolist(), reverse=True)


def test_features_of_the_same_columns_are_assembled_by_one_graph():
    runner, ids = sums(), tf.ragged.constant([[1, 2], [3]], dtype=tf.int32)
    for _ in range(2):
        list(runner.each(inference.token_rows(np.array([2, 1]), ids=ids), 1))
    assert len(runner._assemblers) == 1


def test_what_is_not_finite_is_refused_unless_it_is_not_checked():
    rows = inference.token_rows(np.array([1]), ids=tf.ragged.constant([[1]], dtype=tf.int32))

    def assemble(columns):
        return {"ids": tf.cast(columns["ids"].to_tensor(), tf.float32)}

    def log(features):
        return np.log(0.0, where=False, out=np.array(-np.inf)).astype("float32") * features["ids"]

    runner = inference.Runner(log, assemble=assemble)
    with pytest.raises(ValueError, match="the model's answers"):
        list(runner.each(rows, 1))
    ((_, found),) = inference.Runner(log, assemble=assemble, check=False).each(rows, 1)
    assert found.tolist() == [[-np.inf]]
