import os
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert.export import export_saved_model, refuse_differences
from kbert.signatures import Signature
from kbert.signatures.requests import text_tokens
from tests.export import session
from tests.harness import files_of_at_most
from tests.waiting import PATIENCE

pytestmark = pytest.mark.tensorflow
SETTINGS = ["batching_parameters.txt", "models.config"]


@pytest.fixture
def layer():
    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    return layer


def signature(layer):
    return Signature(lambda x: {"y": layer(x)}, [tf.TensorSpec([None, 4], tf.float32, "x")])


def test_session_loader_gives_the_same_numbers(tmp_path, layer):
    path = export_saved_model(tmp_path, {"dense": signature(layer)})
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    for name in ("dense", "serving_default"):
        np.testing.assert_allclose(session.ask(path, (name, {"x": x}))[0]["y"], layer(x), atol=1e-6)


def test_every_weight_is_stored_once(tmp_path, layer):
    pair = Signature(lambda x: {"y": layer(x) * 2}, [tf.TensorSpec([None, 4], tf.float32, "x")])
    path = export_saved_model(tmp_path, {"dense": signature(layer), "double": pair})
    stored = [
        shape
        for name, shape in tf.train.list_variables(f"{path}/variables/variables")
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH"
    ]
    assert sorted(stored) == [[3], [4, 3]]


def test_versions_count_up_and_other_names_are_left_alone(tmp_path, layer):
    for other in ("7", "notes", ".hidden"):
        (tmp_path / other).mkdir()
    assert export_saved_model(tmp_path, {"dense": signature(layer)}) == str(tmp_path / "8")
    assert export_saved_model(tmp_path, {"dense": signature(layer)}) == str(tmp_path / "9")
    assert sorted(os.listdir(tmp_path)) == [".hidden", "7", "8", "9", *SETTINGS, "notes"]


def test_two_writers_get_two_versions(tmp_path, layer, monkeypatch):
    meet = threading.Barrier(2, timeout=PATIENCE)
    rename = os.rename

    def together(source, target):
        if source.endswith(".partial") and target.endswith(os.sep + "1"):
            meet.wait()
        rename(source, target)

    monkeypatch.setattr(os, "rename", together)
    paths = []
    writers = [
        threading.Thread(
            target=lambda: paths.append(export_saved_model(tmp_path, {"dense": signature(layer)}))
        )
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(paths) == [str(tmp_path / "1"), str(tmp_path / "2")]
    assert sorted(os.listdir(tmp_path)) == ["1", "2", *SETTINGS]


def test_a_failed_export_leaves_nothing(tmp_path, layer, monkeypatch):
    def disk_full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", disk_full)
    with pytest.raises(OSError, match="No space left"):
        export_saved_model(tmp_path, {"dense": signature(layer)})
    assert os.listdir(tmp_path) == []


def test_a_full_disk_names_the_folder(tmp_path, layer):
    error = f"Cannot write {tmp_path}/out: .*File too large"
    with files_of_at_most(100), pytest.raises(OSError, match=error):
        export_saved_model(tmp_path / "out", {"dense": signature(layer)})
    assert os.listdir(tmp_path / "out") == []


def test_lookup_tables_travel_with_their_module(tmp_path):
    class Lookup(tf.Module):
        def __init__(self):
            super().__init__()
            keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
            self.table = tf.lookup.StaticHashTable(keys, -1)

    lookup = Lookup()
    entry = Signature(
        lambda word: {"id": lookup.table.lookup(word)}, [tf.TensorSpec([None], tf.string, "word")]
    )
    path = export_saved_model(tmp_path, {"lookup": entry}, resources=[lookup])
    (answer,) = session.ask(path, ("lookup", {"word": ["b", "?"]}))
    assert answer["id"].tolist() == [2, -1]


def test_another_backend_says_what_to_do(tmp_path, layer, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"save_to_preset.*Received: KERAS_BACKEND=jax"):
        export_saved_model(tmp_path, {"dense": signature(layer)})


def test_a_version_is_kept_if_it_answers(tmp_path):
    """It is asked once, as the server will, before it has its number: the one before stays."""

    def entry(function):
        specs = [tf.TensorSpec([None], tf.string, "text")]

        def count(text):
            return function(tf.cast(tf.strings.length(text), tf.float32))

        return {"count": Signature(count, specs, text_tokens())}

    export_saved_model(tmp_path, entry(lambda n: {"n": n}))
    before = sorted(path.name for path in tmp_path.iterdir())
    assert before[0] == "1"
    for function, message in (
        (lambda n: {"log": tf.math.log(-n)}, "Answers must be finite .*'log' of 'count'$"),
        (lambda n: {"part": 1 / (n - n)}, "Answers must be finite .*'part' of 'count'$"),
        (
            lambda n: {"n": tf.ensure_shape(n[:1], [2])},
            "must answer a test request .* Received: 'count': ",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            export_saved_model(tmp_path, entry(function))
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_nothing_is_further_off_than_nan(tmp_path):
    def entry(second):
        def function(text):
            length = tf.cast(tf.strings.length(text), tf.float32)
            return {"one": length * 1.001, "two": length * second}

        return {"count": Signature(function, [tf.TensorSpec([None], tf.string, "text")])}

    def check(folder):
        refuse_differences(folder, entry(1.0), ["a", "four"], "bfloat16", tolerance=0.1)

    with pytest.raises(
        ValueError, match=r"bfloat16 must not differ .*Received: nan in 'count/two'"
    ):
        export_saved_model(tmp_path, entry(float("nan")), check=check)
    assert not list(tmp_path.iterdir())
    export_saved_model(tmp_path, entry(1.0), check=check)
