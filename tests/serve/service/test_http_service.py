"""What a service answers over HTTP, and what it refuses, whatever is sent."""

import concurrent.futures
import contextlib
import json
import socket
import threading
import urllib.parse

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings, strategies as st

from kbert.serve.http.connections import Seats
from tests.serve.harness import running, signature
from tests.waiting import PATIENCE, until

REVIEWS, OPERATIONS = "/v1/models/reviews:predict", "/v1/models/operations:predict"
TEXTS = ["the red fox", "a quick brown dog jumps over the lazy cat", "", "sun and moon " * 9]


def raw(service, content: bytes) -> bytes:
    """What the service sends until it closes the connection."""
    with connected(service) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(content)
        found = b""
        while data := connection.recv(65536):
            found += data
        return found


@contextlib.contextmanager
def connected(service):
    address = urllib.parse.urlsplit(service.address)
    with socket.create_connection((address.hostname, address.port)) as connection:
        yield connection


def head(path: str, length: int, more: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + f"\r\n{more}\r\n").encode()


# Answers


def test_rows_and_columns_are_what_the_savedmodel_gives(service, classifier):
    wanted = signature(classifier, "classify")(text=tf.constant(TEXTS))
    status, rows = service.post(REVIEWS, {"instances": TEXTS})
    assert status == 200
    assert [row["label"].encode() for row in rows["predictions"]] == wanted[
        "label"
    ].numpy().tolist()
    scores = [row["scores"] for row in rows["predictions"]]
    np.testing.assert_allclose(scores, wanted["scores"], atol=1e-5)
    named = {"instances": [{"text": text} for text in TEXTS], "signature_name": "classify"}
    status, again = service.post(REVIEWS, named)
    found = [row["scores"] for row in again["predictions"]]
    np.testing.assert_allclose(found, scores, atol=1e-5)
    status, columns = service.post(REVIEWS, {"inputs": {"text": TEXTS}})
    np.testing.assert_allclose(columns["outputs"]["scores"], scores, atol=1e-5)
    assert columns["outputs"]["labels"] == [["no", "yes"]] * len(TEXTS)


def test_pairs(service, classifier):
    first, second = TEXTS[:2], TEXTS[1:3]
    wanted = signature(classifier, "classify_pairs")(
        first=tf.constant(first), second=tf.constant(second)
    )
    rows = [{"first": a, "second": b} for a, b in zip(first, second, strict=True)]
    body = {"signature_name": "classify_pairs", "instances": rows}
    found = service.post("/v1/models/reviews/versions/1:predict", body)[1]["predictions"]
    np.testing.assert_allclose([row["score"] for row in found], wanted["score"], atol=1e-5)


