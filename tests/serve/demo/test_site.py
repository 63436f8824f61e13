"""The page as files: what is in them, what is refused, and that it answers in a browser alone."""

import base64
import hashlib
import http.server
import io
import json
import tarfile
import threading

import numpy as np
import pytest

import kbert
from kbert.export.folder import open_runtime
from kbert.serve.demo import site, write_site
from kbert.visualization import read_attention
from pipelines import demo
from tests.browser import chromium, needs_chromium
from tests.processes import ROOT

pytestmark = pytest.mark.tensorflow
RUNTIME = ROOT / "build" / site.RUNTIME


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A package that is taken for the runtime."""
    path = tmp_path / site.RUNTIME
    with tarfile.open(path, "w:gz") as package:
        for name in (*site._RUNTIME_FILES, "other.js"):
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(name)
            package.addfile(member, io.BytesIO(name.encode()))
    checksum = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    monkeypatch.setattr(site, "RUNTIME_SHA512", checksum)
    return path


def test_what_a_site_holds(presets, runtime, tmp_path):
    pytest.importorskip("tf2onnx")
    folder = write_site(tmp_path / "site", presets["pretrained"], runtime)
    names = {path.name for path in (tmp_path / "site").iterdir()}
    assert names == {
        *("index.html", "style.css", "page.js", "engine.js", "wordpiece.js", "site.json"),
        *("attention_page.css", "attention_page.js", "model.onnx", "export.json"),
        *site._RUNTIME_FILES,
    }
    for name in site._RUNTIME_FILES:
        assert (tmp_path / "site" / name).read_text() == name
    found = json.loads((tmp_path / "site" / "site.json").read_text("utf-8"))
    (model,) = found["about"]["models"]
    assert (model["name"], model["mask"]) == ("pretrained", "[MASK]")
    assert model["abilities"] == ["fill_mask", "next_sentence", "attention"]

    # Its model computes what the task answers.
    task = kbert.tasks.Pretraining.from_preset(presets["pretrained"])
    text = "the red [MASK] jumps"
    inputs = task.row_export(task).samples([text, text])[0]
    ids = np.array([[2, *task.tokenizer.encode("the red").numpy(), 4]])
    ids = np.concatenate([ids, [[*task.tokenizer.encode("jumps").numpy(), 3]]], 1)
    rows = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
        "mask_positions": np.array([[3]]),
    }
    assert set(rows) == set(inputs)
    outputs = open_runtime(folder)(rows)
    (wanted,) = task.predict([text], top_k=3)
    best = np.argsort(-outputs["probabilities"][0, 0])[:3]
    assert [task.tokenizer.vocabulary[i] for i in best] == wanted["tokens"][0]
    weights = read_attention(task, text)["encoder"].values
    np.testing.assert_allclose(outputs["attention"][0], weights, atol=1e-5)


def test_what_is_no_site(presets, runtime, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(ValueError, match=r"new or empty folder. Received: .*full"):
        write_site(tmp_path / "full", presets["pretrained"], runtime)
    with pytest.raises(ValueError, match=r"Pretraining\. Received: a TextClassifier"):
        write_site(tmp_path / "site", presets["classifier"], runtime)
    runtime.write_bytes(b"another")
    rule = (
        rf"The runtime must be npm's {site.RUNTIME}, with SHA-512 .*Received: '.*', with [\w+/]+=="
    )
    with pytest.raises(ValueError, match=rule):
        write_site(tmp_path / "site", presets["pretrained"], runtime)
    assert not (tmp_path / "site").exists()


def test_a_tokenizer_that_javascript_has_not(presets, runtime, tmp_path, tiny_vocabulary):
    task = kbert.tasks.Pretraining.from_preset(presets["pretrained"])
    for name, settings in (
        ("special", {"special_tokens_in_text": True}),
        ("added", {"added_tokens": [tiny_vocabulary[-1]]}),
    ):
        tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary, **settings)
        kbert.tasks.Pretraining(task.encoder, tokenizer).save_to_preset(tmp_path / name)
        with pytest.raises(ValueError, match="without special or added tokens in texts"):
            write_site(tmp_path / "site", tmp_path / name, runtime)


def test_one_version_of_the_runtime_is_named():
    name, _, version = site.RUNTIME.removesuffix(".tgz").rpartition("-")
    makefile = (ROOT / "Makefile").read_text()
    assert f"RUNTIME := {name}\nRUNTIME_VERSION := {version}\n" in makefile
    assert f"npm pack {name}@{version}" in demo.__doc__
    assert site.RUNTIME in demo.__doc__


@needs_chromium
@pytest.mark.skipif(not RUNTIME.exists(), reason="needs what `make demo` has fetched into build/")
def test_it_answers_without_a_program_behind_it(presets, tmp_path):
    pytest.importorskip("tf2onnx")
    folder = write_site(tmp_path / "site", presets["pretrained"], RUNTIME)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=folder)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    task = kbert.tasks.Pretraining.from_preset(presets["pretrained"])
    try:
        with chromium() as browser:
            browser.open(address)
            browser.wait("return document.querySelector('#tabs [role=tab]')")
            text = "The RED fóx [MASK] over the [MASK]!"
            browser.type("#fill_mask-text", text)
            (wanted,) = task.predict([text], top_k=8)
            shown = "return [...document.querySelectorAll('ol.bars')].map(list => "
            shown += "[...list.querySelectorAll('.name')].map(name => name.innerText))"
            browser.wait(
                f"return JSON.stringify((() => {{ {shown} }})()) === arguments[0]",
                json.dumps(wanted["tokens"], separators=(",", ":")),
            )
            browser.click("#tab-next_sentence")
            pair = ("the red fox", "she was old")
            browser.type("#next_sentence-first", pair[0])
            browser.type("#next_sentence-second", pair[1])
            (share,) = task.predict_next_sentence([pair])
            browser.wait_for_text("#panel-next_sentence .percent", f"{100 * share:.1f} %")
            browser.click("#tab-attention")
            browser.type("#attention-first", "the red fox")
            browser.wait_for_text("#panel-attention .kbert-attention", "[CLS]")
            assert browser.run("return document.querySelectorAll('.panels canvas').length") == 8
            assert browser.messages() == []
            assert all(found.startswith((address, "data:")) for found in browser.requests())
    finally:
        server.shutdown()
        server.server_close()
