"""What the page's server answers, and what it refuses, whatever is sent."""

import json
import os
import re
import signal
import socket
import threading
import urllib.parse

import numpy as np
import pytest

import kbert
from kbert.serve.demo import DemoOptions, serve
from kbert.tasks import Task
from kbert.visualization import read_attention
from tests.serve.demo.conftest import running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.tensorflow
JSON = {"Content-Type": "application/json"}
PRETRAINED, CLASSIFIER, TAGGER, ANSWERER, EMBEDDER = range(5)
TEXT = "the red [MASK] jumps over the [MASK]"


def test_the_page_knows_what_each_model_can_do(demo):
    status, _, body = demo.send("GET", "/api/about")
    about = json.loads(body)
    assert status == 200
    assert [model["name"] for model in about["models"]] == [
        *("pretrained", "classifier", "tagger", "answerer", "embedder"),
    ]
    assert [model["abilities"] for model in about["models"]] == [
        ["fill_mask", "next_sentence", "attention"],
        ["predict", "explain", "attention"],
        ["predict", "attention"],
        ["predict", "explain", "attention"],
        ["attention", "nearest"],
    ]
    assert about["models"][CLASSIFIER]["columns"] == [["text"], ["first", "second"]]
    assert about["models"][TAGGER]["columns"] == [["text"]]
    assert about["models"][PRETRAINED]["mask"] == "[MASK]"
    assert re.fullmatch(
        r"Pretraining, 0\.0 M parameters, 2 layers, 4 heads, 16 wide",
        about["models"][PRETRAINED]["about"],
    )
    assert about["lines"] == 3  # the same line once, and none that is empty


def test_the_answers_are_those_of_the_tasks(demo, tasks):
    task = tasks["pretrained"]
    (wanted,) = task.predict([TEXT], top_k=8)
    status, found = demo.ask("fill_mask", text=TEXT)
    assert status == 200
    assert [[x["token"] for x in mask] for mask in found["masks"]] == wanted["tokens"]
    shares = [[x["probability"] for x in mask] for mask in found["masks"]]
    np.testing.assert_allclose(shares, wanted["probabilities"], atol=1e-5)
    assert demo.ask("fill_mask", text="no mask") == (200, {"masks": []})

    pair = ("the red fox", "she was old")
    (wanted,) = task.predict_next_sentence([pair])
    _, found = demo.ask("next_sentence", first=pair[0], second=pair[1])
    assert found["probability"] == pytest.approx(float(wanted), abs=1e-5)

    weights = read_attention(task, list(pair))["encoder"]
    _, found = demo.ask("attention", texts=list(pair))
    (part,) = found["parts"]
    assert (part["rows"], part["layers"], part["heads"]) == (weights.rows, 2, 4)


def test_fine_tuned_answers_are_those_of_the_tasks(demo, tasks):
    rows = {
        CLASSIFIER: ("classifier", {"first": "the red fox", "second": "a dog"}),
        TAGGER: ("tagger", {"text": "the red fox"}),
        ANSWERER: ("answerer", {"question": "who was it?", "context": "it was the old king."}),
    }
    for number, (name, row) in rows.items():
        table = {column: [value] for column, value in row.items()}
        (wanted,) = tasks[name].predict(table, verbose=0)
        status, found = demo.ask("predict", number, row=row)
        assert status == 200
        assert set(found["answer"]) == set(wanted)
        shown = next(x for x in ("label", "labels", "answer") if x in wanted)
        assert found["answer"][shown] == wanted[shown]


def test_scores_are_those_of_the_task(demo, tasks):
    rows = {
        CLASSIFIER: ("classifier", {"text": "the red fox"}),
        ANSWERER: ("answerer", {"question": "who was it?", "context": "it was the old king."}),
    }
    for number, (name, row) in rows.items():
        table = {column: [value] for column, value in row.items()}
        (wanted,) = kbert.attributions(tasks[name], table, verbose=0)
        status, found = demo.ask("explain", number, row=row)
        assert (status, found["tokens"], found["label"]) == (200, wanted.tokens, wanted.label)
        np.testing.assert_allclose(found["scores"], wanted.scores, atol=1e-5)
    status, found = demo.ask("explain", CLASSIFIER, row={"a": 1})
    assert (status, "text or first and second. Received: a" in found["error"]) == (400, True)


