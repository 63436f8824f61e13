"""Connections: idle ones lock nobody out, and whoever is refused reads why."""

import asyncio
import concurrent.futures
import socket
import threading
import urllib.parse
import urllib.request

import grpc
import pytest

from kbert.serve import ServiceOptions
from kbert.serve.http.connections import _RESERVE, Seats
from kbert.serve.service import models, server
from tests.serve.harness import Running, running
from tests.serve.service.test_grpc_service import predict, request
from tests.serve.service.test_http_service import OPERATIONS, SAME, connected, head, raw
from tests.waiting import PATIENCE, until

HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def read_to_end(connection) -> bytes:
    connection.settimeout(PATIENCE)
    found = b""
    while data := connection.recv(65536):
        found += data
    return found


@pytest.fixture
def pairs():
    """Sockets that are connected with another one each."""
    made = [socket.socketpair() for _ in range(2 + _RESERVE + 3)]
    yield [ours for ours, _ in made]
    for both in made:
        for one in both:
            one.close()


def test_who_gives_way(pairs):
    seats = Seats(2)
    first, second, third, *more = pairs
    assert seats.take(first)
    assert seats.take(second)
    seats.set_idle(first.fileno(), False)
    assert seats.take(third)  # in the place of the second
    assert second.recv(1) == b""
    seats.set_idle(third.fileno(), False)
    assert not seats.is_full
    for one in more[:_RESERVE]:  # no place, but each is told so
        assert seats.take(one)
        seats.set_idle(one.fileno(), False)
        assert seats.is_full
    assert not seats.take(more[_RESERVE])
    seats.leave(first)
    assert seats.take(more[_RESERVE])


def test_the_longest_idle_gives_way(pairs):
    seats = Seats(2)
    first, second, third, *_ = pairs
    assert seats.take(first)
    assert seats.take(second)
    for is_idle in (False, True):
        seats.set_idle(first.fileno(), is_idle)
    assert seats.take(third)
    assert second.recv(1) == b""


def test_idle_connections_lock_nobody_out(operations):
    with running(model=[f"operations={operations}"], max_connections=2) as service:
        first, second = (socket.create_connection(place(service)) for _ in range(2))
        with first, second:
            first.sendall(b"POST / HT")  # half a head
            second.sendall(HEALTH)
            assert b"200 OK" in second.recv(65536)
            assert service.get("/health")[0] == 200
            assert service.post(OPERATIONS, SAME)[0] == 200
            # Those that asked may have closed theirs before; two that stay need both places.
            third, fourth = (socket.create_connection(place(service)) for _ in range(2))
            with third, fourth:
                assert read_to_end(first) == b""
                assert read_to_end(second) in (b"", b'{"status":"ok"}')


def place(service) -> tuple[str, int]:
    address = urllib.parse.urlsplit(service.address)
    return address.hostname, address.port


def test_a_connection_beyond_the_most_is_told_so(operations, gate):
    gate.open.set()
    with running(model=[f"operations={operations}"], max_connections=2) as service:
        gate.hold()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = [pool.submit(service.post, OPERATIONS, SAME) for _ in range(2)]
            until(lambda: metric(service, "kbert_texts_total") == 2)
            size = 2**20 - 1
            answer = raw(service, head(OPERATIONS, size) + b" " * size)  # all of it is sent
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"connection: close" in answer
            assert answer.endswith(
                b'{"error":"The service accepts at most 2 connections. Try again later. '
                b'Received: one more"}'
            )
            assert service.get("/health")[0] == service.get("/live")[0] == 200
            gate.open.set()
            assert [each.result()[0] for each in found] == [200, 200]
        assert service.post(OPERATIONS, SAME)[0] == 200


def metric(service, name) -> float:
    """Read in the process: no connection is free for it."""
    text = service.registry.text().decode()
    return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith(f"{name}{{"))


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """The metrics of a service, as its `registry`."""

    class Metrics(server.Metrics):
        def __init__(self):
            super().__init__()
            Running.registry = self

    monkeypatch.setattr(server, "Metrics", Metrics)
    monkeypatch.setattr(Running, "registry", None, raising=False)


