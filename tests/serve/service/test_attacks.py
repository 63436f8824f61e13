"""Whatever a caller sends: memory after it is memory before it, and what nobody waits for stops."""

import concurrent.futures
import contextlib
import functools
import gc
import json
import threading
import weakref

import grpc
import numpy as np
import pytest
import tensorflow as tf
from starlette.requests import Request

from kbert.serve import ServiceOptions
from kbert.serve.http.errors import Refused
from kbert.serve.service import batching
from kbert.serve.service.errors import most_said
from kbert.serve.service.loaded import LoadedModel
from kbert.serve.service.models import check_limits
from kbert.serve.service.server import _share_cores
from kbert.serve.service.stopping import Stop
from tests.serve.harness import running, signature
from tests.serve.service.test_grpc_service import predict, refused, request
from tests.serve.service.test_http_service import OPERATIONS, REVIEWS, connected, head, raw
from tests.waiting import PATIENCE, until

ENDLESS = {"signature_name": "long", "instances": ["endless"]}


@pytest.fixture(scope="module")
def channel(service):
    with grpc.insecure_channel(service.addresses[1].removeprefix("grpc://")) as channel:
        yield channel


@pytest.fixture
def alive(monkeypatch):
    """The requests in memory, while Python does not look for cycles."""
    found = weakref.WeakSet()
    for kind in (Request, batching._Request):

        def init(self, *args, _init=kind.__init__, **more):
            found.add(self)
            _init(self, *args, **more)

        monkeypatch.setattr(kind, "__init__", init)
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


# Memory


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (REVIEWS, b"{", 400),
        (REVIEWS, b'{"instances": [[]]}', 400),
        (REVIEWS, b'{"instances": [' + b"{}," * 5000 + b"{}]}", 413),
        (REVIEWS, b" " * 30_000, 413),
        (REVIEWS, json.dumps({"instances": ["a" * 2000]}).encode(), 413),
        (OPERATIONS, b'{"signature_name": "polite", "instances": ["rude"]}', 400),
        (OPERATIONS, b'{"signature_name": "polite", "instances": ["a", "rude", "b"]}', 400),
        (OPERATIONS, b'{"signature_name": "total", "inputs": [[1], [2, 3]]}', 400),
        ("/v1/models/none:predict", b'{"instances": ["a"]}', 404),
        ("/none", b'{"instances": ["a"]}', 404),
        (REVIEWS, b'{"instances": ["a"]}', 200),
    ],
)
def test_a_request_leaves_nothing(service, alive, path, body, status):
    assert service.post(path, body)[0] == status
    until(lambda: not alive)


def test_requests_that_are_given_up_leave_nothing(operations, alive):
    with running(model=[f"operations={operations}"], timeout_seconds=1, grpc_port=0) as service:
        assert service.post(OPERATIONS, ENDLESS)[0] == 503
        with connected(service) as connection:
            body = json.dumps(ENDLESS).encode()
            connection.sendall(head(OPERATIONS, len(body)) + body)
            until(lambda: service.metric("kbert_texts_total") == 2)
        with grpc.insecure_channel(service.addresses[1].removeprefix("grpc://")) as channel:
            asked = request("operations", "long", text=["endless"])
            assert refused(channel, asked)[0] == "DEADLINE_EXCEEDED"
        assert raw(service, head(OPERATIONS, 50) + b"{").startswith(b"HTTP/1.1 408")
        until(lambda: not alive)


def test_refusals_over_grpc_leave_nothing(channel, alive):
    for asked in (request("operations", "polite", text=["rude"]), request("reviews", text=[1.0])):
        assert refused(channel, asked)[0] == "INVALID_ARGUMENT"
    until(lambda: not alive)


def test_an_output_named_many_times_is_written_once(channel, monkeypatch):
    asked, written, write = request("reviews", text=["a"]), [], tf.make_tensor_proto
    asked.output_filter.extend(["scores", "label"] * 1000)

    def count(values, *args, **more):
        written.append(values)
        return write(values, *args, **more)

    monkeypatch.setattr(tf, "make_tensor_proto", count)
    assert set(predict(channel, asked).outputs) == {"scores", "label"}
    assert len(written) == 2
    asked.output_filter.append("none")
    assert "Received: 'none' in output_filter" in refused(channel, asked)[1]


def test_a_tensor_is_made_when_its_name_type_and_shape_fit(channel, monkeypatch):
    """A value that stands for a million in each of many inputs would be gigabytes."""

    def make(proto):
        raise AssertionError("made")

    monkeypatch.setattr(tf, "make_ndarray", make)

    def with_shape(asked, name, *sizes):
        del asked.inputs[name].tensor_shape.dim[:]
        for size in sizes:
            asked.inputs[name].tensor_shape.dim.add(size=size)
        return asked

    names = request("reviews", **{f"x{i}": ["a"] for i in range(100)})
    for i in range(100):
        with_shape(names, f"x{i}", 20_000)
    assert "are 'text'. Received: 'x" in refused(channel, names)[1]
    many = with_shape(request("reviews", text=["a"]), "text", 20_000)
    assert refused(channel, many)[1] == "A request must have at most 16 texts. Received: 20000"
    total = request("operations", "total", numbers=np.ones((1, 1), "float32"))
    for sizes in ((10**6, 0), (1, 10**6), (0, 10**18)):
        assert refused(channel, with_shape(total, "numbers", *sizes))[0] == "INVALID_ARGUMENT"
    deep = with_shape(request("reviews", text=["a"]), "text", *[1] * 1000)
    assert "string of shape (1, 1, 1, 1, 1, 1, 1, 1, 1, 1)" in refused(channel, deep)[1]
    other = request("reviews", text=["a"])
    other.inputs["text"].dtype = 99
    assert refused(channel, other)[1].endswith("Received: no type of shape (1,)")


