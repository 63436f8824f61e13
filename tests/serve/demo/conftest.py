"""Tiny models of three kinds, and one demo that shows them."""

import contextlib
import http.client
import json
import urllib.parse

import pytest

import kbert
from kbert.serve.demo import DemoOptions
from kbert.serve.demo.server import Demo
from kbert.serve.http.background import InThread
from kbert.serve.http.server import run
from tests.harness import randomise, tiny_config
from tests.waiting import PATIENCE

LINES = ["the red fox jumps", "a big old house", "the sun and the moon", "the red fox jumps", ""]


@pytest.fixture(scope="session")
def presets(tmp_path_factory, tiny_vocabulary) -> dict[str, str]:
    """Name -> folder: a pretrained model, a classifier, a tagger, an answerer, an embedder."""
    folder = tmp_path_factory.mktemp("presets")
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    kinds = {
        "pretrained": (kbert.tasks.Pretraining, {}),
        "classifier": (kbert.tasks.TextClassifier, {"labels": ["no", "yes"]}),
        "tagger": (kbert.tasks.TokenClassifier, {"labels": ["O", "B-name", "I-name"]}),
        "answerer": (kbert.tasks.QuestionAnswerer, {}),
        "embedder": (kbert.tasks.TextEmbedder, {}),
    }
    for name, (kind, settings) in kinds.items():
        task = kind(kbert.Encoder(config), tokenizer, **settings)
        randomise(task)
        task.save_to_preset(folder / name)
    return {name: str(folder / name) for name in kinds}


class Running:
    """A demo that serves in a thread."""

    def __init__(self, demo: Demo, address: str) -> None:
        self.demo, self.address = demo, address

    def send(self, method, path, body=None, headers=None):
        """Status, headers, and the body's bytes."""
        address = urllib.parse.urlsplit(self.address)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def ask(self, ability, model=0, **row):
        body = json.dumps({"model": model, **row})
        status, _, found = self.send(
            "POST", f"/api/{ability}", body, {"Content-Type": "application/json"}
        )
        return status, json.loads(found)


@contextlib.contextmanager
def running(**options):
    demo = Demo(DemoOptions(**{"port": 0, **options}))
    with InThread(lambda stop, started: run(demo, stop, started), PATIENCE) as server:
        yield Running(demo, *server.addresses)


@pytest.fixture(scope="session")
def tasks(demo, presets):
    """The demo's own tasks by name: what they have traced is not traced again."""
    return dict(zip(presets, demo.demo.models._tasks, strict=True))


@pytest.fixture(scope="session")
def demo(presets, tmp_path_factory):
    """All of them, and lines to find."""
    lines = tmp_path_factory.mktemp("lines") / "lines.txt"
    lines.write_text("\n".join(LINES), encoding="utf-8")
    limits = {"max_body_bytes": 4000, "max_text_bytes": 1000, "timeout_seconds": PATIENCE}
    with running(preset=list(presets.values()), lines=str(lines), **limits) as found:
        yield found
