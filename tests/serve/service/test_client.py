"""The client: answers as the model gives them, in as many requests as it takes."""

import asyncio
import http.server
import json
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.serve import AsyncClient, Client, ServiceError
from tests import libraries
from tests.processes import run_code
from tests.serve.harness import running, signature
from tests.serve.service.test_http_service import TEXTS


def test_answers(service, classifier):
    texts = [*TEXTS, "the end"] * 9  # three requests
    wanted = signature(classifier, "classify")(text=tf.constant(texts))
    with kbert.Client(service.address, batch_size=16) as client:
        found = client.predict("reviews", texts)
        np.testing.assert_allclose([x["scores"] for x in found], wanted["scores"], atol=1e-5)
        pairs = {"first": TEXTS, "second": TEXTS[::-1]}
        wanted = signature(classifier, "classify_pairs")(
            **{name: tf.constant(column) for name, column in pairs.items()}
        )
        found = client.predict("reviews", pairs, signature="classify_pairs", version=1)
        np.testing.assert_allclose([x["score"] for x in found], wanted["score"], atol=1e-5)
        vectors = client.embed(["a" * n for n in range(1, 20)])
        assert (vectors.shape, vectors.dtype) == ((19, 3), np.float32)
        np.testing.assert_array_equal(client.encode(["é"]), [[2, -2, np.float32(2 / 3)]])


def test_the_same_in_an_event_loop(service, classifier):
    texts = [*TEXTS, "the end"] * 9
    wanted = Client(service.address, batch_size=16).predict("reviews", texts)

    async def ask():
        async with AsyncClient(service.address, batch_size=16) as client:
            found = await client.predict("reviews", texts)
            pairs = {"first": TEXTS, "second": TEXTS[::-1]}
            both = await client.predict("reviews", pairs, signature="classify_pairs")
            many = await asyncio.gather(*(client.encode([x] * 3) for x in "abcdefgh"))
            masks = await client.fill_mask(["_", "a"])
            assert [len(found) for found in masks] == [1, 0]
            with pytest.raises(ValueError, match="`texts` must have at least one text"):
                await client.embed([])
            return found, both, many

    found, both, many = asyncio.run(ask())
    np.testing.assert_allclose(
        [x["scores"] for x in found], [x["scores"] for x in wanted], atol=1e-5
    )
    assert len(both) == len(TEXTS)
    np.testing.assert_array_equal(np.stack(many), [[[1, -1, np.float32(1 / 3)]] * 3] * 8)


def test_refusals(service):
    client = Client(service.address)
    with pytest.raises(ServiceError, match="The models of the service are") as error:
        client.predict("none", ["a"])
    assert error.value.status == 404
    with pytest.raises(ServiceError, match="fills masks"):
        client.fill_mask(["a"], model="reviews")
    with pytest.raises(ValueError, match=r"`texts` must be a list of strings\. Received: 'a'"):
        client.embed("a")
    with pytest.raises(ValueError, match="All inputs must have the same number of rows"):
        client.predict("reviews", {"first": ["a"], "second": []})
    with pytest.raises(ValueError, match="Texts must be valid Unicode"):
        client.embed(["\ud800"])
    with pytest.raises(ValueError, match="`texts` must have at least one text"):
        client.embed([])
    assert client.predict("reviews", []) == []


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"text": "rain"}, r"The input 'text' must be a list of .*\. Received: 'rain' \(str\)"),
        ({"text": b"rain"}, r"The input 'text' must be a list of .*\. Received: b'rain' \(bytes\)"),
        ({"first": ["a"], "second": 5}, r"The input 'second' must be .* Received: 5 \(int\)"),
        (
            {"ids": np.array(3)},
            r"The input 'ids' must be a list of values, one per row\. Received: ",
        ),
        (b"rain", r"`texts` must be a list of strings\. Received: b'rain'"),
        ([b"rain"], r"Texts and inputs must be strings, .*\. Received: b'rain' \(bytes\)"),
        ({"numbers": np.ones(2, np.longdouble)}, r"Received: .*1\.0.* \(longdouble\)"),
        ({"numbers": np.array([1, np.nan])}, r"\(JSON has no NaN .*\. Received: NaN or infinity"),
    ],
)
def test_values_that_no_request_can_have(inputs, message):
    """Nothing is sent: no service has this address."""

    async def ask():
        async with AsyncClient("http://127.0.0.1:1") as client:
            await client.predict("m", inputs)

    with pytest.raises(ValueError, match=message):
        Client("http://127.0.0.1:1").predict("m", inputs)
    with pytest.raises(ValueError, match=message):
        asyncio.run(ask())


