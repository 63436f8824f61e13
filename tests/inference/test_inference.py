import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert import inference
from kbert.core.contexts import repeatable


def test_as_texts():
    assert inference.as_texts("one") == ["one"]
    assert inference.as_texts(("a", b"b")) == ["a", b"b"]
    assert inference.as_texts(tf.constant(["a"])) == [b"a"]
    assert inference.as_texts(np.array(["a", "b"])) == ["a", "b"]
    assert inference.as_texts([]) == []
    with pytest.raises(TypeError, match=r"texts must be strings. Received: 3 as number 1"):
        inference.as_texts(["a", 3])
    with pytest.raises(ValueError, match=r"value of prompts must have an order.*Received: a set"):
        inference.as_texts({"a", "b"}, "prompts")
    assert inference.as_texts({"b": 1, "a": 2}.keys()) == ["b", "a"]


def test_by_length_covers_each_row_once_and_sorts():
    lengths = np.array([3, 50, 1, 50, 7])
    batches = [b.tolist() for b in inference.by_length(lengths, 2)]
    assert batches == [[1, 3], [4, 0], [2]]


def test_next_power_of_two():
    assert [inference.next_power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 33)] == [
        1,
        1,
        2,
        4,
        4,
        8,
        64,
    ]


def test_pad_to_powers_of_two():
    features = {
        "token_ids": np.array([[1, 2], [3, 4], [5, 6]]),
        "mask_positions": np.array([[1, 0, 1]] * 3),
    }
    padded = inference.pad(features)
    assert padded["token_ids"].tolist() == [[1, 2], [3, 4], [5, 6], [5, 6]]
    assert padded["mask_positions"].tolist() == [[1, 0, 1, 0]] * 4


def test_compiled_reads_the_weights_as_they_are_now():
    dense = keras.layers.Dense(1, use_bias=False)
    dense.build((None, 2))
    run = inference.compiled(lambda features: dense(features["x"]), dense)
    x = {"x": np.ones((1, 2), "float32")}
    dense.set_weights([np.array([[1.0], [2.0]])])
    assert run(x).tolist() == [[3.0]]
    dense.set_weights([np.array([[4.0], [2.0]])])
    assert run(x).tolist() == [[6.0]]


def test_compiled_takes_features_of_other_names():
    run = inference.compiled(lambda features: sum(features.values()))
    x = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(run({"x": x, "y": x}), 2 * x)
    np.testing.assert_array_equal(run({"x": x}), x)


def test_a_model_that_keeps_a_compiled_function_counts_its_layers_once():
    class Holder(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, use_bias=False)
            self.dense.build((None, 2))
            self.run = inference.compiled(lambda features: self.dense(features["x"]), self.dense)

    holder = Holder()
    holder.run({"x": np.ones((1, 2), "float32")})
    assert len(holder.variables) == 1


@pytest.mark.parametrize(
    ("eager_first", "sizes", "graphs"),
    [
        (True, [3, 3, 5, 2000, 3], [False, True]),
        (True, [2000, 3, 3], [True]),
        (False, [3, 3], [True]),
    ],
)
def test_a_first_small_batch_needs_no_graph(eager_first, sizes, graphs):
    """`sizes` are those of the batches; `graphs` says for each run of Python whether it traces."""
    traced = []
    weight = keras.Variable(3.0)

    def times(features):
        traced.append(not tf.executing_eagerly())
        return {"times": features["x"] * weight, "twice": [features["x"] + features["x"]]}

    run = inference.compiled(times, eager_first=eager_first)
    for size in sizes:
        x = np.arange(size, dtype="float32")
        found = run({"x": x})
        assert isinstance(found["times"], np.ndarray)
        np.testing.assert_array_equal(found["times"], 3 * x)
        np.testing.assert_array_equal(found["twice"][0], 2 * x)
    assert traced == graphs


@pytest.mark.parametrize(
    ("shape", "context"), [((1, 8), repeatable()), ((1, 200), contextlib.nullcontext())]
)
def test_a_first_batch_in_a_graph(shape, context):
    """For files that a resumed run continues, and for rows that a recurrent model reads slowly."""
    traced = []

    def double(features):
        traced.append(not tf.executing_eagerly())
        return features["x"] * 2

    run = inference.compiled(double, eager_first=True)
    with context:
        run({"x": np.ones(shape, "float32")})
    assert traced == [True]


def test_a_first_small_batch_that_is_not_finite_is_refused():
    run = inference.compiled(lambda features: features["x"] / 0.0, eager_first=True)
    with pytest.raises(ValueError, match="NaN"):
        run({"x": np.ones(2, "float32")})