def test_a_compressed_message_is_not_unpacked(channel):
    """A megabyte of it may be gigabytes."""
    asked = request("reviews", text=["a" * 5_000_000])
    with pytest.raises(grpc.RpcError) as error:
        predict(channel, asked, compression=grpc.Compression.Gzip)
    assert error.value.code().name == "UNIMPLEMENTED"


def test_empty_words_are_counted():
    options = ServiceOptions(model=["a=b"], max_text_bytes=1000)
    check_limits({"words": np.full((2, 1000), b"", object)}, 2, options)
    with pytest.raises(
        Refused, match=r"A text must have at most 1000 bytes\. Received: one of 1001"
    ):
        check_limits({"words": np.full((2, 1001), b"", object)}, 2, options)


# Work


def test_a_run_is_stopped_in_its_loop(operations):
    function = signature(operations, "long")
    stop, found = Stop(), []

    def run():
        with pytest.raises(tf.errors.CancelledError) as error:
            stop.run(function, {"text": tf.constant(["endless"])})
        found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: stop._managers)
    stop.set()
    thread.join(PATIENCE)
    assert found
    with pytest.raises(tf.errors.CancelledError):  # nor is one begun
        stop.run(function, {"text": tf.constant(["a"])})


def test_a_stop_lets_others_run_and_survives_failures(operations):
    stop = Stop()
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        stop.run(signature(operations, "polite"), {"text": tf.constant(["rude"])})
    assert most_said(error.value) == "[rude]"
    assert not stop.is_set
    loaded = LoadedModel(operations)
    for name, inputs in {
        "scale": {"numbers": np.ones(2, np.float32), "factor": np.float32(3)},
        "counted": {"ids": np.array([1], np.int32), "flags": np.array([True])},
        "same": {"text": np.array([b"a"], object)},
    }.items():
        wanted = signature(operations, name)(**{k: tf.constant(x) for k, x in inputs.items()})
        given = loaded.entries[name].run({k: np.asarray(x) for k, x in inputs.items()}, stop)
        assert set(given) == set(wanted)
        for key, value in wanted.items():
            np.testing.assert_array_equal(given[key], value)


def test_what_nobody_waits_for_stops(operations):
    """After its time, and when the client has left; and others are answered meanwhile."""
    with running(model=[f"operations={operations}"], timeout_seconds=1) as service:
        assert service.post(OPERATIONS, ENDLESS)[0] == 503
        until(lambda: service.metric("kbert_batches_total") == 1)
    with running(model=[f"operations={operations}"]) as service:
        body = json.dumps(ENDLESS).encode()
        with connected(service) as connection:
            connection.sendall(head(OPERATIONS, len(body)) + body)
            until(lambda: service.metric("kbert_texts_total") == 1)
        until(lambda: service.metric("kbert_batches_total") == 1)
        assert service.post(OPERATIONS, {**ENDLESS, "instances": ["a"]})[0] == 200


def test_a_batch_is_computed_while_one_waits_for_it(service, gate):
    """One caller leaves, the other's texts are in the same batch."""
    body = json.dumps({"instances": ["a fox"]}).encode()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(service.post, REVIEWS, {"instances": ["a dog"]})
        gate.wait_for_run()
        with connected(service) as connection:
            connection.sendall(head(REVIEWS, len(body)) + body)
            until(lambda: service.metric("kbert_waiting_texts{reviews") == 1)
            other = pool.submit(service.post, REVIEWS, {"instances": ["a cat"]})
            until(lambda: service.metric("kbert_waiting_texts{reviews") == 2)
            gate.open.set()
        assert first.result()[0] == other.result()[0] == 200


def test_a_stop_refuses_what_is_not_computed_in_time(operations):
    settings = {"stop_seconds": 0.5, "grpc_port": 0}
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        service = stack.enter_context(running(model=[f"operations={operations}"], **settings))
        place = service.addresses[1].removeprefix("grpc://")
        channel = stack.enter_context(grpc.insecure_channel(place))
        found = pool.submit(service.request, "POST", OPERATIONS, ENDLESS)
        asked = request("operations", "long", text=["endless"])
        other = pool.submit(refused, channel, asked)
        until(lambda: service.metric("kbert_texts_total") == 2)
        service.stop()
        status, answer, headers = found.result()
        assert (status, answer) == (503, {"error": "The service is stopping."})
        assert headers["connection"] == "close"
        assert other.result()[0] in ("UNAVAILABLE", "CANCELLED")


def test_models_do_not_share_the_threads_of_one(monkeypatch):
    found = {}
    for name in ("intra", "inter"):
        setter = f"set_{name}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, setter, functools.partial(found.setdefault, name))
    options = ServiceOptions(model=["a=b", "c=d"], batch_threads=50)
    assert _share_cores(options).batch_threads == 50
    assert found == {"intra": 1, "inter": 100}