def test_numbers_of_numpy_are_sent(service):
    with Client(service.address) as client:
        for numbers in (
            np.array([[1, 2], [3, 4]], "float32"),
            [[np.int8(1), 2], [np.float32(3), 4]],
        ):
            found = client.predict("operations", {"numbers": numbers}, signature="total")
            assert found == [3, 7]


@pytest.mark.parametrize("address", ["127.0.0.1:80", "ftp://a", "http://", "http://a/b", ""])
def test_addresses(address):
    with pytest.raises(ValueError, match="`address` must be http://HOST:PORT"):
        Client(address)
    with pytest.raises(ValueError, match=r"`batch_size` must be at least 1\. Received: 0"):
        Client("http://a", batch_size=0)


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers what it is told, one after the other."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        status, headers, body = self.server.script.pop(0)
        self.server.served += 1
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.server.closes

    def log_message(self, *arguments):
        """Nothing."""


@pytest.fixture
def scripted():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.served, server.closes = 0, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.address = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()


GOOD = (200, {}, json.dumps({"embeddings": [[1.0]]}).encode())


def test_it_comes_again_when_it_is_told_to(scripted):
    busy = (429, {"Retry-After": "0.2"}, b'{"error": "busy"}')
    scripted.script = [busy, busy, GOOD]
    start = time.monotonic()
    assert Client(scripted.address).embed(["a"]).tolist() == [[1]]
    assert time.monotonic() - start >= 0.4
    scripted.script = [
        (429, {"Retry-After": "200"}, b'{"error": "busy"}')
    ]  # longer than it may take
    with pytest.raises(ServiceError, match="busy") as error:
        Client(scripted.address, timeout=4).embed(["a"])
    assert error.value.status == 429
    scripted.script = [(503, {"Retry-After": "Wed, 21 Oct 2015"}, b"<html>")]
    with pytest.raises(ServiceError, match="The service responded with status 503"):
        Client(scripted.address).embed(["a"])


def test_a_connection_that_was_closed_meanwhile_is_opened_again(scripted):
    scripted.closes = True  # without a word in the answer
    scripted.script = [GOOD] * 3
    with Client(scripted.address) as client:
        for _ in range(3):
            assert client.embed(["a"]).tolist() == [[1]]
    assert scripted.served == 3


def test_a_token_is_sent(operations, tmp_path):
    (tmp_path / "token").write_text("correct-horse")
    options = {"model": [f"m={operations}"], "token_file": str(tmp_path / "token")}
    with running(**options) as service:
        assert Client(service.address, token="correct-horse").embed(["a"]).shape == (1, 3)
        with pytest.raises(ServiceError, match="must have the service's token"):
            Client(service.address).embed(["a"])


def test_it_needs_no_tensorflow():
    code = "import sys, kbert; kbert.Client('http://a'); print('tensorflow' in sys.modules)"
    assert run_code(code) == "False\n"


@pytest.mark.parametrize("table", [{"text": ["a"]}, libraries.Dataset({"text": ["a"]})])
def test_names_of_columns_are_no_texts(table):
    with Client("http://localhost:1") as client:
        for ask in (client.embed, client.fill_mask):
            with pytest.raises(
                ValueError, match=r"`texts` must be a list of strings\. Received: .*\("
            ):
                ask(table)