def test_the_nearest_lines(demo, presets, tasks, tmp_path):
    task = tasks["embedder"]
    lines = ["the red fox jumps", "a big old house", "the sun and the moon"]
    index = kbert.search.Index(task.predict(lines, verbose=0), lines)
    query = "the old house"
    (ids,), (scores,) = index.search(task.predict([query], verbose=0), k=8)
    _, found = demo.ask("nearest", EMBEDDER, text=query)
    assert [hit["text"] for hit in found["hits"]] == ids.tolist()
    np.testing.assert_allclose([hit["score"] for hit in found["hits"]], scores, atol=1e-5)

    # Without an embedder the first model's tokens make the vectors.
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    with running(preset=presets["classifier"], lines=str(path), most_lines=2) as other:
        _, found = other.ask("nearest", text=lines[1])
        texts = [hit["text"] for hit in found["hits"]]
        assert (len(texts), texts[0]) == (2, lines[1])


def test_an_encoder_alone_has_attention_and_vectors(presets, tmp_path):
    task = Task.from_preset(presets["embedder"])
    task.encoder.save_to_preset(tmp_path / "encoder")
    task.tokenizer.save(tmp_path / "encoder")
    path = tmp_path / "lines.txt"
    path.write_text("the red fox\na big house", encoding="utf-8")
    with running(preset=str(tmp_path / "encoder"), lines=str(path)) as demo:
        (model,) = json.loads(demo.send("GET", "/api/about")[2])["models"]
        assert (model["name"], model["abilities"]) == ("encoder", ["attention", "nearest"])
        assert demo.ask("nearest", text="a big house")[1]["hits"][0]["text"] == "a big house"


@pytest.mark.parametrize(
    ("ability", "row", "status", "rule"),
    [
        ("fill_mask", {}, 400, "'text' must be a text. Received: null"),
        ("fill_mask", {"text": 7}, 400, "'text' must be a text. Received: 7"),
        ("fill_mask", {"text": "é" * 501}, 400, "at most 1000 bytes. Received: 1002 in 'text'"),
        ("fill_mask", {"text": "\ud800"}, 400, "be JSON, in UTF-8. Received: no low sur"),
        ("fill_mask", {"text": "a", "model": 9}, 400, "a number from 0 to 4. Received: 9"),
        ("fill_mask", {"text": "a", "model": True}, 400, "a number from 0 to 4. Received: True"),
        ("fill_mask", {"text": "a", "model": 1}, 404, "are predict, explain, attention. Received"),
        ("nothing", {"text": "a"}, 404, "are fill_mask, next_sentence, attention. Received: 'n"),
        ("attention", {"texts": "a"}, 400, "'texts' must be a list of texts. Received: 'a'"),
        ("attention", {"texts": ["a"] * 3}, 400, "one pair of texts. Received: 3 texts"),
        ("attention", {"texts": ["a " * 70]}, 400, "max_positions=64. Received: 72 tokens"),
        ("attention", {"texts": ["a" * 600, "b" * 600]}, 400, "Received: 1200 in 'texts'"),
        ("fill_mask", {"text": "a " * 70 + "[MASK]"}, 400, "shorten the text. Received: text numb"),
        ("predict", {"model": 1, "row": "a"}, 400, "text or first and second. Received: 'a'"),
        ("predict", {"model": 1, "row": {"a": 1}}, 400, "Received: a"),
        ("predict", {"model": 1, "row": {"text": None}}, 400, "'text' must be a text. Received"),
    ],
)  # fmt: skip
def test_requests_that_are_refused(demo, ability, row, status, rule):
    found, answer = demo.ask(ability, **row)
    assert (found, list(answer)) == (status, ["error"])
    assert rule in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "rule"),
    [
        ("GET", "/../../etc/passwd", None, {}, 404, "page does not exist"),
        ("GET", "/%2e%2e/setup.py", None, {}, 404, "page does not exist"),
        ("GET", "//etc/passwd", None, {}, 404, "page does not exist"),
        ("GET", "/page/index.html", None, {}, 404, "page does not exist"),
        ("POST", "/other", "{}", JSON, 404, "Requests must be sent to /api/"),
        ("POST", "/api/fill_mask", "{}", {"Content-Type": "text/plain"}, 415, "Received: text/pla"),
        ("POST", "/api/fill_mask", "{", JSON, 400, "must be JSON"),
        ("POST", "/api/fill_mask", "[" * 3000, JSON, 400, "must be JSON"),
        ("POST", "/api/fill_mask", b"\xff", JSON, 400, "must be JSON"),
        ("POST", "/api/fill_mask", "[]", JSON, 400, "be a JSON object"),
        ("POST", "/api/fill_mask", " " * 4001, JSON, 413, "Received: 4001 or more"),
        ("GET", "/", None, {"Host": "elsewhere.example:80"}, 403, "must be local"),
        ("POST", "/api/fill_mask", "{}", {**JSON, "Host": "a.b"}, 403, "must be local"),
        ("DELETE", "/", None, {}, 405, "Method Not Allowed"),
    ],
)  # fmt: skip
def test_what_no_page_sends(demo, method, path, body, headers, status, rule):
    found, _, answer = demo.send(method, path, body, headers)
    assert found == status
    assert rule in json.loads(answer)["error"]


