"""SavedModels whose weights are stored in 8 bits: as small as that, and right in both loaders."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.export import StoredWeights, export_saved_model
from kbert.signatures import Signature
from tests.export import session
from tests.harness import assert_close, randomise

pytestmark = pytest.mark.tensorflow
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "play"]


def rounded(x, axis):
    """By hand: multiples of a 127th of the largest."""
    scale = np.abs(x).max(axis, keepdims=True) / 127
    return np.round(x / scale) * scale


class Model(keras.layers.Layer):
    """A table, and a kernel behind it."""

    def build(self, shape=None):
        normal = keras.initializers.RandomNormal(seed=1)
        self.token = self.add_weight(name="token", shape=(90, 64), initializer=normal)
        self.kernel = self.add_weight(name="kernel", shape=(64, 70), initializer=normal)
        self.small = self.add_weight(name="small", shape=(2, 70), initializer=normal)
        self.bias = self.add_weight(name="bias", shape=(5000,), initializer=normal)

    def call(self, ids):
        return (
            keras.ops.take(self.token, ids, axis=0) @ self.kernel + self.bias[:70] + self.small[1]
        )


def export(model, folder):
    stored = StoredWeights([*model.variables, model.kernel])
    entry = Signature(lambda ids: {"y": model(ids)}, [tf.TensorSpec([None], tf.int32, "ids")])
    return export_saved_model(folder, {"rows": stored.signature(entry)}, resources=stored.resources)


def expected(model, ids):
    token, kernel, small, bias = (np.asarray(x.numpy()) for x in model.weights)
    return rounded(token, -1)[ids] @ rounded(kernel, 0) + bias[:70] + small[1]


@pytest.fixture
def model():
    made = Model()
    made.build()
    randomise(made)
    return made


def test_both_loaders_give_the_rounded_weights(tmp_path, model):
    path = export(model, tmp_path)
    ids = np.array([3, 0, 89], "int32")
    wanted = expected(model, ids)
    assert np.abs(wanted - np.asarray(model(ids))).max() > 1e-4
    (answer,) = session.ask(path, ("rows", {"ids": ids}))
    assert_close(answer["y"], wanted, 1e-5)
    loaded = tf.saved_model.load(path)
    assert_close(loaded.signatures["rows"](ids=tf.constant(ids))["y"], wanted, 1e-5)
    reader = tf.train.load_checkpoint(f"{path}/variables/variables")
    types = reader.get_variable_to_dtype_map()
    sizes = [(types[name].name, *x) for name, x in reader.get_variable_to_shape_map().items()]
    assert ("int8", 64, 70) in sizes
    assert ("int8", 90, 64) in sizes
    assert not [x for x in sizes if x[0] == "float32" and np.prod(x[1:]) > 5000]


def test_models_of_one_process_do_not_meet(tmp_path, model):
    other = Model()
    other.build()
    randomise(other, seed=5)
    ids = np.array([1, 2], "int32")
    paths = [export(x, tmp_path / str(i)) for i, x in enumerate((model, other))]
    loaded = [tf.saved_model.load(path) for path in (*paths, paths[0])]
    loaded.pop()
    gc.collect()
    for x, mine in zip(loaded, (model, other), strict=True):
        assert_close(x.signatures["rows"](ids=tf.constant(ids))["y"], expected(mine, ids), 1e-5)


@pytest.mark.slow
@pytest.mark.graphs
def test_tasks_with_tied_tables_and_loops(tmp_path):
    tokenizer = kbert.WordPieceTokenizer([*WORDS, *(f"w{i}" for i in range(200))])
    size = {"vocabulary_size": 210, "hidden_size": 64, "num_layers": 2, "num_heads": 2}
    encoder = kbert.Encoder(kbert.EncoderConfig(intermediate_size=128, **size))
    masked = kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=False)
    decoder = kbert.Decoder(kbert.DecoderConfig(intermediate_size=128, **size))
    causal = kbert.tasks.CausalLM(decoder, tokenizer)
    randomise(masked)
    randomise(causal)
    for name, task, request in (
        ("fill_mask", masked, {"text": ["a [MASK] film", "bad"]}),
        ("generate", causal, {"prompt": ["a good", "bad"]}),
    ):
        path = task.export(tmp_path / name, precision="int8")
        size = sum(x.stat().st_size for x in Path(path, "variables").iterdir())
        assert size < 0.4 * 4 * task.count_params(), name  # vectors, and the checkpoint's index
        (answer,) = session.ask(path, (name, request))
        for weight in task.trainable_weights:
            if len(weight.shape) > 1 and np.prod(weight.shape) >= 4096:
                weight.assign(rounded(weight.numpy(), 0 if "kernel" in weight.name else -1))
        if name == "fill_mask":
            wanted = masked.predict(request["text"], top_k=5)[0]["probabilities"]
            assert_close(answer["probabilities"][0, :1], wanted, 1e-5)
        else:
            found = [text.decode() for text in answer["continuation"][:, 0]]
            assert found == causal.predict(request["prompt"])


@pytest.mark.slow
def test_a_process_that_has_no_kbert_loads_it(tmp_path, model):
    path = export(model, tmp_path)
    code = (
        "import sys, tensorflow as tf; m = tf.saved_model.load(sys.argv[1]);"
        "print(float(m.signatures['rows'](ids=tf.constant([7]))['y'][0, 3]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        capture_output=True, text=True, check=True, cwd=tmp_path, env={**os.environ},
    )  # fmt: skip
    wanted = expected(model, np.array([7]))[0, 3]
    assert float(done.stdout.split()[-1]) == pytest.approx(wanted, abs=1e-5)