def test_inputs_that_are_no_rows_are_not_counted_as_such(tmp_path):
    """Nor is a signature refused that has none."""

    class Sums(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([20], tf.float32, "x")])
        def fixed(self, x):
            return {"sum": tf.reduce_sum(x)}

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.float32, "x"),
                tf.TensorSpec([], tf.float32, "factor"),
            ]
        )
        def scaled(self, x, factor):
            return {"sum": factor * tf.reduce_sum(x)}

        @tf.function(input_signature=[])
        def none(self):
            return {"numbers": tf.constant([1.0, 2.0])}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def rows(self, x):
            return {"x": x}

    made, x = Sums(), [1.0] * 20
    names = ("fixed", "scaled", "none", "rows")
    tf.saved_model.save(made, str(tmp_path / "1"), {name: getattr(made, name) for name in names})
    with running(model=[f"sums={tmp_path}"], max_texts=16) as service:

        def ask(name, inputs):
            body = {"signature_name": name, "inputs": inputs}
            return service.post("/v1/models/sums:predict", body)

        assert ask("fixed", x) == (200, {"outputs": 20.0})
        assert ask("scaled", {"x": x, "factor": 0.5}) == (200, {"outputs": 10.0})
        assert ask("none", {}) == (200, {"outputs": [1.0, 2.0]})
        assert ask("rows", x)[0] == 413


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        ({"signature_name": "total", "inputs": [[1, 2], [3, 4.5]]}, {"outputs": [3.0, 7.5]}),
        ({"signature_name": "total", "instances": [[1], [3]]}, {"predictions": [1.0, 3.0]}),
        (
            {"signature_name": "characters", "instances": ["né", ""]},
            {"predictions": [{"characters": ["n", "é"], "count": 2},
                             {"characters": ["", ""], "count": 0}]},
        ),
        ({"signature_name": "characters", "inputs": [""]},
         {"outputs": {"characters": [[]], "count": [0]}}),
        ({"signature_name": "scale", "inputs": {"numbers": [1, 2], "factor": 0.5}},
         {"outputs": {"scaled": [0.5, 1.0], "kinds": ["a", "b"]}}),
        ({"signature_name": "counted", "inputs": {"ids": [1, 2], "flags": [True, False]}},
         {"outputs": {"ids": [2, 2], "not_a_number": [None]}}),
        ({"signature_name": "same", "inputs": [{"b64": "/w=="}, {"b64": "YQ=="}]},
         {"outputs": [{"b64": "/w=="}, "a"]}),
    ],
)  # fmt: skip
def test_arrays_of_all_sorts(service, request_, answer):
    assert service.post(OPERATIONS, request_) == (200, answer)


def test_embed_finds_the_one_model(service):
    found = service.post("/embed", {"texts": ["abc", ""]})
    assert found == (200, {"embeddings": [[3, -3, 1], [0, 0, 0]]})
    assert service.post("/embed", {"texts": ["abc"], "model": "operations"})[0] == 200
    status, answer = service.post("/embed", {"texts": ["abc"], "model": "reviews"})
    assert (status, answer["error"]) == (
        400, "`model` must be one that embeds texts. Received: 'reviews'")  # fmt: skip
    status, answer = service.post("/fill_mask", {"texts": ["abc"], "model": "reviews"})
    rule = "`model` must be one that fills masks. Received: 'reviews'"
    assert (status, answer["error"]) == (400, rule)


def test_fill_mask_answers_each_text_by_itself(service, gate):
    """Also where texts of more masks are in the batch."""
    best = [{"token": "sun", "probability": 0.75}, {"token": "moon", "probability": 0.25}]
    bodies = [{"texts": ["_"]}, {"texts": ["_ and __", ""]}, {"texts": ["none"]}]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answers = pool.submit(ask_all, service, bodies, "/fill_mask")
        gate.wait_for_run()
        until(lambda: service.metric("kbert_waiting_texts{operations") + sum(gate.runs) == 4)
        gate.open.set()
        found = answers.result()
    assert [answer["answers"] for _, answer, _ in found] == [[[best]], [[best] * 3, []], [[]]]


def test_texts_without_masks_have_an_empty_answer_each(service):
    body = {"signature_name": "fill_mask"}
    status, answer = service.post(OPERATIONS, {**body, "instances": ["a", "b"]})
    assert (status, answer) == (200, {"predictions": [{"tokens": [], "probabilities": []}] * 2})
    status, answer = service.post(OPERATIONS, {**body, "inputs": ["a", "b"]})
    empty = {"tokens": [[], []], "probabilities": [[], []]}
    assert (status, answer) == (200, {"outputs": empty})


def test_a_model_is_named_where_several_can_do_it(operations):
    with running(model=[f"a={operations}", f"b={operations}"]) as service:
        status, answer = service.post("/embed", {"texts": ["abc"]})
        rule = (
            "`model` must be given unless exactly one model embeds texts. "
            "Received: none, of 2 (a, b)"
        )
        assert (status, answer["error"]) == (400, rule)
        assert service.post("/embed", {"texts": ["abc"], "model": "b"})[0] == 200
        assert service.post("/embed", {"texts": ["abc"], "model": "c"})[0] == 404
        assert service.post("/embed", {"texts": ["abc"], "model": 1})[0] == 400