def test_a_tls_handshake_that_never_begins_ends(operations, certificate):
    everyone, key = certificate
    options = {"tls_certificate": everyone, "tls_key": key, "timeout_seconds": 1}
    with running(model=[f"m={operations}"], **options) as service, connected(service) as silent:
        silent.settimeout(40)  # asyncio's own limit is a minute
        assert silent.recv(1) == b""


def test_idle_connections_over_grpc_end(operations):
    """And there are no more of them than may be."""
    options = {"max_connections": 2, "timeout_seconds": 1, "grpc_port": 0}
    with running(model=[f"operations={operations}"], **options) as service:
        netloc = service.addresses[1].removeprefix("grpc://")
        host, port = netloc.split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(4)]
        for each in silent:
            read_to_end(each)  # what the server says first, and the end
        with grpc.insecure_channel(netloc) as channel:
            predict(channel, request("operations", "same", text=["a"]), wait_for_ready=True)
        for each in silent:
            each.close()


def test_files_for_all_connections(monkeypatch):
    resource = pytest.importorskip("resource")
    limits, allowed = [(100, 4096)], []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[0])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, found: allowed.append(found))
    options = ServiceOptions(model=["a=b"], grpc_port=0, max_connections=1000)
    server._allow_files(options)
    assert allowed == [(2 * (1000 + server._OTHER_FILES), 4096)]
    limits[0] = (4096, 4096)
    server._allow_files(options)
    assert len(allowed) == 1
    limits[0] = (100, 1000)
    with pytest.raises(
        ValueError, match=r"require 2512 open files, but a process may have 1000: .*1000"
    ):
        server._allow_files(options)


# Start and stop


def test_it_says_that_it_loads(operations, monkeypatch):
    load, go = models._load, threading.Event()

    def load_later(folder, threads):
        assert go.wait(PATIENCE)
        return load(folder, threads)

    monkeypatch.setattr(models, "_load", load_later)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    probe = Running.__new__(Running)
    probe.addresses = [f"http://127.0.0.1:{port}"]

    def is_live():
        try:
            return probe.get("/live")[0] == 200
        except OSError:
            return False

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        made = pool.submit(running, model=[f"operations={operations}"], port=port)
        until(is_live)
        for method, path in (("GET", "/health"), ("POST", OPERATIONS), ("GET", "/metrics")):
            status, answer, headers = probe.request(method, path, SAME)
            assert (status, headers["retry-after"]) == (503, "1")
            assert answer == {"error": "The models are still loading. Try again later."}
        go.set()
        with made.result() as service:
            assert service.get("/health")[0] == service.post(OPERATIONS, SAME)[0] == 200


def test_a_stop_while_it_loads(operations, monkeypatch):
    load, begun, go = models._load, threading.Event(), threading.Event()

    def load_later(folder, threads):
        begun.set()
        assert go.wait(PATIENCE)
        return load(folder, threads)

    monkeypatch.setattr(models, "_load", load_later)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        async def main():
            stop = asyncio.Event()
            options = ServiceOptions(model=[f"m={operations}"], port=0)
            work = asyncio.create_task(server.run(options, stop, print))
            await asyncio.get_running_loop().run_in_executor(pool, begun.wait)
            stop.set()
            await work

        asyncio.run(main())
    go.set()


def test_answers_while_it_stops_end_their_connections(operations, monkeypatch):
    """With a drain before: requests are taken, and /health says no."""
    drained, waits = threading.Event(), []

    async def drain(seconds):
        waits.append(seconds)
        while not drained.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(server.http, "_drain", drain)
    with running(model=[f"operations={operations}"], drain_seconds=7) as service:
        kept = service.connect()
        kept.request("GET", "/health")
        first = kept.getresponse()
        assert first.read()
        assert not first.will_close
        service.stop()
        until(lambda: service.get("/health")[0] == 503)
        kept.request("GET", "/v1/models/operations")
        last = kept.getresponse()
        assert (last.status, last.will_close) == (200, True)
        last.read()
        status, _, headers = service.request("POST", OPERATIONS, SAME)
        assert (status, headers["connection"]) == (200, "close")
        assert service.request("GET", "/none")[2]["connection"] == "close"
        drained.set()
    assert waits == [7]