def test_the_page_and_its_files(demo):
    for path, kind in [
        ("/", "text/html"), ("/index.html?a=b", "text/html"), ("/page.js", "text/javascript"),
        ("/engine.js", "text/javascript"), ("/style.css", "text/css"),
        ("/attention_page.js", "text/javascript"), ("/attention_page.css", "text/css"),
    ]:  # fmt: skip
        status, headers, body = demo.send("GET", path)
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8"), path
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert body
        outside = re.findall(rb"https?://[^\s\"']+", body)
        assert not outside, f"{path} names {outside}"
    for host in ("localhost:8502", "127.0.0.1", "[::1]:8502", "LOCALHOST"):
        assert demo.send("GET", "/", headers={"Host": host})[0] == 200


def test_half_a_request_holds_nothing(demo):
    address = urllib.parse.urlsplit(demo.address)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(
            b"POST /api/fill_mask HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        )
        assert demo.ask("fill_mask", text="a")[0] == 200  # meanwhile
    assert demo.ask("fill_mask", text="a")[0] == 200


def test_more_than_may_wait_are_told_so(demo, monkeypatch):
    models = demo.demo.models
    begun, go = threading.Event(), threading.Event()

    def slow(request):
        begun.set()
        assert go.wait(PATIENCE)
        return {}

    monkeypatch.setitem(models._answers[0], "fill_mask", slow)
    monkeypatch.setattr(models, "_waiting", threading.BoundedSemaphore(1))
    answers = []
    first = threading.Thread(target=lambda: answers.append(demo.ask("fill_mask")))
    first.start()
    assert begun.wait(PATIENCE)
    status, headers, body = demo.send("POST", "/api/fill_mask", '{"model": 0}', JSON)
    assert (status, headers["Retry-After"]) == (503, "1")
    assert json.loads(body) == {"error": "Too many requests are waiting. Try again."}
    go.set()
    first.join(PATIENCE)
    assert answers == [(200, {})]


def test_what_fails_inside_is_not_told(demo, monkeypatch):
    def broken(request):
        raise KeyError("secret")

    monkeypatch.setitem(demo.demo.models._answers[0], "fill_mask", broken)
    assert demo.ask("fill_mask") == (
        500, {"error": "The demo failed; see what it printed."})  # fmt: skip


def test_it_serves_until_it_is_stopped(presets):
    """In this process, whose main thread it then has."""
    found = []

    def started(address):
        found.append(address)
        os.kill(os.getpid(), signal.SIGINT)

    serve(DemoOptions(preset=presets["embedder"], port=0), started)
    (address,) = found
    assert address.startswith("http://127.0.0.1:")
    with pytest.raises(ConnectionRefusedError):  # the port is free again
        socket.create_connection(("127.0.0.1", urllib.parse.urlsplit(address).port))


def test_what_does_not_start(demo, presets, tmp_path):
    taken = urllib.parse.urlsplit(demo.address).port
    given = {"preset": presets["pretrained"], "port": 0}

    def refused(error, rule, **changes):
        with pytest.raises(error, match=rule), running(**{**given, **changes}):
            pass

    refused(OSError, rf"cannot be opened .*Received: 127.0.0.1:{taken}", port=taken)
    refused(FileNotFoundError, "nowhere", preset=str(tmp_path / "nowhere"))
    (tmp_path / "none.txt").write_text("\n\n")
    lines = str(tmp_path / "none.txt")
    refused(ValueError, r"at least one line that is not empty. Received: .*none\.txt", lines=lines)
    refused(ValueError, r"at least one preset. Received: none", preset=())