def test_status_metadata_health(service):
    status, answer = service.get("/v1/models/reviews")
    (version,) = answer["model_version_status"]
    assert (status, version["version"], version["state"]) == (200, "1", "AVAILABLE")
    assert service.get("/v1/models/reviews/versions/1")[1] == answer
    metadata = service.get("/v1/models/operations/metadata")[1]
    found = metadata["metadata"]["signature_def"]["signature_def"]["total"]
    assert found["inputs"]["numbers"]["dtype"] == "DT_FLOAT"
    sizes = [dim["size"] for dim in found["inputs"]["numbers"]["tensor_shape"]["dim"]]
    assert sizes == ["-1", "-1"]
    assert service.get("/health") == (200, {"status": "ok"})


# Refusals


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/v1/models/none:predict", {"instances": ["a"]}, 404,
         "The models of the service are 'operations', 'reviews'. Received: 'none'"),
        ("/v1/models/..%2F..%2Fetc:predict", {"instances": ["a"]}, 404, None),
        ("/v1/models/reviews/versions/7:predict", {"instances": ["a"]}, 404,
         "The versions of the model 'reviews' are 1. Received: 7"),
        ("/v1/models/reviews/versions/x:predict", {"instances": ["a"]}, 400,
         "A version must be a whole number. Received: 'x'"),
        ("/v1/models/reviews:classify", {}, 404,
         "Models support only :predict. Received: ':classify'"),
        ("/v1/models/reviews", {}, 405, "Method Not Allowed"),
        ("/etc/passwd", {}, 404, "Not Found"),
        (REVIEWS, {"instances": ["a"], "signature_name": "none"}, 400,
         "The signatures of the model are 'classify', 'classify_pairs', 'serving_default'. "
         "Received: 'none'"),
        (REVIEWS, {"instances": ["a"], "signature_name": 3}, 400,
         "`signature_name` must be a string. Received: 3"),
        (REVIEWS, {"instances": ["a"], "x": 1}, 400,
         "A request must only have the keys signature_name, instances, inputs. Received: ['x']"),
        (REVIEWS, {}, 400,
         "A request must have either `instances` (rows) or `inputs` (columns). Received: neither"),
        (REVIEWS, {"instances": ["a"], "inputs": ["a"]}, 400,
         "A request must have either `instances` (rows) or `inputs` (columns). Received: both"),
        (REVIEWS, {"instances": "a"}, 400, "`instances` must be a list of rows. Received: 'a'"),
        (REVIEWS, {"instances": []}, 400,
         "A request must have at least one text or row. Received: none"),
        (REVIEWS, {"inputs": []}, 400,
         "A request must have at least one text or row. Received: none"),
        (REVIEWS, {"instances": [1]}, 400,
         "The input 'text' must be string of shape (B,). Received: 1 instead of a string"),
        (REVIEWS, {"instances": [["a"]]}, 400,
         "The input 'text' must be string of shape (B,). "
         "Received: a list of 1 instead of a string"),
        (REVIEWS, {"inputs": "a"}, 400,
         "The input 'text' must be string of shape (B,). Received: 'a' instead of a list"),
        (REVIEWS, {"instances": [{"txt": "a"}]}, 400,
         "The inputs of the signature are text. Received: 'txt'"),
        (REVIEWS, {"instances": [{"text": "a"}, "b"]}, 400,
         "Each of `instances` must be an object with the inputs text. Received: 'b'"),
        (REVIEWS, {"instances": [{"b64": "?"}]}, 400,
         "The input 'text' must be string of shape (B,). Received: invalid base64 in `b64`"),
        (OPERATIONS, {"signature_name": "total", "inputs": [[1], [2, 3]]}, 400,
         "The input 'numbers' must be float32 of shape (B, any). "
         "Received: lists of different lengths, 1 and 2"),
        (OPERATIONS, {"signature_name": "total", "inputs": [[True]]}, 400,
         "The input 'numbers' must be float32 of shape (B, any). "
         "Received: true instead of numbers"),
        (OPERATIONS, {"signature_name": "total", "inputs": [[1, 1e39]]}, 400,
         "The input 'numbers' must be float32 of shape (B, any). "
         "Received: 1e+39, out of bounds for float32"),
        (OPERATIONS, {"signature_name": "counted", "inputs": {"ids": [2**40], "flags": [True]}},
         400, None),
        (OPERATIONS, {"signature_name": "counted", "inputs": {"ids": [1.5], "flags": [True]}}, 400,
         "The input 'ids' must be int32 of shape (B,). Received: 1.5 instead of whole numbers"),
        (OPERATIONS, {"signature_name": "counted", "inputs": {"ids": [1, 2], "flags": [True]}}, 400,
         "All inputs must have the same number of rows. Received: [1, 2]"),
        (OPERATIONS, {"signature_name": "scale", "instances": [{"numbers": 1, "factor": 2}]}, 400,
         "The signature 'scale' has no rows: use `inputs`. Received: `instances`"),
        (OPERATIONS, {"signature_name": "polite", "instances": ["how rude"]}, 400, None),
        (REVIEWS, {"instances": ["a"] * 17}, 413,
         "A request must have at most 16 texts. Received: 17"),
        (REVIEWS, {"instances": ["é" * 501]}, 413,
         "A text must have at most 1000 bytes. Received: one of 1002"),
        (REVIEWS, {"instances": ["a" * 30_000]}, 413,
         "A request must have at most 20000 bytes. Received: 30019 or more"),
        ("/embed", {"texts": "a"}, 400,
         "The input 'texts' must be string of shape (B,). Received: 'a' instead of a list"),
        ("/embed", {}, 400,
         "The input 'texts' must be string of shape (B,). Received: null instead of a list"),
    ],
)  # fmt: skip
def test_refusals_say_why(service, path, body, status, error):
    found, answer = service.post(path, body)
    assert found == status
    assert list(answer) == ["error"]
    if error is not None:
        assert answer["error"] == error


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"1", b"null", b'"a"', b"\xff\xfe", b'{"instances": ["\xff"]}',
        b'{"instances": ["\\ud800"]}', b"[" * 19_000, b'{"instances": ' + b"[" * 1000 + b"]" * 1000
        + b"}", b'{"instances":' * 1400, b'{"instances": [1e999]}', b'{"instances": [NaN]}',
        b'{"instances": [' + b"9" * 5000 + b"]}", b'{"inputs": {"b64": {"b64": 1}}}',
        b'{"instances": [{"b64": "\xc3\xa9"}]}', b'{"instances": {"a": 1}}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [REVIEWS, "/embed"])
