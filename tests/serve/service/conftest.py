"""One service for the tests of the room, and the folders that it serves."""

import subprocess
import threading

import pytest

from kbert.serve.service.loaded import Entry
from tests.serve.harness import export_classifier, export_operations, running
from tests.waiting import PATIENCE, until


@pytest.fixture(scope="session")
def classifier(tmp_path_factory, tiny_vocabulary) -> str:
    """The version folder of a tiny classifier."""
    return export_classifier(tmp_path_factory.mktemp("classifier"), tiny_vocabulary)


@pytest.fixture(scope="session")
def operations(tmp_path_factory) -> str:
    """The version folder of signatures of all sorts."""
    return export_operations(tmp_path_factory.mktemp("operations"))


@pytest.fixture(scope="session")
def service(classifier, operations):
    """Both of them, within small limits."""
    models = [f"reviews={classifier}", f"operations={operations}"]
    limits = {"max_texts": 16, "max_text_bytes": 1000, "max_body_bytes": 20_000}
    with running(model=models, **limits, grpc_port=0) as found:
        yield found


@pytest.fixture(scope="session")
def certificate(tmp_path_factory) -> tuple[str, str]:
    """Certificate and key of 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    out = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "all.pem")]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-days", "2", *kind, *names, *out],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(folder / "all.pem"), str(folder / "key.pem")


class Gate:
    """Holds every run of a model back until it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.runs: list[int] = []  # the rows of each

    def hold(self) -> None:
        """From now on; what ran so far, such as the first run of a model's load, is forgotten."""
        self.open.clear()
        self.runs.clear()

    def wait_for_run(self) -> None:
        until(lambda: self.runs, "a run")


@pytest.fixture
def gate(monkeypatch):
    """Runs of the models of this process wait for it."""
    gate, run = Gate(), Entry.run

    def slow(self, inputs, stop=None):
        gate.runs.append(max(map(len, inputs.values())))
        assert gate.open.wait(PATIENCE)
        return run(self, inputs, stop)

    monkeypatch.setattr(Entry, "run", slow)
    yield gate
    gate.open.set()
