"""Several tasks and tokenizers in one process: what each traces once is no retracing."""

import contextlib
import logging
from pathlib import Path

import pytest
import tensorflow as tf

import kbert
from kbert.core.graphs import graph
from tests.harness import tiny_config

pytestmark = pytest.mark.tensorflow

KBERT = Path(kbert.__file__).parent
SIX = range(6)  # TensorFlow warns from the fifth on


@contextlib.contextmanager
def told():
    """What TensorFlow logs in the meantime."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # a program that ran in this process may have silenced it
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


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


def test_every_graph_of_the_library_is_counted_by_itself():
    made = [path for path in KBERT.rglob("*.py") if "tf.function(" in path.read_text()]
    assert made == [KBERT / "core" / "graphs.py"]


def test_tokenizers_and_tasks_side_by_side(tiny_vocabulary):
    with told() as lines:
        for _ in SIX:
            tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
            tokenizer.decode(tokenizer(["the fox"]))
            config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, num_layers=1)
            task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, 2)
            task.predict(["fox"], verbose=0)
    assert [line for line in lines if "retracing" in line] == []


@pytest.mark.parametrize(("training", "most"), [(False, 88), (True, 184)])
def test_a_layer_is_no_more_operations_than_it_was(training, most):
    """Of a small model on one text, bookkeeping is a part of the time: it must not creep back.

    Counted in the graph as it is traced, constants apart, where layers are fused in training.
    """

    def operations(layers):
        config = tiny_config(
            num_layers=layers, hidden_size=128, intermediate_size=256, activation="gelu"
        )
        encoder = kbert.Encoder(config)
        names = ("token_ids", "segment_ids", "padding_mask")
        spec = {name: tf.TensorSpec([None, None], tf.int32) for name in names}
        weights = [variable.value for variable in encoder.trainable_variables]

        def compute(inputs):
            if not training:
                return encoder(inputs)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                loss = tf.reduce_sum(encoder(inputs, training=True)["pooled"])
            return tape.gradient(loss, weights)

        made = graph(compute, autograph=False).get_concrete_function(spec).graph
        return sum(op.type not in ("Const", "Placeholder") for op in made.get_operations())

    assert operations(3) - operations(2) <= most
