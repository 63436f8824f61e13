import numpy as np
import pytest
import tensorflow as tf

from kbert.data.tables.rows import Rows

IDS = tf.ragged.constant([[1], [2, 3], []], dtype=tf.int32)


def make(**changes):
    columns = {
        "ragged": {"first": IDS},
        "dense": {"labels": np.array([4, 5, 6], np.int32)},
        "lengths": np.array([3, 4, 2]),
        "examples": np.arange(3),
    }
    return Rows(**{**columns, **changes})


def test_gather_eagerly_and_in_tf_data():
    rows = make()
    found = rows.gather([2, 0, 2])
    assert found["first"].to_list() == [[], [1], []]
    assert found["labels"].numpy().tolist() == [6, 4, 6]
    dataset = tf.data.Dataset.from_tensors([1, 0]).map(rows.gather)
    (found,) = list(dataset)
    assert found["first"].to_list() == [[2, 3], [1]]
    assert found["labels"].numpy().tolist() == [5, 4]


def test_columns_asked_for_first_in_a_graph_serve_the_next_graph_too():
    rows = make()
    assert tf.function(lambda i: rows.gather(i)["labels"])(tf.constant([0])).numpy() == [4]
    assert tf.function(lambda i: rows.gather(i)["labels"])(tf.constant([1, 2])).shape == (2,)


def test_columns_must_be_equally_long():
    with pytest.raises(ValueError, match=r"one entry per row. Received: first 3, labels 2, .*3"):
        make(dense={"labels": np.zeros(2)})


def test_other_data_has_another_checksum():
    same = make(ragged={"first": tf.ragged.constant([[1], [2, 3], []], dtype=tf.int32)})
    assert make().checksum == same.checksum
    others = [
        make(ragged={"first": tf.ragged.constant([[1, 2], [3], []], dtype=tf.int32)}),
        make(ragged={"second": IDS}),
        make(dense={"labels": np.array([4, 6, 5], np.int32)}),
    ]
    assert len({make().checksum, *(rows.checksum for rows in others)}) == 4
