"""Start and stop: nothing that was accepted is lost."""

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest

from kbert.doctor import usable_cores
from kbert.serve import Client, ServiceError, ServiceOptions, run, serve
from kbert.serve.service.server import PACKAGES, PACKAGES_OF_GRPC
from tests.processes import run_code, start_program
from tests.serve.harness import running
from tests.serve.service.test_http_service import connected, head
from tests.waiting import PATIENCE, until

BODY = {"signature_name": "same", "instances": ["a fox", "the sun"]}
PATH = "/v1/models/m:predict"


def test_a_stop_answers_what_was_accepted(operations, gate):
    gate.open.set()
    with running(model=[f"m={operations}"]) as service:
        gate.hold()
        with concurrent.futures.ThreadPoolExecutor(5) as pool, connected(service) as late:
            answers = [pool.submit(service.post, PATH, BODY) for _ in range(5)]
            gate.wait_for_run()
            until(lambda: service.metric("kbert_texts_total") == 10)
            late.sendall(head(PATH, 26)[:20])  # not accepted: it is not whole
            service.stop()

            def is_refused():
                with contextlib.suppress(OSError), connected(service):
                    return False
                return True

            until(is_refused)
            gate.open.set()
            found = [each.result() for each in answers]
        assert found == [(200, {"predictions": BODY["instances"]})] * 5


@pytest.mark.parametrize("package", [*PACKAGES, *PACKAGES_OF_GRPC])
def test_a_missing_extra_is_named_before_a_model_is_loaded(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    options = ServiceOptions(model=("m=nowhere",), port=0, grpc_port=0)
    with pytest.raises(ImportError, match=r"^kbert-serve needs the extra: .*kbert\[serve\]'"):
        asyncio.run(run(options, asyncio.Event(), print))


def test_what_is_small_is_sent_at_once(service, monkeypatch):
    """With Nagle's algorithm a body would wait for the acknowledgment of its head, 40 ms."""
    found = []
    accepted = asyncio.selector_events._SelectorSocketTransport.__init__

    def init(self, loop, sock, *args, **kwargs):
        accepted(self, loop, sock, *args, **kwargs)
        found.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "__init__", init)
    assert service.get("/health")[0] == 200
    assert found == [1]


@pytest.mark.slow
def test_a_process_of_its_own_computes_a_batch_on_each_core():
    code = """
import os
from kbert.serve import ServiceOptions
from kbert.serve.service.server import _share_cores
def found(**options):
    shared = _share_cores(ServiceOptions(model=["a=b"], **options))
    return shared.batch_threads, tf.config.threading.get_intra_op_parallelism_threads()
import tensorflow as tf
print([found(), found(batch_threads=3), found(intra_op_threads=0)])
tf.constant(0)
print(found(intra_op_threads=2))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    cores = int(usable_cores())
    assert run.stdout.splitlines() == [str([(cores, 1), (3, 1), (None, 0)]), "(None, 0)"]
    assert "TensorFlow has already started" in run.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux tells what is resident")
def test_the_memory_of_large_arrays_is_returned():
    """A retired version's weights, which TensorFlow's own pool would keep."""
    code = """
import os
from kbert.serve import ServiceOptions
from kbert.serve.service.server import _share_cores
import tensorflow as tf
_share_cores(ServiceOptions(model=["a=b"]))
def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
arrays = [tf.zeros((1024, 1024)) for _ in range(50)]  # 4 MB each
before = resident()
del arrays
print(before - resident())
"""
    assert 150 < float(run_code(code)) < 210


def test_beside_other_work_threads_are_those_of_the_process(operations, caplog):
    for threads, warns in ((1, False), (0, True)):
        caplog.clear()
        with running(model=[f"m={operations}"], intra_op_threads=threads):
            assert ("`intra_op_threads` is supported by kbert-serve" in caplog.text) is warns


def test_sigterm_stops_it(operations):
    """In this process, whose main thread it then has."""
    found = []

    def started(addresses):
        found.append(Client(addresses[0]).embed(["abc"]))
        os.kill(os.getpid(), signal.SIGTERM)

    options = ServiceOptions(model=[f"m={operations}"], port=0)
    # The event loop must not wait for its own answer.
    serve(options, lambda addresses: threading.Thread(target=started, args=[addresses]).start())
    assert found[0].shape == (1, 3)


@pytest.mark.slow
def test_the_program_serves_and_stops_at_sigterm(classifier):
    program = start_program(
        "serve", f"--model=reviews={classifier}", "--port=0", "--poll_seconds=0"
    )
    try:
        address = program.stdout.readline().strip()
        assert Client(address).predict("reviews", ["a fox"])[0]["label"] in ("no", "yes")
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE) == 0
    finally:
        program.kill()
        _, errors = program.communicate()
    assert "Traceback" not in errors


def test_https(operations, certificate):
    everyone, key = certificate
    options = {"tls_certificate": everyone, "tls_key": key}
    with running(model=[f"m={operations}"], **options) as service:
        assert service.address.startswith("https://127.0.0.1:")
        with Client(service.address, certificates=everyone) as client:
            np.testing.assert_array_equal(client.embed(["abc"]), [[3, -3, 1]])
        with pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED"):
            Client(service.address).embed(["abc"])
        context = ssl.create_default_context(cafile=everyone)
        with urllib.request.urlopen(f"{service.address}/health", context=context) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"token_file": "short"}, ValueError, "A token must be 8 to 4,096 .* Received: 5 bytes in"),
        ({"token_file": "none"}, FileNotFoundError, "none"),
        (
            {"tls_certificate": "short", "tls_key": "short"},
            ValueError,
            r"must be PEM files .*PEM.*Received: tls_certificate=.*short, tls_key=.*short",
        ),
        ({"host": "127.0.0.1", "port": "taken"}, OSError, r"The port cannot be opened \(.*in use"),
    ],
)
def test_what_cannot_start_says_why(operations, tmp_path, settings, error, message):
    (tmp_path / "short").write_text("short")
    with contextlib.closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        paths = {k: str(tmp_path / x) for k, x in settings.items() if isinstance(x, str)}
        paths |= {"host": "127.0.0.1"}
        paths |= {"port": other.getsockname()[1]} if "port" in settings else {}
        options = ServiceOptions(model=[f"m={operations}"], **paths)
        with pytest.raises(error, match=message):
            asyncio.run(run(options, asyncio.Event(), print))