def test_bodies_that_are_no_request(service, path, body):
    status, answer = service.post(path, body)
    assert status == 400, answer
    assert answer["error"].isprintable()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["text", "b64", "numbers", "ids", "flags", ""]), inner)
    ),
    max_leaves=12,
)
NAMES = st.sampled_from(["serving_default", "total", "counted", "characters", "scale", "same"])
FUZZED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZED
@given(key=st.sampled_from(["instances", "inputs"]), value=VALUES, name=NAMES)
def test_no_value_is_an_error_of_the_service(service, key, value, name):
    body = json.dumps({key: value, "signature_name": name})
    status, answer = service.post(OPERATIONS, body.encode("utf-8", "surrogatepass"))
    assert status in (200, 400, 413), answer


@FUZZED
@given(body=st.binary(max_size=200), path=st.sampled_from([REVIEWS, "/embed", "/fill_mask"]))
def test_no_bytes_are_an_error_of_the_service(service, body, path):
    assert service.post(path, body)[0] in (400, 404)


@pytest.mark.parametrize(
    "content",
    [
        b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 1e9\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nXYZ\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 200_000,
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_and_closed(service, content):
    with contextlib.suppress(ConnectionError):  # closed while there is more to come
        found = raw(service, content)
        assert found.startswith(b"HTTP/1.1 4"), found
    assert service.get("/health")[0] == 200


def test_a_body_without_end_is_not_read_to_it(service):
    """1 MB of what may have 20 kB, and a length of a terabyte."""
    for content in (head(REVIEWS, 2**23) + b" " * 2**23, head("/embed", 2**23) + b" " * 2**23):
        assert raw(service, content).startswith(b"HTTP/1.1 413")  # and no broken pipe
    assert raw(service, head(REVIEWS, 10**12)).startswith(b"HTTP/1.1 413")
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    content = b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 20
    assert raw(service, content).startswith(b"HTTP/1.1 413")


# Batches, load, time

SAME = {"signature_name": "same", "instances": ["a fox"]}


def ask_all(service, bodies, path=REVIEWS):
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: service.request("POST", path, body), bodies))


