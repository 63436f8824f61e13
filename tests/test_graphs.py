"""Several tasks and tokenizers in one process: what each traces once is no retracing."""

import contextlib
import logging

import keras
import pytest
import tensorflow as tf

import kbert
from kbert.graphs import graph
from tests.harness import tiny_config

pytestmark = pytest.mark.tensorflow

SIX = range(6)  # TensorFlow warns from the fifth on


@contextlib.contextmanager
def told():
    """What TensorFlow logs in the meantime."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    try:
        yield lines
    finally:
        tf.get_logger().removeHandler(handler)


def test_one_code_in_many_graphs_is_no_retracing():
    def double(x):
        return 2 * x

    with told() as lines:
        made = [graph(double) for _ in range(12)]
        assert [int(double(tf.constant(2))) for double in made] == [4] * 12
    assert lines == []


def test_a_graph_that_is_traced_again_and_again_is_told():
    double = graph(lambda x: 2 * x)
    with told() as lines:
        for n in range(12):
            double(tf.zeros([n]))
    assert "triggered tf.function retracing" in lines[0]


def test_tokenizers_and_tasks_side_by_side(tiny_vocabulary):
    with told() as lines:
        for _ in SIX:
            tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
            tokenizer.decode(tokenizer(["the fox"]))
            tokenizer.encode_with_offsets("the fox")
            tokenizer.encode_words("fox")
            config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
            task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, 2)
            task.fit(["fox", "dog"] * 2, [0, 1] * 2, epochs=1, verbose=0)
            task.evaluate(["fox"], [0], verbose=0)
            keras.backend.clear_session()
    assert [line for line in lines if "retracing" in line] == []
