"""What a server reads beside a SavedModel, and what it does with answers of several widths."""

import concurrent.futures
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from kbert.export import export_saved_model
from kbert.export.savedmodel import tf_serving
from kbert.signatures import Signature, text_tokens
from kbert.signatures.requests import WARM_UP_TEXTS
from tests.export import session
from tests.waiting import PATIENCE

pytestmark = pytest.mark.tensorflow

TEXT = [tf.TensorSpec([None], tf.string, "text")]


def split(text):
    return {"words": tf.strings.split(text).to_tensor()}


def count(text):
    return {"bytes": tf.strings.length(text)}


ENTRIES = {
    "count": Signature(count, TEXT, text_tokens()),
    "split": Signature(split, TEXT, text_tokens(), warm_up=("of mine",)),
    "own": Signature(count, TEXT),  # of someone who has not said what it takes
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export_saved_model(tmp_path_factory.mktemp("served") / "words", ENTRIES)


def fields(message: bytes) -> dict[int, list[bytes]]:
    """The fields of a message, by their numbers; all are of a length (wire type 2)."""
    found, place = {}, 0

    def number():
        nonlocal place
        value, shift = 0, 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        key = number()
        assert key & 7 == 2
        size = number()
        found.setdefault(key >> 3, []).append(message[place : place + size])
        place += size
    return found


def test_requests_to_warm_up_with(exported):
    records = tf.data.TFRecordDataset(f"{exported}/{tf_serving.WARM_UP_FILE}")
    asked = []
    for record in records.as_numpy_iterator():
        # PredictionLog.predict_log, PredictLog.request, in tensorflow_serving/apis.
        ((log,),) = (fields(record).pop(6),)
        (request,) = fields(log)[1]
        parts = fields(request)
        assert parts.keys() == {1, 2}  # model_spec, inputs
        model = fields(parts[1][0])
        assert model[1] == [b"words"]
        assert model.keys() == {1, 3}  # name, signature_name
        inputs = {}
        for entry in map(fields, parts[2]):
            tensor = tensor_pb2.TensorProto.FromString(entry[2][0])
            inputs[entry[1][0].decode()] = tf.make_ndarray(tensor)
        asked.append((model[3][0].decode(), inputs))
    assert [(name, [x.shape for x in inputs.values()]) for name, inputs in asked] == [
        ("count", [(1,)]),
        ("count", [(2,)]),
        ("split", [(1,)]),
    ]
    assert asked[-1][1]["text"].tolist() == [b"of mine"]
    answers = session.ask(exported, *asked)  # the loader is not kept from loading
    assert answers[1]["bytes"].tolist() == [len(x.encode()) for x in WARM_UP_TEXTS]


def test_rows_of_strings_have_requests_too():
    rows = [tf.TensorSpec([None, None], tf.string, "words"), tf.TensorSpec([], tf.float32, "x")]
    entry = Signature(split, rows[:1], warm_up=("a", "b"))
    assert list(tf_serving.warm_up_requests(entry)) == [
        {"words": [["a", "b"]]},
        {"words": [["a", "b"], ["a", "b"]]},
    ]
    assert list(tf_serving.warm_up_requests(Signature(split, rows, warm_up=("a",)))) == []


def test_settings_are_written_where_they_are_missing(exported, tmp_path):
    place = tmp_path / "my words"
    export_saved_model(place, ENTRIES)
    batching = (place / tf_serving.BATCHING_FILE).read_text(encoding="utf-8")
    assert "\n#   count, own, serving_default\n" in batching  # the first entry's own
    assert "\n#   split\n" in batching
    models = (place / tf_serving.MODELS_FILE).read_text(encoding="utf-8")
    assert '    name: "my words"\n    base_path: "/models/my words"\n' in models
    for text in (batching, models):
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert "\n".join(lines).count("{") == "\n".join(lines).count("}") > 0
    (place / tf_serving.BATCHING_FILE).write_text("max_batch_size { value: 7 }\n")
    (place / tf_serving.MODELS_FILE).unlink()
    export_saved_model(place, ENTRIES)
    assert (place / tf_serving.BATCHING_FILE).read_text() == "max_batch_size { value: 7 }\n"
    assert (place / tf_serving.MODELS_FILE).read_text(encoding="utf-8") == models
    assert tf_serving.batchable(exported) == {
        **dict.fromkeys(("count", "own", "serving_default"), True),
        "split": False,
    }


def batched(function, *requests):
    """Answers to requests that TensorFlow's own batcher computes together."""
    together = tf.nondifferentiable_batch_function(
        num_batch_threads=1, max_batch_size=len(requests), batch_timeout_micros=30_000_000
    )(lambda text: tuple(function(text).values()))
    run = tf.function(together, input_signature=TEXT, autograph=False)
    run.get_concrete_function()
    begin = threading.Barrier(len(requests), timeout=PATIENCE)

    def ask(request):
        begin.wait()
        return run(tf.constant(request))[0].numpy()

    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(ask, requests))


def test_what_a_server_can_batch(exported):
    alone = [["a b"], ["one two three four"]]
    served = {name: ENTRIES[name].function for name in ("count", "split")}
    for found, request in zip(batched(served["count"], *alone), alone, strict=True):
        np.testing.assert_array_equal(found, served["count"](tf.constant(request))["bytes"])
    first, second = batched(served["split"], *alone)
    assert served["split"](tf.constant(alone[0]))["words"].shape == (1, 2)
    # The trap: the answer to "a b" is as wide as that of who asked beside it.
    assert first.tolist() == [[b"a", b"b", b"", b""]]
    assert second.tolist() == [[b"one", b"two", b"three", b"four"]]