def test_requests_that_wait_are_one_batch(service, classifier, gate):
    texts = ["the red fox", "a dog", "two men and a woman", "big old house", "pen"] * 4
    wanted = signature(classifier, "classify")(text=tf.constant(texts))["scores"].numpy()
    runs = service.metric("kbert_batches_total{reviews")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answers = pool.submit(ask_all, service, [{"instances": [text]} for text in texts])
        gate.wait_for_run()
        until(lambda: service.metric("kbert_waiting_texts{reviews") + sum(gate.runs) == 20)
        gate.open.set()
        found = answers.result()
    assert [status for status, _, _ in found] == [200] * 20
    scores = [answer["predictions"][0]["scores"] for _, answer, _ in found]
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    assert sum(gate.runs) == 20
    assert service.metric("kbert_batches_total{reviews") - runs == len(gate.runs) <= 4
    assert {*gate.runs} <= {1, 2, 3, 4, 6, 8, 12, 16}


def test_threads_that_are_free_share_a_request(classifier, gate):
    texts = ["the red fox", "a dog", "the old man", "a house", "pen", "blue", "green", "we"]
    wanted = signature(classifier, "classify")(text=tf.constant(texts))["scores"].numpy()
    gate.open.set()
    with running(model=[f"reviews={classifier}"], batch_threads=3) as service:
        gate.runs.clear()  # of the load
        status, answer = service.post("/v1/models/reviews:predict", {"instances": texts})
        assert status == 200
        found = [prediction["scores"] for prediction in answer["predictions"]]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert sorted(gate.runs) == [2, 3, 3]


def test_one_text_that_the_model_refuses_costs_the_others_nothing(service, gate):
    bodies = [{"signature_name": "polite", "instances": [text]} for text in ("a", "rude", "b", "c")]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answers = pool.submit(ask_all, service, bodies, OPERATIONS)
        gate.wait_for_run()
        until(lambda: service.metric("kbert_waiting_texts{operations") + sum(gate.runs) == 4)
        gate.open.set()
        found = answers.result()
    assert [status for status, _, _ in found] == [200, 400, 200, 200]
    assert "The model does not accept these inputs" in found[1][1]["error"]


def test_too_many_are_told_to_come_again_and_none_is_lost(operations, gate):
    gate.open.set()
    with running(model=[f"operations={operations}"], max_waiting=8, max_texts=8) as service:
        gate.hold()
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            accepted = [pool.submit(service.request, "POST", OPERATIONS, SAME)]
            gate.wait_for_run()  # it runs; of the others eight may wait
            for waiting in range(1, 9):
                accepted.append(pool.submit(service.request, "POST", OPERATIONS, SAME))
                until(lambda n=waiting: service.metric("kbert_waiting_texts") == n)
            refused = [service.request("POST", OPERATIONS, SAME) for _ in range(3)]
            gate.open.set()
            found = [each.result() for each in accepted]
        assert all(x[:2] == (200, {"predictions": ["a fox"]}) for x in found)
        for status, answer, more in refused:
            assert status == 429
            rule = "Too many texts are waiting: at most 8 may wait. Try again later."
            assert answer["error"].startswith(rule)
            assert int(more["retry-after"]) >= 1
        assert sum(gate.runs) == len(accepted)


def test_clients_that_leave_are_not_computed(service, gate):
    body = json.dumps({"instances": ["a fox", "two dogs"]}).encode()
    content = head(REVIEWS, len(body)) + body
    with connected(service) as first:
        first.sendall(content)
        gate.wait_for_run()
        with connected(service) as second:
            second.sendall(content)
            until(lambda: service.metric("kbert_waiting_texts{reviews") == 2)
        until(lambda: service.metric("kbert_waiting_texts{reviews") == 0)
        gate.open.set()
        assert b"200 OK" in first.recv(65536)
    assert gate.runs == [2]
    assert service.post(REVIEWS, {"instances": ["a"]})[0] == 200


def test_slow_clients_and_slow_models_end(operations, gate):
    gate.open.set()
    with running(model=[f"operations={operations}"], timeout_seconds=1) as service:
        assert raw(service, b"") == b""  # nothing
        assert raw(service, b"POST /embed HT") == b""  # half a head
        assert raw(service, head(REVIEWS, 50) + b'{"ins').startswith(b"HTTP/1.1 408")
        gate.hold()
        status, answer, more = service.request("POST", OPERATIONS, SAME)
        assert (status, more["retry-after"]) == (503, "1")
        assert answer["error"] == (
            "A request must be computed within 1 seconds. Received: one that takes longer"
        )
        gate.open.set()


def test_an_answer_that_nobody_reads_is_given_up(operations, monkeypatch):
    left, leave = threading.Event(), Seats.leave

    def leave_and_tell(seats, connection):
        leave(seats, connection)
        left.set()

    monkeypatch.setattr(Seats, "leave", leave_and_tell)
    size = 16_000_000  # more than the buffers of a connection hold
    limits = {"max_body_bytes": 2 * size, "max_text_bytes": size, "timeout_seconds": 1}
    with running(model=[f"m={operations}"], **limits) as service:
        body = json.dumps({"signature_name": "same", "instances": ["a" * size]}).encode()
        address = urllib.parse.urlsplit(service.address)
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((address.hostname, address.port))
            connection.sendall(head("/v1/models/m:predict", len(body)) + body)
            assert left.wait(PATIENCE)
            start = connection.recv(64)
            found = len(start)
            with contextlib.suppress(ConnectionError):
                while data := connection.recv(2**20):
                    found += len(data)
        assert start.startswith(b"HTTP/1.1 200"), start
        assert found < size
        assert service.get("/health")[0] == 200


def test_too_long_an_answer_is_refused(operations):
    with running(model=[f"operations={operations}"], max_answer_values=10) as service:
        body = {"signature_name": "characters", "instances": ["abcdefghij"]}
        status, answer = service.post(OPERATIONS, body)
        assert status == 413
        assert answer["error"].endswith("Received: a request whose answer has 11")


def test_a_token(operations, tmp_path):
    (tmp_path / "token").write_text("correct horse\n".replace(" ", "-"))
    options = {"model": [f"operations={operations}"], "token_file": str(tmp_path / "token")}
    with running(**options) as service:
        assert service.post(OPERATIONS, SAME, Authorization="Bearer correct-horse")[0] == 200
        assert service.get("/health")[0] == 200
        for header in ("", "Bearer", "Bearer wrong", "Basic correct-horse", "correct-horse"):
            more = {"Authorization": header} if header else {}
            status, answer, headers = service.request("POST", OPERATIONS, SAME, more)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert answer == {
                "error": "A request must have the service's token. Received: none, or another"
            }
        for path in ("/metrics", "/v1/models/operations"):
            assert service.request("GET", path)[0] == 401
